"""The loops of the servers and the readers of events; other actors may act between their steps."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from callsheet.blobs.base import BlobEntry, DeleteSummary
from callsheet.core.model.commands import Command, RecordHeartbeats
from callsheet.core.model.errors import Refusal
from callsheet.core.policy.storage_quota import DiscardedOutputs
from callsheet.engine.lane import Unavailable
from callsheet.engine.loops import file_retention, orphan_files
from callsheet.engine.loops.discarded_outputs import DiscardedOutputDeletion
from callsheet.engine.loops.loop_protocol import Loop
from callsheet.engine.loops.provider_collector import Collector
from callsheet.engine.loops.sink_delivery import Relay
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

RARE_LOOPS = ("worker-timeouts", "retention", "orphans", "discarded")
"""Loops that run less often."""


class LoopEngine:
    """The interface of the engine for loops; other actors may act before each command."""

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
        """Let other actors act; raise Crash if the server of this loop crashed meanwhile."""
        self._interleave()
        if self._server.start_count != self._start_count:
            raise Crash

    @property
    def discarded_outputs(self) -> deque[DiscardedOutputs]:
        """The objects of ended attempts that this server has to delete."""
        return self._server.discarded_outputs

    def seen_workers(self) -> tuple[str, ...]:
        """Return and clear the workers whose contact this server has not recorded yet."""
        names, self._server.seen_workers = tuple(self._server.seen_workers), {}
        return names


class LoopDriver:
    """Runs one loop on any of the servers."""

    def __init__(self, world: World, name: str, make_loop: Callable[[LoopEngine], Loop]) -> None:
        self.name = name
        self.stuck: set[str] = set()
        """Jobs that never progress, as if their rows were locked forever."""
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
            return loop.run_once(server.now())
        except (Crash, Unavailable, StoreError, ConnectionError) as error:
            self._world.log(f"{self.name} stopped: {type(error).__name__}")
        except Refusal as error:
            self._world.report_failure(f"V7 {self.name} was refused: {error.code} {error.message}")
        except Exception:
            if not self._world.failures:  # the failure is already reported
                raise
        return 0

    def _is_stuck(self, command: Command) -> bool:
        return getattr(command, "job_id", None) in self.stuck


class EventReader:
    """A reader of events that keeps its own position."""

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
            self._position = events[-1].position
            self.event_ids.extend(event.position[1] for event in events)
        return len(events)


class WorkerTimeoutLoop:
    """Records the contacts of workers, then sets silent workers offline."""

    def __init__(self, engine: LoopEngine, timeout_seconds: int, page: int) -> None:
        self._engine = engine
        self._worker_timeouts = WorkerTimeouts(engine, timeout_seconds, page)

    def run_once(self, now: int) -> int:
        if names := self._engine.seen_workers():
            self._engine.execute(RecordHeartbeats(workers=names))
        return self._worker_timeouts.run_once(now)


class OrphanLoop:
    """Deletes orphans in one full pass; other actors act between the listing, the query and the deletion."""

    def __init__(self, engine: LoopEngine, blobs: SimulatedBlobs, page: int) -> None:
        self._engine = engine
        self._blobs = blobs
        self._orphans = orphan_files.OrphanCollector(engine.reads, self, GRACE_SECONDS, page)  # type: ignore[arg-type]

    def run_once(self, now: int) -> int:
        pages = 0
        while self._orphans.run_once(now):
            pages += 1
        return pages

    def list(self, prefix: str, after: str, count: int) -> Sequence[BlobEntry]:
        entries = self._blobs.list(prefix, after, count)
        self._engine.let_others_act()
        return entries

    def delete(self, blob_keys: Iterable[str]) -> DeleteSummary:
        self._engine.let_others_act()
        return self._blobs.delete(blob_keys)

    def sweep(self, idle_seconds: float) -> DeleteSummary:
        return self._blobs.sweep(idle_seconds)


def _relay(name: str, sink: Callable[[Sequence[PositionedEvent]], None], engine: LoopEngine) -> Relay:
    return Relay(engine, "log", name, sink, page=7)


def loops(
    world: World, provider: FakeProvider, blobs: SimulatedBlobs, relayed_ids: list[int], timeout_seconds: int
) -> list[LoopDriver]:
    """Return two of each loop for jobs and one of each for workers and files; pages are often smaller than the work."""

    def sink(events: Sequence[PositionedEvent]) -> None:
        relayed_ids.extend(event.position[1] for event in events)

    drivers: list[LoopDriver] = []
    page = world.random.choice((1, 1, 2, 200))
    for n in (1, 2):
        drivers += [
            LoopDriver(world, f"sweeper-{n}", lambda engine: Sweeper(engine, page)),
            LoopDriver(world, f"collector-{n}", lambda engine: Collector(engine, {PROVIDER: provider}, page)),
            LoopDriver(world, f"relay-{n}", partial(_relay, f"relay-{n}", sink)),
        ]
    return [
        *drivers,
        LoopDriver(world, RARE_LOOPS[0], lambda engine: WorkerTimeoutLoop(engine, timeout_seconds, page)),
        LoopDriver(world, RARE_LOOPS[1], lambda engine: file_retention.FileRetention(engine, blobs, page)),  # type: ignore[arg-type]
        LoopDriver(world, RARE_LOOPS[2], lambda engine: OrphanLoop(engine, blobs, max(page, 2))),
        LoopDriver(
            world,
            RARE_LOOPS[3],
            lambda engine: DiscardedOutputDeletion(engine.discarded_outputs, blobs, page),  # type: ignore[arg-type]
        ),
    ]
