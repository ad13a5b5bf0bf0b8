"""Timeouts and retry limits of the ComfyUI worker."""

from msgspec import Struct


class Timeouts(Struct, frozen=True, kw_only=True):
    """Timeouts and limits. The defaults suit production servers."""

    poll_seconds: float = 2.0
    """Maximum interval between status queries; the first ones are more frequent."""
    retry_seconds: float = 0.2
    """Delay before a failed request is retried."""
    prompt_timeout_seconds: float = 3_600.0
    """How long a prompt may take, including its time in the queue."""
    outage_timeout_seconds: float = 300.0
    """How long a server may be unreachable before the attempt fails; long enough for a restart."""
    cancel_timeout_seconds: float = 30.0
    """How long a cancel is repeated until the server confirms the end of the prompt."""
    picture_timeout_seconds: float = 30.0
    """How long to wait for missing images after the end of a prompt."""
    submissions_max: int = 4
    """How often one attempt submits the prompt: a server may lose prompts or files."""
