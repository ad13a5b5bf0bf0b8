"""The shell around the rules: batches of commands on lanes, and the loops that keep time."""

from callsheet.engine.engine import Engine, Unavailable

__all__ = ["Engine", "Unavailable"]
