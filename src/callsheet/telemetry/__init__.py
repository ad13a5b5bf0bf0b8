"""Readings of the same facts: structured log lines from events and refusals."""

from callsheet.telemetry.lines import LineWriter, lines

__all__ = ["LineWriter", "lines"]
