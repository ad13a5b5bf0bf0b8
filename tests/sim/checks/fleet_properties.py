"""What must be true of a whole life of the fleet and of files, judged from the recorded operations at its end."""

from collections.abc import Iterator, Sequence

from callsheet.core.model import commands as c
from tests.sim.checks.history import Op
from tests.sim.checks.inspector import Inspector


def check_audit_lines(ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """A4: what was done with a worker has one line in the audit log, what was refused has none."""
    audit_ids = {line for (line,) in inspector.rows("SELECT id FROM audit WHERE action LIKE 'worker.%'")}
    kinds = (c.Register, c.Deregister, c.RotateWorker, c.RevokeWorker, c.UpdateWorker, c.TickWorker)
    for op in ops:
        if not isinstance(op.command, kinds):
            continue
        what = f"{type(op.command).__name__} {op.command.id} of {op.command.worker_id}"
        if op.refused and op.command.id in audit_ids:
            yield f"A4 {what} was refused ({op.answer.code}) and has a line all the same"
        if op.succeeded and isinstance(op.command, kinds[:3]) and op.command.id not in audit_ids:
            yield f"A4 {what} was done and has no line"
    for name, count in inspector.rows(
        "SELECT w.id, w.starts FROM worker w WHERE w.starts <> (SELECT count(*) FROM audit a"
        " WHERE a.action = 'worker.register' AND a.subject = w.id)"
    ):
        yield f"A4 {name} has {count} starts and another number of lines"


def check_lease_owners(ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """R240: what was done under a lease was done by the worker that took it."""
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
    """O1: the files of a result that was taken are there, as they were named, until their job is deleted."""
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
                yield f"O1 the files of {lease.task_id}/{lease.attempt} are not those of the result"


def check_uploads(ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """H1, H5: an announced file is there once, a finished one stays so, and what was deleted does not come back."""
    status = dict(inspector.rows("SELECT id, status FROM file WHERE task_id IS NULL"))
    for op in ops:
        if isinstance(op.command, c.CreateUpload):
            if op.succeeded and op.answer.id not in status:
                yield f"H1 file {op.answer.id} was announced and is not there"
            if op.refused and op.command.id in status:
                yield f"H5 file {op.command.id} was refused and is there all the same"
        if isinstance(op.command, c.FinishUpload) and op.succeeded and status.get(op.command.file_id) == "uploading":
            yield f"H1 file {op.command.file_id} was finished and is still uploading"
        if isinstance(op.command, c.DeleteFiles) and op.succeeded:
            for file in op.answer.files:
                if status.get(file.id, "deleted") != "deleted":
                    yield f"H1 file {file.id} was deleted and is {status[file.id]}"


FLEET_AND_FILE_PROPERTIES = (check_audit_lines, check_lease_owners, check_output_files, check_uploads)
