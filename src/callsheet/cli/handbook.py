"""The settings as a page of the documentation, and the fields of a workflow as a part of one, from their structs.

`python -m callsheet.cli.handbook > docs/settings.md` writes the one, `python -m callsheet.cli.handbook
docs/workflows.md` renews the other; a test says when they are out of date.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from callsheet.catalog.checking import Written
from callsheet.cli.settings import Sections, least_of
from callsheet.core.comfy import ComfySpec
from callsheet.core.recipe import Backoff, Recipe, Refunds, Retry, StageSpec

_HEAD = """\
# Settings

Made by `python -m callsheet.cli.handbook > docs/settings.md` from the source. Do not edit.

`callsheet up --config callsheet.toml` and `callsheet serve --config callsheet.toml` read a TOML file. What it does not say has the value below; a name or a value that is wrong is refused with its line, before anything starts or is made. Where a number may be 0, its line says what that means.

```toml
[engine]
readers = 8

[limits]
active_jobs_max = 20
kind_running_max = { gpu = 4 }
provider_rate_max = { replicate = "600/minute" }

[blobs]
url = "s3://films/callsheet"

[http]
cors_origins = ["https://app.example"]
```
"""  # noqa: E501 - paragraphs of a page


_BEGIN = "<!-- Made by `python -m callsheet.cli.handbook docs/workflows.md` from the source. Do not edit. -->\n"
_END = "<!-- To here. -->\n"
_PARTS: tuple[tuple[str, type[Struct], str], ...] = (
    ("The file itself", Written, Recipe.__doc__ or ""),
    ("`[[stages]]`", StageSpec, StageSpec.__doc__ or ""),
    ("`[stages.comfyui]`", ComfySpec, ComfySpec.__doc__ or ""),
    ("`[retry]`", Retry, Retry.__doc__ or ""),
    ("`[retry.backoff]`", Backoff, Backoff.__doc__ or ""),
    ("`[refunds]`", Refunds, Refunds.__doc__ or ""),
)


def page() -> str:
    """Return the whole page of settings."""
    return "\n".join([_HEAD, *(line for field in fields(Sections) for line in _section(field.name, field.type))])


def renewed(text: str) -> str:
    """Return a page with the fields of a workflow as they are now, between its marks."""
    before, _, rest = text.partition(_BEGIN)
    made = "\n".join(line for head, shape, what in _PARTS for line in _part(head, shape, what))
    return f"{before}{_BEGIN}\n{made}\n{_END}{rest.partition(_END)[2]}"


def _part(head: str, shape: type[Struct], what: str) -> Iterator[str]:
    said = _sentences(shape)
    yield f"**{head}.** {what}\n"
    yield "| field | default | what it is |"
    yield "|---|---|---|"
    for field in fields(shape):
        yield f"| `{field.name}` | {_usual(field)} | {said.get(field.name, '')} |"
    yield ""


def _usual(field: FieldInfo) -> str:
    """Write what holds without a field; a table of fields has a table of its own here, and null is nothing."""
    if field.required:
        return "required"
    default = field.default if field.default is not NODEFAULT else field.default_factory()
    return "" if default is None or isinstance(default, Struct) else f"`{msgspec.json.encode(default).decode()}`"


def _section(name: str, shape: type[Struct]) -> Iterator[str]:
    said = _sentences(shape)
    yield f"## [{name}]\n"
    yield f"{(shape.__doc__ or '').strip()}\n"
    yield "| setting | default | least | what it is |"
    yield "|---|---|---|---|"
    for field in fields(shape):
        if not (isinstance(field.type, type) and issubclass(field.type, Struct)):  # a section of its own
            default = field.default if field.default is not NODEFAULT else field.default_factory()
            written = msgspec.json.encode(default).decode()
            least = least_of(name, field.name)
            shown = "" if least is None else f"{least:g}"
            yield f"| `{field.name}` | `{written}` | {shown} | {said.get(field.name, '')} |"
    yield ""


def _sentences(shape: type[Struct]) -> dict[str, str]:
    """Return what stands below each field in the source, of the struct and of those that it is made from."""
    found = _sentences(shape.__base__) if shape.__base__ not in {Struct, None} else {}
    (made,) = ast.parse(inspect.getsource(shape)).body
    body = made.body if isinstance(made, ast.ClassDef) else []
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return found


if __name__ == "__main__":
    if sys.argv[1:]:
        _file = Path(sys.argv[1])
        _file.write_text(renewed(_file.read_text()))
    else:
        sys.stdout.write(page())
