"""Workflows that extend others: what a file does not say it takes from the one it extends.

It is settled when files are read: what a server keeps is whole.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from callsheet.catalog.source_file import Finding, SourceFile, read_source_file
from callsheet.catalog.struct_check import Violation

EXTENDS, OVERRIDES = "extends", "overrides"
_NEVER_INHERITED = frozenset({"name", "enabled", EXTENDS, OVERRIDES})
"""What is never taken from another: its name, whether it is switched off, what it extends."""
_MERGED_TABLES = frozenset({"retry", "refunds"})
"""Tables of which single fields are taken; every other field is taken whole or not at all."""


class ResolvedFile(NamedTuple):
    """A file, its table with what it takes from others, and what is wrong with that."""

    source_file: SourceFile | None
    table: dict[str, Any]
    findings: list[Finding]


class ExtendsResolver:
    """Files, each read once, and those beside them that they extend."""

    def __init__(self, files: list[Path], find_violations: Callable[[dict[str, Any]], Iterable[Violation]]) -> None:
        self._files = files
        self._find_violations = find_violations
        self._read: dict[Path, SourceFile | Finding] = {}
        self.resolved_files: dict[Path, ResolvedFile] = {}

    def resolve(self, file: Path, trail: tuple[Path, ...] = ()) -> ResolvedFile:
        """Return a file with what it takes from others."""
        if file not in self.resolved_files:
            self.resolved_files[file] = self._resolve(file, (*trail, file))
        return self.resolved_files[file]

    def _resolve(self, file: Path, trail: tuple[Path, ...]) -> ResolvedFile:
        source_file = self._read_source(file)
        if isinstance(source_file, Finding):
            return ResolvedFile(None, {}, [source_file])
        table, found = source_file.table, list(source_file.findings)
        parent_name = table.get(EXTENDS)
        if isinstance(parent_name, str):
            parent = self._find_parent(source_file, parent_name, trail)
            if isinstance(parent, Violation):
                return ResolvedFile(source_file, table, [*found, source_file.finding(parent)])
            table = merge_tables(table, parent.table)
        find_violations = list(apply_overrides(table)) if isinstance(table.get(OVERRIDES), dict) else []
        found += [source_file.finding(violation) for violation in (*find_violations, *self._find_violations(table))]
        return ResolvedFile(source_file, table, sorted(found, key=lambda finding: finding.line))

    def _read_source(self, file: Path) -> SourceFile | Finding:
        if file not in self._read:
            self._read[file] = read_source_file(file)
        return self._read[file]

    def _find_parent(
        self, source_file: SourceFile, parent_name: str, trail: tuple[Path, ...]
    ) -> ResolvedFile | Violation:
        known_files = self._extendable_files(source_file.file)
        if parent_name not in known_files:
            close = difflib.get_close_matches(parent_name, list(known_files), 1, 0.6)
            hint = f"Did you mean {close[0]!r}?" if close else "It is a .toml file in the same folder."
            return Violation((EXTENDS,), f"There is no workflow {parent_name!r} to extend.", hint)
        if known_files[parent_name] in trail:
            cycle = " → ".join(
                file.name for file in (*trail[trail.index(known_files[parent_name]) :], known_files[parent_name])
            )
            return Violation((EXTENDS,), f"Workflows extend each other in a circle: {cycle}.", "Let one extend none.")
        parent = self.resolve(known_files[parent_name], trail)
        if parent.findings:
            return Violation(
                (EXTENDS,), f"{known_files[parent_name].name}, which this extends, is not sound.", "Correct that first."
            )
        return parent

    def _extendable_files(self, file: Path) -> dict[str, Path]:
        """Return what a file may extend by its name: the files of this look, and those in its folder."""
        found: dict[str, Path] = {}
        for one in (*self._files, *sorted(file.parent.glob("*.toml"))):
            source_file = self._read_source(one)
            if isinstance(source_file, SourceFile) and isinstance(source_file.table["name"], str):
                found.setdefault(source_file.table["name"], one)
        return found


def merge_tables(own: dict[str, Any], parent_name: dict[str, Any]) -> dict[str, Any]:
    """Return a table with what it does not say from another."""
    table = {name: deepcopy(value) for name, value in parent_name.items() if name not in _NEVER_INHERITED}
    for name, value in own.items():
        table[name] = _merge_fields(value, table.get(name)) if name in _MERGED_TABLES else value
    return table


def _merge_fields(own: Any, parent_name: Any) -> Any:
    if not (isinstance(own, dict) and isinstance(parent_name, dict)):
        return own
    return parent_name | {name: _merge_fields(value, parent_name.get(name)) for name, value in own.items()}


def apply_overrides(table: dict[str, Any]) -> Iterator[Violation]:
    """Hand a table's overrides to the stages whose graphs have such inputs."""
    if EXTENDS not in table:
        yield Violation(
            (OVERRIDES,), "Only a workflow that extends another overrides values.", "Write defaults instead."
        )
        return
    stages = table.get("stages")
    specs = [one.get("comfyui") for one in stages if isinstance(one, dict)] if isinstance(stages, list) else []
    graphs = [spec for spec in specs if isinstance(spec, dict) and isinstance(spec.get("inputs"), dict)]
    for name, value in table[OVERRIDES].items():
        specs_with_input = [spec for spec in graphs if name in spec["inputs"]]
        for spec in specs_with_input:
            spec[OVERRIDES] = {**(spec.get(OVERRIDES) or {}), name: value}
        if not specs_with_input:
            known_files = sorted({one for spec in graphs for one in spec["inputs"]})
            hint = f"Known are {', '.join(known_files)}." if known_files else "Its stages have no graph with inputs."
            yield Violation((OVERRIDES, name), f"No graph has an input {name!r}.", hint)
