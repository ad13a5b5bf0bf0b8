"""Errors over HTTP: problem+json with a stable code, a sentence for a person, and the request's id.

Problem                    what is sent
made from a Refusal      the engine understood and did not do it: `status_of`
raised by the edge       the request never reached the engine: bad JSON, no key, too large, too many streams
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
"""When to ask again for what a cap refused: jobs take seconds to minutes."""
CONTENT_TYPE = "application/problem+json"
_PROCESS = secrets.token_hex(4)
_numbers = itertools.count(1)
"""A request id is this process's name and a number: asking the system for randomness lets go of the interpreter."""


class Problem(Exception):  # noqa: N818 - an answer, not an accident
    """An answer that is not what was asked for."""

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
        """Return what is sent."""
        return {
            "code": self.code,
            "message": self.message,
            "status": self.status,
            "request_id": request_id,
            **self.more,
        }


def new_request_id() -> str:
    """Name a request that came without a name."""
    return f"{_PROCESS}-{next(_numbers):x}"


def status_of(refusal: Refusal) -> int:
    """Return the status that a refusal is answered with."""
    return _BY_CODE.get(refusal.code) or _BY_CLASS[type(refusal)]


def problem_of(refusal: Refusal) -> Problem:
    """Return a refusal as an answer."""
    status = status_of(refusal)
    headers: dict[str, str] | None = None
    if isinstance(refusal, RateLimited | TemporarilyUnavailable):
        headers = {"retry-after": str(refusal.retry_after_seconds)}
    elif status == HTTPStatus.TOO_MANY_REQUESTS:
        headers = {"retry-after": _CAP_SECONDS}
    return Problem(status, refusal.code, refusal.message, headers, **refusal.details)


def not_found(what: str) -> Problem:
    """Return what is said of anything that is not there, or not yours to see."""
    return Problem(404, f"{what}_not_found", f"There is no such {what}.")


def unavailable(why: str = "The database does not answer") -> Problem:
    """Return what is said while something is away that everything needs: the database, or room to open a file."""
    return Problem(503, "unavailable", f"{why}: try again in a moment.", {"retry-after": "1"})
