"""Keeps the time of this server in line with the times that other servers store."""

from callsheet.engine.loops.loop_protocol import CommandExecutor


class ClockSync:
    """Moves the engine's time ahead to the newest stored time: another server may have seen the clock set back."""

    def __init__(self, engine: CommandExecutor) -> None:
        self._engine = engine

    def run_once(self, now: int) -> int:  # noqa: ARG002 - the clock is what it sets
        self._engine.reads.sync_clock()
        return 0
