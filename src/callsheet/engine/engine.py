"""The engine: open it on a SQLite file or a PostgreSQL URL, execute commands, read what is there."""

import asyncio
import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from callsheet.config import Settings
from callsheet.core import commands
from callsheet.core.commands import Command
from callsheet.core.errors import BadInput, Refusal
from callsheet.core.ids import Ids, uuid7
from callsheet.core.submit import idem_of
from callsheet.core.texts import check_texts
from callsheet.engine.batch import Batch, Done, subject
from callsheet.engine.gates import Gate, judged
from callsheet.engine.hints import Hints, told
from callsheet.engine.lane import Box, Lane, Order, Unavailable
from callsheet.engine.listen import Listener
from callsheet.engine.offers import Offers
from callsheet.engine.prefetch import Recipes
from callsheet.engine.reading import Reading
from callsheet.engine.readlane import ReadLane
from callsheet.store.connection import Database
from callsheet.store.migrate import dialect_of, migrate
from callsheet.store.postgres import PostgresDatabase
from callsheet.store.sqlite import SqliteDatabase

__all__ = ["Engine", "Unavailable"]
Denial = Callable[[Command, Refusal], None]
_JUDGES = 16
UNHURRIED_SECONDS = 7 * 86_400.0
"""For what takes as long as it takes: a migration of a large table, a look at every row."""


