"""The HTML reference page, generated from the OpenAPI document. It loads nothing from other hosts."""

import json
import re
from collections.abc import Iterator
from html import escape
from itertools import chain
from typing import Any

from callsheet.http.openapi.curl import curl, start
from callsheet.http.openapi.document_builder import COMMON_CODES

Node = dict[str, Any]
_CODE = re.compile(r"`([^`]+)`")
_STRONG = re.compile(r"\*\*([^*]+)\*\*")
_JSON_PART = re.compile(
    r'(?P<n>"(?:[^"\\\n]|\\.)*"(?=: ))|(?P<t>"(?:[^"\\\n]|\\.)*")|(?P<v>(?<=: )(?:-?\d[\d.]*|true|false|null)\b)'
)
_COMMON_CODES = {line.partition(" ")[2] for line in COMMON_CODES}
"""Codes that any route may return: listed once, in the introduction."""
_ITEM = "- "
_SAMPLES = """\
**Samples.** You can paste every sample into a shell. First paste this one, in the folder where `callsheet up` runs. \
It sets the variables, and tops up the wallet of the user `ann`.
"""
_IDS = """\
Set the other variables from responses:

- `JOB`: `id` of a submitted job.
- `TASK`, `FILE`: `id` of one of its tasks, and of a file of its outputs.
- `KEY_ID`: `id` of an API key.
- `SIGNED`: last part of `upload.url` of a created upload.
- `TOKEN`: `token` of a registered worker.
"""
_FRAME = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Callsheet API</title>
<link rel="stylesheet" href="/docs/reference.css">
<link rel="icon" href="data:,">
<script src="/docs/reference.js" defer></script>
</head>
<body>
<a class="skip" href="#main">Skip to content</a>
<header>
<a class="brand" href="#top">Callsheet <small>API {version}</small></a>
<details id="menu"><summary>Contents</summary></details>
<input id="search" type="search" placeholder="Search ( / )"
 aria-label="Search routes, fields and error codes" autocomplete="off" spellcheck="false">
