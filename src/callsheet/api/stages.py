"""Stages, tasks, attempts and outputs of a job."""

from datetime import datetime
from typing import Any

from msgspec import Struct

from callsheet.api.errors import Error
from callsheet.api.files import File
from callsheet.core.model.workflow_definition import StageSpec


class Stage(Struct, frozen=True):
    """A group of tasks; stages follow each other."""

    id: str
    no: int
    name: str
    kind: str
    status: str
    approval: bool
    tasks_total: int
    tasks_running: int
    tasks_completed: int
    tasks_failed: int
    tasks_canceled: int
    approved_by: str | None
    approved_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


class StageList(Struct, frozen=True):
    """A job's stages in order."""

    stages: list[Stage]


class Task(Struct, frozen=True):
    """What one worker executes."""

    id: str
    stage_id: str
    no: int
    kind: str
    status: str
    phase: str | None
    progress: int
    message: str | None
    attempts: int
    attempts_counted: int
    attempts_max: int
    requeues: int
    ready_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    error: Error | None


class TasksQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How many at once, and where to go on."""

    limit: int = 100
    cursor: str = ""


class TaskPage(Struct, frozen=True):
    """A job's tasks in order, and where to go on."""

    tasks: list[Task]
    next: str | None


class Attempt(Struct, frozen=True):
    """One try of a task, kept for ever."""

    no: int
    run: int
    worker: str
    leased_at: datetime
    ended_at: datetime | None
    outcome: str | None
    uncounted: bool
    error: Error | None


class AttemptList(Struct, frozen=True):
    """A task's tries, oldest first."""

    attempts: list[Attempt]


class Output(Struct, frozen=True):
    """What a task of a job made."""

    stage: str
    stage_no: int
    task_no: int
    task_id: str
    output: Any
    files: list[File]


class OutputsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How many at once, and where to go on."""

    limit: int = 50
    cursor: str = ""


class OutputPage(Struct, frozen=True):
    """What completed tasks made, in order, and where to go on."""

    outputs: list[Output]
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


class AddedTasks(Struct, frozen=True):
    """What was added."""

    stage_id: str
    stage_no: int
    task_ids: list[str]
    first_task_no: int
