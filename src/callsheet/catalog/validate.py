"""What is wrong with workflow files: the file, the line, what it is and what to do.

Shapes are checked field by field, so that one look shows everything. Values are judged by the engine's own rules:
each field is tried alone in a definition that is otherwise sound, and what the engine refuses belongs to that field.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec

from callsheet.catalog.extends import EXTENDS, OVERRIDES, ExtendsResolver
from callsheet.catalog.source_file import Finding
from callsheet.catalog.struct_check import Violation, find_violations
from callsheet.catalog.toml_positions import Path as KeyPath
from callsheet.comfyui.graph_rules import COMFYUI_GRAPH_RULES
from callsheet.comfyui.validate import describe_invalid_input, describe_unset_placeholder, find_issues
from callsheet.core.model.comfyui_graph import ComfySpec
from callsheet.core.model.errors import BadInput
from callsheet.core.model.workflow_definition import (
    NAME,
    StageSpec,
    WorkflowDefinition,
    check_definition,
    check_name,
    check_stages,
    validator,
)
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.rate_syntax import RATE_FORMAT_HELP

_FILE_ONLY_FIELDS = frozenset({EXTENDS, OVERRIDES})
_LIMITS = Limits()
_META_SCHEMA_URL = "https://json-schema.org/draft/2020-12/schema"
"""What a schema is, unless it says another."""
_SCHEMA_HINT = "Correct the schema here; it may refer to itself only."
_TYPE_HINT = "A type is array, boolean, integer, null, number, object or string."


class WorkflowFile(WorkflowDefinition, frozen=True, kw_only=True):
    """What may be in a file: a definition, or what it changes of another."""

    extends: str | None = None
    """The workflow from which it has all that it does not say itself."""
    overrides: dict[str, Any] | None = None
    """Values for inputs of that workflow's graphs."""


def check(paths: Iterable[Path]) -> list[Finding]:
    """Return what is wrong with workflow files, and with those in folders; nothing is well."""
    return load_definitions(paths)[1]


def load_definitions(paths: Iterable[Path]) -> tuple[list[WorkflowDefinition], list[Finding]]:
    """Read files, and those in folders: the sound recipes, and what is wrong with the others."""
    definitions: list[WorkflowDefinition] = []
    findings: list[Finding] = []
    file_by_name: dict[str, Path] = {}
    listed = list(dict.fromkeys(_workflow_files(paths)))
    files = [one for one in listed if isinstance(one, Path)]
    resolver = ExtendsResolver(files, _find_violations)
    for file in listed:
        if isinstance(file, Finding):
            findings.append(file)
            continue
        resolved = resolver.resolve(file)
        found, name = list(resolved.findings), resolved.table.get("name")
        if resolved.source_file and isinstance(name, str) and file_by_name.setdefault(name, file) != file:
            message = f"The workflow {name!r} is in {file_by_name[name]} too."
            found.append(resolved.source_file.finding(Violation(("name",), message, "Give one of them another name.")))
        findings += sorted(found, key=lambda finding: finding.line)
        if not found:
            definitions.append(msgspec.convert(_definition_fields(resolved.table), WorkflowDefinition))
    for file in sorted(resolver.resolved_files.keys() - set(files)):  # what those extend, beside them
        findings += resolver.resolved_files[file].findings
    return definitions, findings


def _definition_fields(table: dict[str, Any]) -> dict[str, Any]:
    """Return what is a definition's of a file's table."""
    return {name: value for name, value in table.items() if name not in _FILE_ONLY_FIELDS}


# -- files


def _workflow_files(paths: Iterable[Path]) -> Iterator[Path | Finding]:
    for path in paths:
        if path.is_dir():
            toml_files = sorted(path.glob("*.toml"))
            if not toml_files:
                yield Finding(str(path), 1, "There is no workflow in this folder.", "Name one with .toml files.")
            yield from toml_files
        elif path.is_file():
            yield path
        else:
            yield Finding(str(path), 1, "There is no such file.", "Name a .toml file or a folder.")


# -- recipes


def _find_violations(table: dict[str, Any]) -> list[Violation]:
    struct_violations = list(find_violations(table, WorkflowFile, ()))
    valid = _drop_invalid(table, {violation.key_path for violation in struct_violations})
    found = [*struct_violations, *_check_fields(valid), *_check_schema(valid), *_check_graphs(valid)]
    return found or list(_check_definition((), _definition_fields(table)))


