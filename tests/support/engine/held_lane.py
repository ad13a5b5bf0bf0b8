"""Holds up the lane of an engine, as a slow database would, until the test releases it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from callsheet.core.model.commands import CheckWrite
from callsheet.engine import Engine

_WAIT_SECONDS = 30.0


@contextmanager
def hold_lane(engine: Engine) -> Iterator[None]:
    """Hold up the only lane after a commit; commands that are sent meanwhile wait."""
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        if threading.current_thread().name.startswith("callsheet-lane"):
            held.set()
            released.wait(_WAIT_SECONDS)

    engine.commit_listeners.append(hold)
    first = threading.Thread(target=engine.execute, args=(CheckWrite(),))
    first.start()
    try:
        assert held.wait(_WAIT_SECONDS)
        engine.commit_listeners.remove(hold)
        yield
    finally:
        released.set()
        first.join()
