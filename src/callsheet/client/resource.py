"""What every group of calls is made of: requests, pages, answers read into models."""

import sys
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from callsheet.client.errors import CallsheetError, is_error, parse_error
from callsheet.client.operations import Item, IterableOperation, Operation, Reply, Request
from callsheet.client.retry import RetryPolicy, send_with_retries

T = TypeVar("T")
PAGE_SIZE_MAX = 200
_INVALID_PARTS = ("", ".", "..")


class Resource:
    """Calls of one client."""

    url: str
    retry_policy: RetryPolicy

    def _request(self, response_type: type[T], request: Request) -> Operation[T]:
        """Send a request and read the answer."""
        return parse_reply(response_type, (yield from send_with_retries(self, request)))

    def _request_list(self, response_type: type[T], name: str, request: Request) -> Operation[list[T]]:
        """Read a list that an answer holds under a name."""
        items = yield from self._request(dict[str, Any], request)
        return msgspec.convert(items[name], list[response_type])  # type: ignore[valid-type]

    def _paginate(
        self,
        response_type: type[T],
        name: str,
        path: str,
        cursor: str,
        query: Mapping[str, Any],
        limit: int | None = None,
    ) -> IterableOperation[T]:
        """Read one page after the other, up to `limit` in all; `cursor` is what the server calls the place to go on."""
        page_size, remaining = PAGE_SIZE_MAX, sys.maxsize if limit is None else limit
        while remaining > 0:
            page_limit = min(page_size, remaining)
            try:
                page = yield from self._request(dict[str, Any], get(path, limit=page_limit, **query))
            except CallsheetError as error:
                page_size = error.details.get("limit_max", page_limit)
                if page_size >= page_limit:
                    raise
                continue  # this server shows fewer at once
            items = msgspec.convert(page[name], list[response_type])  # type: ignore[valid-type]
            for item in items[:remaining]:
                yield Item(item)
            if page["next"] is None:
                return
            remaining -= len(items)
            query = {**query, cursor: page["next"]}


def path(*parts: str | int) -> str:
    """Make a path under /v1; what a caller names may hold anything, but be nothing, or a step to elsewhere."""
    for part in parts:
        if part in _INVALID_PARTS:
            raise CallsheetError("invalid_name", f"Nothing is called {part!r}: give an id or a name.")
    return "/".join(["/v1", *(quote(str(part), safe="") for part in parts)])


def get(endpoint: str, **query: Any) -> Request:
    """Ask for something; a filter without a value is left out."""
    return Request("GET", endpoint, {name: value for name, value in query.items() if value not in {None, ""}})


def json_request(method: str, endpoint: str, body: Any = None, *, idempotent: bool) -> Request:
    """Send something; `again` says that it may be sent twice and is done once."""
    raw = None if body is None else msgspec.json.encode(body)
    return Request(method, endpoint, body=raw, idempotent=idempotent)


def without_none(body: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what was not said: to the server None would be a value, and a default of ours a change."""
    return {name: value for name, value in body.items() if value is not None}


def parse_reply(response_type: type[T], reply: Reply) -> T:
    """Read an answer, or raise what it says."""
    request_id = reply.headers.get("x-request-id", "")
    if is_error(reply.status):
        raise parse_error(reply.status, reply.body, request_id)
    try:
        return msgspec.json.decode(reply.body or b"null", type=response_type)
    except msgspec.MsgspecError as error:
        message = f"The answer is not one of Callsheet's: {error}."
        raise CallsheetError("invalid_response", message, reply.status, request_id) from None
