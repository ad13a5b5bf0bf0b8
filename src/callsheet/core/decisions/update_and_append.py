"""Changes to a submitted job: its priority and annotations, appended stages, appended tasks.

Only a job that has not ended takes more stages or tasks. Annotations can change at any time.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.decisions.cascade import cascade, definition_of, open_tasks, stages
from callsheet.core.decisions.job_actions import get_job, get_stage, job_state
from callsheet.core.decisions.submit import Slot, check_inline_allowed
from callsheet.core.decisions.submit import add_stage as plan_stage
from callsheet.core.decisions.submit import add_tasks as plan_tasks
from callsheet.core.model.commands import AddedTasks, AddStage, AddTasks, JobState, Update
from callsheet.core.model.errors import BadInput, Conflict, NotFound
from callsheet.core.model.ids import child_id
from callsheet.core.model.plural import pluralize
from callsheet.core.model.rows import Job, Stage, Task
from callsheet.core.model.state_machines import STAGE
from callsheet.core.model.workflow_definition import check_range, check_stages
from callsheet.core.policy.fair_order import queue_task
from callsheet.core.policy.request_validation import check_annotations, encode_or_none
from callsheet.core.working_set import WorkingSet


def update(ws: WorkingSet, command: Update) -> JobState:
    """Change a job, or one of its stages or tasks."""
    job = get_job(ws, command)
    check_annotations(command.labels, command.metadata, command.trace, ws.limits)
    annotations: dict[str, Any] = {
        name: encode_or_none(value)
        for name in ("labels", "metadata", "trace")
        if (value := getattr(command, name)) is not None
    }
    target = _target(ws, job, command)
    if annotations:
        ws.put(replace(target, **annotations))
    if command.priority is not None:
        if target is not job:
            raise BadInput(
                "priority_of_part", "Priority cannot be set on a stage or task: set it on the job as a whole."
            )
        check_range("priority", command.priority, 0, ws.limits.priority_max)
        _reprioritise(ws, ws.get(Job, job.id), command.priority)
    if not annotations and command.priority is None:
        return job_state(ws, job, changed=False)
    entity = None if target is job else target.id
    fields = sorted([*annotations, *_changed_fields(command)])
    ws.emit(job, "job.changed", command.actor, {"fields": fields}, entity_id=entity)
    return job_state(ws, job)


def _changed_fields(command: Update) -> list[str]:
    return [] if command.priority is None else ["priority"]


def _target(ws: WorkingSet, job: Job, command: Update) -> Job | Stage | Task:
    if command.task_id is not None:
        task = ws.find(Task, command.task_id)
        if task is None or task.job_id != job.id:
            raise NotFound("task", command.task_id[:80])
        return task
    return job if command.stage_id is None else get_stage(ws, job, command.stage_id)


def _reprioritise(ws: WorkingSet, job: Job, priority: int) -> None:
    if job.finished_at is not None:
        raise Conflict("job_ended", f"The job is {job.status}. Only a job that has not ended can change its priority.")
    ws.put(replace(job, priority=priority))
    for stage in stages(ws, job):
        for task in open_tasks(ws, stage) if stage.status not in STAGE.terminal else []:
            ws.leave_queue(task)
            moved = replace(task, priority=priority)
            ws.put(queue_task(ws, moved) if task.ready else moved)


def add_stage(ws: WorkingSet, command: AddStage) -> AddedTasks:
    """Append a stage to a job that has not ended."""
    job = get_job(ws, command)
    stage_ids = ws.get_fact(facts.STAGES_OF_JOB, job.id)
    if ws.retrying and command.id in stage_ids:
        return _added_tasks(ws, ws.get(Stage, command.id), ws.get_fact(facts.TASKS_OF_STAGE, command.id))
    if job.finished_at is not None:
        raise Conflict("job_ended", f"The job is {job.status}. Only a job that has not ended can get another stage.")
    if job.stages_total >= ws.limits.stages_per_job_max:
        most = ws.limits.stages_per_job_max
        raise BadInput("too_many_stages", f"The job has {job.stages_total} stages; at most {most} are allowed.")
    check_inline_allowed(definition_of(ws, job))
    check_stages([command.stage], ws.limits)
    check_annotations(command.stage.labels, command.stage.metadata, command.stage.trace, ws.limits)
    no = job.stages_total + 1
    job = replace(job, stages_total=no)
    ws.put(job)
    ws.set_fact(facts.STAGES_OF_JOB, job.id, [*stage_ids, command.id])
    stage = plan_stage(ws, job, definition_of(ws, job), command.stage, Slot(no, command.id))
    ws.emit(job, "stage.added", command.actor, {"stage_no": no}, entity_id=stage.id, target="created")
    cascade(ws, job.id)
    return _added_tasks(ws, stage, ws.get_fact(facts.OPEN_TASKS_OF_STAGE, stage.id))


def add_tasks(ws: WorkingSet, command: AddTasks) -> AddedTasks:
    """Append tasks to a stage that has not ended: all of them, or none."""
    job = get_job(ws, command)
    stage = get_stage(ws, job, command.stage_id)
    keys = [child_id(command.id, n) for n in range(1, len(command.inputs) + 1)]
    if ws.retrying and keys and ws.find(Task, keys[0]) is not None:
        return _added_tasks(ws, stage, keys)
    if job.finished_at is not None or stage.status in STAGE.terminal:
        message = f"The stage is {stage.status} and the job is {job.status}. Add tasks before the stage ends."
        raise Conflict("stage_ended", message)
    if job.price and not definition_of(ws, job).inline:
        message = (
            f"The price of workflow {job.workflow!r} covers only its own tasks, so no tasks can be added. "
            "Submit another job."
        )
        raise Conflict("price_is_fixed", message)
    remaining = ws.limits.tasks_per_stage_max - stage.tasks_total
    if not 1 <= len(command.inputs) <= remaining:
        message = f"The request adds {pluralize(len(command.inputs), 'task')}; send from 1 to {remaining}."
        raise BadInput("too_many_tasks", message)
    first = stage.tasks_total + 1
    plan_tasks(ws, job, definition_of(ws, job), stage, command.inputs, keys)
    ws.emit(job, "stage.extended", command.actor, {"first_task_no": first, "tasks": len(keys)}, entity_id=stage.id)
    return AddedTasks(stage.id, stage.no, keys, first)


def _added_tasks(ws: WorkingSet, stage: Stage, keys: Sequence[str]) -> AddedTasks:
    first = ws.get(Task, keys[0]).no if keys else stage.tasks_total + 1
    return AddedTasks(stage.id, stage.no, list(keys), first)
