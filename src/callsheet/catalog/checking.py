"""What is wrong with workflow files: the file, the line, what it is and what to do.

Shapes are checked field by field, so that one look shows everything. Values are judged by the engine's own rules:
each field is tried alone in a recipe that is otherwise sound, and what the engine refuses belongs to that field.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec

from callsheet.catalog.inheriting import EXTENDS, OVERRIDES, Shelf
from callsheet.catalog.lines import Path as Place
from callsheet.catalog.shapes import Fault, faults
from callsheet.catalog.sheets import Finding
from callsheet.core.comfy import ComfySpec
from callsheet.core.comfy_check import flaws, input_flaw, may_be_missing
from callsheet.core.errors import BadInput
from callsheet.core.limits import Limits
from callsheet.core.rates import HOW_TO_WRITE
from callsheet.core.recipe import NAME, Recipe, StageSpec, check_recipe, check_stages, name_checked, validator

_NOT_KEPT = frozenset({EXTENDS, OVERRIDES})
_LIMITS = Limits()
_META = "https://json-schema.org/draft/2020-12/schema"
"""What a schema is, unless it says another."""
_CORRECT = "Correct the schema here; it may refer to itself only."
_TYPES = "A type is array, boolean, integer, null, number, object or string."


class Written(Recipe, frozen=True, kw_only=True):
    """What may be in a file: a recipe, or what it changes of another."""

    extends: str | None = None
    """The workflow from which it has all that it does not say itself."""
    overrides: dict[str, Any] | None = None
    """Values for inputs of that workflow's graphs."""


def check(paths: Iterable[Path]) -> list[Finding]:
    """Return what is wrong with workflow files, and with those in folders; nothing is well."""
    return recipes_of(paths)[1]


def recipes_of(paths: Iterable[Path]) -> tuple[list[Recipe], list[Finding]]:
    """Read files, and those in folders: the sound recipes, and what is wrong with the others."""
    recipes: list[Recipe] = []
    findings: list[Finding] = []
    named: dict[str, Path] = {}
    listed = list(dict.fromkeys(_files(paths)))
    files = [one for one in listed if isinstance(one, Path)]
    shelf = Shelf(files, _faults)
    for file in listed:
        if isinstance(file, Finding):
            findings.append(file)
            continue
        whole = shelf.whole(file)
        found, name = list(whole.findings), whole.table.get("name")
        if whole.sheet and isinstance(name, str) and named.setdefault(name, file) != file:
            what = f"The workflow {name!r} is in {named[name]} too."
            found.append(whole.sheet.finding(Fault(("name",), what, "Give one of them another name.")))
        findings += sorted(found, key=lambda finding: finding.line)
        if not found:
            recipes.append(msgspec.convert(_kept(whole.table), Recipe))
    for file in sorted(shelf.wholes.keys() - set(files)):  # what those extend, beside them
        findings += shelf.wholes[file].findings
    return recipes, findings


def _kept(table: dict[str, Any]) -> dict[str, Any]:
    """Return what is a recipe's of a file's table."""
    return {name: value for name, value in table.items() if name not in _NOT_KEPT}


# -- files


def _files(paths: Iterable[Path]) -> Iterator[Path | Finding]:
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob("*.toml"))
            if not inside:
                yield Finding(str(path), 1, "There is no workflow in this folder.", "Name one with .toml files.")
            yield from inside
        elif path.is_file():
            yield path
        else:
            yield Finding(str(path), 1, "There is no such file.", "Name a .toml file or a folder.")


# -- recipes


def _faults(table: dict[str, Any]) -> list[Fault]:
    shape = list(faults(table, Written, ()))
    sound = _without(table, {fault.place for fault in shape})
    found = [*shape, *_refused(sound), *_schema_faults(sound), *_graph_faults(sound)]
    return found or list(_tried((), _kept(table)))


