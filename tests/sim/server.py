"""A server process: a lane without its thread, and reads. A crash throws all of it away; the database stays."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from callsheet.config import Settings
from callsheet.core.commands import Claim, Command
from callsheet.core.limits import Limits
from callsheet.engine.batch import Batch
from callsheet.engine.lane import Lane
from callsheet.engine.offers import Offers
from callsheet.engine.prefetch import Recipes
from callsheet.engine.reading import Reading
from tests.sim.faults import Crash, StormyDatabase
from tests.sim.history import History
from tests.sim.world import World

_FOREVER = 1e9
_TRIES_MAX = 4


class Patience:
    """In place of the lane's stop signal: waiting takes virtual time, in which others go on; after a while it ends."""

    def __init__(self, world: World, meanwhile: Callable[[], None]) -> None:
        self._world = world
        self._meanwhile = meanwhile
        self.left = _TRIES_MAX

    def is_set(self) -> bool:
        return self.left <= 0

    def wait(self, seconds: float) -> bool:
        self.left -= 1
        self._world.clock.move(seconds)
        self._meanwhile()
        return False


class StillLane(Lane):
    """The real lane, called from outside instead of from a thread of its own."""

    def __init__(self, make_batch: Callable[[], Batch], settings: Settings, patience: Patience) -> None:
        super().__init__("lane", make_batch, lambda _done: None, settings)
        self._stopping = cast("threading.Event", patience)

    def results(self, commands: Sequence[Command]) -> list[Any]:
        return self._results(commands)

    def drop(self) -> None:
        self._drop()


class Server:
    """One of the servers on the life's database."""

    def __init__(self, world: World, name: str, path: Path, history: History, limits: Limits) -> None:
        self.name = name
        self.busy = False
        self.lives = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self._world = world
        self._history = history
        self._settings = Settings(limits=limits, patience_seconds=_FOREVER)
        self._database = StormyDatabase(world, path, history.committed)
        self._start()

    def _start(self) -> None:
        self.lives += 1
        self.read = Reading(self._database, 1)
        self._recipes = Recipes()
        self._patience = Patience(self._world, self._others_act)
        self._lane = StillLane(self._make_batch, self._settings, self._patience)

    def _others_act(self) -> None:
        self.meanwhile()

    def close(self) -> None:
        self._lane.drop()
        self.read.close()

    def execute_many(self, many: Sequence[Command]) -> list[Any]:
        """Run commands as one batch, as the lane does. Raises Crash, after which the server has restarted."""
        prepared = [self._prepared(command) for command in many]
        self._patience.left = _TRIES_MAX
        self._history.sent(self.name, prepared)
        self.busy = True
        try:
            results = self._lane.results(prepared)
        except Crash:
            self._world.say(f"{self.name} crashed and starts again")
            self._history.unanswered(prepared)
            self.close()
            self._start()
            raise
        finally:
            self.busy = False
        self._history.answered(prepared, results)
        return results

    def _make_batch(self) -> Batch:
        return Batch(self._database.connect(), self._settings.limits, self._recipes, Offers())

    def _prepared(self, command: Command) -> Command:
        """Give a command its id and its tokens before it can run for the first time; each copy has its own."""
        if isinstance(command, Claim):
            tokens = tuple(self._world.new_token() for _ in range(command.count))
            return replace(command, id=self._world.new_id(), tokens=tokens)
        return replace(command, id=self._world.new_id())
