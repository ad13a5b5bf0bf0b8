"""Large tables for tests of query plans: one tenant and one user own almost all rows, others own ten.

The rows are inserted by SQL, not by commands. They are no valid history: a row only has what its indexes need.
"""

from typing import get_type_hints

from callsheet.core.model.rows import (
    ApiKey,
    Attempt,
    Audit,
    AuditHead,
    Call,
    Document,
    Event,
    File,
    Inbox,
    Job,
    JobFile,
    LedgerEntry,
    Queue,
    Row,
    Run,
    Stage,
    StorageUsage,
    Task,
    Tenant,
    Wallet,
    Worker,
    Workflow,
    WorkflowFile,
)
from callsheet.store.connection import Connection
from callsheet.store.dialect import CURRENT_TRANSACTION, columns

ROWS = 30_000
FEWER = ROWS // 10
_HEX = {"sqlite": "printf('%012x', {})", "postgresql": "lpad(to_hex({}), 12, '0')"}
_ANALYZE = {"sqlite": "PRAGMA wal_checkpoint(TRUNCATE)", "postgresql": "ANALYZE"}
_ID = "{id}"
_TENANT = "CASE WHEN n < 10 THEN 'small' WHEN n % 100 = 1 THEN 'medium' ELSE 'big' END"
_USER = "CASE WHEN n < 10 THEN 'light' ELSE 'heavy' END"
_STATUS = (
    "CASE WHEN n % 1000 = 0 THEN 'running' WHEN n % 100 = 3 THEN 'failed' WHEN n % 10 IN (4, 5, 6) THEN 'completed' "
    "ELSE 'queued' END"
)
_ENDED = "n % 1000 > 0 AND (n % 100 = 3 OR n % 10 IN (4, 5, 6))"
_LEASED, _HANDED_OFF, _BACKOFF = "n % 100 = 0", "n % 20 = 7", "n % 100 = 1"
_DONE = "n % 10 IN (4, 5, 6)"
_WORKFLOW = "CASE WHEN n % 10000 = 8 THEN 'rare' ELSE 'sketch' END"


def row_id(n: int) -> str:
    """Return the id of the n-th row of a table."""
    return f"00000000-0000-7000-8000-{n:012x}"


