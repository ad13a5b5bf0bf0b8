"""Read requests and batches: many requests share one round trip, and each gets its own rows."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from callsheet.store.connection import NamedQuery, Rows

Keys = Mapping[str, Mapping[str, None]]
"""Requested keys of each query, without duplicates."""


class ReadRequest(NamedTuple):
    """The queries of one caller, and the future of their rows."""

    named_queries: Sequence[NamedQuery]
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop
    key: str | None = None
    """If set, only the row with this key is requested. Keys of the same query share one query in the batch."""


class ReadBatch(NamedTuple):
    """Requests that share one round trip."""

    requests: Sequence[ReadRequest]
    named_queries: list[NamedQuery]
    keys: Keys

    def answers(self, rows: Sequence[Rows]) -> list[Any]:
        """Return the result of each request."""
        by_key = {query: {row[0]: row for row in found} for query, found in zip(self.keys, rows, strict=False)}
        answers: list[Any] = []
        start = len(self.keys)
        for request in self.requests:
            if request.key is not None:
                answers.append(by_key[request.named_queries[0][0]].get(request.key))
            else:
                answers.append(rows[start : start + len(request.named_queries)])
                start += len(request.named_queries)
        return answers


def make_batch(requests: Sequence[ReadRequest]) -> ReadBatch:
    """Combine requests. Requests by key become one query for each query name."""
    keys: dict[str, dict[str, None]] = {}
    for request in requests:
        if request.key is not None:
            keys.setdefault(request.named_queries[0][0], {})[request.key] = None
    named_queries: list[NamedQuery] = [(query, {"ids": list(own_keys)}) for query, own_keys in keys.items()]
    named_queries.extend(query for request in requests if request.key is None for query in request.named_queries)
    return ReadBatch(requests, named_queries, keys)


def resolve_futures(requests: Sequence[ReadRequest], answers: Sequence[Any]) -> None:
    """Set the results of futures. Call it on the loop of the requests."""
    for request, answer in zip(requests, answers, strict=True):
        if request.future.done():
            continue
        if isinstance(answer, Exception):
            request.future.set_exception(answer)
        else:
            request.future.set_result(answer)
