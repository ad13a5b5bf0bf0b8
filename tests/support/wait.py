"""Bounded waiting for a condition: the only module of the suite that may sleep."""

import time
from collections.abc import Callable

STEP_SECONDS = 0.01


def wait_until(condition: Callable[[], object], within_seconds: float = 10.0) -> None:
    deadline = time.monotonic() + within_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true within {within_seconds} s: {condition}")
        time.sleep(STEP_SECONDS)
