"""The loops of the servers and the readers of the event order, with others acting between their steps."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from callsheet.blobs.base import Freed, Listed
from callsheet.core.commands import Command, Seen
from callsheet.core.errors import Refusal
from callsheet.engine import filekeeping
from callsheet.engine.lane import Unavailable
from callsheet.engine.loops import Collector, Loop, Relay, Rollcall, Sweeper
from callsheet.engine.reading import Placed
from callsheet.store.connection import StoreError
from tests.sim.catalog import PROVIDER
from tests.sim.faults import Crash
from tests.sim.provider import FakeProvider
from tests.sim.server import Server
from tests.sim.shelf import GRACE_SECONDS, Shelf
from tests.sim.world import World

SELDOM = ("rollcall", "retention", "orphans")
"""The loops of fleet and files, which have time."""


class Desk:
    """The engine as a loop sees it; before each command others may act."""

    def __init__(self, server: Server, meanwhile: Callable[[], None], stuck: Callable[[Command], bool]) -> None:
        self.read = server.read
        self._meanwhile = meanwhile
        self._server = server
        self._stuck = stuck
        self._lives = server.lives

    def execute(self, command: Command) -> Any:
        result = self.execute_many([command])[0]
        if isinstance(result, Exception):
            raise result
        return result

    def execute_many(self, many: Sequence[Command]) -> list[Any]:
        self.pause()
        moving = [command for command in many if not self._stuck(command)]
        return self._server.execute_many(moving) if moving else []

    def pause(self) -> None:
        """Let others act."""
        self._meanwhile()
        if self._server.lives != self._lives:
            raise Crash  # with the server that it ran in

    def heard(self) -> tuple[str, ...]:
        """Take the names of the workers that this server has heard of."""
        names, self._server.heard = tuple(self._server.heard), {}
        return names


class Keeper:
    """Runs one of the loops now and then on any of the servers."""

    def __init__(self, world: World, name: str, make: Callable[[Desk], Loop]) -> None:
        self.name = name
        self.stuck: set[str] = set()
        """Jobs whose rows never move on, as if somebody had locked them for ever."""
        self._world = world
        self._make = make

    def act(self, servers: Sequence[Server], meanwhile: Callable[[], None]) -> int:
        idle = [server for server in servers if not server.busy]
        if not idle:
            return 0
        server = self._world.random.choice(idle)
        self._world.say(f"{self.name} runs on {server.name}")
        loop = self._make(Desk(server, meanwhile, self._is_stuck))
        try:
            return loop.run_once(self._world.clock.now())
        except (Crash, Unavailable, StoreError, ConnectionError) as error:
            self._world.say(f"{self.name} stopped: {type(error).__name__}")
        except Refusal as error:
            self._world.blame(f"V7 {self.name} was refused: {error.code} {error.message}")
        except Exception:
            if not self._world.broken:  # else it has been told already
                raise
        return 0

    def _is_stuck(self, command: Command) -> bool:
        return getattr(command, "job_id", None) in self.stuck


class Reader:
    """A subscriber of the event order who remembers his own place, and reads on from it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.seen: list[int] = []
        self._place = (0, 0)

    def act(self, servers: Sequence[Server], page: int) -> int:
        server = self._world.random.choice(servers)
        try:
            events = server.read.feed(*self._place, page)
        except StoreError:
            return 0
        if events:
            self._place = events[-1].place
            self.seen.extend(event.place[1] for event in events)
        return len(events)


class Attendance:
    """Writes down who was heard of, then calls the roll."""

    def __init__(self, desk: Desk, silence_seconds: int, page: int) -> None:
        self._desk = desk
        self._rollcall = Rollcall(desk, silence_seconds, page)

    def run_once(self, now: int) -> int:
        if names := self._desk.heard():
            self._desk.execute(Seen(workers=names))
        return self._rollcall.run_once(now)


class Tidying:
    """Collects orphans, one whole pass; others act between the looks at the storage, at the rows, and the removal."""

    def __init__(self, desk: Desk, shelf: Shelf, page: int) -> None:
        self._desk = desk
        self._shelf = shelf
        self._orphans = filekeeping.Orphans(desk.read, self, GRACE_SECONDS, page)  # type: ignore[arg-type]

    def run_once(self, now: int) -> int:
        removed = 0
        while self._orphans.run_once(now):
            removed += 1
        return removed

    def list(self, prefix: str, after: str, count: int) -> Sequence[Listed]:
        found = self._shelf.list(prefix, after, count)
        self._desk.pause()
        return found

    def delete(self, gone: Iterable[str]) -> Freed:
        self._desk.pause()
        return self._shelf.delete(gone)

    def sweep(self, idle_seconds: float) -> Freed:
        return self._shelf.sweep(idle_seconds)


def _relay(name: str, sink: Callable[[Sequence[Placed]], None], desk: Desk) -> Relay:
    return Relay(desk, "log", name, sink, page=7)


def keepers(
    world: World, provider: FakeProvider, shelf: Shelf, relayed: list[int], silence_seconds: int
) -> list[Keeper]:
    """Return two of each loop of the jobs, one of fleet and files; pages are often too small for what is due."""

    def sink(events: Sequence[Placed]) -> None:
        relayed.extend(event.place[1] for event in events)

    found: list[Keeper] = []
    page = world.random.choice((1, 1, 2, 200))
    for n in (1, 2):
        found += [
            Keeper(world, f"sweeper-{n}", lambda desk: Sweeper(desk, page)),
            Keeper(world, f"collector-{n}", lambda desk: Collector(desk, {PROVIDER: provider}, page)),
            Keeper(world, f"relay-{n}", partial(_relay, f"relay-{n}", sink)),
        ]
    return [
        *found,
        Keeper(world, SELDOM[0], lambda desk: Attendance(desk, silence_seconds, page)),
        Keeper(world, SELDOM[1], lambda desk: filekeeping.Keeper(desk, shelf, page)),  # type: ignore[arg-type]
        Keeper(world, SELDOM[2], lambda desk: Tidying(desk, shelf, max(page, 2))),
    ]
