"""One life: a house is set up, a storm goes over it, then calm, in which everything must come to its end."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from callsheet.core.clock import SECOND
from callsheet.store.dialect import SQLITE
from callsheet.store.migrate import migrate
from callsheet.store.sqlite import SqliteDatabase
from tests.sim.catalog import furnish
from tests.sim.checks import Checks
from tests.sim.clients import Client
from tests.sim.fleet import Board, FleetWorker
from tests.sim.history import History
from tests.sim.keepers import SELDOM, Reader, keepers
from tests.sim.network import Network, Request, nobody
from tests.sim.operator import Operator
from tests.sim.peek import Peek
from tests.sim.properties import PROPERTIES
from tests.sim.properties_fleet import FLEET_AND_FILES
from tests.sim.provider import FakeProvider
from tests.sim.server import Server
from tests.sim.shelf import GRACE_SECONDS, Shelf
from tests.sim.workers import Worker
from tests.sim.world import World

STEPS = 110
VERIFY_EVERY = 10
_MEMORY = Path("/dev/shm")
_DEPTH_MAX = 2
_CALM_SECONDS = 2_400
_CALM_ROUNDS = 200
_HOLD_SECONDS = 61
_MINUTE = 60 * SECOND
_NEXT = f"""SELECT min(at) FROM (SELECT min(due_at) AS at FROM job WHERE due_at > :now
    UNION ALL SELECT min(due_at) FROM task WHERE due_at > :now
    UNION ALL SELECT min(collect_at) FROM call WHERE collect_at > :now
    UNION ALL SELECT min(leased_at) + {_MINUTE} FROM attempt
        WHERE rated IS NOT NULL AND leased_at + {_MINUTE} > :now AND EXISTS (SELECT 1 FROM task WHERE ready = 1))"""
"""When something comes due: the rates of these lives are by the minute."""
_STUCK = """SELECT j.id FROM job j LEFT JOIN task t ON t.job_id = j.id AND t.due_at IS NOT NULL
    WHERE j.finished_at IS NULL AND j.cancel_requested_at IS NULL GROUP BY j.id
    HAVING ? OR sum(coalesce(t.status = 'running', 0)) = 0 ORDER BY min(coalesce(t.due_at, j.due_at)) LIMIT 2"""
"""The jobs with the first moments; under running limits those without a running task, which would hold its place."""
_WAITING = "SELECT id FROM task WHERE ready = 1 LIMIT 1"
_SHUT_OUT = "SELECT id FROM worker WHERE status IN ('pending', 'revoked') OR draining_at > 0 OR assigned IS NOT NULL"


class Report(NamedTuple):
    """How a life went."""

    seed: int
    digest: str
    broken: list[str]
    trace: list[str]
    commits: int


class Life:
    """Everybody in one life, and who acts next."""

    def __init__(self, world: World, path: Path, verify_every: int) -> None:
        self.world = world
        self.random = world.random
        self.house = furnish(world.random)
        self.peek = Peek(path)
        self.checks = Checks(self.peek, self.house.limits, verify_every)
        self.history = History(world, self.peek, self.checks)
        self.shelf = Shelf(world, self.peek)
        self.servers = [
            Server(world, name, path, self.history, self.house.limits, self.shelf)
            for name in world.random.choice((("server-1",), ("server-1", "server-2")))
        ]
        for server in self.servers:
            server.meanwhile = self.meanwhile
        self.network = Network(world, self.servers)
        self.provider = FakeProvider(world, self.peek)
        self.clients = [Client(world, self.peek, self.house, self.shelf, *who) for who in self.house.users]
        self.fleet = self._fleet()
        self.operator = Operator(world.random, self.house, self.fleet)
        self.workers = [Worker(world, "worker-1", self.provider, self.shelf)] if world.chance(0.7) else []
        self.workers += self.fleet
        self.relayed: list[int] = []
        self.keepers = keepers(world, self.provider, self.shelf, self.relayed, self.house.limits.worker_silence_seconds)
        self.relay = next(keeper for keeper in self.keepers if keeper.name.startswith("relay"))
        self.reader = Reader(world)
        self._depth = 0

    def _fleet(self) -> list[FleetWorker]:
        """Return workers of the fleet, of which two may go by one name."""
        self.world.approval = self.house.approval
        names = self.random.choice((("gpu-1", "gpu-2"), ("gpu-1", "gpu-2", "gpu-3"), ("gpu-1", "gpu-2", "gpu-2")))
        board = Board()
        return [FleetWorker(self.world, name, self.provider, self.shelf, board) for name in names]

    def close(self) -> None:
        for server in self.servers:
            server.close()
        self.peek.close()

    # -- the storm

    def storm(self, steps: int) -> None:
        self.world.calm = True
        self.network.exchange([Request(self.house.setup, nobody)])
        self.network.exchange([Request(client.announce(), nobody) for client in self.clients])
        self.network.exchange([Request(client.bring(), nobody) for client in self.clients])
        self.world.calm = False
        for _ in range(steps):
            if self.world.broken:
                return
            self._time_passes()
            self.step()

    def _time_passes(self) -> None:
        fate = self.random.random()
        if fate < 0.01:
            self.world.clock.move(self.random.choice((3_600, 3_600, -3_600)))
        elif fate < 0.04:
            self.world.clock.move(-self.random.choice((0.001, 1, 6)))
        elif fate < 0.2:
            self.world.clock.move(self.random.choice((15, 31, 61)))
        else:
            self.world.clock.move(self.random.random() * 3)

    def step(self) -> None:
        """Let somebody act, or several at once."""
        fate = self.random.random()
        if fate < 0.2:
            usual = [keeper for keeper in self.keepers if keeper.name not in SELDOM]
            self.random.choice([*usual, *self.keepers]).act(self.servers, self.meanwhile)
        elif fate < 0.22:
            self.reader.act(self.servers, self.random.choice((1, 5, 50)))
        elif fate < 0.26:
            self.network.deliver_late()
        elif fate < 0.33:
            self.network.exchange([Request(self.provider.callbacks(), nobody)])
        else:
            several = (self._request() for _ in range(self.random.choice((1, 1, 1, 2, 3, 5))))
            self.network.exchange([request for request in several if request is not None])

    def _request(self) -> Request | None:
        fate = self.random.random()
        if fate < 0.05:
            return self.operator.act()
        if fate < 0.45:
            return self.random.choice(self.clients).act()
        return self.random.choice(self.workers).act()

    def meanwhile(self) -> None:
        """Let others act while somebody is between two of his steps."""
        if self.world.calm or self._depth >= _DEPTH_MAX or self.world.broken or self.random.random() < 0.5:
            return
        self._depth += 1
        try:
            self.step()
        finally:
            self._depth -= 1

    # -- the calm after it

    def calm(self) -> None:
        """Stop all faults; good workers, patient people and the loops bring every job to its end in bounded time."""
        self.world.calm = True
        self.world.say("calm")
        for worker in self.fleet:
            worker.wake()
        end = self.world.clock.now() + int(_CALM_SECONDS + self.world.clock.back_seconds) * SECOND
        stuck = {job for (job,) in self.peek.rows(_STUCK, not self.house.limited)}
        sweepers = [keeper for keeper in self.keepers if keeper.name.startswith("sweeper")]
        for keeper in sweepers:
            keeper.stuck = stuck
        self._until(end)
        self._still_open(stuck)
        if self.world.broken:
            return
        for keeper in sweepers:
            keeper.stuck = set()
        last = self.peek.one("SELECT max(deadline_at) FROM job WHERE finished_at IS NULL") or 0
        self.world.clock.move(max(0, last - self.world.clock.now()) / SECOND + 1)
        self._until(self.world.clock.now() + SECOND)
        for (job,) in self.peek.rows("SELECT id FROM job WHERE finished_at IS NULL"):
            self.world.blame(f"V1 job {job} is past its deadline and has not ended")
        for wallet, held in self.peek.rows("SELECT id, held FROM wallet WHERE held <> 0"):
            self.world.blame(f"V4 wallet {wallet} still holds {held}")

    def _until(self, end: int) -> None:
        rounds = _CALM_ROUNDS + int(self.world.clock.back_seconds) // 2
        for _ in range(rounds):
            if self.world.broken:
                return
            if not self._round():
                now = self.world.clock.now()
                moment = self.peek.one(_NEXT, now) or end
                if moment >= end:
                    return
                self.world.clock.move((moment - now) / SECOND)
        self.world.blame(f"V1 there is no rest after {rounds} rounds")

    def _round(self) -> bool:
        """Let everybody do what there is to do; return whether anything changed."""
        before = self.world.commits
        if self.peek.rows(_SHUT_OUT):
            self.network.exchange([Request(self.operator.settle_down(), nobody)])
        for client in self.clients:
            if commands := client.settle_down():
                self.network.exchange([Request(commands, nobody)])
        for worker in {worker.name: worker for worker in self.workers}.values():  # of twins one is enough
            if worker.outside or self.peek.rows(_WAITING):
                self.network.exchange([worker.claim(9, every_kind=True)])
            for _ in range(3):
                self.network.exchange(worker.finish())
        for keeper in self.keepers:
            if keeper.name.startswith(("sweeper", "collector")):
                keeper.act(self.servers, lambda: None)
        return self.world.commits != before

    def _still_open(self, stuck: set[str]) -> None:
        """Blame jobs that had every chance to end by themselves and did not."""
        rows = self.peek.rows(
            "SELECT j.id, j.status, s.no, s.status FROM job j JOIN stage s ON s.job_id = j.id"
            " AND s.no = j.stages_completed + 1 WHERE j.finished_at IS NULL AND s.tasks_total > 0"
        )
        for row in rows:
            if row[0] not in stuck:
                self.world.blame(f"V1 {row} has not ended in {_CALM_SECONDS} seconds of calm")

    # -- the end

    def judge(self) -> None:
        """Hold the whole history against its properties."""
        self._tidy_up()
        for finding in self.checks.verified():
            self.world.blame(finding)
        for rule in (*PROPERTIES, *FLEET_AND_FILES):
            for finding in rule(self.history.ops, self.peek):
                self.world.blame(finding)
        self.world.clock.move(self.world.clock.back_seconds + _HOLD_SECONDS)
        while self.reader.act(self.servers, 100) or self.relay.act(self.servers, lambda: None):
            if self.world.broken:
                return
        events = [event for (event,) in self.peek.rows("SELECT id FROM event ORDER BY id")]
        if self.reader.seen != events:
            self.world.blame("H21 a reader of the event order has a gap or a duplicate")
        if list(dict.fromkeys(self.relayed)) != events:
            self.world.blame("H21 the relay has left out events or changed their order")
        if not self.checks.events_unchanged():
            self.world.blame("A4 an event is not what it was when it was written")

    def _tidy_up(self) -> None:
        """Let the time of all files and workers pass: what nobody needs goes, and who is silent is gone."""
        last = self.peek.one("SELECT max(keep_until) FROM file") or 0
        wait = max(0, last - self.world.clock.now()) / SECOND + self.house.limits.worker_silence_seconds
        self.world.clock.move(wait + self.world.clock.back_seconds + GRACE_SECONDS + 1)
        for keeper in self.keepers:
            if keeper.name in SELDOM:
                for server in self.servers:
                    server.heard = {}
                keeper.act(self.servers, lambda: None)
        for name, status in self.peek.rows("SELECT id, status FROM worker WHERE status NOT IN ('gone', 'revoked')"):
            self.world.blame(f"V2 worker {name} was silent for long and is still {status}")
        for (file,) in self.peek.rows("SELECT id FROM file WHERE keep_until IS NOT NULL"):
            self.world.blame(f"V3 file {file} is past its time and is still there")
        self.shelf.judge()


def live(seed: int, steps: int = STEPS, *, verify_every: int = VERIFY_EVERY, verbose: bool = False) -> Report:
    """Live one life."""
    world = World(seed, verbose=verbose)
    with _place() as path:
        life = Life(world, path, verify_every)
        try:
            life.storm(steps)
            if not world.broken:
                life.calm()
            if not world.broken:
                life.judge()
            world.say(life.peek.digest())
        finally:
            life.close()
    return Report(seed, world.trace.digest, world.broken, world.trace.lines, world.commits)


@contextmanager
def _place() -> Iterator[Path]:
    """Make an empty database where it is quick, and remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="callsheet-sim-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        path = folder / "life.db"
        connection = SqliteDatabase(path).connect()
        connection.run("PRAGMA synchronous = OFF")
        migrate(connection, SQLITE)
        connection.close()
        yield path
    finally:
        shutil.rmtree(folder)
