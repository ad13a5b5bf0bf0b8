"""The settings page and the field tables of the workflow page, generated from the structs. `make docs` writes both."""

import ast
import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from callsheet.catalog.validate import WorkflowFile
from callsheet.cli.server_settings_file import ConfigFile, minimum_of
from callsheet.core.model.comfyui_graph import ComfySpec
from callsheet.core.model.workflow_definition import Backoff, RefundPolicy, RetryPolicy, StageSpec, WorkflowDefinition

_INTRO = """\
# Settings

Made by `python -m callsheet.cli.settings_docs_page > docs/reference/settings.md` from the source. Do not edit.

`callsheet up --config callsheet.toml` and `callsheet serve --config callsheet.toml` read a TOML file. A setting that the file leaves out has the default below. If a name or a value is wrong, the command prints its line and exits before anything starts. Where a number may be 0, the table says what 0 means.

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

[plugins]
gates = ["my_package.moderation:gate"]
```
"""  # noqa: E501 - paragraphs of a page


_BEGIN = "<!-- Generated from the source by `make docs`. Do not edit. -->\n"
_END = "<!-- To here. -->\n"
_WORKFLOW_STRUCTS: tuple[tuple[str, type[Struct], str], ...] = (
    ("The file itself", WorkflowFile, WorkflowDefinition.__doc__ or ""),
    ("`[[stages]]`", StageSpec, StageSpec.__doc__ or ""),
    ("`[stages.comfyui]`", ComfySpec, ComfySpec.__doc__ or ""),
    ("`[retry]`", RetryPolicy, RetryPolicy.__doc__ or ""),
    ("`[retry.backoff]`", Backoff, Backoff.__doc__ or ""),
    ("`[refunds]`", RefundPolicy, RefundPolicy.__doc__ or ""),
)


def page() -> str:
    """Return the whole page of settings."""
    return "\n".join([_INTRO, *(line for field in fields(ConfigFile) for line in _section(field.name, field.type))])


def update_fields_section(text: str) -> str:
    """Return a page with the fields of a workflow as they are now, between its marks."""
    before, _, rest = text.partition(_BEGIN)
    made = "\n".join(
        line for head, struct, description in _WORKFLOW_STRUCTS for line in _field_table(head, struct, description)
    )
    return f"{before}{_BEGIN}\n{made}\n{_END}{rest.partition(_END)[2]}"


def _field_table(head: str, struct: type[Struct], description: str) -> Iterator[str]:
    docs = _field_docs(struct)
    yield f"**{head}.** {description}\n"
    yield "| field | default | what it is |"
    yield "|---|---|---|"
    for field in fields(struct):
        yield f"| `{field.name}` | {_format_default(field)} | {docs.get(field.name, '')} |"
    yield ""


def _format_default(field: FieldInfo) -> str:
    """Write what holds without a field; a table of fields has a table of its own here, and null is nothing."""
    if field.required:
        return "required"
    default = field.default if field.default is not NODEFAULT else field.default_factory()
    return "" if default is None or isinstance(default, Struct) else f"`{msgspec.json.encode(default).decode()}`"


def _section(name: str, struct: type[Struct]) -> Iterator[str]:
    docs = _field_docs(struct)
    yield f"## [{name}]\n"
    yield f"{(struct.__doc__ or '').strip()}\n"
    yield "| setting | default | least | what it is |"
    yield "|---|---|---|---|"
    for field in fields(struct):
        if not (isinstance(field.type, type) and issubclass(field.type, Struct)):  # a section of its own
            default = field.default if field.default is not NODEFAULT else field.default_factory()
            written = msgspec.json.encode(default).decode()
            minimum = minimum_of(name, field.name)
            minimum_text = "" if minimum is None else f"{minimum:g}"
            yield f"| `{field.name}` | `{written}` | {minimum_text} | {docs.get(field.name, '')} |"
    yield ""


def _field_docs(struct: type[Struct]) -> dict[str, str]:
    """Return what stands below each field in the source, of the struct and of those that it is made from."""
    found = _field_docs(struct.__base__) if struct.__base__ not in {Struct, None} else {}
    (made,) = ast.parse(inspect.getsource(struct)).body
    body = made.body if isinstance(made, ast.ClassDef) else []
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return found


if __name__ == "__main__":
    if sys.argv[1:]:
        _file = Path(sys.argv[1])
        _file.write_text(update_fields_section(_file.read_text()))
    else:
        sys.stdout.write(page())
