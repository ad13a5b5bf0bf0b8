"""Rows of provider calls and the callbacks of providers."""

from typing import ClassVar

from callsheet.core.model.rows.base import Row


class Call(Row, frozen=True, gc=False):
    """One submission to a provider, recorded before the request is sent. An attempt has at most one."""

    TABLE: ClassVar[str] = "call"
    FIXED_COLUMNS: ClassVar[int] = 8
    TIMES: ClassVar[tuple[str, ...]] = ("intended_at", "submitted_at", "ended_at")

    id: str
    task_id: str
    attempt: int
    job_id: str
    tenant: str
    provider: str
    intended_at: int
    deadline_at: int
    status: str = "intended"
    ref: str | None = None
    submitted_at: int | None = None
    collect_at: int | None = None
    ended_at: int | None = None
    outcome: str | None = None


class Inbox(Row, frozen=True, gc=False):
    """A callback of a provider, stored so that it is applied once."""

    TABLE: ClassVar[str] = "inbox"
    FIXED_COLUMNS: ClassVar[int] = 4
    TIMES: ClassVar[tuple[str, ...]] = ("received_at",)

    id: str
    provider: str
    ref: str | None
    call_id: str | None
    status: str
    received_at: int
    body: str | None
