"""Finds out that the database no longer accepts writes, even if no request writes."""

from typing import Protocol


class WriteChecker(Protocol):
    """The part of the engine that the loop uses."""

    def check_writes(self) -> None: ...


class WriteCheck:
    """Writes through every idle lane. The lane remembers a failure until a write succeeds, and `/readyz` reports it."""

    def __init__(self, engine: WriteChecker) -> None:
        self._engine = engine

    def run_once(self, now: int) -> int:  # noqa: ARG002 - the engine measures by its own clock
        self._engine.check_writes()
        return 0
