"""Streams with ticks: the items of a stream, and a tick whenever none came for a second."""

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
"""The server needs five seconds to notice that no worker takes a task; this is a moment later."""
_REPORT_GAP_TICKS_MAX = 60
_EXPECTED_CODES = frozenset({"approval", "canceling", "ended", "queued"})
"""Constraints that are normal, or that are reported in another way."""
_ACTIVE_CODES = frozenset({"provider", "running"})


class _End(NamedTuple):
    """The end of the stream, with its error if it failed."""

    error: BaseException | None = None


def add_ticks(source: Iterable[T], seconds: float = TICK_SECONDS) -> Iterator[T | None]:
    """Yield the items of a source, and None whenever none came for a second. Another thread reads the source."""
    items: Queue[T | _End] = Queue()
    Thread(target=_forward, args=(source, items), name="stream-ticks", daemon=True).start()
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
    except BaseException as error:  # noqa: BLE001 - raised again by the reader
        items.put(_End(error))
    else:
        items.put(_End())


class StallReporter:
    """Reports what blocks a job when nothing has happened to it for a while, each reason once."""

    def __init__(self, client: "Client", job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self.reset()

    def reset(self) -> None:
        """Start over, because something happened to the job."""
        self._quiet_ticks, self._report_at = 0, _QUIET_TICKS
        self._reported: set[tuple[str, str | None]] = set()

    def tick(self) -> list[str]:
        """Count a tick without an event, and return new reasons when it is time to ask; less and less often."""
        self._quiet_ticks += 1
        if self._quiet_ticks < self._report_at:
            return []
        self._report_at += min(self._report_at, _REPORT_GAP_TICKS_MAX)
        return self._new_reasons()

    def _new_reasons(self) -> list[str]:
        from callsheet.client import CallsheetError  # noqa: PLC0415 - brings httpx

        with suppress(CallsheetError):  # the next request may succeed
            found = {(one.code, one.name): one.message for one in self._client.jobs.explain(self._job_id).constraints}
            active = any(code in _ACTIVE_CODES for code, _ in found)
            blocking = set() if active else {key for key in found if key[0] not in _EXPECTED_CODES}
            new, self._reported = blocking - self._reported, blocking
            return [sanitize(message) for key, message in found.items() if key in new]
        return []
