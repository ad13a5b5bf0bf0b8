"""JSON Schemas and examples, generated from the structs of the API.

Descriptions and examples stand on the fields (`callsheet.api.base.doc`). Structs of the core describe their fields with
a docstring below the field.
"""

import ast
import inspect
import sys
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

from callsheet.core.model.workflow_definition import WorkflowDefinition

Schema = dict[str, Any]
_REF = "#/components/schemas/"
_TYPE_EXAMPLES: dict[str, Any] = {"integer": 1, "number": 1.5, "boolean": True, "object": {}, "array": []}


class Schemas:
    """The schemas of an OpenAPI document, and examples made from them."""

    def __init__(self, structs: Iterable[type[Any]]) -> None:
        listed: list[type[Any]] = list(dict.fromkeys([*structs, WorkflowDefinition]))
        _, self.components = msgspec.json.schema_components(listed, ref_template=_REF + "{name}")
        docstrings = {struct.__name__: _field_docstrings(struct) for struct in _collect_structs(listed)}
        for name, schema in self.components.items():
            for field, part in schema.get("properties", {}).items():
                schema["properties"][field] = _with_docstring(part, docstrings.get(name, {}).get(field))
        self.components["NewDefinition"] = _without_name(self.components["WorkflowDefinition"])
        for owner, definition in (("Workflow", "WorkflowDefinition"), ("WorkflowBody", "NewDefinition")):
            if owner in self.components:
                part = self.components[owner]["properties"]["definition"]
                kept = {name: part[name] for name in ("description", "examples")}
                self.components[owner]["properties"]["definition"] = {**_ref(definition), **kept}

    def ref(self, struct: type[Any]) -> Schema:
        return _ref(struct.__name__)

    def example(self, name: str) -> Any:
        """Build an example from the fields. In a request, optional fields without an example are left out."""
        schema = self.components[name]
        required = schema.get("required", [])
        is_request = schema.get("additionalProperties") is False
        return {
            field: self._example(field, part)
            for field, part in schema["properties"].items()
            if field in required or "examples" in part or not (is_request or _is_omitted(name))
        }

    def _example(self, field: str, schema: Schema) -> Any:
        if "examples" in schema:
            return schema["examples"][0]
        if "$ref" in schema:
            return self.example(schema["$ref"].removeprefix(_REF))
        if "anyOf" in schema:
            return self._example(field, schema["anyOf"][0])
        if "enum" in schema:
            return schema["enum"][0]
        if schema.get("type") == "array" and "items" in schema:
            return [self._example(field, schema["items"])]
        return _TYPE_EXAMPLES.get(schema.get("type", ""), field)


def parameters(query: type[Any]) -> list[Schema]:
    """Return the fields of a query as OpenAPI parameters."""
    _, components = msgspec.json.schema_components([query], ref_template=_REF + "{name}")
    schema = components[query.__name__]
    found = []
    for name, part in schema["properties"].items():
        described = dict(part)
        meaning = described.pop("description", "")
        examples = described.pop("examples", [])
        if described.get("default") in {"", "~", described.get("maximum", "")}:
            described.pop("default", None)  # stands for: not given
        parameter = {
            "name": name, "in": "query", "required": name in schema["required"], "description": meaning,
            "schema": described,
        }  # fmt: skip
        found.append(parameter | ({"example": examples[0]} if examples else {}))
    return found


def _is_omitted(name: str) -> bool:
    """Tell whether a response leaves out fields that have their default."""
    return name == "BulkItem"


def _with_docstring(part: Schema, docstring: str | None) -> Schema:
    return {"description": docstring, **part} if docstring else part


def _without_name(definition: Schema) -> Schema:
    """Return a definition as it is sent: its name is in the path."""
    return {
        **definition,
        "title": "NewDefinition",
        "required": [name for name in definition["required"] if name != "name"],
    }


def _ref(name: str) -> Schema:
    return {"$ref": _REF + name}


def _collect_structs(structs: Iterable[type[Any]]) -> set[type[Any]]:
    """Return structs and the structs in their fields."""
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
        waiting.extend(
            part for name in ("type", "item_type", "value_type") if (part := getattr(info, name, None)) is not None
        )
    return found


def _field_docstrings(struct: type[Any]) -> dict[str, str]:
    return _module_field_docstrings(struct.__module__).get(struct.__name__, {})


@cache
def _module_field_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings below the fields of a module's classes, from its source."""
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
