"""The structs of the API as JSON Schema, each field with its meaning, and an example of each."""

import ast
import inspect
import sys
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

from callsheet.core.model.workflow_definition import WorkflowDefinition
from callsheet.http.openapi.field_doc import FieldDoc
from callsheet.http.openapi.field_docs import EXAMPLES, FIELD_DOCS, STATUSES

Schema = dict[str, Any]
_REF = "#/components/schemas/"


class Schemas:
    """The components of a document, and examples made from them."""

    def __init__(self, structs: Iterable[type[Any]]) -> None:
        listed: list[type[Any]] = list(dict.fromkeys([*structs, WorkflowDefinition]))
        _, self.components = msgspec.json.schema_components(listed, ref_template=_REF + "{name}")
        docs = {struct.__name__: _field_docs(struct) for struct in _collect_structs(listed)}
        for name, schema in self.components.items():
            for field, part in schema.get("properties", {}).items():
                schema["properties"][field] = _describe_field(name, field, part, docs.get(name, {}))
        self.components["NewDefinition"] = _without_name(self.components["WorkflowDefinition"])
        for owner, definition in (("Workflow", "WorkflowDefinition"), ("WorkflowBody", "NewDefinition")):
            if owner in self.components:
                part = self.components[owner]["properties"]["definition"]
                self.components[owner]["properties"]["definition"] = {
                    **_ref(definition),
                    "description": part["description"],
                }

    def ref(self, struct: type[Any]) -> Schema:
        return _ref(struct.__name__)

    def example(self, name: str) -> Any:
        """Return an example of a component: as a whole where there is one, else field by field."""
        if name in EXAMPLES:
            return EXAMPLES[name]
        schema = self.components[name]
        return {field: self._example(name, field, part) for field, part in schema["properties"].items()}

    def _example(self, owner: str, field: str, schema: Schema) -> Any:
        doc = _find_doc(owner, field)
        if doc is not None and doc.example is not ...:
            return doc.example
        return self._example_from_schema(field, schema)

    def _example_from_schema(self, field: str, schema: Schema) -> Any:
        if "$ref" in schema:
            return self.example(schema["$ref"].removeprefix(_REF))
        if "anyOf" in schema:
            return self._example_from_schema(field, schema["anyOf"][0])
        if "enum" in schema:
            return schema["enum"][0]
        if schema.get("type") == "array":
            return [self._example_from_schema(field, schema["items"])] if "items" in schema else []
        return {"integer": 1, "number": 1.5, "boolean": True, "object": {}}.get(schema.get("type", ""), field)


def parameters(query: type[Any]) -> list[Schema]:
    """Return the fields of a query as parameters."""
    _, components = msgspec.json.schema_components([query], ref_template=_REF + "{name}")
    schema = components[query.__name__]
    docs = _field_docs(query)
    found = []
    for name, part in schema["properties"].items():
        described = _describe_field(query.__name__, name, part, docs)
        meaning = described.pop("description", "")
        if described.get("default") in {"", "~", described.get("maximum", "")}:
            described.pop("default", None)  # it stands for: not given
        required = name in schema["required"]
        parameter = {"name": name, "in": "query", "required": required, "description": meaning, "schema": described}
        doc = _find_doc(query.__name__, name)
        found.append(parameter | ({"example": doc.example} if doc and doc.example is not ... else {}))
    return found


def _find_doc(owner: str, field: str) -> FieldDoc | None:
    return FIELD_DOCS.get(f"{owner}.{field}") or FIELD_DOCS.get(field)


def _describe_field(owner: str, field: str, part: Schema, docs: dict[str, str]) -> Schema:
    """Return a field's schema with its meaning, and with what its name says about its values."""
    part = dict(part)
    doc = _find_doc(owner, field)
    if meaning := docs.get(field) or (doc.meaning if doc else ""):
        part["description"] = meaning
    if statuses := STATUSES.get(f"{owner}.{field}"):
        part["enum"] = list(statuses)
    if field in {"at", "since", "until"} or field.endswith("_at"):
        for one in part.get("anyOf", [part]):
            if one.get("type") == "string":
                one["format"] = "date-time"
    return part


def _without_name(definition: Schema) -> Schema:
    """Return a definition as it is sent: its name is the address's."""
    return {
        **definition,
        "title": "NewDefinition",
        "required": [name for name in definition["required"] if name != "name"],
    }


def _ref(name: str) -> Schema:
    return {"$ref": _REF + name}


def _collect_structs(structs: Iterable[type[Any]]) -> set[type[Any]]:
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


def _field_docs(struct: type[Any]) -> dict[str, str]:
    """Return what a struct says beside its fields."""
    return _module_field_docs(struct.__module__).get(struct.__name__, {})


@cache
def _module_field_docs(module: str) -> dict[str, dict[str, str]]:
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
