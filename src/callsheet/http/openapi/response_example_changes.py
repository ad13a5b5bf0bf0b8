"""Changes to the example of a struct where it is the response of an operation, so that it matches the request."""

from typing import Any

from callsheet.api.shared_fields import Example

AT, _LATER = Example.AT, Example.LATER
_SENT = {"name": "note.txt", "media_type": "text/plain", "bytes": 4, "job_id": None}

EXAMPLE_CHANGES: dict[str, dict[str, Any]] = {
    "adjust_balance": {"balance": 92},
    "create_upload": {"file": {**_SENT, "status": "uploading"}},
    "approve_stage": {"approval": True, "approved_by": "producer@example.com", "approved_at": AT},
    "cancel_job": {"status": "canceled", "finished_at": _LATER},
    "update_job": {"priority": 80, "labels": {"campaign": "summer"}},
    "update_worker": {"draining": True},
    "delete_file": {"bytes": 4},
    "fail_task": {"status": "failed", "job_status": "failed"},
    "finish_upload": _SENT,
    "get_file_info": _SENT,
    "record_submission": {"status": "running", "job_status": "running"},
    "pause_job": {"status": "paused"},
    "put_tenant": {"weight": 2},
    "put_workflow": {"name": "poster", "definition": {"name": "poster"}},
    "refund_job": {"balance": 100, "reserved": 0},
    "requeue_task": {"status": "pending", "job_status": "running"},
    "retry_job": {"run": 2},
    "revoke_key": {"revoked_at": _LATER},
    "revoke_worker": {"status": "revoked", "leases_total": 0, "leases": [], "ended_at": _LATER},
    "top_up": {"balance": 100, "reserved": 0},
}


def apply_example_changes(operation: str, example: Any) -> Any:
    """Return the response example of an operation."""
    return _merge(example, EXAMPLE_CHANGES.get(operation, {}))


def _merge(example: Any, changes: dict[str, Any]) -> Any:
    """Return a copy with changes merged in, object by object."""
    return {**example, **{
        name: _merge(example[name], value) if isinstance(value, dict) else value for name, value in changes.items()
    }}  # fmt: skip
