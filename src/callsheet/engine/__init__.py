"""The engine: executes commands in batches, reads the database, and runs background loops."""

from callsheet.engine.engine import Engine, Unavailable

__all__ = ["Engine", "Unavailable"]
