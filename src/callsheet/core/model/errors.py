"""Refusals: the errors that a command or query can return.

    Refusal
      BadInput                 the request is invalid, whatever the state of the server
      NotFound                 the job, stage, task, workflow … does not exist, or belongs to another tenant
      IllegalTransition        the state machine has no such move
      LeaseLost                the lease has ended, was revoked, or belongs to another worker
      InsufficientCredits      the balance is too low
      Conflict                 a limit, a reused idempotency key, or the current state forbids it
      Denied                   a gate, a suspension or a missing approval forbids it
      InvalidWorkerToken       the worker's token is unknown, revoked or replaced
      Deleted                  the object was deleted
      RateLimited              too many requests; retry after some seconds
      TemporarilyUnavailable   the server cannot do it now; retry after some seconds
      Overloaded               too much work waits; the command was not started, retry after some seconds

A refused command changes nothing. The code is stable, the message is written for people, and the details carry the
values in a form that programs can read.
"""

from typing import Any

from callsheet.core.model.plural import pluralize


class Refusal(Exception):  # noqa: N818 - a refusal is an expected answer, not a malfunction
    """A request that was understood and refused."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


class BadInput(Refusal):
    """The request is invalid."""


class NotFound(Refusal):
    """The object does not exist, or the caller may not see it."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what}_not_found", f"There is no {what} {name!r}.")


class IllegalTransition(Refusal):
    """The state machine has no such move."""

    def __init__(self, entity: str, source: str, target: str, actor: str, *, message: str) -> None:
        super().__init__(
            "illegal_transition",
            message,
            entity=entity,
            from_status=source,
            to_status=target,
            actor=actor,
        )
        self.source = source
        self.target = target


class LeaseLost(Refusal):
    """The lease has ended or belongs to another worker."""

    def __init__(self, message: str = "The lease is no longer valid: stop working on this task.") -> None:
        super().__init__("lease_lost", message)


class InsufficientCredits(Refusal):
    """The balance does not cover a price or an adjustment."""

    def __init__(self, required: int, balance: int, message: str = "") -> None:
        message = (
            message or f"The job costs {pluralize(required, 'credit')} and the balance is {balance}: top up the wallet."
        )
        super().__init__("insufficient_credits", message, required=required, balance=balance)


class Conflict(Refusal):
    """The request is valid, but the current state forbids it."""


class Denied(Refusal):
    """The caller may not do this: a gate, a suspended tenant or a missing approval forbids it."""


class InvalidWorkerToken(Refusal):
    """The worker's token is unknown, revoked, or was replaced by a restart."""

    def __init__(self) -> None:
        super().__init__("invalid_worker_token", "The worker's token is unknown or no longer valid: register again.")


class Deleted(Refusal):
    """The object was deleted."""


class RateLimited(Refusal):
    """Too many requests; retry after `retry_after_seconds`."""

    def __init__(self, code: str, message: str, *, retry_after_seconds: int, **details: Any) -> None:
        super().__init__(code, message, **details)
        self.retry_after_seconds = retry_after_seconds


class TemporarilyUnavailable(Refusal):
    """The server cannot do this now; retry after `retry_after_seconds`."""

    def __init__(self, code: str, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(code, message)
        self.retry_after_seconds = retry_after_seconds


class Overloaded(Refusal):
    """Too much work waits. The command was not started; retry after `retry_after_seconds`."""

    retry_after_seconds = 1

    def __init__(self, message: str = "The server has more work than it can do.") -> None:
        super().__init__("overloaded", f"{message} Nothing was changed. Retry in a second.")
