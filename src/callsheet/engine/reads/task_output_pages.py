"""Pages of the outputs of a job's tasks: a job may have a thousand tasks with a mebibyte of output each."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Raw

from callsheet.core.model.rows import File
from callsheet.engine.reads.facade import Reads

TASK_NUMBER_MAX = 2**31
"""Larger than the number of any stage or task."""
_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size of the outputs in a page, unless it has only one task."""


class TaskPosition(NamedTuple):
    """Position of a task in its job; (0, 0) is before the first."""

    stage_no: int = 0
    task_no: int = 0


class TaskOutput(NamedTuple):
    """Output and files of the last attempt of a completed task."""

    stage: str
    position: TaskPosition
    task_id: str
    output: Raw
    files: list[File]


class TaskOutputPage(NamedTuple):
    """A page of outputs, and the position after which the next page starts, if there is one."""

    task_outputs: list[TaskOutput]
    next: TaskPosition | None


async def list_task_outputs(
    reads: Reads, job_id: str, after_position: TaskPosition, most: int, *, stage_no_below: int = TASK_NUMBER_MAX
) -> TaskOutputPage:
    """Return the outputs of completed tasks after a position, in order, of stages below a number."""
    found = await reads.lookup(
        "tasks_completed",
        id=job_id,
        stage_no=after_position.stage_no,
        task_no=after_position.task_no,
        below=stage_no_below,
        count=most + 1,
    )
    page = list(_take_until_full(found[:most]))
    if not page:
        return TaskOutputPage([], None)
    bodies, files = await reads.lookup_many([
        ("outputs_by_key", {"keys": [(task_id, f"output:{attempt}") for *_, task_id, attempt, _ in page]}),
        ("files_of_attempts", {"keys": [(task_id, attempt) for *_, task_id, attempt, _ in page]}),
    ])  # fmt: skip
    outputs = {row[0]: row[1] for row in bodies}
    by_task: dict[str | None, list[File]] = defaultdict(list)
    for file in (File(*row) for row in files):
        by_task[file.task_id].append(file)
    task_outputs = [
        TaskOutput(
            stage,
            TaskPosition(stage_no, task_no),
            task_id,
            Raw(outputs.get(task_id, "null").encode()),
            by_task[task_id],
        )
        for stage, stage_no, task_no, task_id, *_ in page
    ]
    return TaskOutputPage(task_outputs, task_outputs[-1].position if len(found) > len(page) else None)


def _take_until_full(found: Sequence[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Yield tasks until their outputs exceed the page size. The first task is always included."""
    size = 0
    for no, row in enumerate(found):
        size += row[-1]
        if no and size > _BYTES_MAX:
            return
        yield row
