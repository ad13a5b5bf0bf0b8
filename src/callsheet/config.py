"""The settings of the house, in one place; nothing is read at import."""

import msgspec

from callsheet.core.limits import Limits


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine behaves."""

    limits: Limits = Limits()
    lanes: int = 1
    """Writing connections per process on PostgreSQL; SQLite always has one. More lanes split the batches: add servers
    first, lanes where the way to the database is long."""
    patience_seconds: float = 30.0
    """How long a command is tried again while the database is away."""
    poll_seconds: float = 2.0
    """How often whoever waits for a hint looks all the same."""
    record_blocked: bool = False
    """Keep a job row for a request that a gate blocked."""
    pooled: bool = False
    """PostgreSQL is behind a pooler in transaction mode: keep no prepared statements, listen to no hints."""
    statement_seconds: float = 60.0
    """A PostgreSQL statement that takes longer counts as a lost connection."""
    readers: int = 4
    """Reading connections per process."""
