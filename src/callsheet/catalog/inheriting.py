"""Workflows that extend others: what a file does not say it takes from the one it extends.

It is settled when files are read: what a server keeps is whole.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from callsheet.catalog.shapes import Fault
from callsheet.catalog.sheets import Finding, Sheet, sheet_of

EXTENDS, OVERRIDES = "extends", "overrides"
_OWN = frozenset({"name", "enabled", EXTENDS, OVERRIDES})
"""What is never taken from another: its name, whether it is switched off, what it extends."""
_JOINED = frozenset({"retry", "refunds"})
"""Tables of which single fields are taken; every other field is taken whole or not at all."""


class Whole(NamedTuple):
    """A file, its table with what it takes from others, and what is wrong with that."""

    sheet: Sheet | None
    table: dict[str, Any]
    findings: list[Finding]


class Shelf:
    """Files, each read once, and those beside them that they extend."""

    def __init__(self, files: list[Path], faults: Callable[[dict[str, Any]], Iterable[Fault]]) -> None:
        self._files = files
        self._faults = faults
        self._read: dict[Path, Sheet | Finding] = {}
        self.wholes: dict[Path, Whole] = {}

    def whole(self, file: Path, trail: tuple[Path, ...] = ()) -> Whole:
        """Return a file with what it takes from others."""
        if file not in self.wholes:
            self.wholes[file] = self._settled(file, (*trail, file))
        return self.wholes[file]

    def _settled(self, file: Path, trail: tuple[Path, ...]) -> Whole:
        sheet = self._sheet(file)
        if isinstance(sheet, Finding):
            return Whole(None, {}, [sheet])
        table, found = sheet.table, list(sheet.findings)
        base = table.get(EXTENDS)
        if isinstance(base, str):
            parent = self._parent(sheet, base, trail)
            if isinstance(parent, Fault):
                return Whole(sheet, table, [*found, sheet.finding(parent)])
            table = joined(table, parent.table)
        faults = list(overridden(table)) if isinstance(table.get(OVERRIDES), dict) else []
        found += [sheet.finding(fault) for fault in (*faults, *self._faults(table))]
        return Whole(sheet, table, sorted(found, key=lambda finding: finding.line))

    def _sheet(self, file: Path) -> Sheet | Finding:
        if file not in self._read:
            self._read[file] = sheet_of(file)
        return self._read[file]

    def _parent(self, sheet: Sheet, base: str, trail: tuple[Path, ...]) -> Whole | Fault:
        known = self._names(sheet.file)
        if base not in known:
            close = difflib.get_close_matches(base, list(known), 1, 0.6)
            do = f"Did you mean {close[0]!r}?" if close else "It is a .toml file in the same folder."
            return Fault((EXTENDS,), f"There is no workflow {base!r} to extend.", do)
        if known[base] in trail:
            circle = " → ".join(file.name for file in (*trail[trail.index(known[base]) :], known[base]))
            return Fault((EXTENDS,), f"Workflows extend each other in a circle: {circle}.", "Let one extend none.")
        parent = self.whole(known[base], trail)
        if parent.findings:
            return Fault((EXTENDS,), f"{known[base].name}, which this extends, is not sound.", "Correct that first.")
        return parent

    def _names(self, file: Path) -> dict[str, Path]:
        """Return what a file may extend by its name: the files of this look, and those in its folder."""
        found: dict[str, Path] = {}
        for one in (*self._files, *sorted(file.parent.glob("*.toml"))):
            sheet = self._sheet(one)
            if isinstance(sheet, Sheet) and isinstance(sheet.table["name"], str):
                found.setdefault(sheet.table["name"], one)
        return found


def joined(own: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return a table with what it does not say from another."""
    table = {name: deepcopy(value) for name, value in base.items() if name not in _OWN}
    for name, value in own.items():
        table[name] = _fields(value, table.get(name)) if name in _JOINED else value
    return table


def _fields(own: Any, base: Any) -> Any:
    if not (isinstance(own, dict) and isinstance(base, dict)):
        return own
    return base | {name: _fields(value, base.get(name)) for name, value in own.items()}


def overridden(table: dict[str, Any]) -> Iterator[Fault]:
    """Hand a table's overrides to the stages whose graphs have such inputs."""
    if EXTENDS not in table:
        yield Fault((OVERRIDES,), "Only a workflow that extends another overrides values.", "Write defaults instead.")
        return
    stages = table.get("stages")
    specs = [one.get("comfyui") for one in stages if isinstance(one, dict)] if isinstance(stages, list) else []
    graphs = [spec for spec in specs if isinstance(spec, dict) and isinstance(spec.get("inputs"), dict)]
    for name, value in table[OVERRIDES].items():
        taking = [spec for spec in graphs if name in spec["inputs"]]
        for spec in taking:
            spec[OVERRIDES] = {**(spec.get(OVERRIDES) or {}), name: value}
        if not taking:
            known = sorted({one for spec in graphs for one in spec["inputs"]})
            do = f"Known are {', '.join(known)}." if known else "Its stages have no graph with inputs."
            yield Fault((OVERRIDES, name), f"No graph has an input {name!r}.", do)
