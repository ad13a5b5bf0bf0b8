"""A simulated server process: a lane without its thread, and reads. A crash loses its state; the database stays."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from callsheet.blobs import object_keys
from callsheet.core.decisions.lease_check import hash_token
from callsheet.core.model.commands import Claim, Command, DeleteFiles, Register, RotateWorker, WorkerState
from callsheet.core.model.errors import InvalidWorkerToken
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.storage_quota import DiscardedOutputs
from callsheet.core.working_set import WorkingSet
from callsheet.engine.batch import Batch, BatchResult
from callsheet.engine.candidates import CandidateSelector
from callsheet.engine.lane import Lane, Unavailable
from callsheet.engine.prefetch import DefinitionCache
from callsheet.engine.reads.synchronous import BlockingReader
from callsheet.settings import Settings
from tests.sim.checks.history import History
from tests.sim.environment.blobs import SimulatedBlobs
from tests.sim.environment.faulty_database import Crash, FaultInjectingDatabase
from tests.sim.environment.simulation_context import World
from tests.support.engine.time_stamps import find_backdated

_FOREVER = 1e9
_ATTEMPTS_MAX = 4


class Admission(NamedTuple):
    """The answer to a registration or a token rotation: the state of the worker, and the hash of the token."""

    state: WorkerState
    session: str


class VirtualStopEvent:
    """Replaces the stop event of the lane: a wait takes virtual time, in which others act; it ends after some waits."""

    def __init__(self, world: World, interleave: Callable[[], None]) -> None:
        self._world = world
        self._interleave = interleave
        self.attempts_left = _ATTEMPTS_MAX

    def is_set(self) -> bool:
        return self.attempts_left <= 0

    def wait(self, seconds: float) -> bool:
        self.attempts_left -= 1
        self._world.clock.move(seconds)
        self._interleave()
        return False


class ThreadlessLane(Lane):
    """The real lane, called directly instead of from its own thread."""

    def __init__(
        self, make_batch: Callable[[], Batch], settings: Settings, stop_event: VirtualStopEvent,
        on_done: Callable[[BatchResult], None],
    ) -> None:  # fmt: skip
        super().__init__("lane", make_batch, on_done, settings)
        self._stopping = cast("threading.Event", stop_event)

    def results(self, commands: Sequence[Command]) -> list[Any]:
        return self._run_with_fallback(commands)

    def close_connection(self) -> None:
        self._close_batch()


class CheckedBatch(Batch):
    """The real batch, which also checks the time stamps that it is about to write."""

    def __init__(self, world: World, *args: Any) -> None:
        super().__init__(*args)
        self._world = world

    def _store(self, ws: WorkingSet) -> bool:
        for finding in find_backdated(ws):
            self._world.report_failure(finding)
        return super()._store(ws)


class Server:
    """One of the servers on the database of the simulation."""

    def __init__(
        self, world: World, name: str, path: Path, history: History, limits: Limits, blobs: SimulatedBlobs
    ) -> None:
        self.name = name
        self.seen_workers: dict[str, None] = {}
        """Workers with a contact that is not recorded yet; kept in memory only."""
        self.discarded_outputs: deque[DiscardedOutputs] = deque()
        """Objects of ended attempts that are not deleted yet; kept in memory only."""
        self._blobs = blobs
        self.busy = False
        self.start_count = 0
        self.interleave: Callable[[], None] = lambda: None
        self._world = world
        self._history = history
        self._settings = Settings(limits=limits, database_retry_seconds=_FOREVER)
        self._database = FaultInjectingDatabase(world, path, history.on_commit)
        world.server_clocks.append(self._database)
        self._start()

    def _start(self) -> None:
        self.start_count += 1
        self.seen_workers = {}
        self.discarded_outputs = deque()
        self._database.restart_clock()
        self.reads = BlockingReader(self._database, 1)
        self._definitions = DefinitionCache()
        self._stop_event = VirtualStopEvent(self._world, self._run_interleaved)
        self._lane = ThreadlessLane(self._make_batch, self._settings, self._stop_event, self._on_batch_done)

    def now(self) -> int:
        """Return the engine's time of this server."""
        return self._database.now()

    def _run_interleaved(self) -> None:
        self.interleave()

    def close(self) -> None:
        self._stop()
        self._database.close()

    def _stop(self) -> None:
        self._lane.close_connection()
        self.reads.close()

    def execute_many(self, many: Sequence[Command]) -> list[Any]:
        """Run commands as one batch, as the lane does. Raises Crash, after which the server has restarted."""
        prepared = [self._assign_ids(command) for command in many]
        self._stop_event.attempts_left = _ATTEMPTS_MAX
        self._database.begin_batch()
        self._history.record_sent(self.name, prepared, self._database.batch_time())
        self.busy = True
        try:
            results = self._lane.results(prepared)
        except Crash:
            self._world.log(f"{self.name} crashed and restarts")
            self._history.record_unanswered(prepared)
            self._stop()
            self._start()
            raise
        finally:
            self.busy = False
        self._history.record_answered(prepared, results, self._database.batch_time())
        return [self._handle_result(command, result) for command, result in zip(prepared, results, strict=True)]

    def _handle_result(self, command: Command, result: Any) -> Any:
        """Do what the HTTP server does with an answer: return a token, record a contact, delete objects."""
        if not isinstance(result, InvalidWorkerToken | Unavailable) and (name := _calling_worker(command)) is not None:
            self.seen_workers[name] = None
        if isinstance(command, Register | RotateWorker) and isinstance(result, WorkerState):
            return Admission(result, command.token_hash)
        if isinstance(command, DeleteFiles) and command.tenant is not None and not isinstance(result, Exception):
            with suppress(ConnectionError):  # an object that is not deleted becomes an orphan
                self._blobs.delete([object_keys.file_key(file) for file in result.files])
        return result

    def _on_batch_done(self, done: BatchResult) -> None:
        self.discarded_outputs.extend(done.discarded_outputs)

    def _make_batch(self) -> Batch:
        limits = self._settings.limits
        return CheckedBatch(self._world, self._database.connect(), limits, self._definitions, CandidateSelector())

    def _assign_ids(self, command: Command) -> Command:
        """Set the id and the tokens of a command before it runs for the first time; each copy has its own."""
        if isinstance(command, Claim):
            tokens = tuple(self._world.new_token() for _ in range(command.count))
            return replace(command, id=self._world.new_id(), tokens=tokens)
        if isinstance(command, Register | RotateWorker):
            return replace(command, id=self._world.new_id(), token_hash=hash_token(self._world.new_token()))
        return replace(command, id=self._world.new_id())


def _calling_worker(command: Command) -> str | None:
    """Return the registered worker that sent a command, if one did."""
    if isinstance(command, Claim):
        return None if command.token_hash is None else command.worker_id
    return getattr(command, "worker_id", None) if hasattr(command, "lease") else None
