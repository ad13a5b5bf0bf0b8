"""Validate workflow files. Each finding has the file, the line, the problem and what to do.

Fields and types are checked one by one, so that a single check reports all problems. Values are checked with the
engine's own rules: each field is put alone into an otherwise valid definition, so an error belongs to that field.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec

from callsheet.catalog.extends import EXTENDS, OVERRIDES, ExtendsResolver
from callsheet.catalog.field_violations import Violation, find_violations
from callsheet.catalog.toml_positions import Path as KeyPath
from callsheet.catalog.workflow_file_reader import Finding
from callsheet.comfyui.graph_rules_implementation import COMFYUI_GRAPH_RULES
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
)
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.input_schema.validator import check_input_schema
from callsheet.core.policy.rate_syntax import RATE_FORMAT_HELP

_FILE_ONLY_FIELDS = frozenset({EXTENDS, OVERRIDES})
_LIMITS = Limits()
_META_SCHEMA_URL = "https://json-schema.org/draft/2020-12/schema"
"""The default for a schema without `$schema`."""
_SCHEMA_HINT = "Correct the schema here. References to other documents are not allowed."
_TYPE_HINT = "Use array, boolean, integer, null, number, object or string."


class WorkflowFile(WorkflowDefinition, frozen=True, kw_only=True):
    """The fields of a workflow file: those of a definition, and those for extending another workflow."""

    extends: str | None = None
    """The workflow to extend. Fields that this file does not set are inherited from it."""
    overrides: dict[str, Any] | None = None
    """Values for inputs of the inherited graphs. They take precedence over `defaults`."""


def check(paths: Iterable[Path]) -> list[Finding]:
    """Return the findings about workflow files and the files in folders; empty if all are valid."""
    return load_definitions(paths)[1]


def load_definitions(paths: Iterable[Path]) -> tuple[list[WorkflowDefinition], list[Finding]]:
    """Read workflow files and the files in folders. Returns the valid definitions and the findings about the others."""
    definitions: list[WorkflowDefinition] = []
    findings: list[Finding] = []
    file_by_name: dict[str, Path] = {}
    listed = list(dict.fromkeys(_workflow_files(paths)))
    files = [path for path in listed if isinstance(path, Path)]
    resolver = ExtendsResolver(files, _find_violations)
    for file in listed:
        if isinstance(file, Finding):
            findings.append(file)
            continue
        resolved = resolver.resolve(file)
        found, name = list(resolved.findings), resolved.table.get("name")
        if resolved.source_file and isinstance(name, str) and file_by_name.setdefault(name, file) != file:
            message = f"The workflow {name!r} is also in {file_by_name[name]}."
            found.append(resolved.source_file.finding(Violation(("name",), message, "Give one of them another name.")))
        findings += sorted(found, key=lambda finding: finding.line)
        if not found:
            definitions.append(msgspec.convert(_definition_fields(resolved.table), WorkflowDefinition))
    for file in sorted(resolver.resolved_files.keys() - set(files)):  # files that are only extended
        findings += resolver.resolved_files[file].findings
    return definitions, findings


def _definition_fields(table: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a definition, without those for extending."""
    return {name: value for name, value in table.items() if name not in _FILE_ONLY_FIELDS}


# -- files


def _workflow_files(paths: Iterable[Path]) -> Iterator[Path | Finding]:
    for path in paths:
        if path.is_dir():
            toml_files = sorted(path.glob("*.toml"))
            if not toml_files:
                yield Finding(str(path), 1, "There is no workflow in this folder.", "Pass a folder with .toml files.")
            yield from toml_files
        elif path.is_file():
            yield path
        else:
            yield Finding(str(path), 1, "There is no such file.", "Pass a .toml file or a folder.")


# -- definitions


def _find_violations(table: dict[str, Any]) -> list[Violation]:
    struct_violations = list(find_violations(table, WorkflowFile, ()))
    valid = _drop_invalid(table, {violation.key_path for violation in struct_violations})
    violations = [*struct_violations, *_check_fields(valid), *_check_schema(valid), *_check_graphs(valid)]
    return violations or list(_check_definition((), _definition_fields(table)))