<a class="plain" href="/openapi.json">openapi.json</a>
</header>
<nav aria-label="Contents">{nav}</nav>
<main id="main">
<section class="intro" id="top"><h1>Callsheet API</h1>{intro}{start}</section>
{groups}
{objects}
<p id="nothing" hidden>No results. Search for other words.</p>
</main>
</body>
</html>
"""


class ReferencePage:
    """Renders an OpenAPI document as a page."""

    def __init__(self, document: Node) -> None:
        self._document = document
        self._components = document["components"]
        self._operations = [
            (method, path, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]

    def html(self) -> str:
        info = self._document["info"]
        groups = chain.from_iterable(self._group(tag) for tag in self._document["tags"])
        return _FRAME.format(
            version=_escape(info["version"]), nav="".join(self._contents()),
            intro=_render_markdown(info["description"]),
            start=self._start(), groups="".join(groups), objects="".join(self._objects()),
        )  # fmt: skip

    def _start(self) -> str:
        topups = [entry for entry in self._operations if entry[2]["operationId"] == "top_up"]
        return "".join(
            f"{_render_markdown(_SAMPLES)}{_sample('Setup', 'shell', start(topup))}{_render_markdown(_IDS)}"
            for topup in topups
        )

    # -- table of contents

    def _contents(self) -> Iterator[str]:
        for tag in self._document["tags"]:
            yield f'<h2><a href="#{_anchor(tag)}">{_escape(tag["name"])}</a></h2><ul>'
            for method, _, operation in self._operations_of(tag):
                name = operation["operationId"]
                yield f'<li data-for="{name}"><a href="#{name}"><span class="method {method}">{method}</span>'
                yield f"<span>{_escape(operation['summary'])}</span></a></li>"
            yield "</ul>"
        yield '<h2><a href="#objects">objects</a></h2><h2><a href="/openapi.json">openapi.json</a></h2>'

    def _operations_of(self, tag: Node) -> list[tuple[str, str, Node]]:
        return [entry for entry in self._operations if tag["name"] in entry[2]["tags"]]

    # -- routes

    def _group(self, tag: Node) -> Iterator[str]:
        yield f'<section class="group" id="{_anchor(tag)}"><h2>{_escape(tag["name"])}</h2>'
        yield f"<p>{_inline(tag['description'])}</p>"
        for method, path, operation in self._operations_of(tag):
            yield from self._route(method, path, operation)
        yield "</section>"

    def _route(self, method: str, path: str, operation: Node) -> Iterator[str]:
        name = operation["operationId"]
        yield f'<article class="route" id="{name}"><h3><a href="#{name}">{_escape(operation["summary"])}</a></h3>'
        yield f'<p class="endpoint"><span class="method {method}">{method}</span><code>{_path(path)}</code></p>'
        yield '<div class="columns"><div class="text">'
        yield from self._description(operation)
        yield from self._parameters(operation)
        if body := operation.get("requestBody"):
            yield "<h4>Request body</h4>"
            yield from self._fields(_json(body)["schema"])
        yield from self._responses(operation)
        yield '</div><div class="samples">'
        yield _sample("Request", "shell", curl(method, path, operation))
        for (title, text), statuses in self._examples(operation).items():
            yield _sample(title, ", ".join(statuses), text)
        yield "</div></div></article>"

    def _description(self, operation: Node) -> Iterator[str]:
        details, _, _ = operation["description"].rpartition("\n\n")
        if details:
            yield _render_markdown(details)
        roles = operation["x-roles"] or ["no key needed"]
        yield '<ul class="roles" aria-label="Roles that may call this route">'
        yield from (f'<li class="{role.partition(" ")[0]}">{_escape(role)}</li>' for role in roles)
        yield "</ul>"

    def _parameters(self, operation: Node) -> Iterator[str]:
        own = [parameter for parameter in operation["parameters"] if "$ref" not in parameter]  # others are shared
        for location, title in (("path", "Path"), ("query", "Query"), ("header", "Headers")):
            listed = [parameter for parameter in own if parameter["in"] == location]
            if listed:
                yield f"<h4>{title}</h4><dl>"
                yield from (self._field(p["name"], p["schema"], p["required"], p["description"]) for p in listed)
                yield "</dl>"

    def _responses(self, operation: Node) -> Iterator[str]:
        yield '<h4>Responses</h4><ul class="responses">'
        for status, response_or_ref in operation["responses"].items():
            response = self._resolve(response_or_ref)
            codes = [code for code in response.get("x-codes", []) if code not in _COMMON_CODES]
            if "x-codes" in response and not codes:
                continue
            first, _, rest = response["description"].partition("\n\n")
            yield f'<li class="s{status[0]}"><span class="status">{status}</span>'
            if not codes:
                yield f"<span>{_inline(first)} {self._content_types(response)}</span></li>"
                continue
            listed = " ".join(f"<code>{_escape(code)}</code>" for code in codes[:2])
            more = f" and {len(codes) - 2} more" if len(codes) > 2 else ""  # noqa: PLR2004 - two are listed
            yield f"<details><summary>{_inline(first)} {listed}{more}</summary>{_render_markdown(rest)}</details></li>"
        yield "</ul>"

    def _content_types(self, response: Node) -> str:
        types = []
        for media_type, content in response.get("content", {}).items():
            schema = content["schema"]
            types.append(self._type(schema) if "$ref" in schema else f"<code>{_escape(media_type)}</code>")
        return " or ".join(types)

    def _examples(self, operation: Node) -> dict[tuple[str, str], list[str]]:
        """Return the examples of successful responses, each with its statuses."""
        found: dict[tuple[str, str], list[str]] = {}
        for status, response_or_ref in operation["responses"].items():
            for media_type, content in self._resolve(response_or_ref).get("content", {}).items():
                if "example" in content:
                    example = content["example"]
                    text = example if isinstance(example, str) else _pretty(example)
                    title = "Response" if media_type == "application/json" else media_type
                    found.setdefault((title, text), []).append(status)
        return found

    # -- objects

    def _objects(self) -> Iterator[str]:
        yield '<section class="group" id="objects"><h2>objects</h2><p>Fields of request and response bodies.</p>'
        for name, schema in self._components["schemas"].items():
            if name.endswith("Query"):
                continue
            yield f'<article class="object" id="object-{name}"><h3><a href="#object-{name}">{_escape(name)}</a></h3>'
            yield f"<p>{_inline(schema.get('description', ''))}</p>"
            yield from self._fields(schema)
            yield "</article>"
        yield "</section>"

    def _fields(self, schema: Node) -> Iterator[str]:
        found = self._resolve(schema)
        required = found.get("required", []) if found.get("additionalProperties") is False else []  # only requests
        yield "<dl>"
        for name, part in found.get("properties", {}).items():
            yield self._field(name, part, name in required, part.get("description", ""))
        yield "</dl>"

    def _field(self, name: str, schema: Node, required: bool, description: str) -> str:  # noqa: FBT001 - private
        notes = [self._type(schema)]
        if required:
            notes.append("<b>required</b>")
        if (default := schema.get("default")) not in (None, "", [], {}):
            notes.append(f"default <code>{_escape(json.dumps(default))}</code>")
        values = schema.get("enum", [])
        listed = "".join(f"<code>{_escape(str(value))}</code> " for value in values)
        tail = f'<div class="values">{listed}</div>' if values else ""
        term = f"<dt><code>{_escape(name)}</code> <small>{', '.join(notes)}</small></dt>"
        return f"{term}<dd>{_inline(description)}{tail}</dd>"

    def _type(self, schema: Node) -> str:
        if ref := schema.get("$ref"):
            name = ref.rpartition("/")[2]
            return f'<a href="#object-{name}">{_escape(name)}</a>'
        if parts := schema.get("anyOf"):
            return " or ".join(self._type(part) for part in parts)
        kind = schema.get("type", "any JSON")
        if kind == "array":
            return f"list of {self._type(schema['items'])}" if schema.get("items") else "list"
        if isinstance(inner := schema.get("additionalProperties"), dict):
            return f"object of {self._type(inner)}"
        return "time" if schema.get("format") == "date-time" else str(kind)

    def _resolve(self, node: Node) -> Node:
        """Follow a reference."""
        if "$ref" not in node:
            return node
        _, _, kind, name = node["$ref"].split("/")
        found: Node = self._components[kind][name]
        return found


# -- text and markup


def _anchor(tag: Node) -> str:
    return f"tag-{tag['name'].replace(' ', '-')}"


def _escape(text: str) -> str:
    return escape(text)


def _inline(text: str) -> str:
    return _STRONG.sub(r"<strong>\1</strong>", _CODE.sub(r"<code>\1</code>", escape(text)))


def _render_markdown(text: str) -> str:
    """Render the Markdown that descriptions use: paragraphs, lists, code and bold text."""
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        if all(line.startswith(_ITEM) for line in lines):
            blocks.append(f"<ul>{''.join(f'<li>{_inline(line[2:])}</li>' for line in lines)}</ul>")
        else:
            blocks.append(f"<p>{_inline(block)}</p>")
    return "".join(blocks)


def _path(path: str) -> str:
    return re.sub(r"\{(\w+)\}", r"<i>{\1}</i>", _escape(path))


def _sample(title: str, note: str, text: str) -> str:
    return (
        f'<figure class="sample"><figcaption>{_escape(title)} <span>{_escape(note)}</span></figcaption>'
        f'<pre tabindex="0"><code>{_highlight(text.rstrip())}</code></pre></figure>'
    )


def _highlight(text: str) -> str:
    """Highlight names, strings and numbers in JSON."""
    return _JSON_PART.sub(_highlight_span, escape(text, quote=False))


def _highlight_span(match: re.Match[str]) -> str:
    kind = match.lastgroup
    return f'<span class="{kind}">{match[kind]}</span>' if kind else match[0]


def _json(content: Node) -> Node:
    found: Node = content["content"]["application/json"]
    return found


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
