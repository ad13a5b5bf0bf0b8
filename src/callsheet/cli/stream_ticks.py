"""Streams with ticks: the items of a stream, and a tick after each second without one."""

from collections.abc import Callable, Iterable, Iterator
from queue import Empty, Queue
from threading import Thread
from typing import NamedTuple, TypeVar

T = TypeVar("T")
AddTicks = Callable[[Iterable[T]], Iterator[T | None]]
TICK_SECONDS = 1.0


class _End(NamedTuple):
    """The end of the stream, with its error if it failed."""

    error: BaseException | None = None


def add_ticks(source: Iterable[T], seconds: float = TICK_SECONDS) -> Iterator[T | None]:
    """Yield the items of a source, and None after each second without one. Another thread reads the source."""
    items: Queue[T | _End] = Queue()
    Thread(target=_forward, args=(source, items), name="stream-ticks", daemon=True).start()
    while True:
        try:
            item = items.get(timeout=seconds)
        except Empty:
            yield None
            continue
        if not isinstance(item, _End):
            yield item
        elif item.error is not None:
            raise item.error
        else:
            return


def _forward(source: Iterable[T], items: "Queue[T | _End]") -> None:
    try:
        for item in source:
            items.put(item)
    except BaseException as error:  # noqa: BLE001 - raised again by the reader
        items.put(_End(error))
    else:
        items.put(_End())
