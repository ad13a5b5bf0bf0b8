"""Work that a provider does: the call, its collection, its callback."""

from typing import Literal

from msgspec import Struct

from callsheet.core.model.commands.base import Command, Json, Lease


class RecordIntent(Command, frozen=True, kw_only=True, gc=False):
    """Write down that a provider is about to be called, before it is."""

    lease: Lease
    provider: str
    worker_id: str | None = None


class CallIntent(Struct, frozen=True, gc=False):
    """The call's id, to put into the callback address; `status` other than intended means: do not call again."""

    call_id: str
    status: str


class HandOff(Command, frozen=True, kw_only=True, gc=False):
    """Hand a task over to the provider that accepted it: the lease ends, collecting begins."""

    lease: Lease
    ref: str
    worker_id: str | None = None


class Outcome(Struct, frozen=True, gc=False):
    """What a provider says about a call."""

    status: Literal["pending", "completed", "failed", "absent"]
    output: Json = None
    delivered: int = 100
    code: str = "provider_failed"
    message: str = ""
    retryable: bool | None = None
    poll_after_seconds: float | None = None
    ref: str | None = None


class ClaimCall(Command, frozen=True, kw_only=True, gc=False):
    """Take a due call for collecting, so that no other collector does."""

    call_id: str
    job_id: str
    lock_seconds: int = 60


class ClaimedCall(Struct, frozen=True, gc=False):
    """A call to ask about; `ref` is None if its answer was lost. Not `due` means somebody else has it."""

    call_id: str
    provider: str
    ref: str | None
    cancel: bool
    due: bool


class ReportOutcome(Command, frozen=True, kw_only=True, gc=False):
    """Report what collecting gave."""

    call_id: str
    job_id: str
    outcome: Outcome


class Callback(Command, frozen=True, kw_only=True, gc=False):
    """A provider's webhook, already authenticated."""

    provider: str
    webhook_id: str
    outcome: Outcome
    ref: str | None = None
    call_id: str | None = None
