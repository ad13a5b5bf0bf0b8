"""Routes for a job's input, runs, stages, tasks, attempts and outputs, and to approve and add stages."""

from typing import Any

from callsheet.api.jobs import JobInput, RunList
from callsheet.api.stages_and_tasks import (
    AddedTasks,
    ApproveBody,
    AttemptList,
    OutputPage,
    OutputsQuery,
    Stage,
    StageBody,
    StageList,
    TaskPage,
    TasksBody,
    TasksQuery,
)
from callsheet.core.model import commands
from callsheet.http.auth.authenticator import Caller
from callsheet.http.openapi.error_codes import INPUT, NOTES, REFERENCES, STAGE, TEXT
from callsheet.http.server.list_query import parse_list_query
from callsheet.http.server.request import Request
from callsheet.http.server.route import READERS, READERS_AND_USERS, WRITERS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import job_parts


async def get_input(state: AppState, request: Request) -> Response:
    return Response(await job_parts.get_input(state.queries, request.caller, request.params["job_id"]))


async def list_runs(state: AppState, request: Request) -> Response:
    return Response(await job_parts.list_runs(state.queries, request.caller, request.params["job_id"]))


async def list_stages(state: AppState, request: Request) -> Response:
    return Response(await job_parts.list_stages(state.queries, request.caller, request.params["job_id"]))


async def list_tasks(state: AppState, request: Request) -> Response:
    query = parse_list_query(state, request, TasksQuery)
    return Response(await job_parts.list_tasks(state.queries, request.caller, request.params["job_id"], query))


async def list_attempts(state: AppState, request: Request) -> Response:
    job_id, task_id = request.params["job_id"], request.params["task_id"]
    return Response(await job_parts.list_attempts(state.queries, request.caller, job_id, task_id))


async def list_outputs(state: AppState, request: Request) -> Response:
    query = parse_list_query(state, request, OutputsQuery)
    return Response(await job_parts.list_outputs(state.queries, request.caller, request.params["job_id"], query))


async def approve_stage(state: AppState, request: Request) -> Response:
    body: ApproveBody = request.content
    stage = await _find_stage(state, request)
    await state.engine.aexecute(_build_command(commands.Approve, request, stage_id=stage.id, approver=body.approver))
    return Response(await _find_stage(state, request))


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


def _build_command(command: Any, request: Request, **fields: Any) -> commands.Command:
    caller: Caller = request.caller
    built: commands.Command = command(
        tenant=caller.tenant, job_id=request.params["job_id"], actor=caller.actor, requested_by=caller.id, **fields
    )
    return built


async def _find_stage(state: AppState, request: Request) -> Stage:
    job_id, stage = request.params["job_id"], request.params["stage_no"]
    return await job_parts.get_stage(state.queries, request.caller, job_id, stage)


_JOB, _STAGE = "404 job_not_found", "404 stage_not_found"
ROUTES = (
    Route("GET", "/v1/jobs/{job_id}/input", get_input, READERS_AND_USERS, "Get a job's input", JobInput,
          problems=(_JOB,), details="Returns the input as it was submitted, or null if there was none."),
    Route("GET", "/v1/jobs/{job_id}/runs", list_runs, READERS_AND_USERS, "List a job's runs", RunList,
          problems=(_JOB,), details="Oldest first. Each run has its price and the consumed and refunded credits."),
    Route("GET", "/v1/jobs/{job_id}/stages", list_stages, READERS_AND_USERS, "List a job's stages", StageList,
          problems=(_JOB,), details="In the order in which they run."),
    Route("GET", "/v1/jobs/{job_id}/tasks", list_tasks, READERS_AND_USERS, "List a job's tasks", TaskPage,
          query=TasksQuery, problems=(_JOB, "422 invalid_cursor"), details="In the order of stages and tasks."),
    Route("GET", "/v1/jobs/{job_id}/tasks/{task_id}/attempts", list_attempts, READERS, "List a task's attempts",
          AttemptList, problems=(_JOB, "404 task_not_found"),
          details="Oldest first, over all runs of the job. Each claim of the task is an attempt."),
    Route("GET", "/v1/jobs/{job_id}/outputs", list_outputs, READERS_AND_USERS,
        "List a job's outputs", OutputPage, query=OutputsQuery, problems=(_JOB, "422 invalid_cursor"),
          details="Returns the outputs and files of completed tasks, in the order of stages and tasks. A page ends "
          "after `limit` tasks, or earlier after about 4 MiB of output."),
    Route("POST", "/v1/jobs/{job_id}/stages/{stage_no}/approve", approve_stage, WRITERS,
          "Approve a stage", Stage, ApproveBody,
          problems=(_JOB, _STAGE, "409 illegal_transition", "409 previous_stage_open", "422 approver_required", *TEXT),
          details="A stage with `approval` waits until a person approves it; then workers get its tasks. Approving "
          "it again has no effect."),
    Route("POST", "/v1/jobs/{job_id}/stages/{stage_no}/tasks", add_tasks, WRITERS,
          "Add tasks to a stage", AddedTasks, TasksBody, status=201,
          problems=(_JOB, _STAGE, "409 stage_ended", "409 price_is_fixed", "422 too_many_tasks", "422 invalid_input",
                    *INPUT, *REFERENCES),
          details="Adds one task per input to a stage that has not ended. If the job has a price, its workflow must "
          "have `inline = true`."),
    Route("POST", "/v1/jobs/{job_id}/stages", add_stage, WRITERS, "Add a stage to a job", AddedTasks,
          StageBody, status=201,
          problems=(_JOB, "409 job_ended", "409 too_many_queues", "422 stages_not_allowed", *STAGE, *INPUT, *NOTES,
                    *REFERENCES),
          details="Adds a stage after the existing ones to a job that has not ended. Its workflow must have "
          "`inline = true`."),
)  # fmt: skip
