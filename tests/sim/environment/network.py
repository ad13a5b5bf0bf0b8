"""The network between actors and servers: it loses, duplicates, delays and reorders messages."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from callsheet.core.model.commands import Command
from callsheet.engine.lane import Unavailable
from tests.sim.environment.faulty_database import Crash
from tests.sim.environment.server import Server
from tests.sim.environment.simulation_context import World

OnReply = Callable[[list[Any] | None], None]


class Request(NamedTuple):
    """Commands of one caller, and the callback for the answers; it gets None if no answer arrived."""

    commands: Sequence[Command]
    on_reply: OnReply


def ignore_answers(_answers: list[Any] | None) -> None:
    """Ignore the answers, as the caller of a late copy does."""


class Network:
    """Delivers requests to the servers; concurrent requests share a batch."""

    def __init__(self, world: World, servers: Sequence[Server]) -> None:
        self._world = world
        self._servers = servers
        self._delayed: list[Sequence[Command]] = []

    def send_together(self, requests: Sequence[Request]) -> None:
        """Deliver requests that are sent at the same time."""
        arriving: list[Request] = []
        for request in requests:
            if not request.commands:
                continue
            arriving.extend(self._transmit(request))
        self._world.random.shuffle(arriving)
        commands = [command for request in arriving for command in request.commands]
        if not commands:
            return
        results = self._execute(commands)
        start = 0
        for request in arriving:
            end = start + len(request.commands)
            answers = None if results is None else [_as_received(result) for result in results[start:end]]
            if answers is not None and self._world.fault_occurs(0.06):
                self._world.log("  network: an answer is lost")
                answers = None
            request.on_reply(answers)
            start = end

    def deliver_delayed(self) -> None:
        """Deliver a delayed request."""
        if self._delayed:
            delayed = self._delayed.pop(self._world.random.randrange(len(self._delayed)))
            self._world.log("  network: a delayed request arrives")
            self.send_together([Request(delayed, ignore_answers)])

    def _transmit(self, request: Request) -> list[Request]:
        if self._world.fault_occurs(0.04):
            self._world.log("  network: a request is lost")
            request.on_reply(None)
            return []
        if self._world.fault_occurs(0.04):
            self._world.log("  network: a request is delayed")
            self._delayed.append(request.commands)
            request.on_reply(None)
            return []
        if self._world.fault_occurs(0.06):
            if self._world.chance(0.5):
                return [request, Request(request.commands, ignore_answers)]
            self._delayed.append(request.commands)
        return [request]

    def _execute(self, commands: Sequence[Command]) -> list[Any] | None:
        idle = [server for server in self._servers if not server.busy]
        if not idle:
            return None
        try:
            return self._world.random.choice(idle).execute_many(commands)
        except Crash:
            return None


def _as_received(result: Any) -> Any:
    """Return an answer as its caller receives it: Unavailable tells it as little as no answer."""
    return None if isinstance(result, Unavailable) else result
