"""Streams and long polls end soon after their key or token expires or is revoked."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from callsheet.http.server.request import Request
from callsheet.http.state import AppState

T = TypeVar("T")
_CHECKS_PER_HEARTBEAT = 2
"""How often a key is checked: often enough to end within `heartbeat_seconds` after it was revoked."""


async def while_authenticated(state: AppState, request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await work that may take long. It is canceled if the client disconnects, or if its key becomes invalid."""
    check_seconds = state.settings.heartbeat_seconds / _CHECKS_PER_HEARTBEAT
    return await request.until_disconnect(work, lambda: request.api.authenticate(state, request), check_seconds)
