"""Commands for provider calls: intent, hand-off, collection, callback."""

from typing import Literal

from msgspec import Struct

from callsheet.core.model.commands.base import Command, Json, Lease


class RecordIntent(Command, frozen=True, kw_only=True, gc=False):
    """Record the intent to call a provider, before the request is sent."""

    lease: Lease
    provider: str
    worker_id: str | None = None


class CallIntent(Struct, frozen=True, gc=False):
    """The call's id, for the callback URL. If `status` is not `intended`, do not call the provider again."""

    call_id: str
    status: str


class HandOff(Command, frozen=True, kw_only=True, gc=False):
    """Report that the provider accepted the call: the lease ends and the collector takes over."""

    lease: Lease
    ref: str
    worker_id: str | None = None


class Outcome(Struct, frozen=True, gc=False):
    """The state of a call as its provider reports it."""

    status: Literal["pending", "completed", "failed", "absent"]
    output: Json = None
    delivered: int = 100
    code: str = "provider_failed"
    message: str = ""
    retryable: bool | None = None
    poll_after_seconds: float | None = None
    ref: str | None = None


class ClaimCall(Command, frozen=True, kw_only=True, gc=False):
    """Lock a due call, so that only one collector asks about it."""

    call_id: str
    job_id: str
    lock_seconds: int = 60


class ClaimedCall(Struct, frozen=True, gc=False):
    """A call to collect. `ref` is None if the answer was lost; `due` is false if another collector has it."""

    call_id: str
    provider: str
    ref: str | None
    cancel: bool
    due: bool


class ReportOutcome(Command, frozen=True, kw_only=True, gc=False):
    """Report what the collector found."""

    call_id: str
    job_id: str
    outcome: Outcome


class Callback(Command, frozen=True, kw_only=True, gc=False):
    """A webhook of a provider. The caller has authenticated it."""

    provider: str
    webhook_id: str
    outcome: Outcome
    ref: str | None = None
    call_id: str | None = None
