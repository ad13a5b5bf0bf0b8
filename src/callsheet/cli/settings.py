"""The settings of a server from a TOML file: a section for the engine, for its limits, its files, the HTTP edge."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from callsheet.blobs.base import StorageRefused
from callsheet.blobs.opening import place_of
from callsheet.catalog.lines import line_of, lines_of
from callsheet.catalog.shapes import Fault, faults
from callsheet.catalog.sheets import Finding, table_of
from callsheet.cli.output import Failure
from callsheet.config import BlobSettings, HttpSettings, Settings
from callsheet.core.limits import Limits
from callsheet.core.rates import HOW_TO_WRITE, rate_of
from callsheet.http.cors import Cors

_MAY_BE_ZERO = frozenset({
    ("engine", "patience_seconds"), ("limits", "active_jobs_max"),
    ("limits", "keep_seconds_max"), ("limits", "kind_running_max"), ("limits", "labels_max"),
    ("limits", "price_max"), ("limits", "provider_running_max"), ("limits", "schedule_seconds_max"),
    ("limits", "upload_keep_seconds"), ("blobs", "orphan_grace_seconds"), ("blobs", "orphan_seconds"),
    ("http", "estimate_seconds"), ("http", "stop_seconds"), ("http", "streams_max"),
    ("http", "streams_per_key_max"), ("http", "streams_per_user_max"),
})  # fmt: skip
"""Where 0 says never, none or at once; anywhere else it would stop the house, or let it turn without a rest."""
_LEAST_SECONDS = 0.1
_RATES = frozenset({"kind_rate_max", "provider_rate_max"})


class Sections(Struct, frozen=True, kw_only=True):
    """What may be in the file."""

    engine: Settings = Settings()
    limits: Limits = Limits()
    blobs: BlobSettings = BlobSettings()
    http: HttpSettings = HttpSettings()


def settings_of(file: Path | None) -> tuple[Settings, HttpSettings]:
    """Read a file, or take what holds without one; everything that is wrong is said at once, by its line and name."""
    if file is None:
        return Settings(), HttpSettings()
    read = table_of(file)
    if isinstance(read, Finding):
        raise Failure(str(read))
    table, lines = read[0], lines_of(read[1])
    found = list(_faults(table)) or list(_unusable(msgspec.convert(table, Sections)))
    if found:
        said = sorted((line_of(lines, fault.place), f"{fault.what} {fault.do}".rstrip()) for fault in found)
        raise Failure("\n".join(f"{file}:{line}: {sentence}" for line, sentence in said))
    sections = msgspec.convert(table, Sections)
    return replace(sections.engine, limits=sections.limits, blobs=sections.blobs), sections.http


def _faults(table: dict[str, Any]) -> Iterator[Fault]:
    yield from faults(table, Sections, ())
    for section, fields in table.items():
        for name, value in fields.items() if isinstance(fields, dict) else ():
            if section == "engine" and name in {"limits", "blobs"}:
                yield Fault((section, name), f"The {name} have a section of their own.", f"Write [{name}].")
            for number in value.values() if isinstance(value, dict) else (value,):
                if name in _RATES and isinstance(number, str) and rate_of(number) is None:
                    yield Fault((section, name), f"{section}.{name} has {number!r}.", HOW_TO_WRITE)
                least = least_of(section, name)
                if least is not None and type(number) in {int, float} and number < least:
                    yield Fault((section, name), f"{section}.{name} is {number}.", f"Write a number from {least}.")


def least_of(section: str, name: str) -> float | None:
    """Return the least that a setting may be, if it is a number or a table of them; parts of seconds are a tenth."""
    usual = getattr(getattr(Sections(), section, None), name, None)
    if isinstance(usual, bool) or not isinstance(usual, int | float | dict) or name in _RATES:
        return None
    if (section, name) in _MAY_BE_ZERO:
        return 0
    return _LEAST_SECONDS if isinstance(usual, float) and "_seconds" in name else 1


def _unusable(sections: Sections) -> Iterator[Fault]:
    """Find values of the right type that a server could not start with, by the rules of those who use them."""
    for no, origin in enumerate(sections.http.cors_origins):
        try:
            Cors([origin])
        except ValueError as error:
            yield Fault(("http", "cors_origins", no), f"http.{error}", "")
    verify = sections.http.worker_verify_url
    if verify and not verify.startswith(("http://", "https://")):
        yield Fault(("http", "worker_verify_url"), "http.worker_verify_url is not an address.", "Write https://….")
    try:
        place_of(sections.blobs, sections.limits.file_bytes_max)
    except StorageRefused as error:
        yield Fault(tuple(str(error).split(maxsplit=1)[0].split(".")), str(error), "")
