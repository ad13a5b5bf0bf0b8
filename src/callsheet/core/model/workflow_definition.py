"""A workflow's definition: its stages, price, input schema, retry and refund policy, lease and deadline."""

import re
import zlib
from typing import Any, Literal

import jsonschema_rs
import msgspec
from msgspec import Struct

from callsheet.core.model.clock import seconds
from callsheet.core.model.errors import BadInput
from callsheet.core.model.graph_rules import NO_GRAPHS, GraphRules
from callsheet.core.model.graph_spec import ComfySpec
from callsheet.core.policy.limits import Limits
from callsheet.core.policy.rate_limits import check_rate

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*\Z")
_PERCENT_MAX = 100


class Backoff(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a failed try waits: base * factor^(try-1), at most max, plus or minus jitter."""

    base_seconds: float = 2.0
    """The wait before the second try."""
    factor: float = 2.0
    """By how much each further wait is longer than the one before."""
    max_seconds: float = 300.0
    """The longest wait."""
    jitter: float = 0.2
    """By which part of itself a wait may be shorter or longer, from 0 to 1: tasks that failed together come apart."""

    def wait(self, task_id: str, attempt: int, attempts_counted: int) -> int:
        """Return the wait in microseconds; the jitter follows from the task and the attempt."""
        base_wait = min(self.base_seconds * self.factor ** max(attempts_counted - 1, 0), self.max_seconds)
        jitter_factor = zlib.crc32(f"{task_id}:{attempt}".encode()) / 0xFFFFFFFF * 2 - 1
        return seconds(base_wait * (1 + self.jitter * jitter_factor))


class Retry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a task is tried. A lost lease always counts as a try that may be repeated."""

    attempts_max: int = 3
    """Tries of a task in one run, with the first."""
    requeues_max: int = 10
    """How often a task may be given back, by a machine that goes away for instance, without using up a try."""
    on: Literal["never", "transient", "any"] = "transient"
    """Which failures are tried again: `transient` are those of which the worker says that another try may help, `any`
    are all but those of which it says that none will."""
    backoff: Backoff = Backoff()
    """How long a failed try waits for the next."""

    def allows_retry(self, *, retryable: bool | None) -> bool:
        """Say whether a reported failure may be tried again: the worker's word, read by the policy."""
        if self.on == "any":
            return retryable is not False
        return self.on == "transient" and retryable is True


class Refunds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Percent of the price that goes back, by how the run ended."""

    failed: int = _PERCENT_MAX
    """Of a run that failed."""
    expired: int = _PERCENT_MAX
    """Of one that passed its deadline."""
    canceled: int = _PERCENT_MAX
    """Of one that was canceled before it began."""
    canceled_running: int = _PERCENT_MAX
    """Of one that was canceled after that."""


class StageSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stage: which kind of work, how many tasks, whether a person must approve it first."""

    name: str
    """What it is called; no two stages of a workflow have one name."""
    kind: str
    """Which handler does its tasks."""
    tasks: int = 1
    """How many tasks it begins with; they may run at the same time."""
    inputs: list[Any] | None = None
    """One input per task, in place of `tasks`; without it each task has the job's input."""
    approval: bool = False
    """It waits until a person approves it."""
    provider: str = ""
    """Whose service its handlers call: limits per provider count its tasks."""
    comfyui: ComfySpec | None = None
    """A ComfyUI graph, which a worker sends with the task's values in it. Workflows have them; jobs bring none."""
    labels: dict[str, str] | None = None
    """Words to find it by."""
    metadata: dict[str, Any] | None = None
    """Anything you want to keep with it."""
    trace: dict[str, str] | None = None
    """Headers of a trace, which its handlers get."""

    @property
    def size(self) -> int:
        """Return how many tasks the stage begins with."""
        return self.tasks if self.inputs is None else len(self.inputs)


class WorkflowDefinition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a workflow is."""

    name: str
    """What jobs are submitted to."""
    stages: list[StageSpec] = []
    """One after the other; a job is done when the last is."""
    price: int = 0
    """Credits that a job costs: reserved when it is submitted, consumed when it is completed."""
    input_schema: dict[str, Any] | bool | None = None
    """JSON Schema for the input of a job; without it any input is taken."""
    retry: Retry = Retry()
    """How often its tasks are tried, and when again."""
    refunds: Refunds = Refunds()
    """What goes back when a job ends badly."""
    priority: int = 50
    """Of its jobs, unless they say another: higher goes first, 0 to `limits.priority_max`."""
    lease_seconds: int = 900
    """A worker that was not heard of for so long has lost its task, and another may have it."""
    deadline_seconds: int = 7 * 86_400
    """A job that has not ended so long after it was submitted, or was to start, is expired; a job may say another."""
    provider_deadline_seconds: int = 3_600
    """How long a provider may take for a task."""
    collect_seconds: int = 10
    """How often a provider is asked how far it is, where it does not say when to ask again."""
    cancel_grace_seconds: int = 30
    """How long workers have to stop when a job is canceled."""
    running_max: int | None = None
    """The maximum number of tasks of this workflow that run at the same time, over all servers. Absent means no
    limit."""
    rate_max: str | None = None
    """The maximum rate at which tasks of this workflow start, per second, minute, hour or day, such as `60/minute`.
    Absent means no limit."""
    retention_seconds: int | None = None
    """How long to keep output files after a job's task completes. Absent means forever."""
    inline: bool = False
    """Jobs may bring their own stages, or begin with none and get them later."""
    enabled: bool = True
    """Whether jobs may be submitted; those that were go on all the same."""


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
    """Refuse a definition that could not work, naming the field."""
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
        raise BadInput("invalid_workflow", f"Workflow {definition.name!r} has no stages and takes none inline.")
    check_stages(definition.stages, limits, graph_rules)
    _check_graph_inputs(definition, graph_rules)
    validator(definition)


def _check_graph_inputs(definition: WorkflowDefinition, graph_rules: GraphRules) -> None:
    """Refuse graphs with values that no job could bring, or that a stage's own inputs do not."""
    for stage in definition.stages:
        if stage.comfyui is None:
            continue
        if definition.inline:
            raise BadInput("invalid_graph", f"Stage {stage.name!r} has a graph; jobs may bring others in its place.")
        for no, input in enumerate(stage.inputs or ()):
            try:
                graph_rules.check_input(stage.comfyui, input)
            except BadInput as error:
                raise BadInput("invalid_graph", f"Stage {stage.name!r}, inputs[{no}]: {error}") from None
        if stage.inputs is None:
            graph_rules.check_schema(stage.name, stage.comfyui, definition.input_schema)


def _check_backoff(definition: WorkflowDefinition) -> None:
    bounds = (("base_seconds", 0, 86_400), ("factor", 1, 100), ("max_seconds", 0, 86_400), ("jitter", 0, 1))
    for field, least, most in bounds:
        value = getattr(definition.retry.backoff, field)
        if not least <= value <= most:
            raise BadInput("out_of_range", f"{definition.name}.retry.backoff.{field} must be from {least} to {most}.")


def check_stages(stages: list[StageSpec], limits: Limits, graph_rules: GraphRules | None = None) -> None:
    """Refuse stages that could not run; graphs belong to workflows, not to the stages that a job brings."""
    if len(stages) > limits.stages_per_job_max:
        raise BadInput("too_many_stages", f"A job has at most {limits.stages_per_job_max} stages.")
    for no, stage in enumerate(stages):
        check_name("stage", stage.name, limits)
        if any(stage.name == other.name for other in stages[:no]):
            raise BadInput("invalid_stage", f"Two stages have the name {stage.name!r}.")
        check_name("kind", stage.kind, limits)
        if stage.provider:
            check_name("provider", stage.provider, limits)
        check_range(f"tasks of stage {stage.name!r}", stage.size, 0, limits.tasks_per_stage_max)
        if stage.comfyui is not None:
            if graph_rules is None:
                raise BadInput("invalid_graph", f"Stage {stage.name!r} brings a graph: put it into a workflow first.")
            graph_rules.check_graph(stage.name, stage.comfyui, limits)


def graph_of(definition: WorkflowDefinition, stage_no: int) -> ComfySpec | None:
    """Return the graph of a job's stage, by its number; stages that were added later have none."""
    return definition.stages[stage_no - 1].comfyui if 0 < stage_no <= len(definition.stages) else None


def validator(definition: WorkflowDefinition) -> Any:
    """Return the compiled input schema, or None."""
    if definition.input_schema is None:
        return None
    try:
        return jsonschema_rs.validator_for(definition.input_schema, retriever=_refuse_reference)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        reason = str(error).partition("\n")[0]
        raise BadInput("invalid_workflow", f"The input schema of {definition.name!r} is not valid: {reason}.") from None


def _refuse_reference(_uri: str) -> Any:
    """Fetch nothing: the library would open URLs and files that a schema refers to."""
    raise ValueError("a schema refers to itself only")


def parse_definition(spec: str) -> WorkflowDefinition:
    """Read a stored definition."""
    return msgspec.json.decode(spec, type=WorkflowDefinition)


def check_name(what: str, name: str, limits: Limits) -> str:
    """Refuse a name that could not stand in a path, a metric or a queue."""
    if len(name) > limits.name_chars_max or not NAME.match(name):
        raise BadInput(
            f"invalid_{what}",
            f"The {what} {name[:40]!r} is not a name: letters, digits and . _ : -, at most {limits.name_chars_max}.",
        )
    return name


def check_range(what: str, value: int, least: int, most: int) -> int:
    """Refuse a number outside its limits."""
    if type(value) is not int or not least <= value <= most:
        raise BadInput("out_of_range", f"{what} must be a whole number from {least} to {most}.")
    return value
