"""Properties of workers and files over a whole history, checked at its end against the recorded operations."""

from collections.abc import Iterator, Sequence

from callsheet.core.model import commands as c
from tests.sim.checks.history import Op
from tests.sim.checks.inspector import Inspector


def check_audit_entries(ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """A4, R208, R211: an accepted command about a worker has one audit entry, a refused one has none."""
    audit_ids = {entry for (entry,) in inspector.rows("SELECT id FROM audit WHERE action LIKE 'worker.%'")}
    kinds = (c.Register, c.Deregister, c.RotateWorker, c.RevokeWorker, c.UpdateWorker, c.TickWorker)
    for op in ops:
        if not isinstance(op.command, kinds):
            continue
        what = f"{type(op.command).__name__} {op.command.id} of {op.command.worker_id}"
        if op.refused and op.command.id in audit_ids:
            yield f"A4 {what} was refused ({op.answer.code}) and has an audit entry"
        if op.succeeded and isinstance(op.command, kinds[:3]) and op.command.id not in audit_ids:
            yield f"A4 {what} was accepted and has no audit entry"
    for name, count in inspector.rows(
        "SELECT w.id, w.starts FROM worker w WHERE w.starts <> (SELECT count(*) FROM audit a"
        " WHERE a.action = 'worker.register' AND a.subject = w.id)"
    ):
        yield f"A4 {name} has {count} starts and another number of audit entries"


def check_lease_owners(ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """R240: only the worker of a lease reports with it."""
    leased_by = {
        (task, no): worker for task, no, worker in inspector.rows("SELECT task_id, no, worker_id FROM attempt")
    }
    for op in ops:
        lease = getattr(op.command, "lease", None)
        if lease is None or not op.succeeded or op.command.worker_id is None:
            continue
        if leased_by.get((lease.task_id, lease.attempt)) != op.command.worker_id:
            yield f"R240 {op.command.worker_id} did {type(op.command).__name__} to {lease.task_id}/{lease.attempt}"


def check_output_files(ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """O1: the files of an accepted output are stored as they were reported, until their job is deleted."""
    kept = {job for (job,) in inspector.rows("SELECT id FROM job WHERE deleted_at IS NULL")}
    rows = inspector.rows(
        "SELECT task_id, attempt, no, name, media_type, bytes, sha256 FROM file WHERE task_id IS NOT NULL"
    )
    files: dict[tuple[str, int], set[c.OutputFile]] = {}
    for task, attempt, *fields in rows:
        files.setdefault((task, attempt), set()).add(c.OutputFile(*fields))
    for op in ops:
        if isinstance(op.command, c.Complete) and op.succeeded and op.answer.skipped is None:
            lease = op.command.lease
            if lease.job_id in kept and files.get((lease.task_id, lease.attempt), set()) != set(op.command.files):
                yield f"O1 the files of {lease.task_id}/{lease.attempt} are not those of the accepted output"


def check_uploads(ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """H1: an accepted upload is stored, a finished one stays finished, a deleted one stays deleted."""
    status = dict(inspector.rows("SELECT id, status FROM file WHERE task_id IS NULL"))
    for op in ops:
        if isinstance(op.command, c.CreateUpload):
            if op.succeeded and op.answer.id not in status:
                yield f"H1 file {op.answer.id} was created and is not stored"
            if op.refused and op.command.id in status:
                yield f"H1 file {op.command.id} was refused and is stored"
        if isinstance(op.command, c.FinishUpload) and op.succeeded and status.get(op.command.file_id) == "uploading":
            yield f"H1 file {op.command.file_id} was finished and is still uploading"
        if isinstance(op.command, c.DeleteFiles) and op.succeeded:
            for file in op.answer.files:
                if status.get(file.id, "deleted") != "deleted":
                    yield f"H1 file {file.id} was deleted and is {status[file.id]}"


def check_keys(ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """H1: an accepted key is stored as it was requested, and a revoked one stays revoked."""
    columns = "id, tenant, role, secret_hash, revoked_at"
    keys = {row[0]: row[1:] for row in inspector.rows(f"SELECT {columns} FROM api_key")}
    for op in ops:
        command = op.command
        if isinstance(command, c.CreateKey) and op.succeeded:
            if keys.get(op.answer.id, ())[:3] != (command.tenant, command.role, command.secret_hash):
                yield f"H1 key {op.answer.id} was created and is {keys.get(op.answer.id)}"
        elif isinstance(command, c.CreateKey) and op.refused and command.id in keys:
            yield f"H1 key {command.id} was refused and is stored"
        elif isinstance(command, c.RevokeKey) and op.succeeded and keys[command.key_id][-1] != op.answer.revoked_at:
            yield f"H1 key {command.key_id} was revoked at {op.answer.revoked_at} and is {keys[command.key_id]}"


FLEET_AND_FILE_PROPERTIES = (check_audit_entries, check_lease_owners, check_output_files, check_uploads, check_keys)
