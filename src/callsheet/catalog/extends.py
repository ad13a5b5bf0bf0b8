"""Workflow files that extend others: a file inherits the fields that it does not set.

Inheritance is resolved when the files are read. Servers store complete definitions.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from callsheet.catalog.field_violations import Violation
from callsheet.catalog.workflow_file_reader import Finding, SourceFile, read_source_file

EXTENDS, OVERRIDES = "extends", "overrides"
_NEVER_INHERITED = frozenset({"name", "enabled", EXTENDS, OVERRIDES})
"""Fields that are never inherited."""
_MERGED_TABLES = frozenset({"retry", "refunds"})
"""Tables that are merged field by field. Other fields are inherited as a whole."""


class ResolvedFile(NamedTuple):
    """A file, its table with the inherited fields, and the findings about it."""

    source_file: SourceFile | None
    table: dict[str, Any]
    findings: list[Finding]


class ExtendsResolver:
    """Reads workflow files, each once, and adds the fields that they inherit."""

    def __init__(self, files: list[Path], find_violations: Callable[[dict[str, Any]], Iterable[Violation]]) -> None:
        self._files = files
        self._find_violations = find_violations
        self._read: dict[Path, SourceFile | Finding] = {}
        self.resolved_files: dict[Path, ResolvedFile] = {}

    def resolve(self, file: Path, trail: tuple[Path, ...] = ()) -> ResolvedFile:
        """Return a file with its inherited fields. `trail` has the files that extend it, to detect cycles."""
        if file not in self.resolved_files:
            self.resolved_files[file] = self._resolve(file, (*trail, file))
        return self.resolved_files[file]

    def _resolve(self, file: Path, trail: tuple[Path, ...]) -> ResolvedFile:
        source_file = self._read_source(file)
        if isinstance(source_file, Finding):
            return ResolvedFile(None, {}, [source_file])
        table, findings = source_file.table, list(source_file.findings)
        parent_name = table.get(EXTENDS)
        if isinstance(parent_name, str):
            parent = self._find_parent(source_file, parent_name, trail)
            if isinstance(parent, Violation):
                return ResolvedFile(source_file, table, [*findings, source_file.finding(parent)])
            table = merge_tables(table, parent.table)
        violations = list(apply_overrides(table)) if isinstance(table.get(OVERRIDES), dict) else []
        violations += self._find_violations(table)
        findings += [source_file.finding(violation) for violation in violations]
        return ResolvedFile(source_file, table, sorted(findings, key=lambda finding: finding.line))

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
            hint = f"Did you mean {close[0]!r}?" if close else "Name a workflow of a .toml file in the same folder."
            return Violation((EXTENDS,), f"There is no workflow {parent_name!r} to extend.", hint)
        if known_files[parent_name] in trail:
            cycle = " → ".join(
                file.name for file in (*trail[trail.index(known_files[parent_name]) :], known_files[parent_name])
            )
            return Violation(
                (EXTENDS,), f"Workflows extend each other in a circle: {cycle}.", "Remove extends from one of them."
            )
        parent = self.resolve(known_files[parent_name], trail)
        if parent.findings:
            return Violation(
                (EXTENDS,), f"{known_files[parent_name].name}, which this extends, is not valid.", "Correct it first."
            )
        return parent

    def _extendable_files(self, file: Path) -> dict[str, Path]:
        """Return the files that a file may extend, by workflow name: the files to check, and those in its folder."""
        files: dict[str, Path] = {}
        for candidate in (*self._files, *sorted(file.parent.glob("*.toml"))):
            source_file = self._read_source(candidate)
            if isinstance(source_file, SourceFile) and isinstance(source_file.table["name"], str):
                files.setdefault(source_file.table["name"], candidate)
        return files


def merge_tables(own: dict[str, Any], parent: dict[str, Any]) -> dict[str, Any]:
    """Return a table with the fields that it inherits from its parent."""
    table = {name: deepcopy(value) for name, value in parent.items() if name not in _NEVER_INHERITED}
    for name, value in own.items():
        table[name] = _merge_fields(value, table.get(name)) if name in _MERGED_TABLES else value
    return table


def _merge_fields(own: Any, parent: Any) -> Any:
    if not (isinstance(own, dict) and isinstance(parent, dict)):
        return own
    return parent | {name: _merge_fields(value, parent.get(name)) for name, value in own.items()}


def apply_overrides(table: dict[str, Any]) -> Iterator[Violation]:
    """Copy the overrides of a table to the stages whose graphs have these inputs."""
    if EXTENDS not in table:
        yield Violation(
            (OVERRIDES,), "Only a workflow that extends another can have overrides.", "Write defaults instead."
        )
        return
    stages = table.get("stages")
    specs = [stage.get("comfyui") for stage in stages if isinstance(stage, dict)] if isinstance(stages, list) else []
    graphs = [spec for spec in specs if isinstance(spec, dict) and isinstance(spec.get("inputs"), dict)]
    for name, value in table[OVERRIDES].items():
        specs_with_input = [spec for spec in graphs if name in spec["inputs"]]
        for spec in specs_with_input:
            spec[OVERRIDES] = {**(spec.get(OVERRIDES) or {}), name: value}
        if not specs_with_input:
            inputs = sorted({input_name for spec in graphs for input_name in spec["inputs"]})
            hint = f"The inputs are {', '.join(inputs)}." if inputs else "Its stages have no graph with inputs."
            yield Violation((OVERRIDES, name), f"No graph has an input {name!r}.", hint)
