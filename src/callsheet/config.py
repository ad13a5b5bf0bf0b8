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


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the HTTP edge behaves."""

    body_bytes_max: int = 1024 * 1024
    bulk_bytes_max: int = 16 * 1024 * 1024
    body_seconds: float = 15.0
    """A body that takes longer to arrive is refused."""
    header_bytes_max: int = 32 * 1024
    target_bytes_max: int = 8 * 1024
    """The longest address with its query."""
    header_seconds: float = 10.0
    """Request lines and headers that take longer to arrive close the connection."""
    idle_seconds: int = 75
    """A connection between two requests is closed after so long."""
    send_seconds: float = 30.0
    """A reader that takes nothing off us for so long is dropped."""
    stop_seconds: int = 5
    """How long a server that is told to stop lets requests finish; streams end at once."""
    cors_origins: tuple[str, ...] = ()
    """Web pages that may call from a browser, as `https://app.example`; without any, none may."""
    wait_seconds_max: float = 60.0
    """The longest a long poll may wait."""
    page_max: int = 200
    streams_max: int = 5_000
    streams_per_key_max: int = 2_500
    stream_buffer_max: int = 256
    """Events that wait for a slow reader; with more it is read from the database again."""
    beat_seconds: float = 15.0
    """How often a silent stream says that it is alive."""
    token_seconds_max: int = 3_600
    quote_seconds: int = 900
