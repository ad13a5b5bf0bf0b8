"""The HTML reference page, generated from the OpenAPI document. It loads nothing from other hosts."""

import json
import re
from collections.abc import Iterator
from html import escape
from itertools import chain
from typing import Any

from callsheet.http.openapi.builder import COMMON_CODES
from callsheet.http.openapi.curl import curl, start

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
{shapes}
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
            start=self._start(), groups="".join(groups), shapes="".join(self._shapes()),
        )  # fmt: skip

    def _start(self) -> str:
        topups = [one for one in self._operations if one[2]["operationId"] == "top_up"]
        return "".join(
            f"{_render_markdown(_SAMPLES)}{_sample('Setup', 'shell', start(one))}{_render_markdown(_IDS)}"
            for one in topups
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
        yield '<h2><a href="#shapes">objects</a></h2><h2><a href="/openapi.json">openapi.json</a></h2>'

    def _operations_of(self, tag: Node) -> list[tuple[str, str, Node]]:
        return [one for one in self._operations if tag["name"] in one[2]["tags"]]

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
        yield f'<p class="address"><span class="method {method}">{method}</span><code>{_path(path)}</code></p>'
        yield '<div class="columns"><div class="words">'
        yield from self._about(operation)
        yield from self._parameters(operation)
        if body := operation.get("requestBody"):
            yield "<h4>Request body</h4>"
            yield from self._fields(_json(body)["schema"])
        yield from self._answers(operation)
        yield '</div><div class="samples">'
        yield _sample("Request", "shell", curl(method, path, operation))
        for (title, text), statuses in self._examples(operation).items():
            yield _sample(title, ", ".join(statuses), text)
        yield "</div></div></article>"

    def _about(self, operation: Node) -> Iterator[str]:
        details, _, _ = operation["description"].rpartition("\n\n")
        if details:
            yield _render_markdown(details)
        roles = operation["x-roles"] or ["no key needed"]
        yield '<ul class="roles" aria-label="Roles that may call this route">'
        yield from (f'<li class="{role.partition(" ")[0]}">{_escape(role)}</li>' for role in roles)
        yield "</ul>"

    def _parameters(self, operation: Node) -> Iterator[str]:
        given = [parameter for parameter in operation["parameters"] if "$ref" not in parameter]  # shared by all routes
        for place, title in (("path", "Path"), ("query", "Query"), ("header", "Headers")):
            mine = [one for one in given if one["in"] == place]
            if mine:
                yield f"<h4>{title}</h4><dl>"
                yield from (self._field(p["name"], p["schema"], p["required"], p["description"]) for p in mine)
                yield "</dl>"

    def _answers(self, operation: Node) -> Iterator[str]:
        yield '<h4>Responses</h4><ul class="answers">'
        for status, given in operation["responses"].items():
            answer = self._resolve(given)
            codes = [code for code in answer.get("x-codes", []) if code not in _COMMON_CODES]
            if "x-codes" in answer and not codes:
                continue
            first, _, rest = answer["description"].partition("\n\n")
            yield f'<li class="s{status[0]}"><span class="status">{status}</span>'
            if not codes:
                shape = self._shape(answer)
                yield f"<span>{_inline(first)} {shape}</span></li>"
                continue
            listed = " ".join(f"<code>{_escape(code)}</code>" for code in codes[:2])
            more = f" and {len(codes) - 2} more" if len(codes) > 2 else ""  # noqa: PLR2004 - as many as are listed
            yield f"<details><summary>{_inline(first)} {listed}{more}</summary>{_render_markdown(rest)}</details></li>"
        yield "</ul>"

    def _shape(self, answer: Node) -> str:
        kinds = []
        for media_type, content in answer.get("content", {}).items():
            schema = content["schema"]
            kinds.append(self._kind(schema) if "$ref" in schema else f"<code>{_escape(media_type)}</code>")
        return " or ".join(kinds)

    def _examples(self, operation: Node) -> dict[tuple[str, str], list[str]]:
        """Return the examples of successful responses, each with its statuses."""
        found: dict[tuple[str, str], list[str]] = {}
        for status, given in operation["responses"].items():
            for media_type, answer in self._resolve(given).get("content", {}).items():
                if "example" in answer:
                    example = answer["example"]
                    text = example if isinstance(example, str) else _pretty(example)
                    title = "Response" if media_type == "application/json" else media_type
                    found.setdefault((title, text), []).append(status)
        return found

    # -- objects

    def _shapes(self) -> Iterator[str]:
        yield '<section class="group" id="shapes"><h2>objects</h2><p>Fields of request and response bodies.</p>'
        for name, schema in self._components["schemas"].items():
            if name.endswith("Query"):
                continue
            yield f'<article class="shape" id="shape-{name}"><h3><a href="#shape-{name}">{_escape(name)}</a></h3>'
            yield f"<p>{_inline(schema.get('description', ''))}</p>"
            yield from self._fields(schema)
            yield "</article>"
        yield "</section>"

    def _fields(self, schema: Node) -> Iterator[str]:
        found = self._resolve(schema)
        required = found.get("required", []) if found.get("additionalProperties") is False else []  # responses have all
        yield "<dl>"
        for name, part in found.get("properties", {}).items():
            yield self._field(name, part, name in required, part.get("description", ""))
        yield "</dl>"

    def _field(self, name: str, schema: Node, required: bool, meaning: str) -> str:  # noqa: FBT001 - private
        notes = [self._kind(schema)]
        if required:
            notes.append("<b>required</b>")
        if (default := schema.get("default")) not in (None, "", [], {}):
            notes.append(f"default <code>{_escape(json.dumps(default))}</code>")
        values = schema.get("enum", [])
        listed = "".join(f"<code>{_escape(str(value))}</code> " for value in values)
        tail = f'<div class="values">{listed}</div>' if values else ""
        return (
            f"<dt><code>{_escape(name)}</code> <small>{', '.join(notes)}</small></dt><dd>{_inline(meaning)}{tail}</dd>"
        )

    def _kind(self, schema: Node) -> str:
        if ref := schema.get("$ref"):
            name = ref.rpartition("/")[2]
            return f'<a href="#shape-{name}">{_escape(name)}</a>'
        if parts := schema.get("anyOf"):
            return " or ".join(self._kind(part) for part in parts)
        kind = schema.get("type", "any JSON")
        if kind == "array":
            return f"list of {self._kind(schema['items'])}" if schema.get("items") else "list"
        if isinstance(inner := schema.get("additionalProperties"), dict):
            return f"object of {self._kind(inner)}"
        return "time" if schema.get("format") == "date-time" else str(kind)

    def _resolve(self, node: Node) -> Node:
        """Follow a reference."""
        if "$ref" not in node:
            return node
        _, _, kind, name = node["$ref"].split("/")
        found: Node = self._components[kind][name]
        return found


# -- texts


def _anchor(tag: Node) -> str:
    return f"tag-{tag['name'].replace(' ', '-')}"


def _escape(text: str) -> str:
    return escape(text)


def _inline(text: str) -> str:
    return _STRONG.sub(r"<strong>\1</strong>", _CODE.sub(r"<code>\1</code>", escape(text)))


def _render_markdown(text: str) -> str:
    """Render paragraphs, lists, code and bold: the Markdown that descriptions use."""
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
    """Mark names, texts and numbers in JSON."""
    return _JSON_PART.sub(_colour_span, escape(text, quote=False))


def _colour_span(found: re.Match[str]) -> str:
    kind = found.lastgroup
    return f'<span class="{kind}">{found[kind]}</span>' if kind else found[0]


def _json(content: Node) -> Node:
    found: Node = content["content"]["application/json"]
    return found


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
