"""A workflow's definition: its stages, price, input schema, retry and refund policy, lease and deadline."""

import re
import zlib
from typing import Any, Literal

import msgspec
from msgspec import Struct

from callsheet.core.model.clock import seconds
from callsheet.core.model.comfyui_graph import ComfySpec
from callsheet.core.model.errors import BadInput
from callsheet.core.model.graph_rules_protocol import NO_GRAPHS, GraphRules
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.input_schema.validator import check_input_schema
from callsheet.core.policy.task_start_limits import check_rate

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*\Z")
_PERCENT_MAX = 100


class Backoff(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to wait before a retry: base * factor^(attempt-1), at most max, plus or minus jitter."""

    base_seconds: float = 2.0
    """The wait before the second attempt."""
    factor: float = 2.0
    """The factor by which each further wait grows."""
    max_seconds: float = 300.0
    """The longest wait."""
    jitter: float = 0.2
    """The random part of a wait, from 0 to 1: 0.2 makes it up to 20 % shorter or longer, so that tasks that failed
    together are not retried together."""

    def wait(self, task_id: str, attempt: int, attempts_counted: int) -> int:
        """Return the wait in microseconds; the jitter follows from the task and the attempt."""
        base_wait = min(self.base_seconds * self.factor ** max(attempts_counted - 1, 0), self.max_seconds)
        jitter_factor = zlib.crc32(f"{task_id}:{attempt}".encode()) / 0xFFFFFFFF * 2 - 1
        return seconds(base_wait * (1 + self.jitter * jitter_factor))


class RetryPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a failed task is retried. An expired lease counts as an attempt and is always retryable."""

    attempts_max: int = 3
    """The maximum number of attempts of a task in one run, including the first."""
    requeues_max: int = 10
    """How often a task may be requeued without counting an attempt, for example when a worker shuts down."""
    on: Literal["never", "transient", "any"] = "transient"
    """Which failures are retried: `transient` retries those that the worker reports as retryable, `any` retries all
    except those that it reports as not retryable, `never` retries none."""
    backoff: Backoff = Backoff()
    """How long to wait before a retry."""

    def allows_retry(self, *, retryable: bool | None) -> bool:
        """Return whether a failure is retried, from what the worker reported as `retryable`."""
        if self.on == "any":
            return retryable is not False
        return self.on == "transient" and retryable is True


class RefundPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The percentage of the price that is refunded, by how the run ended."""

    failed: int = _PERCENT_MAX
    """For a run that failed."""
    expired: int = _PERCENT_MAX
    """For a run that passed its deadline."""
    canceled: int = _PERCENT_MAX
    """For a run that was canceled before it started."""
    canceled_running: int = _PERCENT_MAX
    """For a run that was canceled after it started."""


class StageSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stage: the kind of work, the number of tasks, and whether a person must approve it first."""

    name: str
    """The name of the stage, unique within the workflow."""
    kind: str
    """The kind of work. Workers with a handler for this kind run its tasks."""
    tasks: int = 1
    """The number of tasks. They may run at the same time."""
    inputs: list[Any] | None = None
    """One input per task, instead of `tasks`. If absent, each task gets the job's input."""
    approval: bool = False
    """Whether the stage waits until a person approves it."""
    provider: str = ""
    """The provider that its handlers call. Limits per provider count its tasks."""
    comfyui: ComfySpec | None = None
    """A ComfyUI graph that the worker runs with the values of the task. Only stages of a workflow may have one, not
    inline stages of a job."""
    labels: dict[str, str] | None = None
    """Labels of the stage: names and values of your choice."""
    metadata: dict[str, Any] | None = None
    """Your own JSON, stored with the stage."""
    trace: dict[str, str] | None = None
    """W3C trace context that is passed to its handlers, instead of the job's."""

    @property
    def size(self) -> int:
        """Return the initial number of tasks of the stage."""
        return self.tasks if self.inputs is None else len(self.inputs)


class WorkflowDefinition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The definition of a workflow."""

    name: str
    """The name of the workflow. Jobs are submitted to it."""
    stages: list[StageSpec] = []
    """The stages, in the order in which they run. The job completes with the last one."""
    price: int = 0
    """The price of a job in credits: reserved when it is submitted, consumed when it completes."""
    input_schema: dict[str, Any] | bool | None = None
    """A JSON Schema for the input of a job. If absent, any input is accepted."""
    retry: RetryPolicy = RetryPolicy()
    """When failed tasks are retried."""
    refunds: RefundPolicy = RefundPolicy()
    """What is refunded when a job does not complete."""
    priority: int = 50
    """The default priority of its jobs, from 0 to `limits.priority_max`. Jobs of higher priority run first."""
    lease_seconds: int = 900
    """If a worker sends no heartbeat for this long, its task is reassigned."""
    deadline_seconds: int = 7 * 86_400
    """The time a job has to complete, from its submission or its scheduled start. After it, the job expires. A job may
    set its own."""
    provider_deadline_seconds: int = 3_600
    """The time a provider has to complete a task. After it, the job expires."""
    collect_seconds: int = 10
    """How often to poll a provider that does not say when to poll again."""
    cancel_grace_seconds: int = 30
    """The time workers have to stop when a job is canceled."""
    running_max: int | None = None
    """The maximum number of tasks of this workflow that run at the same time, over all servers. Absent means no
    limit."""
    rate_max: str | None = None
    """The maximum rate at which tasks of this workflow start, per second, minute, hour or day, such as `60/minute`.
    Absent means no limit."""
    retention_seconds: int | None = None
    """How long to keep the output files of a task after it completes. Absent means forever."""
    inline: bool = False
    """Whether jobs may define their own stages, at submission or later."""
    enabled: bool = True
    """Whether jobs may be submitted. Jobs that were submitted before continue."""


_CHECKS: tuple[tuple[str, int, str], ...] = (
    ("price", 0, "price_max"),
    ("priority", 0, "priority_max"),
    ("lease_seconds", 1, "lease_seconds_max"),
    ("deadline_seconds", 1, "deadline_seconds_max"),
    ("provider_deadline_seconds", 1, "deadline_seconds_max"),
    ("collect_seconds", 1, "lease_seconds_max"),
    ("cancel_grace_seconds", 0, "lease_seconds_max"),
)


def check_definition(definition: WorkflowDefinition, limits: Limits, graph_rules: GraphRules = NO_GRAPHS) -> None:
    """Raise `BadInput` for an invalid definition. The message names the field."""
    check_name("workflow", definition.name, limits)
    for field, least, most in _CHECKS:
        check_range(f"{definition.name}.{field}", getattr(definition, field), least, getattr(limits, most))
    check_range(f"{definition.name}.retry.attempts_max", definition.retry.attempts_max, 1, limits.attempts_max)
    check_range(f"{definition.name}.retry.requeues_max", definition.retry.requeues_max, 0, limits.requeues_max)
    if definition.running_max is not None:
        check_range(f"{definition.name}.running_max", definition.running_max, 0, 2**31)
    if definition.retention_seconds is not None:
        check_range(
            f"{definition.name}.retention_seconds", definition.retention_seconds, 0, limits.retention_seconds_max
        )
    if definition.rate_max is not None:
        check_rate(f"{definition.name}.rate_max", definition.rate_max)
    _check_backoff(definition)
    for field in ("failed", "expired", "canceled", "canceled_running"):
        check_range(f"{definition.name}.refunds.{field}", getattr(definition.refunds, field), 0, _PERCENT_MAX)
    if not definition.stages and not definition.inline:
        message = f"Workflow {definition.name!r} has no stages: add one, or set inline = true."
        raise BadInput("invalid_workflow", message)
    check_stages(definition.stages, limits, graph_rules)
    _check_graph_inputs(definition, limits, graph_rules)
    check_input_schema(definition.name, definition.input_schema, limits)


def _check_graph_inputs(definition: WorkflowDefinition, limits: Limits, graph_rules: GraphRules) -> None:
    """Refuse graphs with inputs that neither the job nor the stage provides."""
    for stage in definition.stages:
        if stage.comfyui is None:
            continue
        if definition.inline:
            message = f"Stage {stage.name!r} has a graph, which inline workflows cannot have. Set inline = false."
            raise BadInput("invalid_graph", message)
        for no, input in enumerate(stage.inputs or ()):
            try:
                graph_rules.check_input(stage.comfyui, input, limits)
            except BadInput as error:
                raise BadInput("invalid_graph", f"Stage {stage.name!r}, inputs[{no}]: {error}") from None
        if stage.inputs is None:
            graph_rules.check_schema(stage.name, stage.comfyui, definition.input_schema)


def _check_backoff(definition: WorkflowDefinition) -> None:
    bounds = (("base_seconds", 0, 86_400), ("factor", 1, 100), ("max_seconds", 0, 86_400), ("jitter", 0, 1))
    for field, least, most in bounds:
        value = getattr(definition.retry.backoff, field)
        if not least <= value <= most:
            raise BadInput(
                "out_of_range",
                f"{definition.name}.retry.backoff.{field} must be from {least} to {most}, not {value:g}.",
            )


def check_stages(stages: list[StageSpec], limits: Limits, graph_rules: GraphRules | None = None) -> None:
    """Refuse invalid stages. Graphs are only allowed in workflows, not in the inline stages of a job."""
    if len(stages) > limits.stages_per_job_max:
        most = limits.stages_per_job_max
        raise BadInput("too_many_stages", f"There are {len(stages)} stages; at most {most} are allowed.")
    for no, stage in enumerate(stages):
        check_name("stage", stage.name, limits)
        if any(stage.name == other.name for other in stages[:no]):
            raise BadInput("invalid_stage", f"Two stages have the name {stage.name!r}. Rename one of them.")
        check_name("kind", stage.kind, limits)
        if stage.provider:
            check_name("provider", stage.provider, limits)
        check_range(f"tasks of stage {stage.name!r}", stage.size, 0, limits.tasks_per_stage_max)
        if stage.comfyui is not None:
            if graph_rules is None:
                message = f"The inline stage {stage.name!r} has a graph: define it in a workflow instead."
                raise BadInput("invalid_graph", message)
            graph_rules.check_graph(stage.name, stage.comfyui, limits)


def graph_of(definition: WorkflowDefinition, stage_no: int) -> ComfySpec | None:
    """Return the graph of a job's stage, by its number; stages that were added later have none."""
    return definition.stages[stage_no - 1].comfyui if 0 < stage_no <= len(definition.stages) else None


def parse_definition(spec: str) -> WorkflowDefinition:
    """Read a stored definition."""
    return msgspec.json.decode(spec, type=WorkflowDefinition)


def check_name(what: str, name: str, limits: Limits) -> str:
    """Refuse a name that cannot be used in a path, a metric or a queue."""
    if len(name) > limits.name_chars_max or not NAME.match(name):
        raise BadInput(
            f"invalid_{what}",
            f"The {what} {name[:40]!r} is not a valid name: use letters, digits and . _ : -, at most "
            f"{limits.name_chars_max} characters.",
        )
    return name


def check_range(what: str, value: int, least: int, most: int) -> int:
    """Refuse a number outside its limits."""
    if type(value) is not int or not least <= value <= most:
        raise BadInput("out_of_range", f"{what} must be a whole number from {least} to {most}, not {value!r:.40}.")
    return value
