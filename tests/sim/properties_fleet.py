"""What must be true of a whole life of the fleet and of files, judged from the recorded operations at its end."""

from collections.abc import Iterator, Sequence

from callsheet.core import commands as c
from tests.sim.history import Op
from tests.sim.peek import Peek


def starts(ops: Sequence[Op], peek: Peek) -> Iterator[str]:
    """A4: what was done with a worker has one line in the audit log, what was refused has none."""
    lines = {line for (line,) in peek.rows("SELECT id FROM audit WHERE action LIKE 'worker.%'")}
    kinds = (c.Register, c.Deregister, c.RotateWorker, c.RevokeWorker, c.SetWorker, c.TickWorker)
    for op in ops:
        if not isinstance(op.command, kinds):
            continue
        what = f"{type(op.command).__name__} {op.command.id} of {op.command.worker_id}"
        if op.refused and op.command.id in lines:
            yield f"A4 {what} was refused ({op.answer.code}) and has a line all the same"
        if op.done and isinstance(op.command, kinds[:3]) and op.command.id not in lines:
            yield f"A4 {what} was done and has no line"
    for name, count in peek.rows(
        "SELECT w.id, w.starts FROM worker w WHERE w.starts <> (SELECT count(*) FROM audit a"
        " WHERE a.action = 'worker.register' AND a.subject = w.id)"
    ):
        yield f"A4 {name} has {count} starts and another number of lines"


def owners(ops: Sequence[Op], peek: Peek) -> Iterator[str]:
    """R240: what was done under a lease was done by the worker that took it."""
    took = {(task, no): worker for task, no, worker in peek.rows("SELECT task_id, no, worker_id FROM attempt")}
    for op in ops:
        lease = getattr(op.command, "lease", None)
        if lease is None or not op.done or op.command.worker_id is None:
            continue
        if took.get((lease.task_id, lease.attempt)) != op.command.worker_id:
            yield f"R240 {op.command.worker_id} did {type(op.command).__name__} to {lease.task_id}/{lease.attempt}"


def results(ops: Sequence[Op], peek: Peek) -> Iterator[str]:
    """O1: the files of a result that was taken are there, as they were named, until their job is deleted."""
    kept = {job for (job,) in peek.rows("SELECT id FROM job WHERE deleted_at IS NULL")}
    rows = peek.rows("SELECT task_id, attempt, no, name, media_type, bytes, sha256 FROM file WHERE task_id IS NOT NULL")
    files: dict[tuple[str, int], set[c.Made]] = {}
    for task, attempt, *made in rows:
        files.setdefault((task, attempt), set()).add(c.Made(*made))
    for op in ops:
        if isinstance(op.command, c.Complete) and op.done and op.answer.skipped is None:
            lease = op.command.lease
            if lease.job_id in kept and files.get((lease.task_id, lease.attempt), set()) != set(op.command.files):
                yield f"O1 the files of {lease.task_id}/{lease.attempt} are not those of the result"


def uploads(ops: Sequence[Op], peek: Peek) -> Iterator[str]:
    """H1, H5: an announced file is there once, a finished one stays so, and what was dropped does not come back."""
    status = dict(peek.rows("SELECT id, status FROM file WHERE task_id IS NULL"))
    for op in ops:
        if isinstance(op.command, c.AskUpload):
            if op.done and op.answer.id not in status:
                yield f"H1 file {op.answer.id} was announced and is not there"
            if op.refused and op.command.id in status:
                yield f"H5 file {op.command.id} was refused and is there all the same"
        if isinstance(op.command, c.FinishUpload) and op.done and status.get(op.command.file_id) == "awaited":
            yield f"H1 file {op.command.file_id} was finished and is still awaited"
        if isinstance(op.command, c.DropFiles) and op.done:
            for file in op.answer.files:
                if status.get(file.id, "dropped") != "dropped":
                    yield f"H1 file {file.id} was dropped and is {status[file.id]}"


FLEET_AND_FILES = (starts, owners, results, uploads)
