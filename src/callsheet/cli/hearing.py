"""Listening without being held by it: what comes, and a beat whenever nothing does."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from callsheet.cli.output import plain

if TYPE_CHECKING:
    from callsheet.client import Client

T = TypeVar("T")
Hear = Callable[[Iterable[T]], Iterator[T | None]]
BEAT_SECONDS = 1.0
_QUIET_BEATS = 6
"""A moment later the server can tell that nobody takes a task: to it that takes five seconds."""
_APART_BEATS_MAX = 60
_USUAL = frozenset({"approval", "canceling", "ended", "queued"})
"""What holds a job in its usual course, or is told in another way."""
_WORKED_ON = frozenset({"provider", "running"})


class _End(NamedTuple):
    """Nothing more comes; perhaps something went wrong."""

    error: BaseException | None = None


def heard(source: Iterable[T], seconds: float = BEAT_SECONDS) -> Iterator[T | None]:
    """Yield what comes, and None whenever nothing came for a second: another thread waits for it."""
    arrived: Queue[T | _End] = Queue()
    Thread(target=_listen, args=(source, arrived), name="hearing", daemon=True).start()
    while True:
        try:
            one = arrived.get(timeout=seconds)
        except Empty:
            yield None
            continue
        if not isinstance(one, _End):
            yield one
        elif one.error is not None:
            raise one.error
        else:
            return


def _listen(source: Iterable[T], arrived: "Queue[T | _End]") -> None:
    try:
        for one in source:
            arrived.put(one)
    except BaseException as error:  # noqa: BLE001 - raised where it is heard
        arrived.put(_End(error))
    else:
        arrived.put(_End())


class Held:
    """Says what holds a job when nothing has happened to it for a while; the same thing once."""

    def __init__(self, client: "Client", job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self.news()

    def news(self) -> None:
        """Something happened to it."""
        self._quiet, self._next = 0, _QUIET_BEATS
        self._told: set[tuple[str, str | None]] = set()

    def beat(self) -> list[str]:
        """Nothing happened for another beat: ask why when that is long enough, and then less and less often."""
        self._quiet += 1
        if self._quiet < self._next:
            return []
        self._next += min(self._next, _APART_BEATS_MAX)
        return self._asked()

    def _asked(self) -> list[str]:
        from callsheet.client import CallsheetError  # noqa: PLC0415 - brings httpx

        with suppress(CallsheetError):  # the next look may tell
            found = {(one.code, one.name): one.message for one in self._client.why(self._job_id).constraints}
            worked_on = any(code in _WORKED_ON for code, _ in found)
            holding = set() if worked_on else {key for key in found if key[0] not in _USUAL}
            new, self._told = holding - self._told, holding
            return [plain(message) for key, message in found.items() if key in new]
        return []
