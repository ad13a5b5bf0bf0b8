"""The loops that keep time: sweeper, relay, collector. Each has `run_once(now)`; any number may run at once.

None of them needs a leader: a loop only finds what is due and sends commands, and the rules look again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from callsheet.core.model.clock import SECOND
from callsheet.core.model.commands import (
    AcquireCursor,
    AdvanceCursor,
    ClaimCall,
    ClaimedCall,
    Command,
    CursorPosition,
    Outcome,
    ReportOutcome,
    TickJob,
    TickTask,
    TickWorker,
)
from callsheet.core.model.errors import BadInput
from callsheet.engine.background_thread import BackgroundThread
from callsheet.engine.reads.blocking import BlockingReader, PositionedEvent

PAGE = 200


class Loop(Protocol):
    """Something to do again and again."""

    def run_once(self, now: int) -> int:
        """Do what is due; return how much that was."""
        ...


class CommandExecutor(Protocol):
    """What the loops need of an engine."""

    @property
    def reads(self) -> BlockingReader: ...

    def execute(self, command: Command) -> Any: ...

    def execute_many(self, many: Sequence[Command]) -> list[Any]: ...


class Sweeper:
    """Finds jobs and tasks whose moment has come: leases, backoffs, schedules, deadlines, the end of a grace."""

    def __init__(self, engine: CommandExecutor, page: int = PAGE) -> None:
        self._engine = engine
        self._page = page

    def run_once(self, now: int) -> int:
        jobs = sweep(self._engine, now, "due_jobs", lambda row: TickJob(job_id=row[1]), self._page)
        tick = sweep(self._engine, now, "due_tasks", lambda row: TickTask(task_id=row[1], job_id=row[2]), self._page)
        return jobs + tick


class WorkerTimeouts:
    """Finds workers that were not heard of for long."""

    def __init__(self, engine: CommandExecutor, timeout_seconds: int, page: int = PAGE) -> None:
        self._engine = engine
        self._timeout = timeout_seconds * SECOND
        self._page = page

    def run_once(self, now: int) -> int:
        before = now - self._timeout
        return sweep(self._engine, before, "silent_workers", lambda row: TickWorker(worker_id=row[1]), self._page)


def sweep(
    engine: CommandExecutor, now: int, query: str, command: Callable[[Sequence[Any]], Command], page: int = PAGE
) -> int:
    """Send a command for everything that is due; what goes wrong with one is told after all of them had theirs."""
    swept = 0
    errors: list[Exception] = []
    for rows in due(engine.reads, query, now, page):
        results = engine.execute_many([command(row) for row in rows])
        errors += [result for result in results if isinstance(result, Exception)]
        swept += len(rows)
    if errors:
        raise errors[0]
    return swept


def due(read: BlockingReader, query: str, now: int, page: int) -> Iterable[Sequence[Sequence[Any]]]:
    """Yield all that is due, page by page; a row that cannot move on never hides those behind it."""
    after_at, after_id = 0, ""
    while rows := read.fetch(query, now=now, after_at=after_at, after_id=after_id, count=page):
        yield rows
        if len(rows) < page:
            return
        after_at, after_id = rows[-1][0], rows[-1][1]


class Provider(Protocol):
    """Somebody else's machine, as the collector sees it."""

    def collect(self, call_id: str, ref: str | None) -> Outcome:
        """Ask for a call's outcome; without a reference, look the call up by its id. Never submits."""
        ...

    def cancel(self, call_id: str, ref: str | None) -> None:
        """Ask the provider to stop; best effort."""
        ...


class Collector:
    """Asks providers for what is due, until every call has ended."""

    def __init__(self, engine: CommandExecutor, providers: Mapping[str, Provider], page: int = PAGE) -> None:
        self._engine = engine
        self._providers = providers
        self._page = page

    def run_once(self, now: int) -> int:
        collected = 0
        errors: list[Exception] = []
        for rows in due(self._engine.reads, "due_calls", now, self._page):
            for _, call_id, job_id in rows:
                try:
                    collected += self._collect(call_id, job_id)
                except Exception as error:  # noqa: BLE001 - the calls behind it are collected first
                    errors.append(error)
        if errors:
            raise errors[0]
        return collected

    def _collect(self, call_id: str, job_id: str) -> int:
        call: ClaimedCall = self._engine.execute(ClaimCall(call_id=call_id, job_id=job_id))
        if not call.due:
            if call.cancel:
                self._cancel_at_provider(call)
            return 0
        outcome = self._collect_outcome(call)
        try:
            self._engine.execute(ReportOutcome(call_id=call_id, job_id=job_id, outcome=outcome))
        except BadInput as refusal:  # the answer itself cannot be taken, and will not get better
            rejected_outcome = Outcome("failed", code=refusal.code, message=refusal.message, retryable=False)
            self._engine.execute(ReportOutcome(call_id=call_id, job_id=job_id, outcome=rejected_outcome))
        return 1

    def _cancel_at_provider(self, call: ClaimedCall) -> None:
        """Tell a provider, best effort, that nobody waits for a call any more."""
        provider = self._providers.get(call.provider)
        with suppress(Exception):
            if provider is not None:
                provider.cancel(call.call_id, call.ref)

    def _collect_outcome(self, call: ClaimedCall) -> Outcome:
        provider = self._providers.get(call.provider)
        if provider is None:
            return Outcome("pending")
        try:
            if call.cancel:
                self._cancel_at_provider(call)
            return provider.collect(call.call_id, call.ref)
        except Exception:  # noqa: BLE001 - a provider that breaks is asked again; the call's deadline bounds it
            return Outcome("pending")


class Relay:
    """Hands events, in the global order, to one reader; how far it has come is stored with the events."""

    def __init__(
        self,
        engine: CommandExecutor,
        name: str,
        holder: str,
        sink: Callable[[Sequence[PositionedEvent]], None],
        page: int = PAGE,
    ) -> None:
        self._engine = engine
        self._name = name
        self._holder = holder
        self._sink = sink
        self._page = page
        self._last_position: tuple[int, int] | None = None

    def run_once(self, now: int) -> int:  # noqa: ARG002 - the hold is measured by the database's clock
        if self._last_position is not None and not self._engine.reads.feed(*self._last_position, 1):
            return 0  # nothing new: an idle house writes nothing
        place: CursorPosition = self._engine.execute(AcquireCursor(name=self._name, holder=self._holder))
        if not place.reserved:
            return 0
        events = self._engine.reads.feed(place.tx, place.position, self._page)
        if events:
            self._sink(events)
            place = CursorPosition(*events[-1].place)
        self._last_position = (place.tx, place.position)
        self._engine.execute(AdvanceCursor(name=self._name, holder=self._holder, tx=place.tx, position=place.position))
        return len(events)


class LoopRunner(BackgroundThread):
    """A thread that runs a loop for as long as it is wanted."""

    def __init__(
        self, loop: Loop, clock: Callable[[], int], interval_seconds: float, on_error: Callable[[Loop, Exception], None]
    ) -> None:
        super().__init__(type(loop).__name__.lower())
        self._loop = loop
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._on_error = on_error

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                done = self._loop.run_once(self._clock())
            except Exception as error:  # noqa: BLE001 - told to whoever watches; the loop lives on
                self._on_error(self._loop, error)
                done = 0
            if not done:
                self._stopping.wait(self._interval_seconds)
