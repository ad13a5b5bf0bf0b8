"""The parts of a job: runs, stages, tasks, attempts, outputs; approval and adding tasks."""

from typing import Any

import msgspec

from callsheet.api.jobs import JobInput, RunList
from callsheet.api.stages import (
    AddedTasks,
    ApproveBody,
    AttemptList,
    Output,
    OutputPage,
    OutputsQuery,
    Stage,
    StageBody,
    StageList,
    TaskPage,
    TasksBody,
    TasksQuery,
)
from callsheet.core.model import commands, rows
from callsheet.engine.reads.task_outputs import TaskPosition, list_task_outputs
from callsheet.http.auth.authenticator import Caller
from callsheet.http.openapi.error_codes import INPUT, NOTES, REFERENCES, STAGE, TEXT
from callsheet.http.routes.jobs import job_row
from callsheet.http.server.pagination import decode_cursor, encode_cursor, parse_list_query, row_count, split_page
from callsheet.http.server.problems import not_found
from callsheet.http.server.request import Request
from callsheet.http.server.router import READERS, READERS_AND_USERS, WRITERS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import render


async def get_input(state: AppState, request: Request) -> Response:
    job = await job_row(state, request)
    found = [rows.Document(*row) for row in await state.reads.lookup("documents", ids=[job.id])]
    return Response(JobInput(next((msgspec.Raw(one.body.encode()) for one in found if one.name == "input"), None)))


async def list_runs(state: AppState, request: Request) -> Response:
    job = await job_row(state, request)
    found = await state.reads.lookup("runs_of", id=job.id)
    return Response(RunList([render.run_view(rows.Run(*row), job) for row in found]))


async def list_stages(state: AppState, request: Request) -> Response:
    return Response(StageList([render.stage_view(stage) for stage in await _list_stages(state, request)]))


async def list_tasks(state: AppState, request: Request) -> Response:
    query = parse_list_query(state, request, TasksQuery)
    count = row_count(state, query.limit)
    job = await job_row(state, request)
    after = _position(state, "tasks", job.id, query.cursor)
    found = await state.reads.scan("tasks_after", id=job.id, count=count, **after._asdict())
    page, more = split_page(found, query.limit)
    tasks = [rows.Task(*row[1:]) for row in page]
    last = TaskPosition(page[-1][0], tasks[-1].no) if more else None
    return Response(
        TaskPage([render.task_view(task) for task in tasks], last and encode_cursor(state, "tasks", job.id, last))
    )


async def list_attempts(state: AppState, request: Request) -> Response:
    job = await job_row(state, request)
    task_id = request.params["task_id"]
    task, found = await state.reads.lookup_many([
        ("task_of_job", {"id": task_id, "job": job.id}), ("attempts_of", {"id": task_id}),
    ])  # fmt: skip
    if not task:
        raise not_found("task")
    return Response(AttemptList([render.attempt_view(rows.Attempt(*row)) for row in found]))


async def list_outputs(state: AppState, request: Request) -> Response:
    query = parse_list_query(state, request, OutputsQuery)
    row_count(state, query.limit)
    job = await job_row(state, request)
    page = await list_task_outputs(state.reads, job.id, _position(state, "outputs", job.id, query.cursor), query.limit)
    outputs = [
        Output(
            one.stage, one.position.stage_no, one.position.task_no, one.task_id, one.output,
            [render.file_view(file) for file in one.files],
        )
        for one in page.task_outputs
    ]  # fmt: skip
    return Response(OutputPage(outputs, page.next and encode_cursor(state, "outputs", job.id, page.next)))


async def approve_stage(state: AppState, request: Request) -> Response:
    body: ApproveBody = request.content
    stage = await _find_stage(state, request)
    await state.engine.aexecute(_build_command(commands.Approve, request, stage_id=stage.id, approver=body.approver))
    return Response(render.stage_view(await _find_stage(state, request)))


async def add_tasks(state: AppState, request: Request) -> Response:
    body: TasksBody = request.content
    stage = await _find_stage(state, request)
    added: commands.AddedTasks = await state.engine.aexecute(
        _build_command(commands.AddTasks, request, stage_id=stage.id, inputs=body.inputs)
    )
    return Response(AddedTasks(added.stage_id, added.stage_no, added.task_ids, added.first_task_no), 201)


