"""What is wrong with workflow files: the file, the line, what it is and what to do.

Shapes are checked field by field, so that one look shows everything. Values are judged by the engine's own rules:
each field is tried alone in a recipe that is otherwise sound, and what the engine refuses belongs to that field.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
from msgspec import Struct

from callsheet.catalog.lines import Path as Place
from callsheet.catalog.lines import line_of, lines_of
from callsheet.catalog.shapes import Fault, faults
from callsheet.core.errors import BadInput
from callsheet.core.limits import Limits
from callsheet.core.recipe import NAME, Recipe, StageSpec, check_recipe, check_stages, name_checked, validator

_AT_LINE = re.compile(r"line (\d+)")
_BYTES_MAX = 1024 * 1024
_LIMITS = Limits()
_TYPES = "A type is array, boolean, integer, null, number, object or string."


class Finding(Struct, frozen=True):
    """Something wrong in a file: where, what, and what to do."""

    file: str
    line: int
    what: str
    do: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what} {self.do}"


def check(paths: Iterable[Path]) -> list[Finding]:
    """Return what is wrong with workflow files, and with those in folders; nothing is well."""
    return recipes_of(paths)[1]


def recipes_of(paths: Iterable[Path]) -> tuple[list[Recipe], list[Finding]]:
    """Read files, and those in folders: the sound recipes, and what is wrong with the others."""
    recipes: list[Recipe] = []
    findings: list[Finding] = []
    named: dict[str, Path] = {}
    for file in _files(paths, findings):
        read = table_of(file)
        if isinstance(read, Finding):
            findings.append(read)
            continue
        table, lines = read[0], lines_of(read[1])
        name = table.setdefault("name", file.stem)
        found = [Finding(str(file), line_of(lines, fault.place), fault.what, fault.do) for fault in _faults(table)]
        if isinstance(name, str) and named.setdefault(name, file) != file:
            what = f"The workflow {name!r} is in {named[name]} too."
            found.append(Finding(str(file), line_of(lines, ("name",)), what, "Give one of them another name."))
        findings += sorted(found, key=lambda finding: finding.line)
        if not found:
            recipes.append(msgspec.convert(table, Recipe))
    return recipes, findings


# -- files


def _files(paths: Iterable[Path], findings: list[Finding]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob("*.toml"))
            if not inside:
                findings.append(
                    Finding(str(path), 1, "There is no workflow in this folder.", "Name one with .toml files.")
                )
            yield from inside
        elif path.is_file():
            yield path
        else:
            findings.append(Finding(str(path), 1, "There is no such file.", "Name a .toml file or a folder."))


def table_of(file: Path) -> tuple[dict[str, Any], str] | Finding:
    """Read a file: its table and its text, or what is wrong with it."""
    text = ""
    try:
        if file.stat().st_size > _BYTES_MAX:
            return Finding(str(file), 1, "The file is larger than 1 MiB.", "A recipe is a page: name the right file.")
        text = file.read_text(encoding="utf-8")
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        at = _AT_LINE.match(where)
        line = int(at[1]) if at else text.rstrip().count("\n") + 1
        return Finding(str(file), line, f"{what}.", "Correct the TOML here.")
    except UnicodeDecodeError:
        return Finding(str(file), 1, "The file is not text in UTF-8.", "Save it as UTF-8.")
    except RecursionError:
        return Finding(str(file), 1, "The file is nested too deeply.", "A recipe has a handful of levels.")
    except OSError as error:
        return Finding(str(file), 1, f"The file cannot be read: {error.strerror}.", "Name a file that you may read.")


# -- recipes


def _faults(table: dict[str, Any]) -> list[Fault]:
    shape = list(faults(table, Recipe, ()))
    sound = _without(table, {fault.place for fault in shape})
    found = [*shape, *_refused(sound), *_schema_faults(sound)]
    return found or list(_tried((), table))


def _without(value: Any, places: set[Place], place: Place = ()) -> Any:
    """Return what is left to judge where shapes are wrong: tables and stages without the fields that have a fault."""
    if isinstance(value, list):
        return [_without(one, places, (*place, no)) for no, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    left = {}
    for name, one in value.items():
        here = (*place, name)
        whole = not isinstance(one, dict) or here == ("input_schema",)
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
            for no, stage in enumerate(value):
                yield from _stage_refused(no, stage if isinstance(stage, dict) else {})
        elif field not in {"name", "input_schema"}:
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
        yield Fault(place, str(error), _advice(error.code))


def _stage_refused(no: int, stage: dict[str, Any]) -> Iterator[Fault]:
    name = stage.get("name", "stage")
    sound = {"name": name if NAME.match(name) else "stage", "kind": "kind"}
    for field, value in stage.items():
        try:
            check_stages([msgspec.convert({**sound, field: value}, StageSpec)], _LIMITS)
        except BadInput as error:
            yield Fault(("stages", no, field), str(error), _advice(error.code))


def _advice(code: str) -> str:
    return {
        "out_of_range": "Write a number within.",
        "invalid_workflow": "Add a [[stages]] table, or inline = true.",
        "too_many_stages": "Join some of them.",
    }.get(code, "Choose another name.")


def _schema_faults(table: dict[str, Any]) -> Iterator[Fault]:
    schema = table.get("input_schema")
    if schema is None:
        return
    try:
        validator(Recipe(name=table.get("name", "workflow"), input_schema=schema))
    except BadInput as refused:
        error = refused.__context__
        where = tuple(error.instance_path) if isinstance(error, jsonschema_rs.ValidationError) else ()
        do = _TYPES if where[-1:] == ("type",) else "Correct the schema here; it may refer to itself only."
        yield Fault(("input_schema", *where), str(refused), do)
