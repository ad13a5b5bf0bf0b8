"""HTTP errors: a status, a stable code, a message for people, and the request id.

A `Problem` is made from a `Refusal` of the engine (`status_of`), or raised before the request reaches the engine:
invalid JSON, no key, a body that is too large, too many streams.
"""

import itertools
import secrets
from http import HTTPStatus
from typing import Any

from callsheet.core.model.errors import (
    BadInput,
    Conflict,
    Denied,
    Gone,
    IllegalTransition,
    InsufficientCredits,
    InvalidWorkerToken,
    LeaseLost,
    NotFound,
    RateLimited,
    Refusal,
    TemporarilyUnavailable,
)

_BY_CLASS: dict[type[Refusal], int] = {
    BadInput: 422, NotFound: 404, IllegalTransition: 409, LeaseLost: 409, InsufficientCredits: 402, Conflict: 409,
    Denied: 403,
    InvalidWorkerToken: 401, Gone: 410, RateLimited: 429, TemporarilyUnavailable: 503,
}  # fmt: skip
_BY_CODE = {
    "invalid_idempotency_key": 400, "idempotency_key_reused": 422, "too_many_active_jobs": 429,
    "too_many_uploads": 429,
}  # fmt: skip
_CAP_SECONDS = "5"
"""Retry-After of a limit: jobs take seconds to minutes."""
CONTENT_TYPE = "application/problem+json"
_PROCESS = secrets.token_hex(4)
_numbers = itertools.count(1)
"""Request ids are a process id and a counter: reading system randomness per request would release the GIL."""


class Problem(Exception):  # noqa: N818 - the name of the media type
    """An error response; the API of the request renders it."""

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}
        self.more = more

    def body(self, request_id: str) -> dict[str, Any]:
        """Return the body in the native format."""
        return {
            "code": self.code,
            "message": self.message,
            "status": self.status,
            "request_id": request_id,
            **self.more,
        }


def new_request_id() -> str:
    """Return an id for a request without X-Request-Id."""
    return f"{_PROCESS}-{next(_numbers):x}"


def status_of(refusal: Refusal) -> int:
    """Return the HTTP status of a refusal."""
    return _BY_CODE.get(refusal.code) or _BY_CLASS[type(refusal)]


def problem_of(refusal: Refusal) -> Problem:
    """Return the HTTP error of a refusal."""
    status = status_of(refusal)
    headers: dict[str, str] | None = None
    if isinstance(refusal, RateLimited | TemporarilyUnavailable):
        headers = {"retry-after": str(refusal.retry_after_seconds)}
    elif status == HTTPStatus.TOO_MANY_REQUESTS:
        headers = {"retry-after": _CAP_SECONDS}
    return Problem(status, refusal.code, refusal.message, headers, **refusal.details)


def not_found(what: str) -> Problem:
    """Return 404, also for what belongs to another tenant."""
    return Problem(404, f"{what}_not_found", f"There is no such {what}.")


def unavailable(why: str = "The database does not answer") -> Problem:
    """Return 503 for a temporary failure of this server or its database."""
    return Problem(503, "unavailable", f"{why}: try again in a moment.", {"retry-after": "1"})
