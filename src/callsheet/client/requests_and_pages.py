"""Build API requests, send them, and decode the responses.

Every function here is an operation or returns plain data. None of them does I/O itself.
"""

import sys
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from callsheet.client.errors import CallsheetError, is_error, parse_error
from callsheet.client.operation_effects import Item, IterableOperation, Operation, Reply, Request
from callsheet.client.retry import RetryContext, send_with_retries

T = TypeVar("T")
PAGE_SIZE_MAX = 200
_INVALID_PARTS = ("", ".", "..")


def send(context: RetryContext, response_type: type[T], request: Request) -> Operation[T]:
    """Send a request and decode the response."""
    return parse_reply(response_type, (yield from send_with_retries(context, request)))


def send_for_list(context: RetryContext, item_type: type[T], name: str, request: Request) -> Operation[list[T]]:
    """Send a request and decode the list in the response's field `name`."""
    body = yield from send(context, dict[str, Any], request)
    return msgspec.convert(body[name], list[item_type])  # type: ignore[valid-type]


def paginate(
    context: RetryContext,
    item_type: type[T],
    name: str,
    endpoint: str,
    query: Mapping[str, Any],
    *,
    limit: int | None = None,
) -> IterableOperation[T]:
    """Yield the items of all pages, at most `limit` of them."""
    page_size, remaining = PAGE_SIZE_MAX, sys.maxsize if limit is None else limit
    while remaining > 0:
        page_limit = min(page_size, remaining)
        try:
            page = yield from send(context, dict[str, Any], get_request(endpoint, limit=page_limit, **query))
        except CallsheetError as error:
            page_size = error.details.get("limit_max", page_limit)
            if page_size >= page_limit:
                raise
            continue  # the server's maximum page size is smaller
        items = msgspec.convert(page[name], list[item_type])  # type: ignore[valid-type]
        for item in items[:remaining]:
            yield Item(item)
        if page["next"] is None:
            return
        remaining -= len(items)
        query = {**query, "cursor": page["next"]}


def path(*parts: str | int) -> str:
    """Return a path under /v1 with each part quoted. Empty parts and dot segments are rejected."""
    for part in parts:
        if part in _INVALID_PARTS:
            raise CallsheetError("invalid_name", f"{part!r} is not a valid id or name. Pass a non-empty id or name.")
    return "/".join(["/v1", *(quote(str(part), safe="") for part in parts)])


def get_request(endpoint: str, **query: Any) -> Request:
    """Build a GET request. Query parameters without a value are left out."""
    return Request("GET", endpoint, {name: value for name, value in query.items() if value not in {None, ""}})


def json_request(method: str, endpoint: str, body: Any = None, *, idempotent: bool) -> Request:
    """Build a request with a JSON body. Only an idempotent request is retried after a lost response."""
    raw = None if body is None else msgspec.json.encode(body)
    return Request(method, endpoint, body=raw, idempotent=idempotent)


def without_none(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None. The server treats null as a value, not as a missing field."""
    return {name: value for name, value in body.items() if value is not None}


def parse_reply(response_type: type[T], reply: Reply) -> T:
    """Decode a response. Raises `CallsheetError` for an error response or an invalid one."""
    raise_for_status(reply)
    try:
        return msgspec.json.decode(reply.body or b"null", type=response_type)
    except msgspec.MsgspecError as error:
        message = f"The response is not valid: {error}. Check that the URL is a Callsheet server's."
        raise CallsheetError("invalid_response", message, reply.status, _request_id(reply)) from None


def raise_for_status(reply: Reply) -> None:
    """Raise `CallsheetError` for an error response."""
    if is_error(reply.status):
        raise parse_error(reply.status, reply.body, _request_id(reply))


def _request_id(reply: Reply) -> str:
    return reply.headers.get("x-request-id", "")
