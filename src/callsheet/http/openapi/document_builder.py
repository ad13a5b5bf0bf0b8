"""The OpenAPI 3.1 document, generated from the route table and the structs of the API."""

import inspect
import re
from collections.abc import Iterable
from http import HTTPStatus
from importlib.metadata import version
from itertools import chain, count
from typing import Any

from msgspec.structs import fields

from callsheet.api.errors import Problem
from callsheet.http.openapi.error_codes import ANY_CODE, describe_code
from callsheet.http.openapi.groups import group_of, group_routes
from callsheet.http.openapi.parameter_docs import HEADER_DOCS, ParameterDoc, header_doc, path_doc
from callsheet.http.openapi.response_example_changes import apply_example_changes
from callsheet.http.openapi.schemas import Schema, Schemas, parameters
from callsheet.http.server.problems import CONTENT_TYPE
from callsheet.http.server.route import PUBLIC, REGISTERED_WORKER, ROLES, Route

PARAMETER = re.compile(r"\{(\w+)\}")
STREAM = "text/event-stream"
_JSON = "application/json"
COMMON_CODES = (
    "400 invalid_request", "414 target_too_long", "421 host_not_allowed", "429 too_many_connections",
    "431 headers_too_large", "500 internal_error", "503 database_unusable", "503 overloaded", "503 unavailable",
)  # fmt: skip
KEY_CODES = ("401 missing_key", "401 invalid_key", "401 key_in_url", "429 too_many_failed_auth")
BODY_CODES = (
    "400 invalid_json", "408 body_timeout", "413 body_too_large", "415 unsupported_media_type",
    "415 unsupported_encoding", "422 invalid_body",
)  # fmt: skip
_HEADERS_OF = {401: ("WWW-Authenticate",), 416: ("Content-Range",), 429: ("Retry-After",), 503: ("Retry-After",)}
_SHARED_CODES_MAX = 3
_SAMPLE_FRAME = 'id: 1\nevent: job.created\ndata: {"seq": 1, "type": "job.created", …}\n\n'
_TITLES = {
    200: "Success.", 201: "Created.", 204: "Success, without content.", 206: "The requested byte range.",
    303: "See the Location header.", 304: "Not modified.", 307: "The content is at the URL in the Location header.",
    400: "Malformed request.", 401: "Missing or invalid key.", 402: "Insufficient credits.", 403: "Not allowed.",
    404: "Not found, or of another tenant or user.", 408: "Request timeout.",
    409: "Conflict with the current state.", 410: "Deleted.", 411: "Content-Length is missing.",
    412: "Already uploaded.", 413: "Too large.", 414: "URL too long.", 415: "Unsupported content type or encoding.",
    416: "Range not satisfiable.", 421: "Wrong host.", 422: "Invalid request.", 429: "Too many requests.",
    431: "Headers too large.",
    500: "Internal error.", 503: "Temporarily unavailable. Retry later.", 507: "Storage is full.",
}  # fmt: skip

_TOKEN: Schema = {
    "name": "token", "in": "query", "required": False, "schema": {"type": "string", "minLength": 1},
    "description": "A user token, for browser APIs that cannot send headers. API keys are rejected here.",
    "example": "cst_…",
}  # fmt: skip
_SCHEME = {"type": "http", "scheme": "bearer", "description": "An API key, `cs_…`, or a user token, `cst_…`."}
_DESCRIPTION = """\
Durable jobs for products that sell AI-made media.

**Authentication.** Send `Authorization: Bearer cs_…`. A key belongs to a tenant and has a role; each route lists the \
roles that may call it. Resources of other tenants return 404. An operator key has no tenant: name one with \
`Callsheet-Tenant`. For browsers, create a short-lived user token (`POST /v1/tokens`). It reads one user's jobs, files \
and wallet.

**Errors.** Errors are returned as `application/problem+json` with a stable `code`, a `message` for a person and the \
`request_id`. Every route may return 400 `invalid_request`, 404 `route_not_found`, 405 `method_not_allowed`, 414 \
`target_too_long`, 421 `host_not_allowed`, 429 `too_many_connections`, 431 `headers_too_large`, 500 `internal_error`, \
503 `overloaded` and `unavailable`.

**Idempotency.** Submissions, retries, top-ups and adjustments take an idempotency key. The server executes them once \
per key, however often you send them. Keys are unique per user of a tenant: two users can use the same key.

**Pagination.** Lists take `limit` and `cursor`, and return `next`. Pass `next` as `cursor` to get the next page.

**Times** are RFC 3339 in UTC. Durations are in seconds. Amounts of money are whole credits.
"""


def build_document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of some routes."""
    table = tuple(routes)
    bodies = [struct for route in table for struct in (route.response, route.request) if struct is not None]
    schemas = Schemas([*bodies, Problem])
    paths: dict[str, dict[str, Any]] = {}
    shared: dict[str, Any] = {}
    for route, operation_id in zip(table, _operation_ids(table), strict=True):
        operation = {"operationId": operation_id, **_operation(route, schemas, shared)}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Callsheet", "version": version("callsheet"), "description": _DESCRIPTION,
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
            "headers": {name: _response_header(doc) for name, doc in HEADER_DOCS.items()},
            "securitySchemes": {"key": _SCHEME},
        },
    }  # fmt: skip


def problems_of(route: Route) -> dict[int, list[str]]:
    """Return the error codes that a route may return, by status."""
    listed = [*route.problems, *COMMON_CODES]
    if route.roles is not PUBLIC:
        listed += KEY_CODES
        if REGISTERED_WORKER in route.roles:
            listed.append("401 invalid_worker_token")
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
    """Return the roles that may call a route. An empty list means that it is public."""
    return [role for role in ROLES if role in route.roles]


def media_types_of(route: Route) -> list[str]:
    """Return the media types of a route's response."""
    return route.media_type.split(", ")


