"""Listening without being held by it: what comes, and a beat whenever nothing does."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from callsheet.cli.output import sanitize

if TYPE_CHECKING:
    from callsheet.client import Client

T = TypeVar("T")
AddTicks = Callable[[Iterable[T]], Iterator[T | None]]
TICK_SECONDS = 1.0
_QUIET_TICKS = 6
"""A moment later the server can tell that nobody takes a task: to it that takes five seconds."""
_REPORT_GAP_TICKS_MAX = 60
_EXPECTED_CODES = frozenset({"approval", "canceling", "ended", "queued"})
"""What holds a job in its usual course, or is told in another way."""
_ACTIVE_CODES = frozenset({"provider", "running"})


class _End(NamedTuple):
    """Nothing more comes; perhaps something went wrong."""

    error: BaseException | None = None


def add_ticks(source: Iterable[T], seconds: float = TICK_SECONDS) -> Iterator[T | None]:
    """Yield what comes, and None whenever nothing came for a second: another thread waits for it."""
    items: Queue[T | _End] = Queue()
    Thread(target=_forward, args=(source, items), name="hearing", daemon=True).start()
    while True:
        try:
            one = items.get(timeout=seconds)
        except Empty:
            yield None
            continue
        if not isinstance(one, _End):
            yield one
        elif one.error is not None:
            raise one.error
        else:
            return


def _forward(source: Iterable[T], items: "Queue[T | _End]") -> None:
    try:
        for one in source:
            items.put(one)
    except BaseException as error:  # noqa: BLE001 - raised where it is heard
        items.put(_End(error))
    else:
        items.put(_End())


class StallReporter:
    """Says what holds a job when nothing has happened to it for a while; the same thing once."""

    def __init__(self, client: "Client", job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self.reset()

    def reset(self) -> None:
        """Something happened to it."""
        self._quiet_ticks, self._report_at = 0, _QUIET_TICKS
        self._reported: set[tuple[str, str | None]] = set()

    def tick(self) -> list[str]:
        """Nothing happened for another beat: ask why when that is long enough, and then less and less often."""
        self._quiet_ticks += 1
        if self._quiet_ticks < self._report_at:
            return []
        self._report_at += min(self._report_at, _REPORT_GAP_TICKS_MAX)
        return self._new_reasons()

    def _new_reasons(self) -> list[str]:
        from callsheet.client import CallsheetError  # noqa: PLC0415 - brings httpx

        with suppress(CallsheetError):  # the next look may tell
            found = {(one.code, one.name): one.message for one in self._client.jobs.explain(self._job_id).constraints}
            active = any(code in _ACTIVE_CODES for code, _ in found)
            blocking = set() if active else {key for key in found if key[0] not in _EXPECTED_CODES}
            new, self._reported = blocking - self._reported, blocking
            return [sanitize(message) for key, message in found.items() if key in new]
        return []
