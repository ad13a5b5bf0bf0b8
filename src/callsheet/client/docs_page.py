"""The signatures of the calls, as a part of a page of the documentation, from the source.

`python -m callsheet.client.docs_page docs/client.md` renews them; a test says when they are out of date.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from callsheet.client.clients import BaseClient

_BEGIN = "<!-- Made by `python -m callsheet.client.docs_page docs/client.md` from the source. Do not edit. -->\n"
_END = "<!-- To here. -->\n"
_RETURN_TYPES = {"Operation": "{}", "IterableOperation": "Iterator[{}]"}
"""What a caller gets for what a talk is annotated with."""
_LINE_WIDTH = 110
_NBSP = "\0"
"""A space at which no line is broken."""


def render_page(text: str) -> str:
    """Return a page with the signatures as they are now, between its marks."""
    head, _, tail = text.partition(_BEGIN)
    class_node = "\n\n".join(_render_group(group) for group in BaseClient.__bases__)
    return f"{head}{_BEGIN}\n```python\n{class_node}\n```\n\n{_END}{tail.partition(_END)[2]}"


def signatures() -> dict[str, str]:
    """Return every call with its signature."""
    return {name: line.replace(_NBSP, " ") for group in BaseClient.__bases__ for name, line in _operations(group)}


def _render_group(group: type) -> str:
    lines = [f"# {group.__doc__}"]
    for _, line in _operations(group):
        lines += textwrap.wrap(
            line, _LINE_WIDTH, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
        )
    return "\n".join(lines).replace(_NBSP, " ")


def _operations(group: type) -> Iterator[tuple[str, str]]:
    """Read the calls of a group: those of its methods that a decorator makes one of both clients."""
    (class_node,) = ast.parse(inspect.getsource(group)).body
    for node in class_node.body if isinstance(class_node, ast.ClassDef) else ():
        if isinstance(node, ast.FunctionDef) and node.decorator_list and isinstance(node.returns, ast.Subscript):
            return_type = _RETURN_TYPES[ast.unparse(node.returns.value)].format(ast.unparse(node.returns.slice))
            end = f") -> {return_type}".replace(" ", _NBSP)
            yield node.name, f"{node.name}({', '.join(_parameters(node.args))}{end}"


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    """Write parameters without the client; what belongs to one stays on one line."""
    positional = arguments.args[1:]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
    for index, (node, default) in enumerate(zip([*positional, *arguments.kwonlyargs], defaults, strict=True)):
        if index == len(positional):
            yield "*"
        text = ast.unparse(node) if default is None else f"{ast.unparse(node)} = {ast.unparse(default)}"
        yield text.replace(" ", _NBSP)


if __name__ == "__main__":
    _file = Path(sys.argv[1])
    _file.write_text(render_page(_file.read_text()))
