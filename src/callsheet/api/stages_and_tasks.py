"""Stages, tasks, attempts and outputs of a job."""

from typing import Annotated, Any

from msgspec import Struct

from callsheet.api.errors import Error
from callsheet.api.files import File
from callsheet.api.shared_fields import Example, Time, doc
from callsheet.core.model.state_machines import STAGE, TASK
from callsheet.core.model.workflow_definition import StageSpec


class Stage(Struct, frozen=True):
    """A stage of a job: a group of tasks. Stages run one after the other."""

    id: Annotated[str, doc("Id of the stage.", Example.STAGE_ID)]
    no: Annotated[int, doc("Number of the stage, from 1.", 1)]
    name: Annotated[str, doc("Name of the stage.", "sketch")]
    kind: Annotated[str, doc("Kind of work: selects the workers that run its tasks.", "sketch")]
    status: Annotated[str, doc("Where the stage is in its life cycle.", "pending", enum=list(STAGE.statuses))]
    approval: Annotated[bool, doc("Whether the stage needs approval before it starts.", False)]
    tasks_total: Annotated[int, doc("Number of tasks.", 1)]
    tasks_running: Annotated[int, doc("Number of running tasks.", 0)]
    tasks_completed: Annotated[int, doc("Number of completed tasks.", 0)]
    tasks_failed: Annotated[int, doc("Number of failed tasks.", 0)]
    tasks_canceled: Annotated[int, doc("Number of canceled tasks.", 0)]
    approved_by: Annotated[str | None, doc("Who approved the stage: `approver` of the approval.", None)]
    approved_at: Annotated[Time | None, doc("Time of the approval.", None)]
    started_at: Annotated[Time | None, doc("Time at which the first task started.", None)]
    finished_at: Annotated[Time | None, doc("Time at which the stage ended.", None)]


class StageList(Struct, frozen=True):
    """Stages of a job."""

    stages: Annotated[list[Stage], doc("Stages in the order in which they run.")]


class Task(Struct, frozen=True):
    """A task: a unit of work that one worker executes."""

    id: Annotated[str, doc("Id of the task.", Example.TASK_ID)]
    stage_id: Annotated[str, doc("Id of its stage.", Example.STAGE_ID)]
    no: Annotated[int, doc("Number of the task in its stage, from 1.", 1)]
    kind: Annotated[str, doc("Kind of work: selects the workers that run it.", "sketch")]
    status: Annotated[str, doc("Where the task is in its life cycle.", "pending", enum=list(TASK.statuses))]
    phase: Annotated[
        str | None,
        doc("Detail of the status: `submitted` while a provider runs it, `backoff` until its next attempt. Null "
            "otherwise.", None),
    ]  # fmt: skip
    progress: Annotated[int, doc("Progress in percent, from 0 to 100.", 0)]
    message: Annotated[str | None, doc("Last progress message of the worker. Null if there is none.", "drawing")]
    attempts: Annotated[int, doc("Number of attempts so far, over all runs.", 1)]
    attempts_counted: Annotated[int, doc("Attempts of this run that count towards `attempts_max`.", 1)]
    attempts_max: Annotated[int, doc("Maximum number of counted attempts in a run.", 3)]
    requeues: Annotated[int, doc("How often the task was requeued without using up an attempt.", 0)]
    ready_at: Annotated[Time | None, doc("Earliest start of the next attempt, after a failed one.", None)]
    started_at: Annotated[Time | None, doc("Time at which the first attempt started.", None)]
    finished_at: Annotated[Time | None, doc("Time at which the task ended.", None)]
    error: Annotated[
        Error | None, doc("Why the last attempt failed or was requeued. Null once the task completes.", None)
    ]


class TasksQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Pagination of a list of tasks."""

    limit: Annotated[int, doc("Maximum number of tasks to return.", 50)] = 100
    cursor: Annotated[str, doc("`next` of the previous page.", Example.CURSOR)] = ""


class TaskPage(Struct, frozen=True):
    """One page of a job's tasks."""

    tasks: Annotated[list[Task], doc("Tasks, ordered by stage and number.")]
    next: Annotated[str | None, doc("Cursor of the next page. Null on the last page.", None)]


class Attempt(Struct, frozen=True):
    """One attempt to execute a task. Attempts are never changed after they end."""

    no: Annotated[int, doc("Number of the attempt, from 1. A new run continues the numbers.", 1)]
    run: Annotated[int, doc("Number of the job's run.", 1)]
    worker: Annotated[str, doc("Name of the worker.", "gpu-7")]
    leased_at: Annotated[Time, doc("Time at which the worker claimed the task.", Example.AT)]
    ended_at: Annotated[Time | None, doc("Time at which the attempt ended.", Example.LATER)]
    outcome: Annotated[
        str | None,
        doc("`completed`, `failed`, `lost` (its lease expired), `requeued`, `unaccepted` (the provider never accepted "
            "the call) or `canceled`. Null while it runs.", "completed"),
    ]  # fmt: skip
    counted: Annotated[bool, doc("Whether the attempt counts towards `attempts_max`.", True)]
    error: Annotated[Error | None, doc("Why the attempt failed, was lost or was requeued. Null otherwise.", None)]


class AttemptList(Struct, frozen=True):
    """Attempts of a task."""

    attempts: Annotated[
        list[Attempt], doc("Attempts, oldest first. Only the newest, if there are more than `page_size_max`.")
    ]


class Output(Struct, frozen=True):
    """Output of a completed task."""

    stage: Annotated[str, doc("Name of the stage.", "sketch")]
    stage_no: Annotated[int, doc("Number of the stage.", 1)]
    task_no: Annotated[int, doc("Number of the task in its stage.", 1)]
    task_id: Annotated[str, doc("Id of the task.", Example.TASK_ID)]
    output: Annotated[Any, doc("JSON that the handler returned.", {"width": 512, "height": 512})]
    files: Annotated[list[File], doc("Files that the task produced.")]


class OutputsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Pagination of a list of outputs."""

    limit: Annotated[int, doc("Maximum number of outputs to return.", 50)] = 50
    cursor: Annotated[str, doc("`next` of the previous page.", Example.CURSOR)] = ""


class OutputPage(Struct, frozen=True):
    """One page of a job's outputs."""

    outputs: Annotated[list[Output], doc("Outputs of completed tasks, ordered by stage and number.")]
    next: Annotated[str | None, doc("Cursor of the next page. Null on the last page.", None)]


class ApproveBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Who approves a stage."""

    approver: Annotated[str, doc("Name or e-mail address of the person who approves.", "producer@example.com")]


class TasksBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Tasks to add to a stage."""

    inputs: Annotated[
        list[Any], doc("One input per task.", [{"prompt": "dunes at noon"}, {"prompt": "dunes at night"}])
    ]


class StageBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A stage to add after the existing ones."""

    stage: Annotated[StageSpec, doc("Stage to add.", {"name": "variants", "kind": "sketch", "tasks": 2})]


class AddedTasks(Struct, frozen=True):
    """Tasks that were added to a job."""

    stage_id: Annotated[str, doc("Id of their stage.", Example.STAGE_ID)]
    stage_no: Annotated[int, doc("Number of their stage.", 1)]
    task_ids: Annotated[list[str], doc("Ids of the new tasks, in order.", [Example.TASK_ID])]
    first_task_no: Annotated[int, doc("Number of the first new task.", 3)]