def _operation_ids(routes: tuple[Route, ...]) -> list[str]:
    """Return an id for each route: the name of its handler, with its module if another route has that name.

    A native route keeps its short id, whatever the names of a plugin's handlers are.
    """
    found = [""] * len(routes)
    for position in sorted(range(len(routes)), key=lambda number: not _is_native(routes[number])):
        route = routes[position]
        full_name = f"{route.handler.__module__}.{route.name}"
        candidates = chain([route.name, full_name], (f"{full_name}.{number}" for number in count(2)))
        found[position] = next(candidate for candidate in candidates if candidate not in found)
    return found


def _is_native(route: Route) -> bool:
    return route.handler.__module__.startswith("callsheet.")


def _operation(route: Route, schemas: Schemas, shared: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "description": _describe_route(route),
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
    operation["responses"] = _responses(route, schemas, shared)
    return operation


def _describe_route(route: Route) -> str:
    roles = roles_of(route)
    access = f"Roles: {', '.join(roles)}." if roles else "No key required."
    return f"{route.details}\n\n{access}" if route.details else access


def _parameters(route: Route) -> list[Schema]:
    found = [_in_path(name, path_doc(route, name)) for name in PARAMETER.findall(route.path)]
    if route.query is not None:
        found += parameters(route.query)
    found += [_header(name) for name in route.request_headers]
    if route.token_in_query:
        found.append(_TOKEN)
    if route.roles is not PUBLIC:
        found.append({"$ref": "#/components/parameters/Tenant"})
    return found


def _in_path(name: str, doc: ParameterDoc) -> Schema:
    return {
        "name": name, "in": "path", "required": True, "description": doc.description,
        "schema": {"type": "string", "minLength": 1}, "example": doc.example,
    }  # fmt: skip


def _header(name: str) -> Schema:
    doc = header_doc(name)
    schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
    return {
        "name": name, "in": "header", "required": False, "description": doc.description, "schema": schema,
        "example": doc.example,
    }  # fmt: skip


def _content(struct: type[Any], schemas: Schemas) -> dict[str, Any]:
    return {"schema": schemas.ref(struct), "example": schemas.example(struct)}


# -- responses


def _responses(route: Route, schemas: Schemas, shared: dict[str, Any]) -> dict[str, Any]:
    """Return a route's responses. Errors that several routes share are components of the document."""
    responses = {
        str(status): _success_response(route, status, schemas) for status in (route.status, *route.other_statuses)
    }
    for status, codes in problems_of(route).items():
        response = _problem_response(status, codes)
        if len(codes) <= _SHARED_CODES_MAX:
            name = "-".join([str(status), *codes]).replace(ANY_CODE, "any")
            shared[name] = response
            response = {"$ref": f"#/components/responses/{name}"}
        responses[str(status)] = response
    return dict(sorted(responses.items()))


def _success_response(route: Route, status: int, schemas: Schemas) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": _title(status),
        "headers": _headers(("X-Request-Id", *route.response_headers)),
    }
    if status in {204, 303, 304, 307}:
        return response
    if route.response is not None:
        response["description"] = inspect.getdoc(route.response) or _title(status)
        content = _content(route.response, schemas)
        if _is_native(route):
            content["example"] = apply_example_changes(route.name, content["example"])
        response["content"] = {_JSON: content}
    else:
        response["content"] = {
            media_type: {"schema": {"type": "object"} if media_type == _JSON else {}}
            for media_type in media_types_of(route)
        }
    if route.event_stream:
        response["content"][STREAM] = {"schema": {"type": "string"}, "example": _SAMPLE_FRAME}
    return response


def _problem_response(status: int, codes: list[str]) -> dict[str, Any]:
    schema: Schema = {"$ref": "#/components/schemas/Problem"}
    if ANY_CODE not in codes:
        schema = {**schema, "properties": {"code": {"enum": codes}}}
    lines = "\n".join(f"- `{code}`: {describe_code(code)}" for code in codes)
    return {
        "description": f"{_title(status)}\n\n{lines}",
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
    request_id = HEADER_DOCS["X-Request-Id"].example
    return {"code": code, "message": describe_code(code), "status": status, "request_id": request_id}


def _headers(names: Iterable[str]) -> dict[str, Any]:
    return {
        name: {"$ref": f"#/components/headers/{name}"} if name in HEADER_DOCS else _response_header(header_doc(name))
        for name in names
    }


def _title(status: int) -> str:
    return _TITLES.get(status) or f"{HTTPStatus(status).phrase}."


def _response_header(doc: ParameterDoc) -> dict[str, Any]:
    return {"description": doc.description, "schema": {"type": "string"}, "example": doc.example}