def _drop_invalid(value: Any, invalid_paths: set[KeyPath], key_path: KeyPath = ()) -> Any:
    """Return what is left to judge where shapes are wrong: tables and stages without the fields that have a fault."""
    if isinstance(value, list):
        return [_drop_invalid(one, invalid_paths, (*key_path, no)) for no, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    valid_part = {}
    for name, one in value.items():
        here = (*key_path, name)
        whole = not isinstance(one, dict) or name in {"input_schema", "comfyui"}
        if here == ("stages",):
            whole = not isinstance(one, list)
        if here not in invalid_paths and not (whole and any(bad[: len(here)] == here for bad in invalid_paths)):
            valid_part[name] = one if whole else _drop_invalid(one, invalid_paths, here)
    return valid_part


def _check_fields(table: dict[str, Any]) -> Iterator[Violation]:
    """Try every field alone in a sound definition."""
    name = table.get("name", "workflow")
    try:
        check_name("workflow", name, _LIMITS)
    except BadInput as error:
        yield Violation(("name",), str(error), 'Write name = "…", or rename the file.')
        name = "workflow"
    for field, value in table.items():
        if field == "stages":
            stages = [stage if isinstance(stage, dict) else {} for stage in value]
            for no, stage in enumerate(stages):
                yield from _check_stage_fields(no, stage)
            yield from _check_stage_names(stages)
        elif field not in {"name", "input_schema", *_FILE_ONLY_FIELDS}:
            yield from _check_field(name, (field,), value)


def _check_field(name: str, key_path: KeyPath, value: Any) -> Iterator[Violation]:
    if isinstance(value, dict):
        for field, inner in value.items():
            yield from _check_field(name, (*key_path, field), inner)
        return
    for part in reversed(key_path):
        value = {part: value}
    yield from _check_definition(key_path, {"name": name, "stages": [{"name": "stage", "kind": "kind"}], **value})


def _check_definition(key_path: KeyPath, table: dict[str, Any]) -> Iterator[Violation]:
    try:
        check_definition(msgspec.convert(table, WorkflowDefinition), _LIMITS, COMFYUI_GRAPH_RULES)
    except BadInput as error:
        yield Violation(key_path, str(error).removesuffix(f" {RATE_FORMAT_HELP}"), _hint_for(error.code))


def _check_stage_fields(no: int, stage: dict[str, Any]) -> Iterator[Violation]:
    name = stage.get("name", "stage")
    valid = {"name": name if NAME.match(name) else "stage", "kind": "kind"}
    for field, value in stage.items():
        if field == "comfyui":
            continue
        try:
            check_stages([msgspec.convert({**valid, field: value}, StageSpec)], _LIMITS)
        except BadInput as error:
            yield Violation(("stages", no, field), str(error), _hint_for(error.code))


def _check_stage_names(stages: list[dict[str, Any]]) -> Iterator[Violation]:
    """Find the stages that have the name of one before: no field alone shows them."""
    seen = set()
    for no, stage in enumerate(stages):
        name = stage.get("name")
        if name in seen:
            yield Violation(("stages", no, "name"), f"Two stages have the name {name!r}.", "Choose another name.")
        if name is not None:
            seen.add(name)


def _hint_for(code: str) -> str:
    return {
        "out_of_range": "Write a number within.",
        "invalid_workflow": "Add a [[stages]] table, or inline = true.",
        "too_many_stages": "Join some of them.",
        "invalid_graph": "Take inline = true out.",
        "invalid_rate": f"{RATE_FORMAT_HELP} Without it there is no limit.",
    }.get(code, "Choose another name.")


def _check_schema(table: dict[str, Any]) -> Iterator[Violation]:
    schema = table.get("input_schema")
    if schema is None:
        return
    try:
        validator(WorkflowDefinition(name=table.get("name", "workflow"), input_schema=schema))
    except BadInput as bad_input:
        error = bad_input.__context__
        if not isinstance(error, jsonschema_rs.ValidationError):
            yield Violation(("input_schema",), str(bad_input), _SCHEMA_HINT)
            return
        prefix = str(bad_input).removesuffix(f"{error.message}.")
        for one in _all_schema_errors(schema) or [error]:
            key_path = tuple(one.instance_path)
            hint = _TYPE_HINT if key_path[-1:] == ("type",) else _SCHEMA_HINT
            yield Violation(("input_schema", *key_path), f"{prefix}{one.message}.", hint)


def _all_schema_errors(schema: Any) -> list[jsonschema_rs.ValidationError]:
    """Return everything that is wrong with a schema by the schema of schemas; the library itself tells the first."""
    meta = schema.get("$schema", _META_SCHEMA_URL) if isinstance(schema, dict) else _META_SCHEMA_URL
    try:
        return list(jsonschema_rs.validator_for({"$schema": meta, "$ref": meta}).iter_errors(schema))
    except (ValueError, jsonschema_rs.ReferencingError):  # it names a schema of schemas that nobody knows
        return []


def _check_graphs(table: dict[str, Any]) -> Iterator[Violation]:
    for no, stage in enumerate(table.get("stages", ())):
        if not isinstance(stage.get("comfyui"), dict):
            continue
        spec = msgspec.convert(stage["comfyui"], ComfySpec)
        found = list(find_issues(spec, _LIMITS))
        yield from (Violation(("stages", no, "comfyui", *flaw.key_path), flaw.message, flaw.hint) for flaw in found)
        if not found:
            yield from _check_graph_values(
                ("stages", no, "inputs"), spec, stage.get("inputs"), table.get("input_schema")
            )


def _check_graph_values(key_path: KeyPath, spec: ComfySpec, inputs: Any, schema: Any) -> Iterator[Violation]:
    """Find values that a graph needs and a job, or the stage's own inputs, may not bring."""
    for no, input in enumerate(inputs or ()):
        if flaw := describe_invalid_input(spec, input):
            yield Violation((*key_path, no), flaw, "Give the graph what it takes.")
    if inputs is None and (missing := describe_unset_placeholder(spec, schema)):
        message, _, hint = missing.partition(": ")
        yield Violation(("input_schema",), f"{message}.", f"{hint[:1].upper()}{hint[1:]}")