def _without(value: Any, places: set[Place], place: Place = ()) -> Any:
    """Return what is left to judge where shapes are wrong: tables and stages without the fields that have a fault."""
    if isinstance(value, list):
        return [_without(one, places, (*place, no)) for no, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    left = {}
    for name, one in value.items():
        here = (*place, name)
        whole = not isinstance(one, dict) or name in {"input_schema", "comfyui"}
        if here == ("stages",):
            whole = not isinstance(one, list)
        if here not in places and not (whole and any(bad[: len(here)] == here for bad in places)):
            left[name] = one if whole else _without(one, places, here)
    return left


def _refused(table: dict[str, Any]) -> Iterator[Fault]:
    """Try every field alone in a sound recipe."""
    name = table.get("name", "workflow")
    try:
        name_checked("workflow", name, _LIMITS)
    except BadInput as error:
        yield Fault(("name",), str(error), 'Write name = "…", or rename the file.')
        name = "workflow"
    for field, value in table.items():
        if field == "stages":
            stages = [stage if isinstance(stage, dict) else {} for stage in value]
            for no, stage in enumerate(stages):
                yield from _stage_refused(no, stage)
            yield from _twice_named(stages)
        elif field not in {"name", "input_schema", *_NOT_KEPT}:
            yield from _field_refused(name, (field,), value)


def _field_refused(name: str, place: Place, value: Any) -> Iterator[Fault]:
    if isinstance(value, dict):
        for field, inner in value.items():
            yield from _field_refused(name, (*place, field), inner)
        return
    for part in reversed(place):
        value = {part: value}
    yield from _tried(place, {"name": name, "stages": [{"name": "stage", "kind": "kind"}], **value})


def _tried(place: Place, table: dict[str, Any]) -> Iterator[Fault]:
    try:
        check_recipe(msgspec.convert(table, Recipe), _LIMITS)
    except BadInput as error:
        yield Fault(place, str(error).removesuffix(f" {HOW_TO_WRITE}"), _advice(error.code))


def _stage_refused(no: int, stage: dict[str, Any]) -> Iterator[Fault]:
    name = stage.get("name", "stage")
    sound = {"name": name if NAME.match(name) else "stage", "kind": "kind"}
    for field, value in stage.items():
        if field == "comfyui":
            continue
        try:
            check_stages([msgspec.convert({**sound, field: value}, StageSpec)], _LIMITS)
        except BadInput as error:
            yield Fault(("stages", no, field), str(error), _advice(error.code))


def _twice_named(stages: list[dict[str, Any]]) -> Iterator[Fault]:
    """Find the stages that have the name of one before: no field alone shows them."""
    seen = set()
    for no, stage in enumerate(stages):
        name = stage.get("name")
        if name in seen:
            yield Fault(("stages", no, "name"), f"Two stages have the name {name!r}.", "Choose another name.")
        if name is not None:
            seen.add(name)


def _advice(code: str) -> str:
    return {
        "out_of_range": "Write a number within.",
        "invalid_workflow": "Add a [[stages]] table, or inline = true.",
        "too_many_stages": "Join some of them.",
        "invalid_graph": "Take inline = true out.",
        "invalid_rate": f"{HOW_TO_WRITE} Without it there is no limit.",
    }.get(code, "Choose another name.")


def _schema_faults(table: dict[str, Any]) -> Iterator[Fault]:
    schema = table.get("input_schema")
    if schema is None:
        return
    try:
        validator(Recipe(name=table.get("name", "workflow"), input_schema=schema))
    except BadInput as refused:
        error = refused.__context__
        if not isinstance(error, jsonschema_rs.ValidationError):
            yield Fault(("input_schema",), str(refused), _CORRECT)
            return
        about = str(refused).removesuffix(f"{error.message}.")
        for one in _all_of(schema) or [error]:
            place = tuple(one.instance_path)
            do = _TYPES if place[-1:] == ("type",) else _CORRECT
            yield Fault(("input_schema", *place), f"{about}{one.message}.", do)


def _all_of(schema: Any) -> list[jsonschema_rs.ValidationError]:
    """Return everything that is wrong with a schema by the schema of schemas; the library itself tells the first."""
    meta = schema.get("$schema", _META) if isinstance(schema, dict) else _META
    try:
        return list(jsonschema_rs.validator_for({"$schema": meta, "$ref": meta}).iter_errors(schema))
    except (ValueError, jsonschema_rs.ReferencingError):  # it names a schema of schemas that nobody knows
        return []


def _graph_faults(table: dict[str, Any]) -> Iterator[Fault]:
    for no, stage in enumerate(table.get("stages", ())):
        if not isinstance(stage.get("comfyui"), dict):
            continue
        spec = msgspec.convert(stage["comfyui"], ComfySpec)
        found = list(flaws(spec, _LIMITS))
        yield from (Fault(("stages", no, "comfyui", *flaw.place), flaw.what, flaw.do) for flaw in found)
        if not found:
            yield from _value_faults(("stages", no, "inputs"), spec, stage.get("inputs"), table.get("input_schema"))


def _value_faults(place: Place, spec: ComfySpec, inputs: Any, schema: Any) -> Iterator[Fault]:
    """Find values that a graph needs and a job, or the stage's own inputs, may not bring."""
    for no, input in enumerate(inputs or ()):
        if flaw := input_flaw(spec, input):
            yield Fault((*place, no), flaw, "Give the graph what it takes.")
    if inputs is None and (missing := may_be_missing(spec, schema)):
        what, _, do = missing.partition(": ")
        yield Fault(("input_schema",), f"{what}.", f"{do[:1].upper()}{do[1:]}")
