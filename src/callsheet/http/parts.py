"""The parts of a job: runs, stages, tasks, attempts, outputs; approval and adding tasks."""

from typing import Any

import msgspec
from msgspec import Struct

from callsheet.core import commands, rows
from callsheet.core.recipe import StageSpec
from callsheet.http import views
from callsheet.http.auth import Who
from callsheet.http.codes import INPUT, NOTES, REFERENCES, STAGE, TEXT
from callsheet.http.house import House
from callsheet.http.jobs import job_row
from callsheet.http.made import Place, made_by
from callsheet.http.paging import cursor_of, limited, listed, paged, place_of
from callsheet.http.problem import absent
from callsheet.http.request import Request
from callsheet.http.route import READERS, WATCHERS, WRITERS, Answer, Route


class Asked(Struct, frozen=True):
    """What a job was asked to make."""

    input: Any


class Runs(Struct, frozen=True):
    """A job's runs, oldest first."""

    runs: list[views.Run]


class Stages(Struct, frozen=True):
    """A job's stages in order."""

    stages: list[views.Stage]


class TasksQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How many at once, and where to go on."""

    limit: int = 100
    cursor: str = ""


class Tasks(Struct, frozen=True):
    """A job's tasks in order, and where to go on."""

    tasks: list[views.Task]
    next: str | None


class Attempts(Struct, frozen=True):
    """A task's tries, oldest first."""

    attempts: list[views.Attempt]


class OutputsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How many at once, and where to go on."""

    limit: int = 50
    cursor: str = ""


class Outputs(Struct, frozen=True):
    """What completed tasks made, in order, and where to go on."""

    outputs: list[views.Output]
    next: str | None


class ApproveBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Who approves."""

    approver: str


class TasksBody(Struct, frozen=True, forbid_unknown_fields=True):
    """One input per task to add."""

    inputs: list[Any]


class StageBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A stage to add behind the others."""

    stage: StageSpec


class Added(Struct, frozen=True):
    """What was added."""

    stage_id: str
    stage_no: int
    task_ids: list[str]
    first_task_no: int


async def get_input(house: House, request: Request) -> Answer:
    job = await job_row(house, request)
    found = [rows.Document(*row) for row in await house.reads.fetch("documents", ids=[job.id])]
    return Answer(Asked(next((msgspec.Raw(one.body.encode()) for one in found if one.name == "input"), None)))


async def list_runs(house: House, request: Request) -> Answer:
    job = await job_row(house, request)
    found = await house.reads.fetch("runs_of", id=job.id)
    return Answer(Runs([views.run_view(rows.Run(*row), job) for row in found]))


async def list_stages(house: House, request: Request) -> Answer:
    return Answer(Stages([views.stage_view(stage) for stage in await _stages(house, request)]))


async def list_tasks(house: House, request: Request) -> Answer:
    query = listed(house, request, TasksQuery)
    count = limited(house, query.limit)
    job = await job_row(house, request)
    after = _place(house, "tasks", job.id, query.cursor)
    found = await house.scans.fetch("tasks_after", id=job.id, count=count, **after._asdict())
    page, more = paged(found, query.limit)
    tasks = [rows.Task(*row[1:]) for row in page]
    last = Place(page[-1][0], tasks[-1].no) if more else None
    return Answer(Tasks([views.task_view(task) for task in tasks], last and cursor_of(house, "tasks", job.id, last)))


async def list_attempts(house: House, request: Request) -> Answer:
    job = await job_row(house, request)
    task_id = request.params["task_id"]
    task, found = await house.reads.fetch_all([
        ("task_of_job", {"id": task_id, "job": job.id}), ("attempts_of", {"id": task_id}),
    ])  # fmt: skip
    if not task:
        raise absent("task")
    return Answer(Attempts([views.attempt_view(rows.Attempt(*row)) for row in found]))


async def list_outputs(house: House, request: Request) -> Answer:
    query = listed(house, request, OutputsQuery)
    limited(house, query.limit)
    job = await job_row(house, request)
    page = await made_by(house.reads, job.id, _place(house, "outputs", job.id, query.cursor), query.limit)
    outputs = [
        views.Output(
            one.stage, one.place.stage_no, one.place.task_no, one.task_id, one.output,
            [views.file_view(file) for file in one.files],
        )
        for one in page.made
    ]  # fmt: skip
    return Answer(Outputs(outputs, page.next and cursor_of(house, "outputs", job.id, page.next)))


async def approve_stage(house: House, request: Request) -> Answer:
    body: ApproveBody = request.content
    stage = await _stage(house, request)
    await house.engine.aexecute(_about(commands.Approve, request, stage_id=stage.id, approver=body.approver))
    return Answer(views.stage_view(await _stage(house, request)))


async def add_tasks(house: House, request: Request) -> Answer:
    body: TasksBody = request.content
    stage = await _stage(house, request)
    added: commands.Added = await house.engine.aexecute(
        _about(commands.AddTasks, request, stage_id=stage.id, inputs=body.inputs)
    )
    return Answer(Added(added.stage_id, added.stage_no, added.task_ids, added.first_task_no), 201)


async def add_stage(house: House, request: Request) -> Answer:
    body: StageBody = request.content
    added: commands.Added = await house.engine.aexecute(_about(commands.AddStage, request, stage=body.stage))
    return Answer(Added(added.stage_id, added.stage_no, added.task_ids, added.first_task_no), 201)


def _place(house: House, what: str, job_id: str, cursor: str) -> Place:
    return place_of(house, what, job_id, cursor, Place) if cursor else Place()


def _about(command: Any, request: Request, **more: Any) -> commands.Command:
    who: Who = request.who
    made: commands.Command = command(
        tenant=who.tenant, job_id=request.params["job_id"], actor=who.actor, by=who.id, **more
    )
    return made


async def _stages(house: House, request: Request) -> list[rows.Stage]:
    job = await job_row(house, request)
    return [rows.Stage(*row) for row in await house.reads.fetch("stages_of", id=job.id)]


async def _stage(house: House, request: Request) -> rows.Stage:
    wanted = request.params["stage_no"]
    stages = await _stages(house, request)
    for stage in (*(one for one in stages if str(one.no) == wanted), *(one for one in stages if one.name == wanted)):
        return stage
    raise absent("stage")


_JOB, _STAGE = "404 job_not_found", "404 stage_not_found"
ROUTES = (
    Route("GET", "/v1/jobs/{job_id}/input", get_input, WATCHERS, "Get a job's input", Asked,
          problems=(_JOB,), details="The input as it was submitted; null if there was none."),
    Route("GET", "/v1/jobs/{job_id}/runs", list_runs, WATCHERS, "List a job's runs and their money", Runs,
          problems=(_JOB,)),
    Route("GET", "/v1/jobs/{job_id}/stages", list_stages, WATCHERS, "List a job's stages", Stages, problems=(_JOB,)),
    Route("GET", "/v1/jobs/{job_id}/tasks", list_tasks, WATCHERS, "List a job's tasks", Tasks,
          query=TasksQuery, problems=(_JOB, "422 invalid_cursor")),
    Route("GET", "/v1/jobs/{job_id}/tasks/{task_id}/attempts", list_attempts, READERS, "List a task's tries", Attempts,
          problems=(_JOB, "404 task_not_found")),
    Route("GET", "/v1/jobs/{job_id}/outputs", list_outputs, WATCHERS, "List a job's outputs: what its tasks made",
          Outputs, query=OutputsQuery, problems=(_JOB, "422 invalid_cursor"),
          details="In the order of stages and tasks. A page ends at `limit` tasks, and before some 4 MiB of output."),
    Route("POST", "/v1/jobs/{job_id}/stages/{stage_no}/approve", approve_stage, WRITERS,
          "Approve a waiting stage", views.Stage, ApproveBody,
          problems=(_JOB, _STAGE, "409 illegal_transition", "409 previous_stage_open", "422 approver_required", *TEXT),
          details="A stage is named by its number or its name."),
    Route("POST", "/v1/jobs/{job_id}/stages/{stage_no}/tasks", add_tasks, WRITERS,
          "Add tasks to a stage that has not ended", Added, TasksBody, status=201,
          problems=(_JOB, _STAGE, "409 stage_ended", "409 priced_stages", "422 too_many_tasks", "422 invalid_input",
                    *INPUT, *REFERENCES)),
    Route("POST", "/v1/jobs/{job_id}/stages", add_stage, WRITERS, "Add a stage to an unfinished job", Added,
          StageBody, status=201,
          problems=(_JOB, "409 job_ended", "409 too_many_queues", "422 inline_stages", *STAGE, *INPUT, *NOTES,
                    *REFERENCES)),
)  # fmt: skip
