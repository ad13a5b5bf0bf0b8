"""The parts of a job: input, runs, stages, tasks, attempts and outputs."""

import msgspec

from callsheet.api.jobs import JobInput, RunList
from callsheet.api.stages_and_tasks import (
    AttemptList,
    Output,
    OutputPage,
    OutputsQuery,
    Stage,
    StageList,
    TaskPage,
    TasksQuery,
)
from callsheet.core.model import rows
from callsheet.core.model.errors import NotFound
from callsheet.core.policy.visibility import Viewer
from callsheet.engine.reads.task_output_pages import TaskPosition, list_task_outputs
from callsheet.queries import render
from callsheet.queries.context import QueryContext
from callsheet.queries.jobs import find_job
from callsheet.queries.pages import decode_cursor, encode_cursor, row_count, split_page

_NAME_CHARS_MAX = 80


async def get_input(context: QueryContext, viewer: Viewer, job_id: str) -> JobInput:
    """Return the input of a job as it was submitted."""
    job = await find_job(context, viewer, job_id)
    documents = [rows.Document(*row) for row in await context.reads.lookup("documents", ids=[job.id])]
    bodies = (document.body for document in documents if document.name == "input")
    return JobInput(next((msgspec.Raw(body.encode()) for body in bodies), None))


async def list_runs(context: QueryContext, viewer: Viewer, job_id: str) -> RunList:
    """Return the newest runs of a job, oldest first."""
    job = await find_job(context, viewer, job_id)
    found = await context.reads.lookup("runs_of", id=job.id, most=context.settings.page_size_max)
    return RunList([render.run_view(rows.Run(*row), job) for row in reversed(found)])


async def list_stages(context: QueryContext, viewer: Viewer, job_id: str) -> StageList:
    """Return the stages of a job."""
    return StageList([render.stage_view(stage) for stage in await _stage_rows(context, viewer, job_id)])


async def get_stage(context: QueryContext, viewer: Viewer, job_id: str, stage: str) -> Stage:
    """Return a stage of a job, by its number or its name."""
    stages = await _stage_rows(context, viewer, job_id)
    by_number = [row for row in stages if str(row.no) == stage]
    matching = by_number or [row for row in stages if row.name == stage]
    if not matching:
        raise NotFound("stage", stage[:_NAME_CHARS_MAX])
    return render.stage_view(matching[0])


async def _stage_rows(context: QueryContext, viewer: Viewer, job_id: str) -> list[rows.Stage]:
    job = await find_job(context, viewer, job_id)
    return [rows.Stage(*row) for row in await context.reads.lookup("stages_of", id=job.id)]


async def list_tasks(context: QueryContext, viewer: Viewer, job_id: str, query: TasksQuery) -> TaskPage:
    """Return a page of the tasks of a job, in the order of stages and tasks."""
    count = row_count(context, query.limit)
    job = await find_job(context, viewer, job_id)
    after = _position(context, "tasks", job.id, query.cursor)
    found = await context.reads.scan("tasks_after", id=job.id, count=count, **after._asdict())
    page, more = split_page(found, query.limit)
    tasks = [rows.Task(*row[1:]) for row in page]
    last = TaskPosition(page[-1][0], tasks[-1].no) if more else None
    return TaskPage([render.task_view(task) for task in tasks], last and encode_cursor(context, "tasks", job.id, last))


async def list_attempts(context: QueryContext, viewer: Viewer, job_id: str, task_id: str) -> AttemptList:
    """Return the newest attempts of a task, oldest first."""
    job = await find_job(context, viewer, job_id)
    task, found = await context.reads.lookup_many([
        ("task_of_job", {"id": task_id, "job": job.id}),
        ("attempts_of", {"id": task_id, "most": context.settings.page_size_max}),
    ])  # fmt: skip
    if not task:
        raise NotFound("task", task_id[:_NAME_CHARS_MAX])
    return AttemptList([render.attempt_view(rows.Attempt(*row)) for row in reversed(found)])


async def list_outputs(context: QueryContext, viewer: Viewer, job_id: str, query: OutputsQuery) -> OutputPage:
    """Return a page of the outputs of a job, in the order of stages and tasks."""
    row_count(context, query.limit)
    job = await find_job(context, viewer, job_id)
    position = _position(context, "outputs", job.id, query.cursor)
    page = await list_task_outputs(context.reads, job.id, position, query.limit)
    outputs = [
        Output(
            task_output.stage, *task_output.position, task_output.task_id, task_output.output,
            [render.file_view(file) for file in task_output.files],
        )
        for task_output in page.task_outputs
    ]  # fmt: skip
    return OutputPage(outputs, page.next and encode_cursor(context, "outputs", job.id, page.next))


async def get_task(context: QueryContext, viewer: Viewer, job_id: str, task_id: str) -> rows.Task:
    """Return the row of a task."""
    job = await find_job(context, viewer, job_id)
    found = await context.reads.lookup("task_of_job", id=task_id, job=job.id)
    if not found:
        raise NotFound("task", task_id[:_NAME_CHARS_MAX])
    return rows.Task(*found[0])


def _position(context: QueryContext, list_name: str, job_id: str, cursor: str) -> TaskPosition:
    return decode_cursor(context, list_name, job_id, cursor, TaskPosition) if cursor else TaskPosition()
