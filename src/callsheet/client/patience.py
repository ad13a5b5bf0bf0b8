"""How a request is tried again: only where that is safe, a little later each time, not in step with others."""

from random import SystemRandom

from msgspec import Struct

from callsheet.client.errors import NotReachable
from callsheet.client.talk import Broken, Nap, Open, Reply, Request, Send, Talk

_TOO_MANY = 429
_CAP = b'"too_many_active_jobs"'
_AWAY = frozenset({502, 503, 504})
_ASKED_MAX = 60.0
_draw = SystemRandom().uniform


class Patience(Struct, frozen=True):
    """How often, and how long in between."""

    retries_max: int = 6
    base_seconds: float = 0.25
    max_seconds: float = 8.0

    def seconds(self, failures: int) -> float:
        """Return the wait after so many failures: it doubles, and is drawn from its upper half."""
        whole = min(self.base_seconds * 2.0 ** max(failures - 1, 0), self.max_seconds)
        return _draw(whole / 2, whole)


def patiently(patience: Patience, request: Request, how: type[Send] | type[Open] = Send) -> Talk[Reply]:
    """Send a request until it is answered or the patience is over."""
    failures = 0
    while True:
        asked: float | None = None
        try:
            reply: Reply = yield how(request)
        except Broken as error:
            if failures >= patience.retries_max or (error.sent and not request.again):
                raise unreachable(error) from None
        else:
            if failures >= patience.retries_max or not _worth(reply, request):
                return reply
            asked = _asked(reply)
        failures += 1
        yield Nap(max(patience.seconds(failures), asked or 0))


def unreachable(error: Broken) -> NotReachable:
    """Say that nobody answers."""
    return NotReachable("not_reachable", f"The server does not answer: {error}.")


def _worth(reply: Reply, request: Request) -> bool:
    """Say whether another try may help: a 429 was not done; behind a 503 it may have been.

    A cap on active jobs is the caller's to wait for: it lasts as long as a job does.
    """
    if reply.status == _TOO_MANY:
        return "retry-after" in reply.headers and _CAP not in reply.body
    return reply.status in _AWAY and request.again


def _asked(reply: Reply) -> float | None:
    """Return the wait that the server asks for, within reason."""
    given = reply.headers.get("retry-after", "")
    return min(float(given), _ASKED_MAX) if given.isdecimal() else None
