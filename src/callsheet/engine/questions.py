"""Questions to the database from asyncio, many of which make one trip: what is asked, and whose each answer is."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from callsheet.store.connection import Ask, Rows

Keys = Mapping[str, Mapping[str, None]]
"""By query, the keys whose rows are wanted, each once."""


class Question(NamedTuple):
    """What one caller asks together, and where the answer goes."""

    asks: Sequence[Ask]
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop
    key: str | None = None
    """Only the row with this key is wanted: whoever asks the same query in the same trip is asked for at once."""


class Trip(NamedTuple):
    """Questions that go together."""

    questions: Sequence[Question]
    asks: list[Ask]
    keys: Keys

    def answers(self, rows: Sequence[Rows]) -> list[Any]:
        """Return each question's answer."""
        by_key = {query: {row[0]: row for row in found} for query, found in zip(self.keys, rows, strict=False)}
        answers: list[Any] = []
        start = len(self.keys)
        for question in self.questions:
            if question.key is not None:
                answers.append(by_key[question.asks[0][0]].get(question.key))
            else:
                answers.append(rows[start : start + len(question.asks)])
                start += len(question.asks)
        return answers


def trip_of(questions: Sequence[Question]) -> Trip:
    """Say everything that is asked; rows that are wanted by their keys are one question for each query."""
    keys: dict[str, dict[str, None]] = {}
    for question in questions:
        if question.key is not None:
            keys.setdefault(question.asks[0][0], {})[question.key] = None
    asks: list[Ask] = [(query, {"ids": list(mine)}) for query, mine in keys.items()]
    asks.extend(ask for question in questions if question.key is None for ask in question.asks)
    return Trip(questions, asks, keys)


def settle(questions: Sequence[Question], answers: Sequence[Any]) -> None:
    """Answer, on the loop of whoever asked."""
    for question, answer in zip(questions, answers, strict=True):
        if question.future.done():
            continue
        if isinstance(answer, Exception):
            question.future.set_exception(answer)
        else:
            question.future.set_result(answer)
