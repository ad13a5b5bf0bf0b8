"""The OpenAPI 3.1 document, made from the table of routes."""

import inspect
import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from msgspec.structs import fields

from callsheet.http.openapi.error_codes import ANY_CODE, CODE_MEANINGS
from callsheet.http.openapi.field_doc import FieldDoc
from callsheet.http.openapi.field_docs import FIELD_DOCS, HEADER_DOCS, PATH_DOCS
from callsheet.http.openapi.groups import group_of, group_routes
from callsheet.http.openapi.response_examples import apply_example_changes
from callsheet.http.openapi.schemas import Schema, Schemas, parameters
from callsheet.http.server.problems import CONTENT_TYPE
from callsheet.http.server.router import PUBLIC, ROLES, Route

PARAMETER = re.compile(r"\{(\w+)\}")
STREAM = "text/event-stream"
_JSON = "application/json"
COMMON_CODES = (
    "400 invalid_request", "414 target_too_long", "431 headers_too_large", "500 internal_error", "503 unavailable",
)  # fmt: skip
KEY_CODES = ("401 missing_key", "401 invalid_key", "401 key_in_url")
BODY_CODES = (
    "400 invalid_json", "408 body_timeout", "413 body_too_large", "415 unsupported_media_type",
    "415 unsupported_encoding", "422 invalid_body",
)  # fmt: skip
_HEADERS_OF = {401: ("WWW-Authenticate",), 416: ("Content-Range",), 429: ("Retry-After",), 503: ("Retry-After",)}
_SHARED_CODES_MAX = 3
_SAMPLE_FRAME = 'id: 1\nevent: job.created\ndata: {"seq": 1, "type": "job.created", …}\n\n'
_TITLES = {
    200: "As asked.", 201: "Made.", 204: "Done; there is nothing to say.", 206: "The part that was asked for.",
    303: "It is elsewhere.", 304: "Nothing has changed.", 307: "Its bytes are elsewhere.",
    400: "The request cannot be read.", 401: "No valid key.", 402: "Too few credits.", 403: "Not allowed.",
    404: "Not there, or not yours.", 408: "Too slow.", 409: "What is there forbids it.",
    410: "No longer there.", 411: "Without its length.",
    412: "It is there already.", 413: "Too large.",
    414: "The address is too long.", 415: "Not JSON.", 416: "Not in the file.", 422: "The request is wrong.",
    429: "Too many.", 431: "The headers are too large.", 500: "Our fault.", 503: "Not now: try again in a moment.",
    507: "There is no room.",
}  # fmt: skip

_TOKEN: Schema = {
    "name": "token", "in": "query", "required": False, "schema": {"type": "string", "minLength": 1},
    "description": "A user's token, where a browser cannot send headers; a key is refused here.", "example": "cst_…",
}  # fmt: skip
_SCHEME = {"type": "http", "scheme": "bearer", "description": "An API key, `cs_…`, or a user's token, `cst_…`."}
_ABOUT = """\
Durable jobs for products that sell AI-made media: submit work, watch it, get paid for it.

**Keys.** Send `Authorization: Bearer cs_…`. A key belongs to a tenant and has a role; each route says which roles \
may call it. What belongs to another tenant looks absent. An operator's key has no tenant and names one with \
`Callsheet-Tenant`. A browser gets a short-lived user's token (`POST /v1/tokens`), which reads that user's jobs, \
files and wallet only.

**Problems.** Everything that is not what was asked for is `application/problem+json`: a stable `code`, a `message` \
for a person, and the `request_id`. Any address may answer 400 `invalid_request`, 404 `route_not_found`, 405 \
`method_not_allowed`, 414 `target_too_long`, 431 `headers_too_large`, 500 `internal_error` and 503 `unavailable`.

**Once.** A submit, a retry or a movement of credits with a key happens once, however often it is sent.

**Pages.** Lists give `next`; ask again with it to go on.
"""


