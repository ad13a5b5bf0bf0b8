"""What every group of calls is made of: requests, pages, answers read into models."""

import sys
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from callsheet.client.errors import CallsheetError, error_of, failed
from callsheet.client.patience import Patience, patiently
from callsheet.client.talk import Item, Items, Reply, Request, Talk

T = TypeVar("T")
PAGE = 200
_NOWHERE = ("", ".", "..")


class Speaking:
    """Calls of one client."""

    url: str
    patience: Patience

    def _ask(self, shape: type[T], request: Request) -> Talk[T]:
        """Send a request and read the answer."""
        return read(shape, (yield from patiently(self, request)))

    def _list(self, shape: type[T], name: str, request: Request) -> Talk[list[T]]:
        """Read a list that an answer holds under a name."""
        found = yield from self._ask(dict[str, Any], request)
        return msgspec.convert(found[name], list[shape])  # type: ignore[valid-type]

    def _pages(
        self, shape: type[T], name: str, path: str, cursor: str, query: Mapping[str, Any], limit: int | None = None
    ) -> Items[T]:
        """Read one page after the other, up to `limit` in all; `cursor` is what the server calls the place to go on."""
        most, left = PAGE, sys.maxsize if limit is None else limit
        while left > 0:
            asked = min(most, left)
            try:
                page = yield from self._ask(dict[str, Any], get(path, limit=asked, **query))
            except CallsheetError as error:
                most = error.details.get("limit_max", asked)
                if most >= asked:
                    raise
                continue  # this server shows fewer at once
            found = msgspec.convert(page[name], list[shape])  # type: ignore[valid-type]
            for one in found[:left]:
                yield Item(one)
            if page["next"] is None:
                return
            left -= len(found)
            query = {**query, cursor: page["next"]}


def path(*parts: str | int) -> str:
    """Make a path under /v1; what a caller names may hold anything, but be nothing, or a step to elsewhere."""
    for part in parts:
        if part in _NOWHERE:
            raise CallsheetError("invalid_name", f"Nothing is called {part!r}: give an id or a name.")
    return "/".join(["/v1", *(quote(str(part), safe="") for part in parts)])


def get(where: str, **query: Any) -> Request:
    """Ask for something; a filter without a value is left out."""
    return Request("GET", where, {name: value for name, value in query.items() if value not in {None, ""}})


def send(method: str, where: str, body: Any = None, *, again: bool) -> Request:
    """Send something; `again` says that it may be sent twice and is done once."""
    raw = None if body is None else msgspec.json.encode(body)
    return Request(method, where, body=raw, again=again)


def given(body: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what was not said: to the server None would be a value, and a default of ours a change."""
    return {name: value for name, value in body.items() if value is not None}


def read(shape: type[T], reply: Reply) -> T:
    """Read an answer, or raise what it says."""
    request_id = reply.headers.get("x-request-id", "")
    if failed(reply.status):
        raise error_of(reply.status, reply.body, request_id)
    try:
        return msgspec.json.decode(reply.body or b"null", type=shape)
    except msgspec.MsgspecError as error:
        message = f"The answer is not one of Callsheet's: {error}."
        raise CallsheetError("unreadable_answer", message, reply.status, request_id) from None
