"""The engine: opens a SQLite file or a PostgreSQL database, executes commands and provides reads."""

import asyncio
import secrets
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from callsheet.core.decisions.submit import dedup_key_of
from callsheet.core.model import commands
from callsheet.core.model.commands import Command
from callsheet.core.model.errors import BadInput, Overloaded, Refusal
from callsheet.core.model.ids import Ids, uuid7
from callsheet.core.policy.admission import WorkClass
from callsheet.core.policy.storable_text import check_storable
from callsheet.core.policy.storage_quota import DiscardedOutputs
from callsheet.engine.batch import Batch, BatchResult, ordering_key
from callsheet.engine.candidates import CandidateSelector
from callsheet.engine.command_queue import Answer, Submission
from callsheet.engine.gate_plugins import Gate, first_verdict
from callsheet.engine.hints import Hints, call_safely
from callsheet.engine.lane import Lane, ThreadFuture, Unavailable
from callsheet.engine.notification_listener import Listener
from callsheet.engine.prefetch import DefinitionCache
from callsheet.engine.queue_stats import QueueStats
from callsheet.engine.reads.facade import Reads
from callsheet.settings import Settings
from callsheet.store.connection import Database
from callsheet.store.migrate import dialect_of, migrate
from callsheet.store.postgres import PostgresDatabase
from callsheet.store.sqlite import SqliteDatabase

__all__ = ["Engine", "Unavailable"]
RefusalListener = Callable[[Command, Refusal], None]
_GATE_THREADS = 16
_DISCARDED_OUTPUTS_MAX = 10_000
_ID_BITS = 74
_IDS_PER_READ = 64
MAINTENANCE_STATEMENT_SECONDS = 7 * 86_400.0
"""Statement timeout of maintenance: migrations of large tables, checks of every row."""


