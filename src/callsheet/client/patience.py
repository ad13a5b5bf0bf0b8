"""How a request is tried again: only where that is safe, a little later each time, not in step with others."""

from random import SystemRandom
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from callsheet.client.errors import CallsheetError, NotReachable
from callsheet.client.lasting import left
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


class Asking(Protocol):
    """Whoever asks: which server, and how patiently."""

    url: str
    patience: Patience


def patiently(asking: Asking, request: Request, how: type[Send] | type[Open] = Send) -> Talk[Reply]:
    """Send a request until it is answered, the patience is over, or nobody waits for the answer any more."""
    failures = 0
    while True:
        answer: Reply | Broken
        try:
            answer = yield how(request)
        except Broken as error:
            answer = error
        if failures >= asking.patience.retries_max or not _worth(answer, request):
            break
        failures += 1
        yield Nap(min(max(asking.patience.seconds(failures), _asked(answer)), left(request.end)))
        if not left(request.end):
            break
    if isinstance(answer, Broken):
        raise unreachable(answer, asking.url, request) from None
    return answer


def unreachable(error: Broken, url: str, request: Request) -> NotReachable:
    """Say who does not answer: the server, or the storage to which it showed the way."""
    parts = urlsplit(request.path if request.bare else url)
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"  # no name, no password, and no signature
    return NotReachable("not_reachable", f"{where} does not answer: {error}.")


def away(error: CallsheetError) -> bool:
    """Say whether an error is that nobody did the work for now, rather than a word about it."""
    return isinstance(error, NotReachable) or error.status in {*_AWAY, _TOO_MANY}


def _worth(answer: Reply | Broken, request: Request) -> bool:
    """Say whether another try may help: a 429 was not done; behind a 503, or what broke, it may have been.

    A cap on active jobs is the caller's to wait for: it lasts as long as a job does.
    """
    if isinstance(answer, Broken):
        return request.again or not answer.sent
    if answer.status == _TOO_MANY:
        return "retry-after" in answer.headers and _CAP not in answer.body
    return answer.status in _AWAY and request.again


def _asked(answer: Reply | Broken) -> float:
    """Return the wait that the server asks for, within reason."""
    given = "" if isinstance(answer, Broken) else answer.headers.get("retry-after", "")
    return min(float(given), _ASKED_MAX) if given.isdecimal() else 0.0
