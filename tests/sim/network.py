"""The network between everybody and the servers: it loses, doubles, delays and reorders what it carries."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from callsheet.core.commands import Command
from callsheet.engine.lane import Unavailable
from tests.sim.faults import Crash
from tests.sim.server import Server
from tests.sim.world import World

Heard = Callable[[list[Any] | None], None]


class Request(NamedTuple):
    """Commands of one caller, and who hears the answers; None is heard if no answer came."""

    commands: Sequence[Command]
    heard: Heard


def nobody(_answers: list[Any] | None) -> None:
    """Hear nothing: the caller of a late copy has gone."""


class Network:
    """Carries requests to the servers, several at once, so that they share a batch."""

    def __init__(self, world: World, servers: Sequence[Server]) -> None:
        self._world = world
        self._servers = servers
        self._late: list[Sequence[Command]] = []

    def exchange(self, requests: Sequence[Request]) -> None:
        """Carry requests that are under way at the same time."""
        arriving: list[Request] = []
        for request in requests:
            if not request.commands:
                continue
            arriving.extend(self._carried(request))
        self._world.random.shuffle(arriving)
        commands = [command for request in arriving for command in request.commands]
        if not commands:
            return
        results = self._served(commands)
        start = 0
        for request in arriving:
            end = start + len(request.commands)
            answers = None if results is None else [_heard(result) for result in results[start:end]]
            if answers is not None and self._world.mishap(0.06):
                self._world.say("  network: an answer is lost")
                answers = None
            request.heard(answers)
            start = end

    def deliver_late(self) -> None:
        """Bring something that was on its way for a long time."""
        if self._late:
            late = self._late.pop(self._world.random.randrange(len(self._late)))
            self._world.say("  network: something late arrives")
            self.exchange([Request(late, nobody)])

    def _carried(self, request: Request) -> list[Request]:
        if self._world.mishap(0.04):
            self._world.say("  network: a request is lost")
            request.heard(None)
            return []
        if self._world.mishap(0.04):
            self._world.say("  network: a request is late")
            self._late.append(request.commands)
            request.heard(None)
            return []
        if self._world.mishap(0.06):
            if self._world.chance(0.5):
                return [request, Request(request.commands, nobody)]
            self._late.append(request.commands)
        return [request]

    def _served(self, commands: Sequence[Command]) -> list[Any] | None:
        idle = [server for server in self._servers if not server.busy]
        if not idle:
            return None
        try:
            return self._world.random.choice(idle).execute_many(commands)
        except Crash:
            return None


def _heard(result: Any) -> Any:
    """Return what a caller makes of an answer: not to know is the same as not to have heard."""
    return None if isinstance(result, Unavailable) else result
