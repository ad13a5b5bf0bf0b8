"""The bound of every query: what limits the rows that it reads, how many these are for the samples, and the samples.

A new query needs an entry here. Its samples run on tables with tens of thousands of rows, of which one tenant and one
user own almost all (`tests/support/databases/skewed_tables.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.support.databases.skewed_tables import ROWS, row_id

KEYS = "the given keys"
PAGE = "the size of the page"
COUNT = "the maximum of the count"
RATE = "the starts within the period of a rate limit, which allows no more"
SCAN = "the maximum of the scan"
JOB = "the limits of one job: stages_per_job_max, tasks_per_stage_max, attempts_max, requeues_max"
QUEUES = "the number of queues: workflows, times queues_per_workflow_max"
WORKERS = "the workers: workers_max, worker_concurrency_max"
OPERATORS = "what operators have created"

Sample = Mapping[str, Any]


class Bound(NamedTuple):
    """What limits the rows that a query reads."""

    by: str
    rows: int
    """Maximum number of rows that one sample reads, from all tables."""
    samples: Sequence[Sample] = ({},)
    uses: str = ""
    """The index that must be used. A query by key uses the key."""


_IDS = [row_id(n) for n in (0, 7, ROWS - 1)]
_BY_IDS: Sequence[Sample] = ({"ids": _IDS},)
_ONE: Sequence[Sample] = ({"id": _IDS[1]},)
_PAGE, _MOST = 50, 100
_ONE_OF_MANY: Sequence[Sample] = ({"id": _IDS[1], "most": _PAGE},)
_TENANTS = ("small", "medium", "big")
_LAST, _FIRST, _FAR = "~", "", 2**62
_MIDDLE = row_id(ROWS // 2)
_DRAW = ("draw/sketch", "draw/rare")


def _by_ids(rows: int = 3) -> Bound:
    return Bound(KEYS, rows, _BY_IDS)


def _by_keys(*keys: Sequence[Any], rows: int | None = None, **others: Any) -> Bound:
    return Bound(KEYS, len(keys) if rows is None else rows, ({"keys": list(keys), **others},))


def _each(name: str, values: Sequence[Any], *samples: Sample) -> list[Sample]:
    return [{**sample, name: value} for sample in samples for value in values]


# -- lists of jobs: all filters, for each tenant, on the first page and deep in the list

_NO_FILTER: dict[str, Any] = {"status": "", "phase": "", "workflow": "", "label": "", "label_value": "", "since": 0}
_FILTERS: Sequence[Sample] = (
    _NO_FILTER,
    _NO_FILTER | {"workflow": "rare"},
    _NO_FILTER | {"workflow": "none"},
    _NO_FILTER | {"label": "campaign", "label_value": "spring"},
    _NO_FILTER | {"status": "running"},
    _NO_FILTER | {"status": "paused", "phase": "approval"},
    _NO_FILTER | {"since": ROWS - 20},
)
_POSITIONS: Sequence[Sample] = (
    {"before_at": _FAR, "before": _LAST},
    {"before_at": ROWS // 2, "before": _MIDDLE},
    {"before_at": 5, "before": _FIRST},
)


def _job_list(index: str, scopes: Sequence[Sample]) -> Bound:
    samples = [
        {**scope, **position, **filters, "scanned": _MOST, "count": _PAGE + 1}
        for scope in scopes for position in _POSITIONS for filters in _FILTERS
    ]  # fmt: skip
    return Bound(SCAN, _MOST, samples, index)


def _job_scan_end(index: str, scopes: Sequence[Sample]) -> Bound:
    samples = [{**scope, **position, "scanned": _MOST} for scope in scopes for position in _POSITIONS]
    return Bound(SCAN, _MOST, samples, index)


_OF_TENANT = _each("tenant", _TENANTS, {})
_OF_STATUS = _each("of_status", ("queued", "running", "failed", "paused"), *_OF_TENANT)
_OF_WALLET: Sequence[Sample] = ({"wallet": "heavy"}, {"wallet": "light"}, {"wallet": "none"})

JOB_LISTS = {
    name: bound
    for prefix, index, scopes in (
        ("jobs_of_tenant", "job_newest", _OF_TENANT), ("jobs_in_status", "job_status", _OF_STATUS),
        ("jobs_waiting", "job_waiting", _OF_TENANT), ("jobs_of_wallet", "job_user", _OF_WALLET),
    )
    for name, bound in (
        (prefix, _job_list(index, scopes)), (f"{prefix}_scan_end", _job_scan_end(index, scopes)),
    )
}  # fmt: skip

# -- other lists

_NEWEST_FIRST = _each("before", (_LAST, _MIDDLE, _FIRST), {"count": _PAGE})
_OLDEST_FIRST = _each("after", (_FIRST, _MIDDLE, _LAST), {"count": _PAGE})
_DUE = [
    {"now": now, "after_at": after, "after_id": _MIDDLE, "count": _PAGE}
    for now in (5, _FAR) for after in (-1, ROWS // 2)
]  # fmt: skip
_FEED: Sequence[Sample] = (
    {"tx": 0, "position": 0, "count": _PAGE}, {"tx": _FAR, "position": _FAR, "count": _PAGE},
)  # fmt: skip

LISTS = {
    "workers_after": Bound(PAGE, _PAGE, _OLDEST_FIRST, "worker_listed"),
    "all_workers_after": Bound(PAGE, _PAGE, _OLDEST_FIRST),
    "files_uploaded": Bound(PAGE, _PAGE, _each("user", ("heavy", "light"), *_each("tenant", _TENANTS, *_NEWEST_FIRST)),
                            "file_uploaded"),
    "events_of": Bound(PAGE, _PAGE, [{"subject": _IDS[0], "after": n, "count": _PAGE} for n in (-1, ROWS // 2)]),
    "events_of_tenant": Bound(PAGE, _PAGE, _each("tenant", _TENANTS, *_FEED), "event_tenant"),
    "events_after": Bound(PAGE, _PAGE, _FEED),
    "feed_end": Bound(KEYS, 1, _FEED),
    "subjects_not_yet_visible": Bound(PAGE, _PAGE, _FEED),
    "ledger_after": Bound(PAGE, _PAGE, [{"id": _IDS[0], "after": n, "count": _PAGE} for n in (-1, ROWS // 2)]),
    "ledger_before": Bound(PAGE, _PAGE, [{"id": _IDS[0], "before": n, "count": _PAGE} for n in (5, ROWS // 2)]),
    "api_keys_after": Bound(PAGE, _PAGE, _OLDEST_FIRST),
    "api_keys_of_tenant": Bound(PAGE, _PAGE, _each("tenant", _TENANTS, *_OLDEST_FIRST), "api_key_tenant"),
    "audit_before": Bound(PAGE, _PAGE, _NEWEST_FIRST),
    "audit_of_tenant": Bound(PAGE, _PAGE, _each("tenant", _TENANTS, *_NEWEST_FIRST), "audit_tenant"),
    "audit_of_subject": Bound(PAGE, _PAGE, _each("subject", ("ann", "none"), *_NEWEST_FIRST), "audit_subject"),
    "audit_of_tenant_and_subject": Bound(
        PAGE, _PAGE, _each("subject", ("ann", "none"), *_each("tenant", _TENANTS, *_NEWEST_FIRST)),
        "audit_tenant_subject",
    ),
    "audit_chain_after": Bound(
        PAGE, 2 * _PAGE, _each("tenant", _TENANTS, {"seq": 1, "id": _FIRST, "count": _PAGE})
    ),
    "tenants_after": Bound(PAGE, _PAGE, _OLDEST_FIRST),
    "current_workflows_after": Bound(PAGE, _PAGE, _OLDEST_FIRST, "workflow_current"),
    "silent_workers": Bound(PAGE, _PAGE, _DUE, "worker_seen"),
    "due_files": Bound(PAGE, _PAGE, _DUE, "file_expires"),
    "due_jobs": Bound(PAGE, _PAGE, _DUE, "job_due"),
    "due_tasks": Bound(PAGE, _PAGE, _DUE, "task_due"),
    "due_calls": Bound(PAGE, _PAGE, _DUE, "call_due"),
    "files_before": Bound(PAGE, _PAGE, _NEWEST_FIRST),
    "tasks_after": Bound(JOB, 4, ({"id": _IDS[0], "stage_no": 0, "task_no": 0, "count": _PAGE},)),
    "tasks_completed": Bound(
        JOB, 4, ({"id": row_id(4), "below": 9, "stage_no": 0, "task_no": 0, "count": _PAGE},)
    ),
}  # fmt: skip

# -- counts and statistics

_OF_QUEUE = _each("queue", (*_DRAW, "none"), {})
_AHEAD = _each("most", (_MOST,), *(
    {"queue": "draw/sketch", "priority": priority, "tenant": tenant, "user_rank": rank, "id": row_id(rank)}
    for priority in (5, 9) for tenant in ("big", "small") for rank in (3, ROWS // 2, ROWS)
))  # fmt: skip

COUNTS = {
    "count_tasks_ahead": Bound(COUNT, 4 * _MOST, _AHEAD, "task_ready"),
    "count_running": Bound(COUNT, _MOST, ({"ids": list(_DRAW), "most": _MOST},), "task_running"),
    "running_by_queue": Bound(COUNT, 2 * _MOST, ({"ids": list(_DRAW), "most": _MOST},), "task_running"),
    "starts_by_queue": Bound(
        RATE, _MOST, ({"keys": [("draw/sketch", ROWS - _PAGE)], "most": _MOST},), "attempt_rate_queue"
    ),
    "live_leases_of_kind": Bound(COUNT, _MOST + 2, ({"kind": "draw", "now": 1, "most": _MOST},)),
    "last_completed_of_kind": Bound(QUEUES, 4, ({"kind": "draw"},), "task_done"),
    "depths": Bound(COUNT, 102 + 4 * _MOST, ({"most": _MOST},), "task_running"),
    "jobs_by_status": Bound(COUNT, 2 * _MOST, ({"statuses": [("queued",), ("paused",), ("running",)], "most": _MOST},),
                            "job_status"),
    "open_calls": Bound(COUNT, 2 * _MOST, ({"due_before": ROWS, "most": _MOST}, {"due_before": 0, "most": _MOST}),
                        "call_due"),
    "leasing_workers": Bound(COUNT, 40, ({"most": _MOST},), "task_held"),
    "active_job_counts": _by_keys(("heavy",), ("light",), ("none",), rows=2 * _MOST, most=_MOST),
    "pending_upload_counts": _by_keys(("big", "heavy"), ("big", "light"), rows=_MOST, most=_MOST),
    "live_worker_ids": Bound(WORKERS, ROWS // 1_000, ({"seen_since": 0},), "worker_seen"),
    "worker_count": Bound(WORKERS, ROWS // 1_000, uses="worker_seen"),
    "durations": Bound(COUNT, 2 * _PAGE, _each("count", (_PAGE,), *_OF_QUEUE), "task_done"),
    "job_durations": Bound(COUNT, 2 * _MOST, [{**q, "tasks": _MOST, "count": _PAGE} for q in _OF_QUEUE], "task_done"),
    "scale_queues": Bound(
        COUNT, 2 * 102 + 10 * _MOST, ({"most": _MOST, "since": 0, "counted": _MOST},), "task_backoff"
    ),
    "scale_heads": Bound(COUNT, 500, ({"most": _MOST},), "task_user_order"),
    "scale_waits": Bound(KEYS, 18, _BY_IDS),
    "scale_leases": Bound(COUNT, 2 * _MOST, ({"most": _MOST},), "task_held"),
    "scale_fleet": Bound(WORKERS, ROWS // 1_000, uses="worker_seen"),
    "scale_arrivals": Bound(COUNT, _MOST, ({"floor": _FIRST, "since": 0, "most": _MOST},)),
    "scale_failures": Bound(COUNT, 2 * _MOST, ({"since": 0, "most": _MOST},), "attempt_unsuccessful"),
    "scale_attempts": Bound(COUNT, 2 * _PAGE, _each("count", (_PAGE,), *_OF_QUEUE), "task_done"),
    "leases_of_workers": Bound(WORKERS, 200, ({"ids": ["worker-0", "worker-100"], "most": 10},), "task_held"),
}  # fmt: skip

# -- queues, claims and workers

_TURNS = _each("tenant", _TENANTS, {"queue": "draw/sketch", "priority": 5, "count": 8})

CLAIMS = {
    "heads": Bound(QUEUES, 106, ({"ids": ["draw"]},)),
    "first_turns": Bound(COUNT, 16, ({"queue": "draw/sketch", "count": 8},), "task_ready"),
    "candidates": Bound(COUNT, 16, _TURNS, "task_user_order"),
    "last_turns": Bound(COUNT, 16, _TURNS, "task_tail"),
    "user_tails": _by_keys(
        ("draw/sketch", 5, "small", "light"),
        ("draw/sketch", 5, "big", "heavy"),
        ("draw/sketch", 5, "big", "none"),
        rows=6,
    ),
    "queue_tails": _by_keys(("draw/sketch", 5, "small"), ("draw/sketch", 5, "big"), rows=4),
    "queues": Bound(KEYS, 2, ({"ids": list(_DRAW)},)),
    "queues_with_limits": Bound(KEYS, 4, ({"ids": list(_DRAW)},)),
    "queues_sharing": Bound(QUEUES, 6, ({"kinds": ["draw"], "workflows": ["rare"], "providers": []},)),
    "jobs_of_workers": Bound(WORKERS, 100, ({"ids": ["worker-0"]},), "task_held"),
    "tasks_of_workers": Bound(WORKERS, 100, ({"ids": ["worker-0"]},), "task_held"),
    "leased_task_ids": Bound(WORKERS, 100, ({"ids": ["worker-0"]},), "task_held"),
}

# -- by key

BY_KEY = {
    "clock": Bound(KEYS, 0),
    "database_created_at": Bound(OPERATORS, ROWS // 10),
    "any_active_api_key": Bound(KEYS, 1),
    "newest_time": Bound(KEYS, 3), "event_transactions": Bound(KEYS, 1),
    "recorded_values": _by_ids(),
    "worker_ids": _by_ids(), "workers": _by_ids(),
    "worker_of": Bound(KEYS, 1, ({"id": "worker-1"},)),
    "worker_by_token": Bound(KEYS, 1, ({"key": _IDS[0]},)),
    "job_of_tenant": Bound(KEYS, 1, ({"id": _IDS[0], "tenant": "small"},)),
    "runs_of": Bound(PAGE, 1, _ONE_OF_MANY), "stages_of": Bound(JOB, 1, _ONE), "tasks_of_job": Bound(JOB, 2, _ONE),
    "attempts_of": Bound(PAGE, 1, _ONE_OF_MANY), "documents_of": Bound(JOB, 1, _ONE), "files_of": Bound(JOB, 1, _ONE),
    "outputs_by_key": _by_keys((_IDS[0], "input")),
    "files_of_attempts": _by_keys((_IDS[0], 1)),
    "attempts_and_files": _by_keys((_IDS[0], 1), rows=2),
    "wallet_of": Bound(KEYS, 1, _ONE),
    "api_key_by_hash": Bound(KEYS, 2, ({"key": _IDS[0]},)), "api_key_by_id": Bound(KEYS, 2, ({"key": _IDS[0]},)),
    "file_of_tenant": Bound(KEYS, 1, ({"id": _IDS[0], "tenant": "small"},)),
    "task_of_job": Bound(KEYS, 1, ({"id": _IDS[0], "job": _IDS[0]},)),
    "files_by_id": _by_ids(),
    "jobs": _by_ids(), "jobs_unlocked": _by_ids(), "jobs_by_dedup_key": _by_ids(), "wallets": _by_ids(),
    "tenants": _by_ids(), "tenants_for_update": _by_ids(),
    "current_workflows": Bound(KEYS, 1, ({"ids": ["sketch"]},), "workflow_current"),
    "workflows": _by_keys(("sketch", 5), ("rare", 1)),
    "tasks": _by_ids(), "open_tasks": _by_ids(), "tasks_of_stages": _by_ids(),
    "files": _by_ids(), "job_files": _by_keys((_IDS[0], _IDS[0])), "job_files_of_jobs": _by_ids(),
    "files_of_jobs": _by_ids(),
    "files_needed": _by_ids(20), "files_needed_by_others": _by_ids(20),
    "stages": _by_ids(), "stages_by_id": _by_ids(),
    "runs": _by_keys((_IDS[0], 1)), "runs_by_command": _by_keys((_IDS[0], _IDS[0])),
    "attempts": _by_keys((_IDS[0], 1)), "documents": _by_ids(),
    "entries_by_dedup_key": _by_ids(), "calls": _by_ids(), "lock_refs": _by_keys((_IDS[0],)),
    "calls_by_ref": _by_keys(("acme", _IDS[0])), "inbox": _by_ids(), "waiting_callbacks": _by_ids(),
    "cursors": _by_ids(), "installation_values": _by_ids(),
    "purge_documents": _by_ids(6), "purge_files": _by_ids(6), "purge_job_files": _by_ids(6),
    "api_keys": _by_ids(), "api_keys_by_hash": _by_ids(), "audits": _by_ids(), "audit_heads": _by_ids(),
    "try_lock_refs": _by_keys((_IDS[0],)),
    "storage_usage": _by_ids(), "usage_of_tenant": Bound(KEYS, 1, _ONE),
}  # fmt: skip

BOUNDS: Mapping[str, Bound] = JOB_LISTS | LISTS | COUNTS | CLAIMS | BY_KEY
