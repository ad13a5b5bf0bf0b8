"""How patient the worker is with a server."""

from msgspec import Struct


class Timeouts(Struct, frozen=True, kw_only=True):
    """Times and counts; the defaults suit real servers."""

    poll_seconds: float = 2.0
    """How often a prompt is looked at, at least; the first looks come sooner."""
    retry_seconds: float = 0.2
    """How long to wait before a look, or another go, where an answer did not come."""
    prompt_timeout_seconds: float = 3_600.0
    """How long a prompt may take, its time in the server's queue included."""
    outage_timeout_seconds: float = 300.0
    """How long a server may be silent before the try ends: a restart takes a while."""
    cancel_timeout_seconds: float = 30.0
    """How long a cancel is repeated until the server says that the prompt is over."""
    picture_timeout_seconds: float = 30.0
    """How long a socket may be silent after a prompt's end while pictures that it sends are missing."""
    submissions_max: int = 4
    """How often a task is submitted in one try: a server may lose prompts, or files that it says it has."""
