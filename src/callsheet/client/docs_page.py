"""The generated part of docs/reference/client.md: the signature of every client method.

Update it with `python -m callsheet.client.docs_page docs/reference/client.md`; a test fails while it is out of date.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from callsheet.client.clients import Client
from callsheet.client.resource import Resource

_BEGIN = (
    "<!-- Made by `python -m callsheet.client.docs_page docs/reference/client.md` from the source. Do not edit. -->\n"
)
_END = "<!-- To here. -->\n"
_RETURN_TYPES = {"Operation": "{}", "IterableOperation": "Iterator[{}]"}
"""The return type of a `Client` method, by the type of its operation."""
_LINE_WIDTH = 110
_NBSP = "\0"
"""Stands for a space at which no line is broken."""


def namespaces() -> dict[str, type]:
    """Return the class of each resource namespace, by its name on the client."""
    with Client("http://localhost") as client:
        return {name: type(value) for name, value in vars(client).items() if isinstance(value, Resource)}


def render_page(text: str) -> str:
    """Return the page with the current signatures between its markers."""
    head, _, tail = text.partition(_BEGIN)
    groups = "\n\n".join(_render_namespace(name, resource) for name, resource in namespaces().items())
    return f"{head}{_BEGIN}\n```python\n{groups}\n```\n\n{_END}{tail.partition(_END)[2]}"


def signatures() -> dict[str, str]:
    """Return the signature of every method, by its dotted name."""
    return {
        method: line.replace(_NBSP, " ")
        for name, resource in namespaces().items()
        for method, line in _methods(name, resource)
    }


def _render_namespace(name: str, resource: type) -> str:
    lines = [f"# {resource.__doc__}"]
    for _, line in _methods(name, resource):
        lines += textwrap.wrap(
            line, _LINE_WIDTH, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
        )
    return "\n".join(lines).replace(_NBSP, " ")


def _methods(namespace: str, resource: type) -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the signature of each decorated method of a namespace."""
    (class_node,) = ast.parse(inspect.getsource(resource)).body
    for node in class_node.body if isinstance(class_node, ast.ClassDef) else ():
        if isinstance(node, ast.FunctionDef) and node.decorator_list and isinstance(node.returns, ast.Subscript):
            name = f"{namespace}.{node.name}"
            return_type = _RETURN_TYPES[_unparse(node.returns.value)].format(_unparse(node.returns.slice))
            end = f") -> {return_type}".replace(" ", _NBSP)
            yield name, f"{name}({', '.join(_parameters(node.args))}{end}"


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    """Yield the parameters without `self`; one parameter stays on one line."""
    positional = arguments.args[1:]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
    for index, (node, default) in enumerate(zip([*positional, *arguments.kwonlyargs], defaults, strict=True)):
        if index == len(positional):
            yield "*"
        text = _unparse(node) if default is None else f"{_unparse(node)} = {_unparse(default)}"
        yield text.replace(" ", _NBSP)


def _unparse(node: ast.AST) -> str:
    """Return the source of an annotation. Where a method named `list` shadows the type, the source says `builtins`."""
    return ast.unparse(node).replace("builtins.list", "list")


if __name__ == "__main__":
    _file = Path(sys.argv[1])
    _file.write_text(render_page(_file.read_text()))
