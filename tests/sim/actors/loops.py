"""The loops of the servers and the readers of the event order, with others acting between their steps."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from callsheet.blobs.base import BlobEntry, DeleteSummary
from callsheet.core.model.commands import Command, RecordHeartbeats
from callsheet.core.model.errors import Refusal
from callsheet.engine.lane import Unavailable
from callsheet.engine.loops import file_retention, orphan_files
from callsheet.engine.loops.base import Loop
from callsheet.engine.loops.provider_collector import Collector
from callsheet.engine.loops.relay import Relay
from callsheet.engine.loops.sweeper import Sweeper
from callsheet.engine.loops.worker_timeouts import WorkerTimeouts
from callsheet.engine.reads.synchronous import PositionedEvent
from callsheet.store.connection import StoreError
from tests.sim.actors.provider import FakeProvider
from tests.sim.environment.blobs import GRACE_SECONDS, SimulatedBlobs
from tests.sim.environment.faulty_database import Crash
from tests.sim.environment.scenario import PROVIDER
from tests.sim.environment.server import Server
from tests.sim.environment.simulation_context import World

RARE_LOOPS = ("rollcall", "retention", "orphans")
"""The loops of fleet and files, which have time."""


class LoopEngine:
    """The engine as a loop sees it; before each command others may act."""

    def __init__(self, server: Server, interleave: Callable[[], None], stuck: Callable[[Command], bool]) -> None:
        self.reads = server.reads
        self._interleave = interleave
        self._server = server
        self._stuck = stuck
        self._start_count = server.start_count

    def execute(self, command: Command) -> Any:
        result = self.execute_many([command])[0]
        if isinstance(result, Exception):
            raise result
        return result

    def execute_many(self, many: Sequence[Command]) -> list[Any]:
        self.let_others_act()
        sendable = [command for command in many if not self._stuck(command)]
        return self._server.execute_many(sendable) if sendable else []

    def let_others_act(self) -> None:
        """Let others act."""
        self._interleave()
        if self._server.start_count != self._start_count:
            raise Crash  # with the server that it ran in

    def seen_workers(self) -> tuple[str, ...]:
        """Take the names of the workers that this server has heard of."""
        names, self._server.seen_workers = tuple(self._server.seen_workers), {}
        return names


class FileRetention:
    """Runs one of the loops now and then on any of the servers."""

    def __init__(self, world: World, name: str, make_loop: Callable[[LoopEngine], Loop]) -> None:
        self.name = name
        self.stuck: set[str] = set()
        """Jobs whose rows never move on, as if somebody had locked them for ever."""
        self._world = world
        self._make_loop = make_loop

    def act(self, servers: Sequence[Server], interleave: Callable[[], None]) -> int:
        idle = [server for server in servers if not server.busy]
        if not idle:
            return 0
        server = self._world.random.choice(idle)
        self._world.log(f"{self.name} runs on {server.name}")
        loop = self._make_loop(LoopEngine(server, interleave, self._is_stuck))
        try:
            return loop.run_once(self._world.clock.now())
        except (Crash, Unavailable, StoreError, ConnectionError) as error:
            self._world.log(f"{self.name} stopped: {type(error).__name__}")
        except Refusal as error:
            self._world.report_failure(f"V7 {self.name} was refused: {error.code} {error.message}")
        except Exception:
            if not self._world.failures:  # else it has been told already
                raise
        return 0

    def _is_stuck(self, command: Command) -> bool:
        return getattr(command, "job_id", None) in self.stuck


class EventReader:
    """A subscriber of the event order who remembers his own place, and reads on from it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.event_ids: list[int] = []
        self._position = (0, 0)

    def act(self, servers: Sequence[Server], page: int) -> int:
        server = self._world.random.choice(servers)
        try:
            events = server.reads.feed(*self._position, page)
        except StoreError:
            return 0
        if events:
            self._position = events[-1].place
            self.event_ids.extend(event.place[1] for event in events)
        return len(events)


class WorkerTimeoutLoop:
    """Writes down who was heard of, then calls the roll."""

    def __init__(self, engine: LoopEngine, silence_seconds: int, page: int) -> None:
        self._engine = engine
        self._worker_timeouts = WorkerTimeouts(engine, silence_seconds, page)

    def run_once(self, now: int) -> int:
        if names := self._engine.seen_workers():
            self._engine.execute(RecordHeartbeats(workers=names))
        return self._worker_timeouts.run_once(now)


class OrphanLoop:
    """Collects orphans, one whole pass; others act between the looks at the storage, at the rows, and the removal."""

    def __init__(self, engine: LoopEngine, blobs: SimulatedBlobs, page: int) -> None:
        self._engine = engine
        self._blobs = blobs
        self._orphans = orphan_files.OrphanCollector(engine.reads, self, GRACE_SECONDS, page)  # type: ignore[arg-type]

    def run_once(self, now: int) -> int:
        removed = 0
        while self._orphans.run_once(now):
            removed += 1
        return removed

    def list(self, prefix: str, after: str, count: int) -> Sequence[BlobEntry]:
        drivers = self._blobs.list(prefix, after, count)
        self._engine.let_others_act()
        return drivers

    def delete(self, blob_keys: Iterable[str]) -> DeleteSummary:
        self._engine.let_others_act()
        return self._blobs.delete(blob_keys)

    def sweep(self, idle_seconds: float) -> DeleteSummary:
        return self._blobs.sweep(idle_seconds)


def _relay(name: str, sink: Callable[[Sequence[PositionedEvent]], None], engine: LoopEngine) -> Relay:
    return Relay(engine, "log", name, sink, page=7)


def loops(
    world: World, provider: FakeProvider, blobs: SimulatedBlobs, relayed_ids: list[int], silence_seconds: int
) -> list[FileRetention]:
    """Return two of each loop of the jobs, one of fleet and files; pages are often too small for what is due."""

    def sink(events: Sequence[PositionedEvent]) -> None:
        relayed_ids.extend(event.place[1] for event in events)

    drivers: list[FileRetention] = []
    page = world.random.choice((1, 1, 2, 200))
    for n in (1, 2):
        drivers += [
            FileRetention(world, f"sweeper-{n}", lambda engine: Sweeper(engine, page)),
            FileRetention(world, f"collector-{n}", lambda engine: Collector(engine, {PROVIDER: provider}, page)),
            FileRetention(world, f"relay-{n}", partial(_relay, f"relay-{n}", sink)),
        ]
    return [
        *drivers,
        FileRetention(world, RARE_LOOPS[0], lambda engine: WorkerTimeoutLoop(engine, silence_seconds, page)),
        FileRetention(world, RARE_LOOPS[1], lambda engine: file_retention.FileRetention(engine, blobs, page)),  # type: ignore[arg-type]
        FileRetention(world, RARE_LOOPS[2], lambda engine: OrphanLoop(engine, blobs, max(page, 2))),
    ]
