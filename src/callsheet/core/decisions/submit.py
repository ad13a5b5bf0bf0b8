"""Submitting a job: validate it, look up its idempotency key, check limits, reserve the price, create its rows.

A refused submit changes nothing. The checks have a fixed order, so the same request always gets the same refusal.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.decisions.cascade import accepts_claims
from callsheet.core.decisions.files import link_files
from callsheet.core.decisions.money import reserve, wallet_id, wallet_of
from callsheet.core.decisions.transitions import due
from callsheet.core.model.clock import seconds
from callsheet.core.model.commands import Retry, Submit, SubmitResult
from callsheet.core.model.errors import BadInput, Conflict, Denied, NotFound
from callsheet.core.model.ids import stage_id, task_id
from callsheet.core.model.plural import pluralize
from callsheet.core.model.rows import Document, Job, Queue, Run, Stage, Task, Tenant, Wallet
from callsheet.core.model.state_machines import JOB, NEW, STAGE, TASK
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition, check_range, check_stages, graph_of
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.fair_order import queue_of, queue_task
from callsheet.core.policy.request_validation import (
    check_annotations,
    check_key,
    check_user,
    encode_input,
    encode_or_none,
    validate_input,
)
from callsheet.core.working_set import WorkingSet, encode


def submit(ws: WorkingSet, command: Submit) -> SubmitResult:
    """Create a job, or return the job that was created with the same idempotency key."""
    definition = _validate_submit(ws, command)
    body = validate_input(
        definition, ws.get_fact(facts.INPUT_SCHEMA, definition.name), command.input, ws.limits, ws.graph_rules
    )
    stages = definition.stages if command.stages is None else command.stages
    fingerprint = _fingerprint(command, body)
    if existing := _find_existing(ws, command, fingerprint):
        return existing
    tenant = get_active_tenant(ws, command.tenant)
    if command.verdict is not None:
        return _refuse_or_block(ws, command, definition, fingerprint)
    wallet = wallet_of(ws, command.tenant, command.user)
    check_active_jobs(ws, tenant, wallet)
    job = _new_job(ws, command, definition, fingerprint, len(stages))
    reserve(ws, wallet, job, command.actor)
    create_run(ws, job, definition, stages, body, command)
    if job.dedup_key:
        ws.set_fact(facts.JOB_BY_IDEMPOTENCY_KEY, job.dedup_key, job)
    return SubmitResult(ws.stored_job(job))


def create_run(
    ws: WorkingSet,
    job: Job,
    definition: WorkflowDefinition,
    stages: Sequence[StageSpec],
    body: str | None,
    command: Submit | Retry,
) -> None:
    """Put a new job with its first run, stages and tasks into the working set, and open its first stage."""
    ws.put(replace(job, waiting_at=job.created_at) if stages and stages[0].approval else job)
    ws.put(Run(job.id, 1, job.tenant, command.id, job.price, job.created_at))
    if body is not None:
        ws.append(Document(job.id, "input", job.id, body))
        link_files(ws, job, body)
    JOB.step(NEW, "schedule" if job.status == "pending" else "submit", command.actor)
    ws.emit(job, "job.created", command.actor, {"workflow": job.workflow, "price": job.price}, target=job.status)
    stage_ids = []
    for no, spec in enumerate(stages, 1):
        event = None if no > 1 else "require_approval" if spec.approval else "open"
        stage_ids.append(add_stage(ws, job, definition, spec, Slot(no, stage_id(job.id, no), event)).id)
    ws.set_fact(facts.STAGES_OF_JOB, job.id, stage_ids)


class Slot(NamedTuple):
    """Number and id of a new stage, and the event that moves it on from `created`, if there is one."""

    no: int
    key: str
    event: str | None = None


def add_stage(ws: WorkingSet, job: Job, definition: WorkflowDefinition, spec: StageSpec, slot: Slot) -> Stage:
    """Add a stage with its tasks."""
    status = STAGE.step("created", slot.event, "system") if slot.event else "created"
    inputs = spec.inputs if spec.inputs is not None else [None] * spec.tasks
    stage = Stage(
        slot.key, job.id, job.tenant, slot.no, spec.name, spec.kind, spec.provider, int(spec.approval),
        ws.change_time(job), status, 0, labels=encode_or_none(spec.labels),
        metadata=encode_or_none(spec.metadata), trace=encode_or_none(spec.trace),
    )  # fmt: skip
    keys = [task_id(job.id, slot.no, n) for n in range(1, len(inputs) + 1)]
    return add_tasks(ws, job, definition, stage, inputs, keys)


def add_tasks(
    ws: WorkingSet, job: Job, definition: WorkflowDefinition, stage: Stage, inputs: list[Any], keys: list[str]
) -> Stage:
    """Add tasks to a stage. In an open stage they are open too, and claimable if the job accepts claims."""
    queue = queue_of(stage.kind, job.workflow, stage.provider)
    if ws.find(Queue, queue) is None:
        _open_queue(ws, Queue(queue, stage.kind, job.workflow, stage.provider), definition)
    status = "created" if stage.status == "created" else TASK.step("created", "open", "system")
    claimable = accepts_claims(job, stage)
    retry, change_time = definition.retry, ws.change_time(job)
    for no, (key, body) in enumerate(zip(keys, inputs, strict=True), stage.tasks_total + 1):
        task = Task(
            key, job.id, stage.id, job.tenant, job.user_id, no, queue, stage.kind, retry.attempts_max,
            retry.requeues_max, definition.lease_seconds, change_time, status, job.priority,
        )  # fmt: skip
        ws.put(queue_task(ws, task) if claimable else task)
        if body is not None:
            if graph := graph_of(definition, stage.no):
                ws.graph_rules.check_input(graph, body, ws.limits)
            text = encode_input(body, ws.limits)
            ws.append(Document(key, "input", job.id, text))
            link_files(ws, job, text)
    if claimable:
        ws.woken_kinds.add(stage.kind)
    ws.set_fact(
        facts.OPEN_TASKS_OF_STAGE,
        stage.id,
        [*ws.get_fact(facts.OPEN_TASKS_OF_STAGE, stage.id), *keys] if stage.tasks_total else keys,
    )
    extended = replace(stage, tasks_total=stage.tasks_total + len(keys))
    ws.put(extended)
    return extended


def _open_queue(ws: WorkingSet, queue: Queue, definition: WorkflowDefinition) -> None:
    """Create a queue. Inline stages choose kinds and providers freely, so their number is limited per workflow."""
    if definition.inline:
        count, most = ws.get_fact(facts.QUEUE_COUNT, queue.workflow), ws.limits.queues_per_workflow_max
        if count >= most:
            raise Conflict(
                "too_many_queues",
                f"Jobs of {queue.workflow!r} have used {count} pairs of kind and provider, which is the limit: use one "
                "of them again.",
                queues=count, max=most,
            )  # fmt: skip
        ws.set_fact(facts.QUEUE_COUNT, queue.workflow, count + 1)
    ws.put(queue)


def copy_job(ws: WorkingSet, old: Job, job_id: str, dedup_key: str | None, deadline_at: int | None) -> Job:
    """Return a copy of an ended job for `retry_as=new_job`, linked to the original."""
    change_time = ws.change_time(old)
    copy = Job(
        job_id, old.tenant, old.user_id, old.wallet_id, old.workflow, old.workflow_version, dedup_key, old.fingerprint,
        old.id, change_time, "queued", 1, old.priority, old.price, old.stages_total, 0, 0, 0, change_time,
        deadline_at=deadline_at,
        labels=old.labels, metadata=old.metadata, trace=old.trace,
    )  # fmt: skip
    return replace(copy, due_at=due(copy))


# -- checks, in their order


def _validate_submit(ws: WorkingSet, command: Submit) -> WorkflowDefinition:
    limits = ws.limits
    check_user(command.user, limits)
    if command.idempotency_key is not None:
        check_key(command.idempotency_key, limits)
    definition = ws.get_fact(facts.CURRENT_DEFINITION, command.workflow)
    if definition is None:
        raise NotFound("workflow", command.workflow[:80])
    check_enabled(definition)
    if command.stages is not None:
        check_inline_allowed(definition)
    _check_inline(command.stages or [], limits)
    if command.price is not None:
        check_range("price", command.price, 0, limits.price_max)
    if command.priority is not None:
        check_range("priority", command.priority, 0, limits.priority_max)
    if command.deadline_seconds is not None:
        check_range("deadline_seconds", command.deadline_seconds, 1, limits.deadline_seconds_max)
    if not 0 <= command.start_in_seconds <= limits.start_in_seconds_max:
        most = limits.start_in_seconds_max
        raise BadInput("out_of_range", f"start_in_seconds is {command.start_in_seconds:g}: send from 0 to {most}.")
    if command.labels or command.metadata or command.trace:
        check_annotations(command.labels, command.metadata, command.trace, limits)
    return definition


def check_inline_allowed(definition: WorkflowDefinition) -> None:
    """Refuse stages in a request unless the workflow allows them."""
    if not definition.inline:
        message = f"Workflow {definition.name!r} defines its own stages: submit without `stages`."
        raise BadInput("stages_not_allowed", message)


def _check_inline(stages: list[StageSpec], limits: Limits) -> None:
    check_stages(stages, limits)
    for stage in stages:
        check_annotations(stage.labels, stage.metadata, stage.trace, limits)


def _fingerprint(command: Submit, body: str | None) -> str:
    """Return a hash of the request, to detect a reused idempotency key; empty without a key."""
    if command.idempotency_key is None:
        return ""
    parts = (
        command.workflow, body, command.priority, float(command.start_in_seconds), command.deadline_seconds,
        command.labels, command.metadata, command.stages,
    )  # fmt: skip
    return hashlib.sha256(encode(parts).encode()).hexdigest()


def dedup_key_of(command: Submit) -> str | None:
    """Return the stored form of the idempotency key, scoped to the user, if there is one."""
    if command.idempotency_key is None:
        return None
    # The length keeps (user "a", key "b/c") apart from (user "a/b", key "c").
    return f"{command.tenant}/{len(command.user)}/{command.user}/{command.idempotency_key}"


def _find_existing(ws: WorkingSet, command: Submit, fingerprint: str) -> SubmitResult | None:
    if ws.retrying and (own := ws.find(Job, command.id)):
        return SubmitResult(ws.stored_job(own))
    dedup_key = dedup_key_of(command)
    job = ws.get_fact(facts.JOB_BY_IDEMPOTENCY_KEY, dedup_key) if dedup_key else None
    if job is None:
        return None
    if job.fingerprint != fingerprint:
        raise Conflict(
            "idempotency_key_reused",
            "This idempotency key was used for another request: send the same body, or use a new key.",
            job_id=job.id,
        )
    check_not_deleted(job)
    return SubmitResult(ws.stored_job(job), replay=True)


def check_not_deleted(job: Job) -> None:
    """Refuse an idempotency key whose job was deleted."""
    if job.deleted_at is not None:
        message = "The job created with this idempotency key was deleted: use a new key."
        raise Conflict("job_deleted", message, job_id=job.id)


def check_enabled(definition: WorkflowDefinition) -> None:
    """Refuse a run of a disabled workflow."""
    if not definition.enabled:
        message = f"Workflow {definition.name!r} is disabled: an operator must enable it first."
        raise Conflict("workflow_disabled", message)


def get_active_tenant(ws: WorkingSet, name: str) -> Tenant:
    """Return a tenant; refuse a suspended one."""
    tenant = ws.find(Tenant, name)
    if tenant is None:
        raise NotFound("tenant", name[:80])
    if tenant.status != "active":
        raise Denied("tenant_suspended", f"Tenant {tenant.id!r} is suspended: an operator must activate it first.")
    return tenant


def _refuse_or_block(ws: WorkingSet, command: Submit, definition: WorkflowDefinition, fingerprint: str) -> SubmitResult:
    verdict = command.verdict
    if verdict is None or not verdict.block:
        code, message = (verdict.code, verdict.message) if verdict else ("denied", "A gate refused the job.")
        raise Denied(code, message)
    job = replace(
        _new_job(ws, replace(command, idempotency_key=None, start_in_seconds=0), definition, fingerprint, 0),
        status=JOB.step(NEW, "block", "system"), price=0, run=0, finished_at=ws.now, due_at=None, deadline_at=None,
        error_code=verdict.code, error_message=verdict.message,
    )  # fmt: skip
    wallet = wallet_of(ws, command.tenant, command.user)
    if ws.find(Wallet, wallet.id) is None:
        ws.put(wallet)
    ws.put(job)
    ws.emit(job, "job.blocked", "system", {"workflow": job.workflow, "code": verdict.code}, target=job.status)
    return SubmitResult(ws.stored_job(job))


def check_active_jobs(ws: WorkingSet, tenant: Tenant, wallet: Wallet) -> None:
    """Refuse a job beyond the user's limit of active jobs, else count it."""
    cap = ws.limits.active_jobs_max if tenant.active_jobs_max is None else tenant.active_jobs_max
    if cap is None:
        return
    active = ws.get_fact(facts.ACTIVE_JOB_COUNT, wallet.id)
    if active >= cap:
        raise Conflict(
            "too_many_active_jobs",
            f"This user has {pluralize(active, 'active job')}; at most {cap} are allowed: wait until one ends.",
            active=active, max=cap,
        )  # fmt: skip
    ws.set_fact(facts.ACTIVE_JOB_COUNT, wallet.id, active + 1)


def _new_job(ws: WorkingSet, command: Submit, definition: WorkflowDefinition, fingerprint: str, stages: int) -> Job:
    start_at = ws.now + seconds(command.start_in_seconds) if command.start_in_seconds else None
    deadline_at = (start_at or ws.now) + seconds(command.deadline_seconds or definition.deadline_seconds)
    version = ws.get_fact(facts.CURRENT_VERSION, definition.name)
    return Job(
        command.id, command.tenant, command.user, wallet_id(command.tenant, command.user), definition.name, version,
        dedup_key_of(command), fingerprint, None, ws.now, JOB.target("schedule" if start_at else "submit"), 1,
        definition.priority if command.priority is None else command.priority,
        definition.price if command.price is None else command.price, stages, 0, 0, 0, ws.now,
        start_at=start_at, deadline_at=deadline_at, due_at=start_at or deadline_at,
        labels=encode_or_none(command.labels),
        metadata=encode_or_none(command.metadata), trace=encode_or_none(command.trace),
    )  # fmt: skip
