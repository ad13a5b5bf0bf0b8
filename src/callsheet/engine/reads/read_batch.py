"""Questions to the database from asyncio, many of which make one trip: what is asked, and whose each answer is."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from callsheet.store.connection import NamedQuery, Rows

Keys = Mapping[str, Mapping[str, None]]
"""By query, the keys whose rows are wanted, each once."""


class ReadRequest(NamedTuple):
    """What one caller asks together, and where the answer goes."""

    named_queries: Sequence[NamedQuery]
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop
    key: str | None = None
    """Only the row with this key is wanted: whoever asks the same query in the same trip is asked for at once."""


class ReadBatch(NamedTuple):
    """Questions that go together."""

    requests: Sequence[ReadRequest]
    named_queries: list[NamedQuery]
    keys: Keys

    def answers(self, rows: Sequence[Rows]) -> list[Any]:
        """Return each question's answer."""
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
    """Say everything that is asked; rows that are wanted by their keys are one question for each query."""
    keys: dict[str, dict[str, None]] = {}
    for request in requests:
        if request.key is not None:
            keys.setdefault(request.named_queries[0][0], {})[request.key] = None
    named_queries: list[NamedQuery] = [(query, {"ids": list(own_keys)}) for query, own_keys in keys.items()]
    named_queries.extend(ask for request in requests if request.key is None for ask in request.named_queries)
    return ReadBatch(requests, named_queries, keys)


def resolve_futures(requests: Sequence[ReadRequest], answers: Sequence[Any]) -> None:
    """Answer, on the loop of whoever asked."""
    for request, answer in zip(requests, answers, strict=True):
        if request.future.done():
            continue
        if isinstance(answer, Exception):
            request.future.set_exception(answer)
        else:
            request.future.set_result(answer)
