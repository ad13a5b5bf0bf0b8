"""Every way to be refused, by name.

    Refusal
      BadInput                 the request itself is wrong; nothing was looked up
      Unknown                  there is no such job, stage, task, workflow, wallet (or it is not yours)
      IllegalMove              the machine's table has no such row
      LeaseLost                the token is stale, foreign, or its lease was revoked
      InsufficientCredits      the wallet cannot pay
      Conflict                 a cap, a key reused for another body, a state that forbids it
      Denied                   a gate said no before acceptance, or an operator has not said yes
      Gone                     it was deleted
      RateLimited              too many calls; try again after some seconds
      TemporarilyUnavailable   the server cannot do it now; try again after some seconds
      NotAdmitted              the worker's token is not, or no longer, good

A refused command changes nothing. The code is stable; the message is for a person; the details are numbers.
"""

from typing import Any

from callsheet.core.model.plural import pluralize


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not an accident
    """A command that was understood and not done."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


class BadInput(Refusal):
    """The request is wrong in itself."""


class NotFound(Refusal):
    """There is nothing of that name here."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what}_not_found", f"There is no {what} {name!r}.")


class IllegalTransition(Refusal):
    """The table of moves has no such row."""

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
    """The lease is not (or no longer) the caller's."""

    def __init__(self, message: str = "The lease is no longer yours: stop this task.") -> None:
        super().__init__("lease_lost", message)


class InsufficientCredits(Refusal):
    """The wallet's balance does not cover a price, or what an adjustment would take."""

    def __init__(self, required: int, balance: int, message: str = "") -> None:
        message = (
            message or f"This costs {pluralize(required, 'credit')} and the wallet holds {balance}: top it up first."
        )
        super().__init__("insufficient_credits", message, required=required, balance=balance)


class Conflict(Refusal):
    """The request is sound, but what is already there forbids it."""


class Denied(Refusal):
    """A gate refused the job before it was accepted."""


class InvalidWorkerToken(Refusal):
    """The worker's token is not good: it was revoked, changed, or belongs to an earlier start."""

    def __init__(self) -> None:
        super().__init__(
            "invalid_worker_token", "This worker's token is not known, or no longer valid: register again."
        )


class Gone(Refusal):
    """It existed and was deleted."""


class RateLimited(Refusal):
    """Too many calls."""

    def __init__(self, code: str, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(code, message)
        self.retry_after_seconds = retry_after_seconds


class TemporarilyUnavailable(Refusal):
    """The server cannot do this now."""

    def __init__(self, code: str, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(code, message)
        self.retry_after_seconds = retry_after_seconds