class RandomIds:
    """Time-ordered ids from the machine's clock and random source."""

    def new(self) -> str:
        return uuid7(time.time_ns() // 1_000_000, secrets.randbits(74))


class Engine:
    """Commands in, answers out after the commit; from threads with `execute`, from asyncio with `aexecute`."""

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
        self.denials: list[Denial] = []
        """Told of every refused command, after its batch, where its answer is awaited: they must not block."""
        self._gates = gates
        self._judges = ThreadPoolExecutor(_JUDGES, "callsheet-gates")
        """For gates, which may ask somebody far away: threads of their own, so that they and the files do not wait for
        each other."""
        self._ids = ids or RandomIds()
        self._recipes = Recipes()
        self.read = Reading(database, self.settings.readers)
        self.reads = _by_key(database, self.settings.read_seconds)
        """For reads by key, which take microseconds."""
        self.scans = ReadLane(database, "scans")
        """For lists and counts, which may take long, and behind which no read by key shall wait."""
        self._lanes = [
            Lane(f"callsheet-lane-{n}", self._batch, self._after, self.settings) for n in range(database.lanes)
        ]
        self._listener = Listener.of(database, self._heard, self.settings)
        self.watchers: list[Callable[[], None]] = []
        """Called after every commit, here or (as a hint) elsewhere; from any thread, and must not block."""

    @classmethod
    def open(cls, place: str | Path, settings: Settings | None = None, *, gates: Sequence[Gate] = ()) -> Self:
        """Open (and if need be make or migrate) a database, and start the lanes."""
        settings = settings or Settings()
        database = database_of(place, settings)
        with closing(
            database_of(place, replace(settings, statement_seconds=UNHURRIED_SECONDS)).connect()
        ) as connection:
            migrate(connection, dialect_of(database.name))
        engine = cls(database, settings, gates=gates)
        engine.start()
        return engine

    def start(self) -> None:
        for lane in self._lanes:
            lane.start()
        if self._listener:
            self._listener.start()
        self.reads.start()
        self.scans.start()

    def close(self) -> None:
        """Finish what was handed in, and let go of the database; the writers last, which leaves SQLite in one file."""
        if self._listener:
            self._listener.stop()
        self.reads.stop()
        self.scans.stop()
        self.read.close()
        for lane in self._lanes:
            lane.stop()
        self._judges.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- commands

    def execute(self, command: Command) -> Any:
        """Run one command from a thread; returns its answer or raises its refusal."""
        return _answer(self.execute_many([command])[0])

    def execute_many(self, many: Sequence[Command]) -> list[Any]:
        """Run commands together; each has its own outcome: an answer, or the exception it would have raised."""
        results = self._prepared(many)
        boxes = []
        for lane, places in self._shards(results):
            box = Box()
            lane.send(Order([results[place] for place in places], box.put))
            boxes.append((places, box))
        for places, box in boxes:
            self._fill(results, places, box.take())
        return results

    async def aexecute(self, command: Command) -> Any:
        """Run one command from asyncio."""
        return _answer((await self.aexecute_many([command]))[0])

    async def aexecute_many(self, many: Sequence[Command]) -> list[Any]:
        """Run commands together from asyncio."""
        loop = asyncio.get_running_loop()
        if self._gates and any(isinstance(command, commands.Submit) for command in many):
            results = await loop.run_in_executor(self._judges, self._prepared, many)
        else:
            results = self._prepared(many)
        waiting = []
        for lane, places in self._shards(results):
            future: asyncio.Future[list[Any]] = loop.create_future()
            lane.send(Order([results[place] for place in places], _resolve(future), loop))
            waiting.append((places, future))
        for places, future in waiting:
            self._fill(results, places, await future)
        return results

    def _fill(self, results: list[Any], places: Sequence[int], answers: Sequence[Any]) -> None:
        """Put answers in the places of their commands, and tell of those that were refused."""
        for place, answer in zip(places, answers, strict=True):
            if self.denials and isinstance(answer, Refusal):
                for tell in self.denials:
                    tell(results[place], answer)
            results[place] = answer

    def claim(
        self, command: commands.Claim, wait_seconds: float = 0, wanted: Callable[[], bool] = lambda: True
    ) -> list[commands.Leased]:
        """Claim, and if there is nothing wait for a hint; a poll every few seconds is the truth.

        Whoever no longer wants work says so with `wanted`, and wakes the claim with a hint.
        """
        end = time.monotonic() + wait_seconds
        while True:
            mark = self.hints.mark(command.kinds)
            if not wanted():
                return []
            leased: list[commands.Leased] = self.execute(command)
            rest = end - time.monotonic()
            if leased or rest <= 0:
                return leased
            patience = self.hints.patience(command.kinds, self.settings.poll_seconds)
            self.hints.wait(command.kinds, mark, min(rest, patience))

    # -- inside

    def _prepared(self, many: Sequence[Command]) -> list[Any]:
        """Make commands ready to run; one that cannot be is replaced by its refusal."""
        if len(many) > self.settings.limits.bulk_max:
            raise BadInput("too_many_commands", f"At most {self.settings.limits.bulk_max} commands in one call.")
        prepared: list[Any] = []
        for command in many:
            try:
                check_texts(command)
                prepared.append(self._prepare(command))
            except Refusal as refusal:
                prepared.append(refusal)
        return prepared

    def _prepare(self, command: Command) -> Command:
        """Give a command its id, its tokens and its verdict before it can run for the first time."""
        if isinstance(command, commands.Claim):
            count = min(max(command.count, 1), self.settings.limits.claim_max)
            tokens = tuple(secrets.token_urlsafe(24) for _ in range(count))
            return replace(command, id=self._ids.new(), tokens=tokens)
        if isinstance(command, commands.Submit):
            if self._gates and not self._known(command):
                verdict = judged(self._gates, command, record_blocked=self.settings.record_blocked)
                command = replace(command, verdict=verdict)
            return command if command.id else replace(command, id=self._ids.new())
        if isinstance(command, _NAMED) and not command.id:
            return replace(command, id=self._ids.new())
        return command

    def _known(self, command: commands.Submit) -> bool:
        idem = idem_of(command)
        return idem is not None and bool(self.read.fetch("jobs_by_idem", ids=[idem]))

    def _shards(self, prepared: Sequence[Any]) -> Iterable[tuple[Lane, Sequence[int]]]:
        shards: dict[int, list[int]] = {}
        for place, command in enumerate(prepared):
            if isinstance(command, Command):
                lane = zlib.crc32(subject(command).encode()) % len(self._lanes) if len(self._lanes) > 1 else 0
                shards.setdefault(lane, []).append(place)
        return [(self._lanes[n], places) for n, places in shards.items()]

    def _after(self, done: Done) -> None:
        for kinds, left in done.expected.items():
            self.hints.expect(kinds, left)
        if done.wrote:
            self._heard(done.woken)

    def _heard(self, kinds: Iterable[str]) -> None:
        self.hints.announce(kinds)
        for tell in self.watchers:
            told(tell)

    @property
    def trouble(self) -> str | None:
        """What keeps the house from writing, for a person; None if nothing is known to."""
        return next((lane.trouble for lane in self._lanes if lane.trouble), None)

    def _batch(self) -> Batch:
        return Batch(self.database.connect(), self.settings.limits, self._recipes, Offers())


_NAMED = (
    commands.Retry, commands.AddStage, commands.AddTasks, commands.TopUp, commands.Adjust, commands.PutTenant,
    commands.PutWorkflow, commands.CreateKey, commands.RevokeKey, commands.Cancel, commands.Approve, commands.Delete,
    commands.Pause, commands.Resume, commands.Hold, commands.Change, commands.Register, commands.Deregister,
    commands.SetWorker, commands.RevokeWorker, commands.RotateWorker, commands.TickWorker, commands.AskUpload,
    commands.DropFiles, commands.Refund,
)  # fmt: skip
"""Commands that make something, if only a line of the audit log: tried again, they must find it."""


def database_of(place: str | Path, settings: Settings) -> Database:
    """Return the database that a path or URL names."""
    text = str(place)
    if text.startswith(("postgresql://", "postgres://")):
        return PostgresDatabase(
            text, lanes=settings.lanes, pooled=settings.pooled, statement_seconds=settings.statement_seconds
        )
    if "://" in text:
        raise BadInput("invalid_database", "A database is a file path or a postgresql:// URL.")
    return SqliteDatabase(place)


def _by_key(database: Database, seconds: float) -> ReadLane:
    """Return the lane for reads by key; PostgreSQL can be waited for by its socket."""
    if not isinstance(database, PostgresDatabase):
        return ReadLane(database, "reads")
    quick = database.within(seconds)
    return ReadLane(quick, "reads", near_seconds=quick.statement_seconds)


def _answer(result: Any) -> Any:
    if isinstance(result, Exception):
        raise result
    return result


def _resolve(future: "asyncio.Future[list[Any]]") -> Callable[[list[Any]], None]:
    def resolve(results: list[Any]) -> None:
        if not future.done():
            future.set_result(results)

    return resolve
