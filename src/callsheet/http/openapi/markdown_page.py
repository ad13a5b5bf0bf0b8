"""The routes as a page of the documentation, from the table.

`python -m callsheet.http.openapi.markdown_page > docs/http.md` writes it; a test says when it is out of date.
"""

import sys
from collections.abc import Iterator

from msgspec.structs import fields

from callsheet.http.openapi.builder import BODY_CODES, COMMON_CODES, KEY_CODES, problems_of, roles_of
from callsheet.http.openapi.field_docs import HEADER_DOCS
from callsheet.http.openapi.groups import Group, group_routes
from callsheet.http.openapi.schemas import parameters
from callsheet.http.routes.table import ROUTES
from callsheet.http.server.router import Route

_HEAD = """\
# HTTP

Made by `python -m callsheet.http.openapi.markdown_page > docs/http.md` from the table of routes. Do not edit.

A running server shows the same with every field, an example of every body and answer, and a search: `/docs` for people, `/openapi.json` for machines. How the parts play together: [api.md](api.md). What each code means: [errors.md](errors.md).

Not repeated below: any address may answer 400 `invalid_request`, 404 `route_not_found`, 405 `method_not_allowed`, 414 `target_too_long`, 431 `headers_too_large`, 500 `internal_error` and 503 `unavailable`; a route that asks for a key 401 `missing_key`, `invalid_key` and `key_in_url`; one with a body 400 `body_required` and `invalid_json`, 408 `body_timeout`, 413 `body_too_large`, 415 `unsupported_media_type` and `unsupported_encoding`, and 422 `invalid_body`. Required fields of a body are bold.

## Who may call what
"""  # noqa: E501 - paragraphs of a page
_COMMON = {line.partition(" ")[2] for line in (*COMMON_CODES, *KEY_CODES, *BODY_CODES)} | {
    "route_not_found",
    "body_required",
}


def page() -> str:
    """Return the whole page."""
    groups = group_routes(ROUTES).items()
    return "\n".join([_HEAD, *_table(), *(line for group, mine in groups for line in _group(group, mine))])


def _table() -> Iterator[str]:
    yield "| route | | roles |\n|---|---|---|"
    for route in ROUTES:
        yield f"| `{route.method} {route.path}` | {route.summary} | {_roles(route)} |"
    yield ""


def _group(group: Group, mine: list[Route]) -> Iterator[str]:
    yield f"## {group.name.capitalize()}\n"
    for route in mine:
        yield from _route(route)


def _route(route: Route) -> Iterator[str]:
    yield f"### `{route.method} {route.path}`\n"
    yield f"{route.summary}. {route.details}".rstrip() + "\n"
    for parameter in parameters(route.query) if route.query else []:
        default = parameter["schema"].get("default")
        note = "" if default is None else f" (default `{default}`)".replace("False", "false")
        yield f"- `?{parameter['name']}`: {parameter['description']}{note}"
    if route.token_in_query:
        yield "- `?token`: A user's token, where a browser cannot send headers."
    for name in route.request_headers:
        yield f"- `{name}`: {HEADER_DOCS[name].meaning}"
    if route.request is not None:
        yield f"- Body: {_body(route.request)}"
    yield f"- Answers: {_answers(route)}"
    if problems := _problems(route):
        yield f"- Problems: {problems}"
    yield ""


def _body(request: type) -> str:
    return ", ".join(
        f"**`{field.encode_name}`**" if field.required else f"`{field.encode_name}`" for field in fields(request)
    )


def _answers(route: Route) -> str:
    what = f"`{route.response.__name__}`" if route.response else f"`{route.media_type.replace(', ', '`, `')}`"
    stream = " or `text/event-stream`" if route.event_stream else ""
    parts = [f"{route.status}" if route.status == 204 else f"{route.status} {what}{stream}"]  # noqa: PLR2004 - no content
    return ", ".join([*parts, *map(str, route.other_statuses)])


def _problems(route: Route) -> str:
    found = []
    for status, codes in problems_of(route).items():
        own = [f"`{code}`" for code in codes if code not in _COMMON]
        if own:
            found.append(f"{status} {', '.join(own)}")
    return "; ".join(found)


def _roles(route: Route) -> str:
    return ", ".join(roles_of(route)) or "anybody"


if __name__ == "__main__":
    sys.stdout.write(page())
