"""The signatures of the calls, as a part of a page of the documentation, from the source.

`python -m callsheet.client.handbook docs/client.md` renews them; a test says when they are out of date.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from callsheet.client.clients import Calls

_BEGIN = "<!-- Made by `python -m callsheet.client.handbook docs/client.md` from the source. Do not edit. -->\n"
_END = "<!-- To here. -->\n"
_GIVES = {"Talk": "{}", "Items": "Iterator[{}]"}
"""What a caller gets for what a talk is annotated with."""
_WIDE = 110
_GLUE = "\0"
"""A space at which no line is broken."""


def renewed(text: str) -> str:
    """Return a page with the signatures as they are now, between its marks."""
    before, _, rest = text.partition(_BEGIN)
    made = "\n\n".join(_group(group) for group in Calls.__bases__)
    return f"{before}{_BEGIN}\n```python\n{made}\n```\n\n{_END}{rest.partition(_END)[2]}"


def signatures() -> dict[str, str]:
    """Return every call with its signature."""
    return {name: line.replace(_GLUE, " ") for group in Calls.__bases__ for name, line in _calls(group)}


def _group(group: type) -> str:
    lines = [f"# {group.__doc__}"]
    for _, line in _calls(group):
        lines += textwrap.wrap(line, _WIDE, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
    return "\n".join(lines).replace(_GLUE, " ")


def _calls(group: type) -> Iterator[tuple[str, str]]:
    """Read the calls of a group: those of its methods that a decorator makes one of both clients."""
    (made,) = ast.parse(inspect.getsource(group)).body
    for one in made.body if isinstance(made, ast.ClassDef) else ():
        if isinstance(one, ast.FunctionDef) and one.decorator_list and isinstance(one.returns, ast.Subscript):
            gives = _GIVES[ast.unparse(one.returns.value)].format(ast.unparse(one.returns.slice))
            end = f") -> {gives}".replace(" ", _GLUE)
            yield one.name, f"{one.name}({', '.join(_parameters(one.args))}{end}"


def _parameters(given: ast.arguments) -> Iterator[str]:
    """Write parameters without the client; what belongs to one stays on one line."""
    plain = given.args[1:]
    defaults = [*[None] * (len(plain) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    for place, (one, default) in enumerate(zip([*plain, *given.kwonlyargs], defaults, strict=True)):
        if place == len(plain):
            yield "*"
        written = ast.unparse(one) if default is None else f"{ast.unparse(one)} = {ast.unparse(default)}"
        yield written.replace(" ", _GLUE)


if __name__ == "__main__":
    _file = Path(sys.argv[1])
    _file.write_text(renewed(_file.read_text()))