def build_document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the document."""
    table = tuple(routes)
    schemas = Schemas([struct for route in table for struct in (route.response, route.request) if struct is not None])
    schemas.components["Problem"] = _problem_schema()
    paths: dict[str, dict[str, Any]] = {}
    shared: dict[str, Any] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, shared)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Callsheet", "version": version("callsheet"), "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": group.name, "description": group.description} for group in group_routes(table)],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.components.items())),
            "parameters": {"Tenant": _header("Callsheet-Tenant")},
            "responses": dict(sorted(shared.items())),
            "headers": {name: _set_header(doc) for name, doc in HEADER_DOCS.items()},
            "securitySchemes": {"key": _SCHEME},
        },
    }  # fmt: skip


def problems_of(route: Route) -> dict[int, list[str]]:
    """Return every problem that a route may answer with: codes by status."""
    listed = [*route.problems, *COMMON_CODES]
    if route.roles is not PUBLIC:
        listed += KEY_CODES
        if route.roles != frozenset(ROLES):
            listed.append("403 forbidden")
    if PARAMETER.search(route.path):
        listed.append("404 route_not_found")
    if route.query is not None:
        listed.append("422 invalid_query")
    if route.request is not None:
        listed += BODY_CODES
        if any(field.required for field in fields(route.request)):
            listed.append("400 body_required")
    found: dict[int, list[str]] = {}
    for line in sorted(set(listed)):
        status, _, code = line.partition(" ")
        found.setdefault(int(status), []).append(code)
    return found


def roles_of(route: Route) -> list[str]:
    """Return who may call a route, in the order of the roles; nobody in particular is anybody."""
    return [role for role in ROLES if role in route.roles]


def media_types_of(route: Route) -> list[str]:
    """Return the media types that a route may answer with."""
    return route.media_type.split(", ")


def _operation(route: Route, schemas: Schemas, shared: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "description": _about(route),
        "tags": [group_of(route).name],
        "x-roles": roles_of(route),
        "parameters": _parameters(route),
    }
    if route.roles is PUBLIC:
        operation["security"] = []
    if route.request is not None:
        operation["requestBody"] = {
            "required": any(field.required for field in fields(route.request)),
            "description": inspect.getdoc(route.request),
            "content": {_JSON: _content(route.request, schemas)},
        }
    operation["responses"] = _answers(route, schemas, shared)
    return operation


def _about(route: Route) -> str:
    roles = roles_of(route)
    who = f"Roles: {', '.join(roles)}." if roles else "Needs no key."
    return f"{route.details}\n\n{who}" if route.details else who


def _parameters(route: Route) -> list[Schema]:
    found = [
        _in_path(name, PATH_DOCS.get(f"{route.name}.{name}", PATH_DOCS[name])) for name in PARAMETER.findall(route.path)
    ]
    if route.query is not None:
        found += parameters(route.query)
    found += [_header(name) for name in route.request_headers]
    if route.token_in_query:
        found.append(_TOKEN)
    if route.roles is not PUBLIC:
        found.append({"$ref": "#/components/parameters/Tenant"})
    return found


def _in_path(name: str, doc: FieldDoc) -> Schema:
    return {
        "name": name, "in": "path", "required": True, "description": doc.meaning,
        "schema": {"type": "string", "minLength": 1}, "example": doc.example,
    }  # fmt: skip


def _header(name: str) -> Schema:
    doc = HEADER_DOCS[name]
    schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
    return {
        "name": name, "in": "header", "required": False, "description": doc.meaning, "schema": schema,
        "example": doc.example,
    }  # fmt: skip


def _content(struct: type[Any], schemas: Schemas) -> dict[str, Any]:
    return {"schema": schemas.ref(struct), "example": schemas.example(struct.__name__)}


# -- answers


def _answers(route: Route, schemas: Schemas, shared: dict[str, Any]) -> dict[str, Any]:
    """Return a route's answers; problems that many routes share stand in the document once."""
    answers = {
        str(status): _success_response(route, status, schemas) for status in (route.status, *route.other_statuses)
    }
    for status, codes in problems_of(route).items():
        answer = _problem_response(status, codes)
        if len(codes) <= _SHARED_CODES_MAX:
            name = "-".join([str(status), *codes]).replace(ANY_CODE, "any")
            shared[name] = answer
            answer = {"$ref": f"#/components/responses/{name}"}
        answers[str(status)] = answer
    return dict(sorted(answers.items()))


def _success_response(route: Route, status: int, schemas: Schemas) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": _TITLES[status],
        "headers": _headers(("X-Request-Id", *route.response_headers)),
    }
    if status in {204, 303, 304, 307}:
        return answer
    if route.response is not None:
        answer["description"] = inspect.getdoc(route.response) or _TITLES[status]
        content = _content(route.response, schemas)
        answer["content"] = {_JSON: {**content, "example": apply_example_changes(route.name, content["example"])}}
    else:
        answer["content"] = {
            kind: {"schema": {"type": "object"} if kind == _JSON else {}} for kind in media_types_of(route)
        }
    if route.event_stream:
        answer["content"][STREAM] = {"schema": {"type": "string"}, "example": _SAMPLE_FRAME}
    return answer


def _problem_response(status: int, codes: list[str]) -> dict[str, Any]:
    schema: Schema = {"$ref": "#/components/schemas/Problem"}
    if ANY_CODE not in codes:
        schema = {**schema, "properties": {"code": {"enum": codes}}}
    lines = "\n".join(f"- `{code}`: {CODE_MEANINGS[code]}" for code in codes)
    return {
        "description": f"{_TITLES[status]}\n\n{lines}",
        "headers": _headers(("X-Request-Id", *_HEADERS_OF.get(status, ()))),
        "content": {
            CONTENT_TYPE: {
                "schema": schema,
                "examples": {code: {"value": _sample(status, code)} for code in codes if code != ANY_CODE},
            }
        },
        "x-codes": codes,
    }


def _sample(status: int, code: str) -> dict[str, Any]:
    request_id = FIELD_DOCS["request_id"].example
    return {"code": code, "message": CODE_MEANINGS[code], "status": status, "request_id": request_id}


def _headers(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _set_header(doc: FieldDoc) -> dict[str, Any]:
    return {"description": doc.meaning, "schema": {"type": "string"}, "example": doc.example}


def _problem_schema() -> Schema:
    kinds = {"code": "string", "message": "string", "status": "integer", "request_id": "string"}
    docs = {name: FIELD_DOCS.get(f"Problem.{name}") or FIELD_DOCS[name] for name in kinds}
    return {
        "title": "Problem",
        "description": "An answer that is not what was asked for; a refusal's numbers stand beside these fields.",
        "type": "object",
        "properties": {name: {"type": kinds[name], "description": doc.meaning} for name, doc in docs.items()},
        "required": list(kinds),
    }
