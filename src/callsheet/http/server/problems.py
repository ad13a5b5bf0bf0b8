"""HTTP errors: a status, a stable code, a message for people, and the request id.

A `Problem` is created from a `Refusal` of the engine (`problem_of`), or raised before the request reaches the engine,
for example for invalid JSON, a missing key or a body that is too large.
"""

import itertools
import secrets
from http import HTTPStatus
from typing import Any

from callsheet.core.model.errors import (
    BadInput,
    Conflict,
    Deleted,
    Denied,
    IllegalTransition,
    InsufficientCredits,
    InvalidWorkerToken,
    LeaseLost,
    NotFound,
    Overloaded,
    RateLimited,
    Refusal,
    TemporarilyUnavailable,
)

_BY_CLASS: dict[type[Refusal], int] = {
    BadInput: 422, NotFound: 404, IllegalTransition: 409, LeaseLost: 409, InsufficientCredits: 402, Conflict: 409,
    Denied: 403,
    InvalidWorkerToken: 401, Deleted: 410, RateLimited: 429, TemporarilyUnavailable: 503, Overloaded: 503,
}  # fmt: skip
_BY_CODE = {
    "invalid_idempotency_key": 400, "idempotency_key_reused": 422, "too_many_active_jobs": 429,
    "too_many_uploads": 429,
}  # fmt: skip
_LIMIT_RETRY_AFTER_SECONDS = "5"
"""Retry-After of limits that a running job or upload frees: jobs take seconds to minutes."""
_UNUSABLE_RETRY_AFTER_SECONDS = "5"
"""Retry-After while an operator must act: longer than for a failure that passes by itself."""
_REQUEST_ID_CHARS_MAX = 128
CONTENT_TYPE = "application/problem+json"
_PROCESS = secrets.token_hex(4)
_numbers = itertools.count(1)
"""A request id is a random prefix of the process and a counter, which is faster than a random id per request."""


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


def request_id_of(sent: str | None) -> str:
    """Return the X-Request-Id of a request if it is usable, or a new id."""
    if sent and len(sent) <= _REQUEST_ID_CHARS_MAX and sent.isascii() and sent.isprintable() and " " not in sent:
        return sent
    return new_request_id()


def status_of(refusal: Refusal) -> int:
    """Return the HTTP status of a refusal."""
    return _BY_CODE.get(refusal.code) or _BY_CLASS[type(refusal)]


def problem_of(refusal: Refusal) -> Problem:
    """Return the HTTP error of a refusal."""
    status = status_of(refusal)
    headers: dict[str, str] | None = None
    if isinstance(refusal, RateLimited | TemporarilyUnavailable | Overloaded):
        headers = {"retry-after": str(refusal.retry_after_seconds)}
    elif status == HTTPStatus.TOO_MANY_REQUESTS:
        headers = {"retry-after": _LIMIT_RETRY_AFTER_SECONDS}
    return Problem(status, refusal.code, refusal.message, headers, **refusal.details)


def not_found(resource: str) -> Problem:
    """Return 404, also for a resource of another tenant."""
    return Problem(404, f"{resource}_not_found", f"The {resource} does not exist.")


def unavailable(reason: str = "The database does not answer") -> Problem:
    """Return 503 for a temporary failure of this server or its database."""
    return Problem(503, "unavailable", f"{reason}. Retry in a second.", {"retry-after": "1"})


def database_unusable(reason: str) -> Problem:
    """Return 503 for a database that an operator must repair. `reason` is a sentence that says what to do."""
    return Problem(503, "database_unusable", f"{reason} Then retry.", {"retry-after": _UNUSABLE_RETRY_AFTER_SECONDS})
