"""What differs in an operation's answer from its struct's example: the trace of what was asked."""

from typing import Any

from callsheet.http.word import AT

_LATER = "2026-03-14T09:27:31.204Z"
_SENT = {"name": "note.txt", "media_type": "text/plain", "bytes": 4, "job_id": None}

ANSWERS: dict[str, dict[str, Any]] = {
    "adjust": {"balance": 92},
    "announce_file": {"file": {**_SENT, "status": "awaited"}},
    "approve_stage": {"gate": True, "approved_by": "producer@example.com", "approved_at": AT},
    "cancel_job": {"status": "canceled", "finished_at": _LATER},
    "change_job": {"priority": 80, "labels": {"campaign": "summer"}},
    "change_worker": {"draining": True},
    "delete_file": {"bytes": 4},
    "fail_task": {"status": "failed", "job_status": "failed"},
    "finish_file": _SENT,
    "get_file_info": _SENT,
    "note_submitted": {"status": "running", "job_status": "running"},
    "pause_job": {"status": "paused"},
    "put_tenant": {"weight": 2},
    "put_workflow": {"name": "poster", "recipe": {"name": "poster"}},
    "refund_job": {"balance": 100, "held": 0},
    "requeue_task": {"status": "pending", "job_status": "running"},
    "retry_job": {"run": 2},
    "revoke_key": {"revoked_at": _LATER},
    "revoke_worker": {"status": "revoked", "held": 0, "leases": [], "ended_at": _LATER},
    "top_up": {"balance": 100, "held": 0},
}


def answered(operation: str, example: Any) -> Any:
    """Return the example of an answer as this operation gives it."""
    return _with(example, ANSWERS.get(operation, {}))


def _with(example: Any, changes: dict[str, Any]) -> Any:
    """Return a copy with changes, table by table; the struct's own example stays as it is."""
    return {**example, **{
        name: _with(example[name], value) if isinstance(value, dict) else value for name, value in changes.items()
    }}  # fmt: skip