async def add_stage(state: AppState, request: Request) -> Response:
    body: StageBody = request.content
    added: commands.AddedTasks = await state.engine.aexecute(
        _build_command(commands.AddStage, request, stage=body.stage)
    )
    return Response(AddedTasks(added.stage_id, added.stage_no, added.task_ids, added.first_task_no), 201)


def _position(state: AppState, what: str, job_id: str, cursor: str) -> TaskPosition:
    return decode_cursor(state, what, job_id, cursor, TaskPosition) if cursor else TaskPosition()


def _build_command(command: Any, request: Request, **more: Any) -> commands.Command:
    caller: Caller = request.caller
    built: commands.Command = command(
        tenant=caller.tenant, job_id=request.params["job_id"], actor=caller.actor, by=caller.id, **more
    )
    return built


async def _list_stages(state: AppState, request: Request) -> list[rows.Stage]:
    job = await job_row(state, request)
    return [rows.Stage(*row) for row in await state.reads.lookup("stages_of", id=job.id)]


async def _find_stage(state: AppState, request: Request) -> rows.Stage:
    wanted = request.params["stage_no"]
    stages = await _list_stages(state, request)
    for stage in (*(one for one in stages if str(one.no) == wanted), *(one for one in stages if one.name == wanted)):
        return stage
    raise not_found("stage")


_JOB, _STAGE = "404 job_not_found", "404 stage_not_found"
ROUTES = (
    Route("GET", "/v1/jobs/{job_id}/input", get_input, READERS_AND_USERS, "Get a job's input", JobInput,
          problems=(_JOB,), details="The input as it was submitted; null if there was none."),
    Route("GET", "/v1/jobs/{job_id}/runs", list_runs, READERS_AND_USERS, "List a job's runs and their money", RunList,
          problems=(_JOB,)),
    Route("GET", "/v1/jobs/{job_id}/stages", list_stages, READERS_AND_USERS, "List a job's stages", StageList,
        problems=(_JOB,)),
    Route("GET", "/v1/jobs/{job_id}/tasks", list_tasks, READERS_AND_USERS, "List a job's tasks", TaskPage,
          query=TasksQuery, problems=(_JOB, "422 invalid_cursor")),
    Route("GET", "/v1/jobs/{job_id}/tasks/{task_id}/attempts", list_attempts, READERS, "List a task's tries",
        AttemptList,
          problems=(_JOB, "404 task_not_found")),
    Route("GET", "/v1/jobs/{job_id}/outputs", list_outputs, READERS_AND_USERS,
        "List a job's outputs: what its tasks made",
          OutputPage, query=OutputsQuery, problems=(_JOB, "422 invalid_cursor"),
          details="In the order of stages and tasks. A page ends at `limit` tasks, and before some 4 MiB of output."),
    Route("POST", "/v1/jobs/{job_id}/stages/{stage_no}/approve", approve_stage, WRITERS,
          "Approve a waiting stage", Stage, ApproveBody,
          problems=(_JOB, _STAGE, "409 illegal_transition", "409 previous_stage_open", "422 approver_required", *TEXT),
          details="A stage is named by its number or its name."),
    Route("POST", "/v1/jobs/{job_id}/stages/{stage_no}/tasks", add_tasks, WRITERS,
          "Add tasks to a stage that has not ended", AddedTasks, TasksBody, status=201,
          problems=(_JOB, _STAGE, "409 stage_ended", "409 price_is_fixed", "422 too_many_tasks", "422 invalid_input",
                    *INPUT, *REFERENCES)),
    Route("POST", "/v1/jobs/{job_id}/stages", add_stage, WRITERS, "Add a stage to an unfinished job", AddedTasks,
          StageBody, status=201,
          problems=(_JOB, "409 job_ended", "409 too_many_queues", "422 stages_not_allowed", *STAGE, *INPUT, *NOTES,
                    *REFERENCES)),
)  # fmt: skip