_TABLES: dict[type[Row], tuple[int, dict[str, str]]] = {
    Tenant: (FEWER, {"id": _ID, "weight": "1", "status": "'active'"}),
    Workflow: (
        FEWER,
        {
            "name": "CASE WHEN n < 2 THEN 'rare' ELSE 'sketch' END",
            "version": "n",
            "current": f"CASE WHEN n IN (1, {FEWER - 1}) THEN 1 ELSE 0 END",
        },
    ),
    Queue: (100, {"id": "'other-' || n", "kind": "'other'", "workflow": "'w-' || n"}),
    Wallet: (ROWS, {"id": _ID}),
    LedgerEntry: (ROWS, {"wallet_id": f"'{row_id(0)}'", "seq": "n", "kind": "'topup'"}),
    Job: (
        ROWS,
        {
            "id": _ID, "tenant": _TENANT, "wallet_id": _USER, "workflow": _WORKFLOW,
            "workflow_version": "CASE WHEN n < 10 THEN 1 ELSE 2 END", "created_at": "n", "status": _STATUS,
            "due_at": f"CASE WHEN NOT ({_ENDED}) THEN n END",
            "waiting_at": "CASE WHEN n % 5000 = 7 THEN n END", "finished_at": f"CASE WHEN {_ENDED} THEN n END",
            "deleted_at": f"CASE WHEN {_ENDED} AND n > {ROWS // 2} THEN n END",
            "labels": "CASE WHEN n % 10000 = 9 THEN '{\"campaign\": \"spring\"}' END",
        },
    ),
    Run: (ROWS, {"job_id": _ID, "no": "1", "command_id": _ID}),
    Stage: (ROWS, {"id": _ID, "job_id": _ID, "no": "1"}),
    Task: (
        ROWS,
        {
            "id": _ID, "job_id": _ID, "stage_id": _ID, "tenant": _TENANT, "no": "1",
            "queue": f"'draw/' || ({_WORKFLOW})", "kind": "CASE WHEN n % 300 = 0 THEN 'cut' ELSE 'draw' END",
            "status": (
                f"CASE WHEN {_LEASED} OR {_HANDED_OFF} THEN 'running' WHEN {_BACKOFF} THEN 'retried' "
                f"WHEN {_DONE} THEN 'completed' ELSE 'pending' END"
            ),
            "ready": f"CASE WHEN {_LEASED} OR {_HANDED_OFF} OR {_BACKOFF} OR {_DONE} THEN 0 ELSE 1 END",
            "priority": "CASE WHEN n % 1000 = 2 THEN 9 ELSE 5 END", "rank": "n", "attempts": "1",
            "user_id": _USER, "user_rank": "n",
            "due_at": f"CASE WHEN {_LEASED} OR {_BACKOFF} THEN n END",
            "token_hash": f"CASE WHEN {_LEASED} THEN 'token' END",
            "worker_id": (
                f"CASE WHEN {_LEASED} THEN 'worker-' || (n % 700) WHEN {_HANDED_OFF} THEN 'worker-0' END"
            ),
            "finished_at": f"CASE WHEN {_DONE} THEN n END",
        },
    ),
    Attempt: (
        ROWS,
        {
            "task_id": _ID, "no": "1", "job_id": _ID, "leased_at": "n", "rate_queue": "'draw/sketch'",
            "ended_at": f"CASE WHEN {_LEASED} THEN NULL ELSE n END",
            "outcome": f"CASE WHEN {_LEASED} THEN NULL WHEN {_DONE} THEN 'completed' ELSE 'failed' END",
        },
    ),
    Event: (ROWS, {"subject": f"'{row_id(0)}'", "seq": "n", "tenant": _TENANT}),
    Document: (ROWS, {"owner_id": _ID, "name": "'input'", "job_id": _ID}),
    Call: (
        FEWER, {"id": _ID, "task_id": _ID, "job_id": _ID, "provider": "'acme'", "ref": _ID, "collect_at": "n"}
    ),
    Inbox: (FEWER, {"id": _ID, "ref": _ID, "status": "'waiting'"}),
    File: (
        ROWS,
        {
            "id": _ID, "tenant": _TENANT, "user_id": _USER, "expires_at": "n",
            "status": "CASE WHEN n % 1000 = 0 THEN 'uploading' WHEN n < 10 THEN 'ready' ELSE 'deleted' END",
        },
    ),
    JobFile: (FEWER, {"job_id": _ID, "file_id": _ID}),
    WorkflowFile: (2, {"workflow": "'sketch'", "version": "3 + n", "file_id": _ID}),
    Worker: (
        FEWER,
        {
            "id": "'worker-' || n", "status": "CASE WHEN n % 100 = 0 THEN 'approved' ELSE 'offline' END",
            "token_hash": _ID, "offered": "'[]'", "concurrency": "1", "last_seen_at": "n",
        },
    ),
    ApiKey: (ROWS, {"id": _ID, "tenant": _TENANT, "role": "'client'", "secret_hash": _ID}),
    Audit: (
        ROWS,
        {
            "id": _ID, "tenant": _TENANT, "subject": "CASE WHEN n % 100 < 50 THEN 'ann' ELSE 'bob' END",
            "seq": "n + 1",
        },
    ),
    AuditHead: (FEWER, {"tenant": _ID, "seq": "1"}),
    StorageUsage: (FEWER, {"tenant": _ID}),
}  # fmt: skip
"""For each table: how many rows, and the SQL of columns that are neither NULL, nor 0, nor empty. `n` is the row."""


def fill_tables(connection: Connection, database: str) -> None:
    """Insert all rows, and update the statistics of the planner."""
    connection.begin()
    connection.insert(Queue, [Queue(f"draw/{name}", "draw", name, "") for name in ("sketch", "rare")])
    for table, (count, values) in _TABLES.items():
        connection.run(_insert_text(database, table, count, values))
    connection.commit()
    connection.run(_ANALYZE[database])


def _insert_text(database: str, table: type[Row], count: int, values: dict[str, str]) -> str:
    hints = get_type_hints(table)
    defaults = {int: "0", str: "''"}
    expressions = [values.get(name, defaults.get(hints[name], "NULL")) for name in columns(table)]
    names = list(columns(table))
    if table is Event and database == "postgresql":
        names.append("tx")
        expressions.append(CURRENT_TRANSACTION)
    row_id_sql = f"'00000000-0000-7000-8000-' || {_HEX[database].format('n')}"
    text = ", ".join(expressions).replace(_ID, row_id_sql)
    return (
        f"WITH RECURSIVE series(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM series WHERE n < {count - 1}) "
        f"INSERT INTO {table.TABLE} ({', '.join(names)}) SELECT {text} FROM series"
    )
