"""JSON Schemas and examples, generated from the structs of the API.

Fields have their descriptions and examples as annotations (`callsheet.api.shared_fields.doc`). Structs of the core
describe a field with a docstring below it.
"""

import ast
import inspect
import sys
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

from callsheet.api.workflows import Workflow, WorkflowBody
from callsheet.core.model.workflow_definition import WorkflowDefinition

Schema = dict[str, Any]
_REF = "#/components/schemas/"
_NEW_DEFINITION = "NewDefinition"
"""The schema of a definition in a request. No struct has this name."""
_TYPE_EXAMPLES: dict[str, Any] = {"integer": 1, "number": 1.5, "boolean": True, "object": {}, "array": []}


class Schemas:
    """The schemas of an OpenAPI document, and examples that are built from them."""

    def __init__(self, structs: Iterable[type[Any]]) -> None:
        listed: list[type[Any]] = list(dict.fromkeys([*structs, WorkflowDefinition]))
        self._names, self.components = _build_components([*listed, *_collect_structs(listed)])
        for struct, name in self._names.items():
            docstrings = _field_docstrings(struct)
            properties = self.components[name].get("properties", {})
            for field, part in properties.items():
                properties[field] = _with_docstring(part, docstrings.get(field))
        self.components[_NEW_DEFINITION] = _without_name(self.components[self._names[WorkflowDefinition]])
        for owner, definition in ((Workflow, WorkflowDefinition.__name__), (WorkflowBody, _NEW_DEFINITION)):
            if owner in self._names:
                properties = self.components[self._names[owner]]["properties"]
                kept = {name: properties["definition"][name] for name in ("description", "examples")}
                properties["definition"] = {**_ref(definition), **kept}

    def ref(self, struct: type[Any]) -> Schema:
        return _ref(self._names[struct])

    def example(self, struct: type[Any]) -> Any:
        """Build an example from the fields. In a request, optional fields without an example are left out."""
        return self._build_example(self._names[struct])

    def _build_example(self, name: str) -> Any:
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
            return self._build_example(schema["$ref"].removeprefix(_REF))
        if "anyOf" in schema:
            return self._example(field, schema["anyOf"][0])
        if "enum" in schema:
            return schema["enum"][0]
        if schema.get("type") == "array" and "items" in schema:
            return [self._example(field, schema["items"])]
        return _TYPE_EXAMPLES.get(schema.get("type", ""), field)


def parameters(query: type[Any]) -> list[Schema]:
    """Return the fields of a query as OpenAPI parameters."""
    (ref,), components = msgspec.json.schema_components([query], ref_template=_REF + "{name}")
    schema = components[ref["$ref"].removeprefix(_REF)]
    found = []
    for name, part in schema["properties"].items():
        described = dict(part)
        description = described.pop("description", "")
        examples = described.pop("examples", [])
        if described.get("default") in {"", "~", described.get("maximum", "")}:
            described.pop("default", None)  # these defaults mean that the parameter is absent
        parameter = {
            "name": name, "in": "query", "required": name in schema["required"], "description": description,
            "schema": described,
        }  # fmt: skip
        found.append(parameter | ({"example": examples[0]} if examples else {}))
    return found


def _is_omitted(name: str) -> bool:
    """Return whether a response leaves out fields that have their default."""
    return name == "BulkItem"


def _with_docstring(part: Schema, docstring: str | None) -> Schema:
    return {"description": docstring, **part} if docstring else part


def _without_name(definition: Schema) -> Schema:
    """Return the schema of a definition in a request: its name is in the path."""
    return {
        **definition,
        "title": _NEW_DEFINITION,
        "required": [name for name in definition["required"] if name != "name"],
    }


def _ref(name: str) -> Schema:
    return {"$ref": _REF + name}


def _build_components(structs: Iterable[type[Any]]) -> tuple[dict[type[Any], str], dict[str, Schema]]:
    """Return the names of structs in the document, and the schemas by name.

    If two structs have the same name, msgspec gives both their full names. A native struct keeps its short name, so
    that the documentation of the native API is the same with and without plugins.
    """
    unique = list(dict.fromkeys(structs))
    refs, components = msgspec.json.schema_components(unique, ref_template=_REF + "{name}")
    names = {struct: ref["$ref"].removeprefix(_REF) for struct, ref in zip(unique, refs, strict=True)}
    native = {struct.__name__: names[struct] for struct in unique if struct.__module__.startswith("callsheet.")}
    renamed = {old: new for new, old in native.items() if old != new}
    for struct, name in names.items():
        if name == _NEW_DEFINITION:
            renamed[name] = f"{struct.__module__}.{name}"
    new_refs = {_REF + old: _REF + new for old, new in renamed.items()}
    return (
        {struct: renamed.get(name, name) for struct, name in names.items()},
        {renamed.get(name, name): _replace_refs(schema, new_refs) for name, schema in components.items()},
    )


def _replace_refs(part: Any, new_refs: dict[str, str]) -> Any:
    if isinstance(part, dict):
        return {name: _replace_refs(value, new_refs) for name, value in part.items()}
    if isinstance(part, list):
        return [_replace_refs(value, new_refs) for value in part]
    return new_refs.get(part, part) if isinstance(part, str) else part


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
    try:
        nodes = ast.parse(inspect.getsource(sys.modules[module])).body
    except OSError:  # a plugin may be installed without its source
        return {}
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
