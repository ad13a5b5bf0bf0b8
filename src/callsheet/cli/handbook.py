"""The settings as a page of the documentation, from their structs.

`python -m callsheet.cli.handbook > docs/settings.md` writes it; a test says when it is out of date.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from callsheet.cli.settings import Sections

_HEAD = """\
# Settings

Made by `python -m callsheet.cli.handbook > docs/settings.md` from the source. Do not edit.

`callsheet up --config callsheet.toml` and `callsheet serve --config callsheet.toml` read a TOML file. What it does not say has the value below; a name or a value that is wrong is refused with its line, before anything starts.

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


def page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *(line for field in fields(Sections) for line in _section(field.name, field.type))])


def _section(name: str, shape: type[Struct]) -> Iterator[str]:
    said = _sentences(shape)
    yield f"## [{name}]\n"
    yield f"{(shape.__doc__ or '').strip()}\n"
    yield "| setting | default | what it is |"
    yield "|---|---|---|"
    for field in fields(shape):
        if not (isinstance(field.type, type) and issubclass(field.type, Struct)):  # a section of its own
            default = field.default if field.default is not NODEFAULT else field.default_factory()
            written = msgspec.json.encode(default).decode()
            yield f"| `{field.name}` | `{written}` | {said.get(field.name, '')} |"
    yield ""


def _sentences(shape: type[Struct]) -> dict[str, str]:
    """Return what stands below each field in the source."""
    (made,) = ast.parse(inspect.getsource(shape)).body
    body = made.body if isinstance(made, ast.ClassDef) else []
    found = {}
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return found


if __name__ == "__main__":
    sys.stdout.write(page())
