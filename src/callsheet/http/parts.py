"""The parts of a job: runs, stages, tasks, attempts, outputs, files; approval and adding tasks."""

import asyncio
from collections import defaultdict
from typing import Any

from msgspec import Raw, Struct

from callsheet.blobs.local import Place
from callsheet.core import commands, rows
from callsheet.core.recipe import StageSpec
from callsheet.http import views
from callsheet.http.auth import Who
from callsheet.http.codes import INPUT, NOTES, STAGE, TEXT
from callsheet.http.house import House
from callsheet.http.jobs import job_row
from callsheet.http.problem import absent
from callsheet.http.request import Request
from callsheet.http.route import READERS, WATCHERS, WRITERS, Answer, Route

_SHOWN = {"image/png", "image/jpeg", "image/webp", "audio/wav", "audio/mpeg", "video/mp4", "video/webm"}
"""What a browser may show from here; anything else is handed over as a download."""


class Runs(Struct, frozen=True):
    """A job's runs, oldest first."""

    runs: list[views.Run]


class Stages(Struct, frozen=True):
    """A job's stages in order."""

    stages: list[views.Stage]


class Tasks(Struct, frozen=True):
    """A job's tasks in order."""

    tasks: list[views.Task]


class Attempts(Struct, frozen=True):
    """A task's tries, oldest first."""

    attempts: list[views.Attempt]


class Outputs(Struct, frozen=True):
    """What completed tasks made, in order."""

    outputs: list[views.Output]


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


async def list_runs(house: House, request: Request) -> Answer:
    job = await job_row(house, request)
    found = await house.reads.fetch("runs_of", id=job.id)
    return Answer(Runs([views.run_view(rows.Run(*row)) for row in found]))


async def list_stages(house: House, request: Request) -> Answer:
    return Answer(Stages([views.stage_view(stage) for stage in await _stages(house, request)]))


async def list_tasks(house: House, request: Request) -> Answer:
    job = await job_row(house, request)
    found = await house.reads.fetch("tasks_of_job", id=job.id)
    return Answer(Tasks([views.task_view(rows.Task(*row)) for row in found]))


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
    job = await job_row(house, request)
    of_job = {"id": job.id}
    stages, tasks, documents, files = await house.reads.fetch_all([
        ("stages_of", of_job), ("tasks_of_job", of_job), ("documents_of", of_job), ("files_of", of_job),
    ])  # fmt: skip
    by_task: dict[tuple[str, int], list[views.File]] = defaultdict(list)
    for file in (rows.File(*row) for row in files):
        by_task[file.task_id, file.attempt].append(views.file_view(file))
    bodies = {(row[0], row[1]): row[3] for row in documents}
    stage_of = {row[0]: rows.Stage(*row) for row in stages}
    return Answer(Outputs([
        views.Output(
            stage_of[task.stage_id].name, stage_of[task.stage_id].no, task.no, task.id,
            Raw(bodies.get((task.id, f"output:{task.attempts}"), "null").encode()), by_task[task.id, task.attempts],
        )
        for task in (rows.Task(*row) for row in tasks) if task.status == "completed"
    ]))  # fmt: skip


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


async def get_file(house: House, request: Request) -> Answer:
    who: Who = request.who
    found = await house.reads.fetch("file_of_tenant", id=request.params["file_id"], tenant=who.tenant)
    if not found:
        raise absent("file")
    file = rows.File(*found[0])
    request.params["job_id"] = file.job_id
    await job_row(house, request)
    try:
        body = await asyncio.to_thread(_bytes, house, file)
    except FileNotFoundError:
        raise absent("file") from None
    return Answer(body, 200, _file_headers(file), file.media_type if file.media_type in _SHOWN else _PLAIN)


async def get_preview(house: House, request: Request) -> Answer:
    job = await job_row(house, request)
    found = await house.reads.fetch("task_of_job", id=request.params["task_id"], job=job.id)
    if not found:
        raise absent("task")
    task = rows.Task(*found[0])
    try:
        body = await asyncio.to_thread(_preview, house, task)
    except FileNotFoundError:
        raise absent("preview") from None
    return Answer(body, 200, (("content-security-policy", "sandbox"),), "image/png")


_PLAIN = "application/octet-stream"


def _file_headers(file: rows.File) -> tuple[tuple[str, str], ...]:
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in file.name if c.isascii()) or "file"
    how = "inline" if file.media_type in _SHOWN else "attachment"
    return (
        ("content-disposition", f'{how}; filename="{name}"'),
        ("content-security-policy", "sandbox; default-src 'none'"),
        ("etag", f'"{file.sha256}"'),
    )


def _bytes(house: House, file: rows.File) -> bytes:
    with house.blobs.open(Place(file.tenant, file.job_id, file.task_id, file.attempt, f"{file.no}")) as blob:
        return blob.read()


def _preview(house: House, task: rows.Task) -> bytes:
    with house.blobs.open(Place(task.tenant, task.job_id, task.id, task.attempts, "preview")) as blob:
        return blob.read()


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
    for stage in await _stages(house, request):
        if wanted in {str(stage.no), stage.name}:
            return stage
    raise absent("stage")


_JOB, _STAGE = "404 job_not_found", "404 stage_not_found"
ROUTES = (
    Route("GET", "/v1/jobs/{job_id}/runs", list_runs, WATCHERS, "A job's runs and their money", Runs,
          problems=(_JOB,)),
    Route("GET", "/v1/jobs/{job_id}/stages", list_stages, WATCHERS, "A job's stages", Stages, problems=(_JOB,)),
    Route("GET", "/v1/jobs/{job_id}/tasks", list_tasks, WATCHERS, "A job's tasks", Tasks, problems=(_JOB,)),
    Route("GET", "/v1/jobs/{job_id}/tasks/{task_id}/attempts", list_attempts, READERS, "A task's tries", Attempts,
          problems=(_JOB, "404 task_not_found")),
    Route("GET", "/v1/jobs/{job_id}/tasks/{task_id}/preview", get_preview, WATCHERS,
          "The newest preview picture of a running task", media_type="image/png",
          problems=(_JOB, "404 task_not_found", "404 preview_not_found")),
    Route("GET", "/v1/jobs/{job_id}/outputs", list_outputs, WATCHERS, "What a job's tasks made", Outputs,
          problems=(_JOB,)),
    Route("GET", "/v1/files/{file_id}", get_file, WATCHERS, "Download a file",
          media_type=", ".join([_PLAIN, *sorted(_SHOWN)]),
          problems=("404 file_not_found", _JOB), sets=("Content-Disposition", "ETag"), token_in_query=True),
    Route("POST", "/v1/jobs/{job_id}/stages/{stage_no}/approve", approve_stage, WRITERS,
          "Let a waiting stage go on", views.Stage, ApproveBody,
          problems=(_JOB, _STAGE, "409 illegal_transition", "409 previous_stage_open", "422 approver_required", *TEXT),
          details="A stage is named by its number or its name."),
    Route("POST", "/v1/jobs/{job_id}/stages/{stage_no}/tasks", add_tasks, WRITERS,
          "Add tasks to a stage that has not ended", Added, TasksBody, status=201,
          problems=(_JOB, _STAGE, "409 stage_ended", "422 too_many_tasks", *INPUT)),
    Route("POST", "/v1/jobs/{job_id}/stages", add_stage, WRITERS, "Add a stage to an unfinished job", Added,
          StageBody, status=201, problems=(_JOB, "409 job_ended", *STAGE, *INPUT, *NOTES)),
)  # fmt: skip
