"""What may change while a job lives: priority and notes; more stages at its end, more tasks in an open stage."""

from typing import Any

from msgspec.structs import replace

from callsheet.core.cascade import cascade, open_tasks, recipe_of, stages
from callsheet.core.commands import Added, AddStage, AddTasks, Change, JobState
from callsheet.core.counting import counted
from callsheet.core.errors import BadInput, Conflict, Unknown
from callsheet.core.ids import child
from callsheet.core.life import job_of, stage_of, state
from callsheet.core.machine import STAGE
from callsheet.core.order import next_rank
from callsheet.core.recipe import check_stages, in_range
from callsheet.core.rows import Job, Stage, Task
from callsheet.core.submit import Slot, check_notes, text_or_none
from callsheet.core.submit import add_stage as plan_stage
from callsheet.core.submit import add_tasks as plan_tasks
from callsheet.core.working import WorkingSet


def change(ws: WorkingSet, command: Change) -> JobState:
    """Change a job, or one of its stages or tasks."""
    job = job_of(ws, command)
    check_notes(command.labels, command.metadata, command.trace, ws.limits)
    notes: dict[str, Any] = {
        name: text_or_none(value)
        for name in ("labels", "metadata", "trace")
        if (value := getattr(command, name)) is not None
    }
    target = _target(ws, job, command)
    if notes:
        ws.put(replace(target, **notes))
    if command.priority is not None:
        if target is not job:
            raise BadInput("priority_of_part", "Priority belongs to the job as a whole.")
        in_range("priority", command.priority, 0, ws.limits.priority_max)
        _reprioritise(ws, ws.get(Job, job.id), command.priority)
    if not notes and command.priority is None:
        return state(ws, job, changed=False)
    entity = None if target is job else target.id
    fields = sorted([*notes, *_named(command)])
    ws.emit(job, "job.changed", command.actor, {"fields": fields}, entity_id=entity)
    return state(ws, job)


def _named(command: Change) -> list[str]:
    return [] if command.priority is None else ["priority"]


def _target(ws: WorkingSet, job: Job, command: Change) -> Job | Stage | Task:
    if command.task_id is not None:
        task = ws.find(Task, command.task_id)
        if task is None or task.job_id != job.id:
            raise Unknown("task", command.task_id[:80])
        return task
    return job if command.stage_id is None else stage_of(ws, job, command.stage_id)


def _reprioritise(ws: WorkingSet, job: Job, priority: int) -> None:
    if job.finished_at is not None:
        raise Conflict("job_ended", f"The job is {job.status}: its priority no longer matters.")
    ws.put(replace(job, priority=priority))
    for stage in stages(ws, job):
        for task in open_tasks(ws, stage) if stage.status not in STAGE.terminal else []:
            rank = next_rank(ws, task.queue, priority, task.tenant) if task.ready else task.rank
            ws.put(replace(task, priority=priority, rank=rank))


def add_stage(ws: WorkingSet, command: AddStage) -> Added:
    """Append a stage to an unfinished job; its number follows the last one."""
    job = job_of(ws, command)
    known = ws.fact("stages", job.id)
    if ws.again and command.id in known:
        return _added(ws, ws.get(Stage, command.id), ws.fact("tasks", command.id))
    if job.finished_at is not None:
        raise Conflict("job_ended", f"The job is {job.status}: it takes no more stages.")
    if job.stages_total >= ws.limits.stages_per_job_max:
        raise BadInput("too_many_stages", f"A job has at most {ws.limits.stages_per_job_max} stages.")
    if not recipe_of(ws, job).inline:
        raise BadInput("inline_stages", f"Workflow {job.workflow!r} brings its own stages; it takes none inline.")
    check_stages([command.stage], ws.limits)
    check_notes(command.stage.labels, command.stage.metadata, command.stage.trace, ws.limits)
    no = job.stages_total + 1
    job = replace(job, stages_total=no)
    ws.put(job)
    ws.set_fact("stages", job.id, [*known, command.id])
    stage = plan_stage(ws, job, recipe_of(ws, job), command.stage, Slot(no, command.id))
    ws.emit(job, "stage.added", command.actor, {"stage_no": no}, entity_id=stage.id, target="created")
    cascade(ws, job.id)
    return _added(ws, stage, ws.fact("open_tasks", stage.id))


def add_tasks(ws: WorkingSet, command: AddTasks) -> Added:
    """Append tasks to a stage that has not ended; all of them, or none."""
    job = job_of(ws, command)
    stage = stage_of(ws, job, command.stage_id)
    keys = [child(command.id, n) for n in range(1, len(command.inputs) + 1)]
    if ws.again and keys and ws.find(Task, keys[0]) is not None:
        return _added(ws, stage, keys)
    if job.finished_at is not None or stage.status in STAGE.terminal:
        raise Conflict("stage_ended", f"The stage is {stage.status} and the job {job.status}: no more tasks.")
    if job.price and not recipe_of(ws, job).inline:
        raise Conflict("priced_stages", f"The price of {job.workflow!r} is for its own tasks; it takes no others.")
    room = ws.limits.tasks_per_stage_max - stage.tasks_total
    if not 1 <= len(command.inputs) <= room:
        raise BadInput("too_many_tasks", f"The stage has room for {counted(room, 'more task')}; send at least one.")
    first = stage.tasks_total + 1
    plan_tasks(ws, job, recipe_of(ws, job), stage, command.inputs, keys)
    ws.emit(job, "stage.extended", command.actor, {"first_task_no": first, "tasks": len(keys)}, entity_id=stage.id)
    return Added(stage.id, stage.no, keys, first)


def _added(ws: WorkingSet, stage: Stage, keys: list[str]) -> Added:
    first = ws.get(Task, keys[0]).no if keys else stage.tasks_total + 1
    return Added(stage.id, stage.no, list(keys), first)
