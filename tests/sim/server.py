"""A server process: a lane without its thread, and reads. A crash throws all of it away; the database stays."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from callsheet.blobs import keys
from callsheet.config import Settings
from callsheet.core.commands import Claim, Command, DropFiles, Register, RotateWorker, WorkerState
from callsheet.core.errors import NotAdmitted
from callsheet.core.holding import hashed
from callsheet.core.limits import Limits
from callsheet.engine.batch import Batch
from callsheet.engine.lane import Lane, Unavailable
from callsheet.engine.offers import Offers
from callsheet.engine.prefetch import Recipes
from callsheet.engine.reading import Reading
from tests.sim.faults import Crash, StormyDatabase
from tests.sim.history import History
from tests.sim.shelf import Shelf
from tests.sim.world import World

_FOREVER = 1e9
_TRIES_MAX = 4


class Admitted(NamedTuple):
    """What is heard of a start, or of a changed token: how the worker stands, and the token's hash."""

    state: WorkerState
    session: str


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

    def __init__(self, world: World, name: str, path: Path, history: History, limits: Limits, shelf: Shelf) -> None:
        self.name = name
        self.heard: dict[str, None] = {}
        """Workers of the fleet that were heard of since it was last written down; kept in memory only."""
        self._shelf = shelf
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
        self.heard = {}
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
        return [self._edge(command, result) for command, result in zip(prepared, results, strict=True)]

    def _edge(self, command: Command, result: Any) -> Any:
        """Do what the edge does with an answer: hand out a token, remember a contact, remove bytes."""
        if not isinstance(result, NotAdmitted | Unavailable) and (name := _caller(command)) is not None:
            self.heard[name] = None
        if isinstance(command, Register | RotateWorker) and isinstance(result, WorkerState):
            return Admitted(result, command.token_hash)
        if isinstance(command, DropFiles) and command.tenant is not None and not isinstance(result, Exception):
            with suppress(ConnectionError):  # what is left behind is an orphan
                self._shelf.delete([keys.of(file) for file in result.files])
        return result

    def _make_batch(self) -> Batch:
        return Batch(self._database.connect(), self._settings.limits, self._recipes, Offers())

    def _prepared(self, command: Command) -> Command:
        """Give a command its id and its tokens before it can run for the first time; each copy has its own."""
        if isinstance(command, Claim):
            tokens = tuple(self._world.new_token() for _ in range(command.count))
            return replace(command, id=self._world.new_id(), tokens=tokens)
        if isinstance(command, Register | RotateWorker):
            return replace(command, id=self._world.new_id(), token_hash=hashed(self._world.new_token()))
        return replace(command, id=self._world.new_id())


def _caller(command: Command) -> str | None:
    """Return the worker of the fleet that sent a command, if one did."""
    if isinstance(command, Claim):
        return None if command.session is None else command.worker_id
    return getattr(command, "worker_id", None) if hasattr(command, "lease") else None
