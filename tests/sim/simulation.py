"""One simulation: a setup, steps with faults, a recovery in which every job must end, and the final checks."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from callsheet.core.model.clock import SECOND
from callsheet.store.dialect import SQLITE
from callsheet.store.migrate import migrate
from callsheet.store.sqlite import SqliteDatabase
from tests.sim.actors.clients import Client
from tests.sim.actors.fleet_workers import FleetWorker, LeakedLeases
from tests.sim.actors.loops import RARE_LOOPS, EventReader, loops
from tests.sim.actors.operator import Operator
from tests.sim.actors.provider import FakeProvider
from tests.sim.actors.workers import Worker
from tests.sim.checks.fleet_properties import FLEET_AND_FILE_PROPERTIES
from tests.sim.checks.history import History
from tests.sim.checks.history_properties import PROPERTIES
from tests.sim.checks.inspector import Inspector
from tests.sim.checks.invariants import Invariants
from tests.sim.environment.blobs import GRACE_SECONDS, SimulatedBlobs
from tests.sim.environment.network import Network, Request, ignore_answers
from tests.sim.environment.scenario import draw_scenario
from tests.sim.environment.server import Server
from tests.sim.environment.simulation_context import World

STEPS = 180
VERIFY_EVERY = 10
_RAM_DISK = Path("/dev/shm")
_INTERLEAVE_DEPTH_MAX = 2
_RECOVERY_SECONDS_MAX = 2_400
_RECOVERY_ROUNDS_MAX = 200
_CURSOR_HOLD_SECONDS = 61
_MINUTE = 60 * SECOND
_NEXT_DUE_AT = f"""SELECT min(at) FROM (SELECT min(due_at) AS at FROM job WHERE due_at > :now
    UNION ALL SELECT min(due_at) FROM task WHERE due_at > :now
    UNION ALL SELECT min(collect_at) FROM call WHERE collect_at > :now
    UNION ALL SELECT min(leased_at) + {_MINUTE} FROM attempt
        WHERE rate_queue IS NOT NULL AND leased_at + {_MINUTE} > :now
        AND EXISTS (SELECT 1 FROM task WHERE ready = 1))"""
"""The next due time; the rates of these scenarios are per minute."""
_STUCK_JOBS = """SELECT j.id FROM job j LEFT JOIN task t ON t.job_id = j.id AND t.due_at IS NOT NULL
    WHERE j.finished_at IS NULL AND j.cancel_requested_at IS NULL GROUP BY j.id
    HAVING ? OR sum(coalesce(t.status = 'running', 0)) = 0 ORDER BY min(coalesce(t.due_at, j.due_at)) LIMIT 2"""
"""The jobs that are due first; with running limits only those without a running task, which would occupy a place."""
_READY_TASK = "SELECT id FROM task WHERE ready = 1 LIMIT 1"
_BLOCKED_WORKERS = (
    "SELECT id FROM worker WHERE status IN ('pending', 'revoked') OR draining_at > 0 OR assigned IS NOT NULL"
)


class Report(NamedTuple):
    """The result of one simulation."""

    seed: int
    digest: str
    failures: list[str]
    trace: list[str]
    commits: int


class Simulation:
    """All actors of one simulation, and the order in which they act."""

    def __init__(self, world: World, path: Path, verify_every: int) -> None:
        self.world = world
        self.random = world.random
        self.scenario = draw_scenario(world.random, world.seed)
        world.focus = self.scenario.focus
        self.inspector = Inspector(path)
        self.invariants = Invariants(self.inspector, self.scenario.limits, verify_every)
        self.history = History(world, self.inspector, self.invariants)
        self.blobs = SimulatedBlobs(world, self.inspector)
        self.servers = [
            Server(world, name, path, self.history, self.scenario.limits, self.blobs)
            for name in world.random.choice((("server-1",), ("server-1", "server-2")))
        ]
        for server in self.servers:
            server.interleave = self.interleave
        self.network = Network(world, self.servers)
        self.provider = FakeProvider(world, self.inspector)
        self.clients = [
            Client(world, self.inspector, self.scenario, self.blobs, *owner) for owner in self.scenario.users
        ]
        self.fleet = self._make_fleet_workers()
        self.operator = Operator(world.random, self.scenario, self.fleet)
        self.workers = [Worker(world, "worker-1", self.provider, self.blobs)] if world.chance(0.7) else []
        self.workers += self.fleet
        self.relayed_ids: list[int] = []
        self.loops = loops(
            world, self.provider, self.blobs, self.relayed_ids, self.scenario.limits.worker_timeout_seconds
        )
        self.relay = next(loop for loop in self.loops if loop.name.startswith("relay"))
        self.reader = EventReader(world)
        self._interleave_depth = 0

    def _make_fleet_workers(self) -> list[FleetWorker]:
        """Return registered workers, of which two may have the same id."""
        self.world.approval_required = self.scenario.approval_required
        names = self.random.choice((("gpu-1", "gpu-2"), ("gpu-1", "gpu-2", "gpu-3"), ("gpu-1", "gpu-2", "gpu-2")))
        leaked_leases = LeakedLeases()
        return [FleetWorker(self.world, name, self.provider, self.blobs, leaked_leases) for name in names]

    def close(self) -> None:
        for server in self.servers:
            server.close()
        self.inspector.close()

    # -- steps with faults

    def run_with_faults(self, steps: int) -> None:
        self.world.faults_stopped = True
        self.network.send_together([Request(self.scenario.setup, ignore_answers)])
        self.network.send_together([Request(client.create_upload(), ignore_answers) for client in self.clients])
        self.network.send_together([Request(client.finish_upload(), ignore_answers) for client in self.clients])
        self.world.faults_stopped = False
        for _ in range(steps):
            if self.world.failures:
                return
            self._advance_clock()
            self.step()

    def _advance_clock(self) -> None:
        roll = self.random.random()
        if roll < 0.01:
            self.world.move_clock(self.random.choice((3_600, 3_600, -3_600)))
        elif roll < 0.04:
            self.world.move_clock(-self.random.choice((0.001, 1, 6)))
        elif roll < 0.2:
            self.world.move_clock(self.random.choice((15, 31, 61)))
        else:
            self.world.move_clock(self.random.random() * 3)

    def step(self) -> None:
        """Let one actor act, or several at once."""
        roll = self.random.random()
        if roll < 0.2:
            frequent = [loop for loop in self.loops if loop.name not in RARE_LOOPS]
            self.random.choice([*frequent, *self.loops]).act(self.servers, self.interleave)
        elif roll < 0.22:
            self.reader.act(self.servers, self.random.choice((1, 5, 50)))
        elif roll < 0.26:
            self.network.deliver_delayed()
        elif roll < 0.33:
            self.network.send_together([Request(self.provider.callbacks(), ignore_answers)])
        else:
            requests = (self._draw_request() for _ in range(self.random.choice((1, 1, 1, 2, 3, 5))))
            self.network.send_together([request for request in requests if request is not None])

    def _draw_request(self) -> Request | None:
        roll = self.random.random()
        if roll < (0.15 if self.world.focus.operator else 0.05):
            return self.operator.act()
        if roll < 0.45:
            return self.random.choice(self.clients).act()
        return self.random.choice(self.workers).act()

    def interleave(self) -> None:
        """Let other actors act between two steps of one actor."""
        if (
            self.world.faults_stopped
            or self._interleave_depth >= _INTERLEAVE_DEPTH_MAX
            or self.world.failures
            or self.random.random() < 0.5
        ):
            return
        self._interleave_depth += 1
        try:
            self.step()
        finally:
            self._interleave_depth -= 1

    # -- recovery

    def recover(self) -> None:
        """Stop all faults; workers, users and loops must end every job in bounded time."""
        self.world.faults_stopped = True
        self.world.log("the faults stop")
        for worker in self.fleet:
            worker.restart_cleanly()
        end = self.world.now() + _RECOVERY_SECONDS_MAX * SECOND
        stuck = {job for (job,) in self.inspector.rows(_STUCK_JOBS, not self.scenario.has_running_limits)}
        sweepers = [loop for loop in self.loops if loop.name.startswith("sweeper")]
        for loop in sweepers:
            loop.stuck = stuck
        self._run_until(end)
        self._check_all_ended(stuck)
        if self.world.failures:
            return
        for loop in sweepers:
            loop.stuck = set()
        last = self.inspector.one("SELECT max(deadline_at) FROM job WHERE finished_at IS NULL") or 0
        self.world.wait_until(max(last, self.world.now()) + SECOND)
        self._run_until(self.world.now() + SECOND)
        for (job,) in self.inspector.rows("SELECT id FROM job WHERE finished_at IS NULL"):
            self.world.report_failure(f"V1 job {job} is past its deadline and has not ended")
        for wallet, reserved in self.inspector.rows("SELECT id, reserved FROM wallet WHERE reserved <> 0"):
            self.world.report_failure(f"V4 wallet {wallet} still has {reserved} reserved")

    def _run_until(self, end: int) -> None:
        for _ in range(_RECOVERY_ROUNDS_MAX):
            if self.world.failures:
                return
            if not self._run_round():
                next_due_at = self.inspector.one(_NEXT_DUE_AT, self.world.now()) or end
                if next_due_at >= end:
                    return
                self.world.wait_until(next_due_at)
        self.world.report_failure(f"V1 rows still change after {_RECOVERY_ROUNDS_MAX} rounds")

    def _run_round(self) -> bool:
        """Let every actor do its pending work; return whether anything changed."""
        before = self.world.commits
        if self.inspector.rows(_BLOCKED_WORKERS):
            self.network.send_together([Request(self.operator.unblock_all(), ignore_answers)])
        for client in self.clients:
            if commands := client.unblock_all():
                self.network.send_together([Request(commands, ignore_answers)])
        for worker in {worker.name: worker for worker in self.workers}.values():  # one process per worker id
            if worker.needs_registration or self.inspector.rows(_READY_TASK):
                self.network.send_together([worker.claim(9, every_kind=True)])
            for _ in range(3):
                self.network.send_together(worker.finish())
        for loop in self.loops:
            if loop.name.startswith(("sweeper", "collector")):
                loop.act(self.servers, lambda: None)
        return self.world.commits != before

    def _check_all_ended(self, stuck: set[str]) -> None:
        """Report jobs that could have ended and did not."""
        rows = self.inspector.rows(
            "SELECT j.id, j.status, s.no, s.status FROM job j JOIN stage s ON s.job_id = j.id"
            " AND s.no = j.stages_completed + 1 WHERE j.finished_at IS NULL AND s.tasks_total > 0"
        )
        for row in rows:
            if row[0] not in stuck:
                self.world.report_failure(f"V1 {row} has not ended in {_RECOVERY_SECONDS_MAX} seconds without faults")

    # -- final checks

    def check_end_state(self) -> None:
        """Check the properties of the whole history."""
        self._expire_files_and_workers()
        for finding in self.invariants.run_verify():
            self.world.report_failure(finding)
        for rule in (*PROPERTIES, *FLEET_AND_FILE_PROPERTIES):
            for finding in rule(self.history.ops, self.inspector):
                self.world.report_failure(finding)
        self.world.wait_until(self.world.now() + _CURSOR_HOLD_SECONDS * SECOND)
        while self.reader.act(self.servers, 100) or self.relay.act(self.servers, lambda: None):
            if self.world.failures:
                return
        events = [event for (event,) in self.inspector.rows("SELECT id FROM event ORDER BY id")]
        if self.reader.event_ids != events:
            self.world.report_failure("H21 a reader of the events has a gap or a duplicate")
        if list(dict.fromkeys(self.relayed_ids)) != events:
            self.world.report_failure("H21 the relay has skipped events or changed their order")
        if not self.invariants.events_unchanged():
            self.world.report_failure("H19 an event has changed since it was written")

    def _expire_files_and_workers(self) -> None:
        """Wait until all files have expired and all workers have timed out, and run their loops."""
        last = self.inspector.one("SELECT max(expires_at) FROM file") or 0
        wait_seconds = self.scenario.limits.worker_timeout_seconds + GRACE_SECONDS + 1
        self.world.wait_until(max(last, self.world.now()) + wait_seconds * SECOND)
        for loop in self.loops:
            if loop.name in RARE_LOOPS:
                for server in self.servers:
                    server.seen_workers = {}
                loop.act(self.servers, lambda: None)
        for name, status in self.inspector.rows(
            "SELECT id, status FROM worker WHERE status NOT IN ('offline', 'revoked')"
        ):
            self.world.report_failure(f"V2 worker {name} has timed out and is still {status}")
        for (file,) in self.inspector.rows("SELECT id FROM file WHERE expires_at IS NOT NULL"):
            self.world.report_failure(f"V3 file {file} has expired and was not deleted")
        self.blobs.check_end_state()


def simulate(seed: int, steps: int = STEPS, *, verify_every: int = VERIFY_EVERY, verbose: bool = False) -> Report:
    """Run one simulation."""
    world = World(seed, verbose=verbose)
    with _temporary_database() as path:
        simulation = Simulation(world, path, verify_every)
        try:
            simulation.run_with_faults(steps)
            if not world.failures:
                simulation.recover()
            if not world.failures:
                simulation.check_end_state()
            world.log(simulation.inspector.digest())
        finally:
            simulation.close()
    return Report(seed, world.trace.digest, world.failures, world.trace.lines, world.commits)


@contextmanager
def _temporary_database() -> Iterator[Path]:
    """Create an empty database, in memory if possible, and remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="callsheet-sim-", dir=_RAM_DISK if _RAM_DISK.is_dir() else None))
    try:
        path = folder / "simulation.db"
        connection = SqliteDatabase(path).connect()
        connection.run("PRAGMA synchronous = OFF")
        migrate(connection, SQLITE)
        connection.close()
        yield path
    finally:
        shutil.rmtree(folder)
