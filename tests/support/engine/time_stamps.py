"""A check of the time stamps that a batch writes: no change is dated before what it changes."""

from collections.abc import Iterator

from callsheet.core.model.rows import Job, LedgerEntry, Row, Wallet
from callsheet.core.working_set import WorkingSet


def find_backdated(ws: WorkingSet) -> Iterator[str]:
    """Yield the rows of a batch with a time stamp before the last change of the row, of its job or of its wallet."""
    originals, rows = ws._originals, ws._rows  # noqa: SLF001 - what the batch has changed
    for cls, changed in originals.items():
        for key, before in changed.items():
            after = rows[cls].get(key)
            if after is not None and after is not before:
                yield from _find_backdated_columns(ws, before, after)
    for entry in ws._appended.get(LedgerEntry, []):  # noqa: SLF001
        wallet = originals[Wallet].get(entry.wallet_id) if isinstance(entry, LedgerEntry) else None
        floors = [wallet.newest_time()] if wallet else []
        if (job := _job_before(ws, entry)) is not None:
            floors.append(job.newest_time())
        if entry.newest_time() < max(floors, default=0):
            yield f"T1 the entry {entry} is dated before the last change of its wallet or job, {floors}"


def _find_backdated_columns(ws: WorkingSet, before: Row | None, after: Row) -> Iterator[str]:
    job = None if isinstance(after, Job) else _job_before(ws, after)
    floor = before.newest_time() if before is not None else job.created_at if job is not None else 0
    for name in after.TIMES:
        at = getattr(after, name)
        if at is not None and at != getattr(before, name, None) and at < floor:
            yield f"T1 {name} of {after.TABLE} {after} is before {floor}"


def _job_before(ws: WorkingSet, row: Row) -> Job | None:
    job_id = getattr(row, "job_id", None)
    job = ws._originals[Job].get(job_id) or ws._rows[Job].get(job_id)  # noqa: SLF001
    return job if isinstance(job, Job) else None
