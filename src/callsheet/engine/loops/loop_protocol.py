"""Shared parts of the loops: the `Loop` protocol, the engine that they use, and paging over due rows."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from callsheet.core.model.commands import Command
from callsheet.engine.reads.synchronous import BlockingReader

PAGE = 200
"""Rows per page."""


class Loop(Protocol):
    """Work that is repeated for as long as the server runs."""

    def run_once(self, now: int) -> int:
        """Do everything that is due and return how much that was."""
        ...


class CommandExecutor(Protocol):
    """The part of the engine that loops use."""

    @property
    def reads(self) -> BlockingReader: ...

    def execute(self, command: Command) -> Any: ...

    def execute_many(self, many: Sequence[Command]) -> list[Any]: ...


def send_due_commands(
    engine: CommandExecutor, now: int, query: str, command: Callable[[Sequence[Any]], Command], page: int = PAGE
) -> int:
    """Send one command per due row and return the number of rows. The first error is raised after the last row."""
    sent = 0
    errors: list[Exception] = []
    for rows in due_pages(engine.reads, query, now, page):
        results = engine.execute_many([command(row) for row in rows])
        errors += [result for result in results if isinstance(result, Exception)]
        sent += len(rows)
    if errors:
        raise errors[0]
    return sent


def due_pages(read: BlockingReader, query: str, now: int, page: int) -> Iterable[Sequence[Sequence[Any]]]:
    """Yield all due rows, page by page. A row that stays due does not hide the rows after it."""
    after_at, after_id = 0, ""
    while rows := read.fetch(query, now=now, after_at=after_at, after_id=after_id, count=page):
        yield rows
        if len(rows) < page:
            return
        after_at, after_id = rows[-1][0], rows[-1][1]
