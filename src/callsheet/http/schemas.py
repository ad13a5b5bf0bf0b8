"""The structs of the API as JSON Schema, each field with its meaning, and an example of each."""

import ast
import inspect
import sys
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

from callsheet.core.recipe import Recipe
from callsheet.http.word import Word
from callsheet.http.words import BODIES, STATUSES, WORDS

Schema = dict[str, Any]
_REF = "#/components/schemas/"


class Schemas:
    """The components of a document, and examples made from them."""

    def __init__(self, structs: Iterable[type[Any]]) -> None:
        listed: list[type[Any]] = list(dict.fromkeys([*structs, Recipe]))
        _, self.components = msgspec.json.schema_components(listed, ref_template=_REF + "{name}")
        said = {struct.__name__: _said(struct) for struct in _all(listed)}
        for name, schema in self.components.items():
            for field, part in schema.get("properties", {}).items():
                schema["properties"][field] = _worded(name, field, part, said.get(name, {}))
        self.components["NewRecipe"] = _unnamed(self.components["Recipe"])
        for owner, recipe in (("Workflow", "Recipe"), ("WorkflowBody", "NewRecipe")):
            if owner in self.components:
                part = self.components[owner]["properties"]["recipe"]
                self.components[owner]["properties"]["recipe"] = {**_ref(recipe), "description": part["description"]}

    def ref(self, struct: type[Any]) -> Schema:
        return _ref(struct.__name__)

    def example(self, name: str) -> Any:
        """Return an example of a component: as a whole where there is one, else field by field."""
        if name in BODIES:
            return BODIES[name]
        schema = self.components[name]
        return {field: self._example(name, field, part) for field, part in schema["properties"].items()}

    def _example(self, owner: str, field: str, schema: Schema) -> Any:
        word = _word(owner, field)
        if word is not None and word.example is not ...:
            return word.example
        return self._of_parts(field, schema)

    def _of_parts(self, field: str, schema: Schema) -> Any:
        if "$ref" in schema:
            return self.example(schema["$ref"].removeprefix(_REF))
        if "anyOf" in schema:
            return self._of_parts(field, schema["anyOf"][0])
        if "enum" in schema:
            return schema["enum"][0]
        if schema.get("type") == "array":
            return [self._of_parts(field, schema["items"])] if "items" in schema else []
        return {"integer": 1, "number": 1.5, "boolean": True, "object": {}}.get(schema.get("type", ""), field)


def parameters(query: type[Any]) -> list[Schema]:
    """Return the fields of a query as parameters."""
    _, components = msgspec.json.schema_components([query], ref_template=_REF + "{name}")
    schema = components[query.__name__]
    said = _said(query)
    found = []
    for name, part in schema["properties"].items():
        worded = _worded(query.__name__, name, part, said)
        meaning = worded.pop("description", "")
        if worded.get("default") in {"", "~", worded.get("maximum", "")}:
            worded.pop("default", None)  # it stands for: not given
        required = name in schema["required"]
        parameter = {"name": name, "in": "query", "required": required, "description": meaning, "schema": worded}
        word = _word(query.__name__, name)
        found.append(parameter | ({"example": word.example} if word and word.example is not ... else {}))
    return found


def _word(owner: str, field: str) -> Word | None:
    return WORDS.get(f"{owner}.{field}") or WORDS.get(field)


def _worded(owner: str, field: str, part: Schema, said: dict[str, str]) -> Schema:
    """Return a field's schema with its meaning, and with what its name says about its values."""
    part = dict(part)
    word = _word(owner, field)
    if meaning := said.get(field) or (word.meaning if word else ""):
        part["description"] = meaning
    if statuses := STATUSES.get(f"{owner}.{field}"):
        part["enum"] = list(statuses)
    if field in {"at", "since", "until"} or field.endswith("_at"):
        for one in part.get("anyOf", [part]):
            if one.get("type") == "string":
                one["format"] = "date-time"
    return part


def _unnamed(recipe: Schema) -> Schema:
    """Return a recipe as it is sent: its name is the address's."""
    return {**recipe, "title": "NewRecipe", "required": [name for name in recipe["required"] if name != "name"]}


def _ref(name: str) -> Schema:
    return {"$ref": _REF + name}


def _all(structs: Iterable[type[Any]]) -> set[type[Any]]:
    """Return structs with those in their fields."""
    found: set[type[Any]] = set()
    waiting: list[Any] = [msgspec.inspect.type_info(struct) for struct in structs]
    while waiting:
        info = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in found:
                continue
            found.add(info.cls)
            waiting.extend(field.type for field in info.fields)
        waiting.extend(getattr(info, "types", ()))
        waiting.extend(part for name in ("item_type", "value_type") if (part := getattr(info, name, None)))
    return found


def _said(struct: type[Any]) -> dict[str, str]:
    """Return what a struct says beside its fields."""
    return _read(struct.__module__).get(struct.__name__, {})


@cache
def _read(module: str) -> dict[str, dict[str, str]]:
    """Return what the classes of a module say beside their fields, from its source."""
    nodes = ast.parse(inspect.getsource(sys.modules[module])).body
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    return {
        one.name: {
            field.target.id: " ".join(str(text.value.value).split())
            for field, text in pairwise(one.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        }
        for one in classes
    }
