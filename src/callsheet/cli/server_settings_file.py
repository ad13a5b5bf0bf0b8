"""Read server settings from a TOML file with the sections engine, limits, blobs, http and plugins."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from callsheet.blobs.base import StorageRefusedError
from callsheet.blobs.factory import parse_blob_location
from callsheet.catalog.field_violations import Violation, find_violations
from callsheet.catalog.toml_positions import find_line, map_lines
from callsheet.catalog.workflow_file_reader import Finding, read_toml
from callsheet.cli.output import Failure
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.rate_syntax import RATE_FORMAT_HELP, parse_rate
from callsheet.http.listener.connection_limits import parse_network
from callsheet.http.listener.host_check import parse_allowed_host
from callsheet.http.server.cors import Cors
from callsheet.settings import BlobSettings, HttpSettings, PluginSettings, Settings

_ZERO_ALLOWED = frozenset({
    ("engine", "database_retry_seconds"), ("engine", "database_start_seconds"),
    ("limits", "retention_seconds_max"), ("limits", "kind_running_max"), ("limits", "labels_max"),
    ("limits", "price_max"), ("limits", "provider_running_max"), ("limits", "start_in_seconds_max"),
    ("limits", "storage_bytes_max"), ("limits", "log_bytes_per_job_max"), ("limits", "progress_events_per_job_max"),
    ("blobs", "orphan_grace_seconds"),
    ("http", "estimate_cache_seconds"), ("http", "shutdown_timeout_seconds"), ("http", "streams_max"),
    ("http", "streams_per_key_max"), ("http", "streams_per_user_max"),
})  # fmt: skip
"""Settings that may be 0, meaning never, none or immediately. For the others, 0 would break the server."""
_OPTIONAL_LIMITS = frozenset({("limits", "active_jobs_max"), ("limits", "upload_retention_seconds")})
"""Limits that are absent by default, which means no limit."""
_SECONDS_MIN = 0.1
_RATES = frozenset({"kind_rate_max", "provider_rate_max"})
_TABLES_OF_TEXTS = _RATES | {"providers"}


class ConfigFile(Struct, frozen=True, kw_only=True):
    """The sections of the file."""

    engine: Settings = Settings()
    limits: Limits = Limits()
    blobs: BlobSettings = BlobSettings()
    http: HttpSettings = HttpSettings()
    plugins: PluginSettings = PluginSettings()


def load_settings(file: Path | None) -> tuple[Settings, HttpSettings]:
    """Read a settings file, or return the defaults without one. A failure lists every error with its line and name."""
    if file is None:
        return Settings(), HttpSettings()
    parsed = read_toml(file)
    if isinstance(parsed, Finding):
        raise Failure(str(parsed))
    table, lines = parsed[0], map_lines(parsed[1])
    violations = list(_validation_errors(table)) or list(_unusable_values(msgspec.convert(table, ConfigFile)))
    if violations:
        messages = sorted(
            (find_line(lines, violation.key_path), f"{violation.message} {violation.hint}".rstrip())
            for violation in violations
        )
        raise Failure("\n".join(f"{file}:{line}: {sentence}" for line, sentence in messages))
    sections = msgspec.convert(table, ConfigFile)
    return replace(
        sections.engine, limits=sections.limits, blobs=sections.blobs, plugins=sections.plugins
    ), sections.http


def _validation_errors(table: dict[str, Any]) -> Iterator[Violation]:
    yield from find_violations(table, ConfigFile, ())
    for section, fields in table.items():
        for name, value in fields.items() if isinstance(fields, dict) else ():
            if section == "engine" and name in {"limits", "blobs", "plugins"}:
                yield Violation((section, name), f"The {name} settings have their own section.", f"Write [{name}].")
            for number in value.values() if isinstance(value, dict) else (value,):
                if name in _RATES and isinstance(number, str) and parse_rate(number) is None:
                    yield Violation((section, name), f"{section}.{name} has {number!r}.", RATE_FORMAT_HELP)
                minimum = minimum_of(section, name)
                if minimum is not None and type(number) in {int, float} and number < minimum:
                    yield Violation(
                        (section, name), f"{section}.{name} is {number}.", f"Write a number from {minimum}."
                    )


def minimum_of(section: str, name: str) -> float | None:
    """Return the minimum of a setting that is a number or a table of numbers; None for any other setting."""
    default = getattr(getattr(ConfigFile(), section, None), name, None)
    if (section, name) in _OPTIONAL_LIMITS:
        return 0
    if isinstance(default, bool) or not isinstance(default, int | float | dict) or name in _TABLES_OF_TEXTS:
        return None
    if (section, name) in _ZERO_ALLOWED:
        return 0
    return _SECONDS_MIN if isinstance(default, float) and "_seconds" in name else 1


def _unusable_values(sections: ConfigFile) -> Iterator[Violation]:
    """Yield values of the right type with which the server could not start, according to the code that uses them."""
    parsers: dict[str, Callable[[str], object]] = {
        "allowed_hosts": parse_allowed_host,
        "cors_origins": lambda origin: Cors([origin]),
        "proxy_addresses": parse_network,
    }
    for name, parse in parsers.items():
        for number, text in enumerate(getattr(sections.http, name)):
            try:
                parse(text)
            except ValueError as error:
                yield Violation(("http", name, number), f"http.{error}", "")
    verify = sections.http.worker_verify_url
    if verify and not verify.startswith(("http://", "https://")):
        yield Violation(("http", "worker_verify_url"), "http.worker_verify_url is not a URL.", "Write https://….")
    try:
        parse_blob_location(sections.blobs, sections.limits.file_bytes_max)
    except StorageRefusedError as error:
        yield Violation(tuple(str(error).split(maxsplit=1)[0].split(".")), str(error), "")