class RandomIds:
    """Time-ordered ids from the machine's clock and random source.

    Random bits are read for many ids at once: a system call lets other threads run, which can take milliseconds.
    """

    def __init__(self) -> None:
        self._random_bits: list[int] = []

    def new(self) -> str:
        try:
            bits = self._random_bits.pop()
        except IndexError:
            bits, *self._random_bits = _random_bits(_IDS_PER_READ)
        return uuid7(time.time_ns() // 1_000_000, bits)


def _random_bits(count: int) -> list[int]:
    together = secrets.randbits(_ID_BITS * count)
    return [together >> _ID_BITS * n & (1 << _ID_BITS) - 1 for n in range(count)]


class Engine:
    """Executes commands and returns their results after the commit.

    Call `execute` from a thread and `aexecute` from asyncio.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings | None = None,
        *,
        gates: Sequence[Gate] = (),
        ids: Ids | None = None,
    ) -> None:
        self.database = database
        self.settings = settings or Settings()
        self.hints = Hints()
        self.refusal_listeners: list[RefusalListener] = []
        """Called for every refused command after its batch, on the thread that awaits the answer; must not block."""
        self.discarded_outputs: deque[DiscardedOutputs] = deque(maxlen=_DISCARDED_OUTPUTS_MAX)
        """Objects of attempts that have ended, for the loop that deletes them. The orphan collector finds the rest."""
        self._gates = gates
        self._gate_executor = ThreadPoolExecutor(_GATE_THREADS, "callsheet-gates")
        """Threads for gates, which may call remote services, so that gates and file work do not wait for each other."""
        self._at_gates = 0
        """Commands that wait for gates or are checked by them."""
        self._ids = ids or RandomIds()
        self._definitions = DefinitionCache()
        self.reads = Reads(database, self.settings)
        self._lanes = [
            Lane(f"callsheet-lane-{n}", self._make_batch, self._on_batch_done, self.settings)
            for n in range(database.lanes)
        ]
        self._listener = Listener.for_database(database, self._announce, self.settings)
        self.commit_listeners: list[Callable[[], None]] = []
        """Called after every commit of this process, and on hints of other processes; on any thread; must not block."""

    @classmethod
    def open(cls, database_url: str | Path, settings: Settings | None = None, *, gates: Sequence[Gate] = ()) -> Self:
        """Open a database by its file path or URL, create or migrate its schema if needed, and start the lanes."""
        settings = settings or Settings()
        database = database_for(database_url, settings)
        for_migration = replace(settings, statement_timeout_seconds=MAINTENANCE_STATEMENT_SECONDS)
        with closing(database_for(database_url, for_migration).connect()) as connection:
            migrate(connection, dialect_of(database.name))
        engine = cls(database, settings, gates=gates)
        engine.start()
        return engine

    def start(self) -> None:
        self.reads.sync_clock()
        for lane in self._lanes:
            lane.start()
        if self._listener:
            self._listener.start()
        self.reads.start()

    def close(self) -> None:
        """Finish accepted commands and close the database; writers last, so that SQLite removes its WAL file."""
        if self._listener:
            self._listener.stop()
        self.reads.close()
        for lane in self._lanes:
            lane.stop()
        self._gate_executor.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- commands

    def execute(self, command: Command) -> Any:
        """Execute one command from a thread; return its result or raise its refusal."""
        return _unwrap(self.execute_many([command])[0])

    def execute_many(self, many: Sequence[Command]) -> list[Any]:
        """Execute commands together. Each has its own entry in the list: its result, or its exception."""
        results = self._prepare_all(many)
        waiting_futures = []
        for lane, indexes in self._shards(results):
            thread_future = ThreadFuture()
            if self._send(lane, results, indexes, thread_future.put):
                waiting_futures.append((indexes, thread_future))
        for indexes, thread_future in waiting_futures:
            self._store_results(results, indexes, thread_future.wait_for_results())
        return results

    async def aexecute(self, command: Command) -> Any:
        """Execute one command from asyncio."""
        return _unwrap((await self.aexecute_many([command]))[0])

    async def aexecute_many(self, many: Sequence[Command]) -> list[Any]:
        """Execute commands together from asyncio."""
        loop = asyncio.get_running_loop()
        if self._gates and any(isinstance(command, commands.Submit) for command in many):
            results = await self._prepare_with_gates(many)
        else:
            results = self._prepare_all(many)
        waiting = []
        for lane, indexes in self._shards(results):
            future: asyncio.Future[list[Any]] = loop.create_future()
            if self._send(lane, results, indexes, _resolver(future), loop):
                waiting.append((indexes, future))
        for indexes, future in waiting:
            self._store_results(results, indexes, await future)
        return results

    def _send(
        self, lane: Lane, results: list[Any], indexes: Sequence[int], answer: Answer,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> bool:  # fmt: skip
        """Send the commands at these indexes to a lane. If it refuses them, store the refusal and return False."""
        try:
            lane.send(Submission([results[index] for index in indexes], answer, loop))
        except Overloaded as refusal:
            for index in indexes:
                results[index] = refusal
            return False
        return True

    def _store_results(self, results: list[Any], indexes: Sequence[int], answers: Sequence[Any]) -> None:
        """Store answers at the index of their commands, and report refusals to the listeners."""
        for index, answer in zip(indexes, answers, strict=True):
            if self.refusal_listeners and isinstance(answer, Refusal):
                for listener in self.refusal_listeners:
                    listener(results[index], answer)
            results[index] = answer

    def claim(
        self, command: commands.Claim, wait_seconds: float = 0, still_wanted: Callable[[], bool] = lambda: True
    ) -> list[commands.LeasedTask]:
        """Claim tasks. If there are none, wait up to `wait_seconds` for a hint, and poll every few seconds.

        To end the wait early, let `still_wanted` return False and announce one of the kinds with `hints`.
        """
        end = time.monotonic() + wait_seconds
        while True:
            mark = self.hints.mark(command.kinds)
            if not still_wanted():
                return []
            leased: list[commands.LeasedTask] = self.execute(command)
            remaining = end - time.monotonic()
            if leased or remaining <= 0:
                return leased
            poll_delay = self.hints.poll_delay(command.kinds, self.settings.poll_seconds)
            self.hints.wait(command.kinds, mark, min(remaining, poll_delay))

    def check_writes(self) -> None:
        """Write through every lane that has written nothing for a while or cannot write; raise the first error."""
        written_before = time.monotonic() - self.settings.write_check_seconds
        futures = []
        for lane in self._lanes:
            if lane.write_error or lane.wrote_at <= written_before:
                futures.append(ThreadFuture())
                lane.send(Submission([commands.CheckWrite()], futures[-1].put))
        for result in [result for future in futures for result in future.wait_for_results()]:
            _unwrap(result)

    # -- load

    def is_overloaded(self, work_class: WorkClass) -> bool:
        """Return whether new requests of this class should be refused."""
        if work_class in {WorkClass.CLAIM, WorkClass.WRITE}:
            return all(lane.queue.is_overloaded(work_class) for lane in self._lanes)
        return work_class is not WorkClass.ESSENTIAL and self.reads.is_overloaded

    @property
    def queue_stats(self) -> list[QueueStats]:
        """Waits and refusals of all queues."""
        return [lane.queue.stats for lane in self._lanes] + self.reads.queue_stats

    # -- internals

    async def _prepare_with_gates(self, many: Sequence[Command]) -> list[Any]:
        """Prepare commands on a thread for gates. What would be refused afterwards does not reach the gates."""
        if self._at_gates >= self.settings.writes_waiting_max or self.is_overloaded(WorkClass.WRITE):
            raise Overloaded
        self._at_gates += len(many)
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._gate_executor, self._prepare_all, many)
        finally:
            self._at_gates -= len(many)

    def _prepare_all(self, many: Sequence[Command]) -> list[Any]:
        """Prepare commands; one that fails is replaced by its refusal."""
        if len(many) > self.settings.limits.bulk_items_max:
            most = self.settings.limits.bulk_items_max
            raise BadInput(
                "too_many_commands", f"The request has {len(many)} items; at most {most} are allowed. Split it."
            )
        prepared: list[Any] = []
        for command in many:
            try:
                check_storable(command)
                prepared.append(self._prepare(command))
            except Refusal as refusal:
                prepared.append(refusal)
        return prepared

    def _prepare(self, command: Command) -> Command:
        """Assign ids, tokens and the gate verdict before the first execution, so that a retry finds its own work."""
        if isinstance(command, commands.Claim):
            count = min(max(command.count, 1), self.settings.limits.claim_tasks_max)
            tokens = tuple(secrets.token_urlsafe(24) for _ in range(count))
            return replace(command, id=self._ids.new(), tokens=tokens)
        if isinstance(command, commands.Submit):
            if self._gates and not self._is_repeated_submit(command):
                verdict = first_verdict(self._gates, command, record_blocked=self.settings.record_blocked)
                command = replace(command, verdict=verdict)
            return command if command.id else replace(command, id=self._ids.new())
        if isinstance(command, _COMMANDS_WITH_ID) and not command.id:
            return replace(command, id=self._ids.new())
        return command

    def _is_repeated_submit(self, command: commands.Submit) -> bool:
        dedup_key = dedup_key_of(command)
        return dedup_key is not None and bool(self.reads.fetch("jobs_by_dedup_key", ids=[dedup_key]))

    def _shards(self, prepared: Sequence[Any]) -> Iterable[tuple[Lane, Sequence[int]]]:
        shards: dict[int, list[int]] = {}
        for index, command in enumerate(prepared):
            if isinstance(command, Command):
                lane = zlib.crc32(ordering_key(command).encode()) % len(self._lanes) if len(self._lanes) > 1 else 0
                shards.setdefault(lane, []).append(index)
        return [(self._lanes[n], indexes) for n, indexes in shards.items()]

    def _on_batch_done(self, done: BatchResult) -> None:
        for kinds, left in done.delays.items():
            self.hints.expect_work_in(kinds, left)
        self.discarded_outputs.extend(done.discarded_outputs)
        if done.wrote:
            self._announce(done.woken_kinds)

    def _announce(self, kinds: Iterable[str]) -> None:
        self.hints.announce(kinds)
        for listener in self.commit_listeners:
            call_safely(listener)

    @property
    def write_error(self) -> str | None:
        """Why the server cannot write at the moment, as text; None if it can."""
        return next((lane.write_error for lane in self._lanes if lane.write_error), None)

    def _make_batch(self) -> Batch:
        return Batch(self.database.connect(), self.settings.limits, self._definitions, CandidateSelector())


_COMMANDS_WITH_ID = (
    commands.Retry, commands.AddStage, commands.AddTasks, commands.TopUp, commands.Adjust, commands.PutTenant,
    commands.PutWorkflow, commands.CreateKey, commands.RevokeKey, commands.Cancel, commands.Approve, commands.Delete,
    commands.Pause, commands.Resume, commands.RequireApproval, commands.Update, commands.Register, commands.Deregister,
    commands.UpdateWorker, commands.RevokeWorker, commands.RotateWorker, commands.TickWorker, commands.CreateUpload,
    commands.DeleteFiles, commands.Refund, commands.ReplaceInstallationValue,
)  # fmt: skip
"""Commands that create rows, even if only an audit entry. When they are retried, they find these rows by the id."""


def database_for(database_url: str | Path, settings: Settings) -> Database:
    """Return the database for a file path or URL."""
    text = str(database_url)
    if text.startswith(("postgresql://", "postgres://")):
        return PostgresDatabase(
            text,
            lanes=settings.lanes,
            transaction_pooling=settings.transaction_pooling,
            statement_timeout_seconds=settings.statement_timeout_seconds,
        )
    if "://" in text:
        raise BadInput("invalid_database", "The database URL is not supported. Use a file path or a postgresql:// URL.")
    return SqliteDatabase(database_url)


def _unwrap(result: Any) -> Any:
    if isinstance(result, Exception):
        raise result
    return result


def _resolver(future: "asyncio.Future[list[Any]]") -> Callable[[list[Any]], None]:
    def resolve(results: list[Any]) -> None:
        if not future.done():
            future.set_result(results)

    return resolve