def _drop_invalid(value: Any, invalid_paths: set[KeyPath], key_path: KeyPath = ()) -> Any:
    """Return a copy without the fields that violate the struct, so that the rest can be checked."""
    if isinstance(value, list):
        return [_drop_invalid(item, invalid_paths, (*key_path, no)) for no, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    valid_part = {}
    for name, item in value.items():
        path = (*key_path, name)
        indivisible = not isinstance(item, dict) or name in {"input_schema", "comfyui"}
        if path == ("stages",):
            indivisible = not isinstance(item, list)
        has_violation = any(invalid[: len(path)] == path for invalid in invalid_paths)
        if path not in invalid_paths and not (indivisible and has_violation):
            valid_part[name] = item if indivisible else _drop_invalid(item, invalid_paths, path)
    return valid_part


def _check_fields(table: dict[str, Any]) -> Iterator[Violation]:
    """Check each field alone in an otherwise valid definition."""
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
    """Yield stages with a name that an earlier stage has. Checking each field alone does not find them."""
    seen = set()
    for no, stage in enumerate(stages):
        name = stage.get("name")
        if name in seen:
            yield Violation(("stages", no, "name"), f"Two stages have the name {name!r}.", "Choose another name.")
        if name is not None:
            seen.add(name)


def _hint_for(code: str) -> str:
    return {
        "out_of_range": "Write a number in this range.",
        "invalid_workflow": "Add a [[stages]] table, or inline = true.",
        "too_many_stages": "Combine some of them.",
        "invalid_graph": "Remove inline = true.",
        "invalid_rate": f"{RATE_FORMAT_HELP} Without it there is no limit.",
    }.get(code, "Choose another name.")


def _check_schema(table: dict[str, Any]) -> Iterator[Violation]:
    schema = table.get("input_schema")
    if schema is None:
        return
    try:
        check_input_schema(table.get("name", "workflow"), schema, _LIMITS)
    except BadInput as bad_input:
        error = bad_input.__context__
        if not isinstance(error, jsonschema_rs.ValidationError):
            yield Violation(("input_schema",), str(bad_input), _SCHEMA_HINT)
            return
        prefix = str(bad_input).removesuffix(f"{error.message}.")
        for schema_error in _all_schema_errors(schema) or [error]:
            key_path = tuple(schema_error.instance_path)
            hint = _TYPE_HINT if key_path[-1:] == ("type",) else _SCHEMA_HINT
            yield Violation(("input_schema", *key_path), f"{prefix}{schema_error.message}.", hint)


def _all_schema_errors(schema: Any) -> list[jsonschema_rs.ValidationError]:
    """Return all errors of a schema according to its meta-schema. The validator itself reports only the first."""
    meta = schema.get("$schema", _META_SCHEMA_URL) if isinstance(schema, dict) else _META_SCHEMA_URL
    try:
        return list(jsonschema_rs.validator_for({"$schema": meta, "$ref": meta}).iter_errors(schema))
    except (ValueError, jsonschema_rs.ReferencingError):  # its $schema names an unknown meta-schema
        return []


def _check_graphs(table: dict[str, Any]) -> Iterator[Violation]:
    for no, stage in enumerate(table.get("stages", ())):
        if not isinstance(stage.get("comfyui"), dict):
            continue
        spec = msgspec.convert(stage["comfyui"], ComfySpec)
        issues = list(find_issues(spec, _LIMITS))
        yield from (
            Violation(("stages", no, "comfyui", *issue.key_path), issue.message, issue.hint) for issue in issues
        )
        if not issues:
            yield from _check_graph_values(
                ("stages", no, "inputs"), spec, stage.get("inputs"), table.get("input_schema")
            )


def _check_graph_values(key_path: KeyPath, spec: ComfySpec, inputs: Any, schema: Any) -> Iterator[Violation]:
    """Yield values that the graph needs and that the job or the inputs of the stage may not set."""
    for no, input in enumerate(inputs or ()):
        if problem := describe_invalid_input(spec, input):
            yield Violation((*key_path, no), problem, "Give the input a valid value.")
    if inputs is None and (missing := describe_unset_placeholder(spec, schema)):
        message, _, hint = missing.partition(": ")
        yield Violation(("input_schema",), f"{message}.", f"{hint[:1].upper()}{hint[1:]}")
