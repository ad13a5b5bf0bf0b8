"""The settings of a server from a TOML file: a section for the engine, for its limits, its files, the HTTP edge."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from callsheet.catalog.lines import line_of, lines_of
from callsheet.catalog.shapes import Fault, faults
from callsheet.catalog.sheets import Finding, table_of
from callsheet.cli.output import Failure
from callsheet.config import BlobSettings, HttpSettings, Settings
from callsheet.core.limits import Limits
from callsheet.core.rates import HOW_TO_WRITE, rate_of

_AT_LEAST_ONE = frozenset({
    ("engine", "lanes"), ("engine", "readers"), ("engine", "log_files_max"), ("http", "page_max"),
    ("http", "beats_per_second_max"),
})  # fmt: skip

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
    found = list(_faults(table))
    if found:
        said = sorted((line_of(lines, fault.place), f"{fault.what} {fault.do}") for fault in found)
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
                least = int((section, name) in _AT_LEAST_ONE)
                if isinstance(number, int | float) and number < least:
                    yield Fault((section, name), f"{section}.{name} is {number}.", f"Write a number from {least}.")
