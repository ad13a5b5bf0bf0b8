"""Accepting a job: validate, idempotency, gates and cap, price, then everything in one step or nothing."""

import hashlib
from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple

from msgspec.structs import replace

from callsheet.core.cascade import offers
from callsheet.core.clock import seconds
from callsheet.core.comfy import values_of
from callsheet.core.commands import Retry, Submit, Submitted
from callsheet.core.counting import counted
from callsheet.core.errors import BadInput, Conflict, Denied, Unknown
from callsheet.core.files import use
from callsheet.core.ids import stage_id, task_id
from callsheet.core.limits import Limits
from callsheet.core.machine import JOB, NEW, STAGE, TASK
from callsheet.core.money import reserve, wallet_id, wallet_of
from callsheet.core.moves import due
from callsheet.core.order import next_rank, queue_of
from callsheet.core.recipe import Recipe, StageSpec, check_stages, graph_of, in_range
from callsheet.core.rows import Document, Job, Queue, Run, Stage, Task, Tenant, Wallet
from callsheet.core.working import WorkingSet, encode, encoded


def submit(ws: WorkingSet, command: Submit) -> Submitted:
    """Make a job, or return the one that the same key made before."""
    recipe = _validated(ws, command)
    body = checked_input(recipe, ws.fact("validator", recipe.name), command.input, ws.limits)
    stages = recipe.stages if command.stages is None else command.stages
    fingerprint = _fingerprint(command, body)
    if known := _known(ws, command, fingerprint):
        return known
    tenant = active_tenant(ws, command.tenant)
    if command.verdict is not None:
        return _stopped(ws, command, recipe, fingerprint)
    wallet = wallet_of(ws, command.tenant, command.user)
    check_cap(ws, tenant, wallet)
    job = _job(ws, command, recipe, fingerprint, len(stages))
    reserve(ws, wallet, job, command.actor)
    plant(ws, job, recipe, stages, body, command)
    if job.idem:
        ws.set_fact("idem", job.idem, job)
    return Submitted(job.id, job.status, job.price, job.run)


def plant(
    ws: WorkingSet, job: Job, recipe: Recipe, stages: Sequence[StageSpec], body: str | None, command: Submit | Retry
) -> None:
    """Put an accepted job with its first run, stages and tasks into the working set; its first stage is open."""
    ws.put(replace(job, waiting_at=ws.now) if stages and stages[0].gate else job)
    ws.put(Run(job.id, 1, job.tenant, command.id, job.price, ws.now))
    if body is not None:
        ws.append(Document(job.id, "input", job.id, body))
        use(ws, job, body)
    JOB.step(NEW, "schedule" if job.status == "pending" else "submit", command.actor)
    ws.emit(job, "job.created", command.actor, {"workflow": job.workflow, "price": job.price}, target=job.status)
    names = []
    for no, spec in enumerate(stages, 1):
        event = None if no > 1 else "hold" if spec.gate else "open"
        names.append(add_stage(ws, job, recipe, spec, Slot(no, stage_id(job.id, no), event)).id)
    ws.set_fact("stages", job.id, names)


class Slot(NamedTuple):
    """Where a new stage goes: its number and id, and the event with which it begins its life, if it begins now."""

    no: int
    key: str
    event: str | None = None


def add_stage(ws: WorkingSet, job: Job, recipe: Recipe, spec: StageSpec, slot: Slot) -> Stage:
    """Add a stage with its tasks."""
    status = STAGE.step("created", slot.event, "system") if slot.event else "created"
    inputs = spec.inputs if spec.inputs is not None else [None] * spec.tasks
    stage = Stage(
        slot.key, job.id, job.tenant, slot.no, spec.name, spec.kind, spec.provider, int(spec.gate), ws.now, status,
        0, labels=text_or_none(spec.labels), metadata=text_or_none(spec.metadata), trace=text_or_none(spec.trace),
    )  # fmt: skip
    keys = [task_id(job.id, slot.no, n) for n in range(1, len(inputs) + 1)]
    return add_tasks(ws, job, recipe, stage, inputs, keys)


def add_tasks(ws: WorkingSet, job: Job, recipe: Recipe, stage: Stage, inputs: list[Any], keys: list[str]) -> Stage:
    """Add tasks to a stage, numbered on from those it has; in an open stage they are open, and offered."""
    queue = queue_of(stage.kind, job.workflow, stage.provider)
    if ws.find(Queue, queue) is None:
        _open_queue(ws, Queue(queue, stage.kind, job.workflow, stage.provider), recipe)
    status = "created" if stage.status == "created" else TASK.step("created", "open", "system")
    offered = offers(job, stage)
    retry = recipe.retry
    for no, (key, body) in enumerate(zip(keys, inputs, strict=True), stage.tasks_total + 1):
        rank = next_rank(ws, queue, job.priority, job.tenant) if offered else 0
        task = Task(
            key, job.id, stage.id, job.tenant, no, queue, stage.kind, retry.tries_max, retry.requeues_max,
            recipe.lease_seconds, ws.now, status, job.priority, rank=rank, ready=int(offered),
        )  # fmt: skip
        ws.put(task)
        if body is not None:
            if graph := graph_of(recipe, stage.no):
                values_of(graph, body)
            text = _bounded_input(body, ws.limits)
            ws.append(Document(key, "input", job.id, text))
            use(ws, job, text)
    if offered:
        ws.woken.add(stage.kind)
    ws.set_fact("open_tasks", stage.id, [*ws.fact("open_tasks", stage.id), *keys] if stage.tasks_total else keys)
    grown = replace(stage, tasks_total=stage.tasks_total + len(keys))
    ws.put(grown)
    return grown


def _open_queue(ws: WorkingSet, queue: Queue, recipe: Recipe) -> None:
    """Make a queue. Jobs with stages of their own name kinds and providers as they like, so they may name so many."""
    if recipe.inline:
        known, most = ws.fact("queues", queue.workflow), ws.limits.queues_per_workflow_max
        if known >= most:
            raise Conflict(
                "too_many_queues", f"Jobs of {queue.workflow!r} have named {known} pairs of kind and provider: use one "
                "of them.", queues=known, max=most,
            )  # fmt: skip
        ws.set_fact("queues", queue.workflow, known + 1)
    ws.put(queue)


def copy_of(ws: WorkingSet, old: Job, job_id: str, idem: str | None, deadline_at: int | None) -> Job:
    """Return a new job like an old one, linked to it: what `retry_as=new_job` makes."""
    at = ws.at(old)
    fresh = Job(
        job_id, old.tenant, old.user_id, old.wallet_id, old.workflow, old.workflow_version, idem, old.fingerprint,
        old.id, at, "queued", 1, old.priority, old.price, old.stages_total, 0, 0, 0, at, deadline_at=deadline_at,
        labels=old.labels, metadata=old.metadata, trace=old.trace,
    )  # fmt: skip
    return replace(fresh, due_at=due(fresh))


# -- steps


def _validated(ws: WorkingSet, command: Submit) -> Recipe:
    limits = ws.limits
    check_user(command.user, limits)
    if command.idempotency_key is not None:
        check_key(command.idempotency_key, limits)
    recipe: Recipe | None = ws.fact("current_recipe", command.workflow)
    if recipe is None:
        raise Unknown("workflow", command.workflow[:80])
    check_enabled(recipe)
    if command.stages is not None and not recipe.inline:
        raise BadInput("inline_stages", f"Workflow {recipe.name!r} brings its own stages; it takes none inline.")
    _check_inline(command.stages or [], limits)
    if command.price is not None:
        in_range("price", command.price, 0, limits.price_max)
    if command.priority is not None:
        in_range("priority", command.priority, 0, limits.priority_max)
    if command.deadline_seconds is not None:
        in_range("deadline_seconds", command.deadline_seconds, 1, limits.deadline_seconds_max)
    if not 0 <= command.start_in_seconds <= limits.schedule_seconds_max:
        raise BadInput("out_of_range", f"start_in_seconds must be from 0 to {limits.schedule_seconds_max}.")
    if command.labels or command.metadata or command.trace:
        check_notes(command.labels, command.metadata, command.trace, limits)
    return recipe


def _check_inline(stages: list[StageSpec], limits: Limits) -> None:
    check_stages(stages, limits)
    for stage in stages:
        check_notes(stage.labels, stage.metadata, stage.trace, limits)


def _fingerprint(command: Submit, body: str | None) -> str:
    """Return what makes two requests the same; nobody asks where there is no key."""
    if command.idempotency_key is None:
        return ""
    parts = (
        command.workflow, body, command.priority, float(command.start_in_seconds), command.deadline_seconds,
        command.labels, command.metadata, command.stages,
    )  # fmt: skip
    return hashlib.sha256(encode(parts).encode()).hexdigest()


def idem_of(command: Submit) -> str | None:
    """Return the name under which a submit is known, if it has a key."""
    if command.idempotency_key is None:
        return None
    # The length keeps (user "a", key "b/c") apart from (user "a/b", key "c").
    return f"{command.tenant}/{len(command.user)}/{command.user}/{command.idempotency_key}"


def _known(ws: WorkingSet, command: Submit, fingerprint: str) -> Submitted | None:
    if ws.again and (own := ws.find(Job, command.id)):
        return Submitted(own.id, own.status, own.price, own.run)
    idem = idem_of(command)
    job: Job | None = ws.fact("idem", idem) if idem else None
    if job is None:
        return None
    if job.fingerprint != fingerprint:
        raise Conflict(
            "idempotency_key_reused",
            "This idempotency key was used for another request: send the same body, or a new key.",
            job_id=job.id,
        )
    check_there(job)
    return Submitted(job.id, job.status, job.price, job.run, replay=True)


def check_there(job: Job) -> None:
    """Refuse to answer with a job that its key made and somebody has deleted."""
    if job.deleted_at is not None:
        raise Conflict("job_deleted", "The job that this idempotency key made has been deleted.", job_id=job.id)


def check_enabled(recipe: Recipe) -> None:
    """Refuse to open a run of a workflow that is switched off."""
    if not recipe.enabled:
        raise Conflict("workflow_disabled", f"Workflow {recipe.name!r} is switched off.")


def active_tenant(ws: WorkingSet, name: str) -> Tenant:
    """Return a tenant that may open runs; one that is suspended may not."""
    tenant = ws.find(Tenant, name)
    if tenant is None:
        raise Unknown("tenant", name[:80])
    if tenant.status != "active":
        raise Denied("tenant_suspended", f"Tenant {tenant.id!r} is suspended.")
    return tenant


def _stopped(ws: WorkingSet, command: Submit, recipe: Recipe, fingerprint: str) -> Submitted:
    verdict = command.verdict
    if verdict is None or not verdict.block:
        code, message = (verdict.code, verdict.message) if verdict else ("denied", "Denied.")
        raise Denied(code, message)
    job = replace(
        _job(ws, replace(command, idempotency_key=None, start_in_seconds=0), recipe, fingerprint, 0),
        status=JOB.step(NEW, "block", "system"), price=0, run=0, finished_at=ws.now, due_at=None, deadline_at=None,
        error_code=verdict.code, error_message=verdict.message,
    )  # fmt: skip
    wallet = wallet_of(ws, command.tenant, command.user)
    if ws.find(Wallet, wallet.id) is None:
        ws.put(wallet)
    ws.put(job)
    ws.emit(job, "job.blocked", "system", {"workflow": job.workflow, "code": verdict.code}, target=job.status)
    return Submitted(job.id, job.status, 0, 0)


def check_cap(ws: WorkingSet, tenant: Tenant, wallet: Wallet) -> None:
    """Refuse one more active job than the user may have, and count it if he may."""
    cap = tenant.active_jobs_max or ws.limits.active_jobs_max
    if not cap:
        return
    active: int = ws.fact("active", wallet.id)
    if active >= cap:
        raise Conflict(
            "too_many_active_jobs",
            f"This user has {counted(active, 'active job')}, and may have {cap}: wait for one to end.",
            active=active, max=cap,
        )  # fmt: skip
    ws.set_fact("active", wallet.id, active + 1)


def _job(ws: WorkingSet, command: Submit, recipe: Recipe, fingerprint: str, stages: int) -> Job:
    start_at = ws.now + seconds(command.start_in_seconds) if command.start_in_seconds else None
    deadline_at = (start_at or ws.now) + seconds(command.deadline_seconds or recipe.deadline_seconds)
    version: int = ws.fact("current_version", recipe.name)
    return Job(
        command.id, command.tenant, command.user, wallet_id(command.tenant, command.user), recipe.name, version,
        idem_of(command), fingerprint, None, ws.now, JOB.target("schedule" if start_at else "submit"), 1,
        recipe.priority if command.priority is None else command.priority,
        recipe.price if command.price is None else command.price, stages, 0, 0, 0, ws.now,
        start_at=start_at, deadline_at=deadline_at, due_at=start_at or deadline_at, labels=text_or_none(command.labels),
        metadata=text_or_none(command.metadata), trace=text_or_none(command.trace),
    )  # fmt: skip


# -- checks that others need too


def check_user(user: str, limits: Limits) -> None:
    """Refuse what names nobody."""
    _checked_text("user", user, limits.key_chars_max)


def check_key(key: str, limits: Limits) -> None:
    """Refuse an idempotency key that is none."""
    _checked_text("idempotency key", key, limits.key_chars_max)


def checked_input(recipe: Recipe, validator: Any, value: Any, limits: Limits) -> str | None:
    """Return an input as it is kept, or refuse it: no JSON, too deep, too large, not what its workflow takes."""
    if value is None and recipe.input_schema is None:
        return None
    body = _bounded_input(value, limits)
    if validator is not None and (error := next(validator.iter_errors(value), None)):
        where = "/".join(str(part) for part in error.instance_path) or "input"
        raise BadInput("invalid_input", f"{where}: {error.message}"[: limits.message_chars_max])
    for stage in recipe.stages:
        if stage.comfyui is not None and stage.inputs is None:
            values_of(stage.comfyui, value)  # what does not fit its graph is refused now, not by a worker
    return body


def check_notes(
    labels: dict[str, str] | None, metadata: dict[str, Any] | None, trace: dict[str, str] | None, limits: Limits
) -> None:
    """Refuse labels, metadata or trace context over their limits."""
    for name, value in (labels or {}).items():
        if not name or "\0" in name + value or max(len(name), len(value)) > limits.label_chars_max:
            raise BadInput("invalid_label", f"A label and its value have at most {limits.label_chars_max} characters.")
    if len(labels or {}) > limits.labels_max:
        raise BadInput("too_many_labels", f"At most {limits.labels_max} labels.")
    if labels:
        bounded_json("labels", labels, 16 * limits.labels_max * limits.label_chars_max)
    for what, notes in (("metadata", metadata), ("trace", trace)):
        if notes is not None:
            bounded_json(what, notes, limits.metadata_bytes_max)


def bounded_json(what: str, value: Any, bytes_max: int, depth_max: int = 64) -> str:
    """Encode a value, or refuse it: not JSON, too deep, too large."""
    try:
        body = encoded(value)
    except RecursionError:
        raise BadInput(f"{what}_too_deep", f"The {what} is nested deeper than {depth_max} levels.") from None
    except (TypeError, ValueError) as error:
        raise BadInput(f"invalid_{what}", f"The {what} is not JSON: {error}.") from None
    if body.count(b"[") + body.count(b"{") > depth_max or b"null" in body:
        _walk(what, value, depth_max)
    if len(body) > bytes_max:
        raise BadInput(f"{what}_too_large", f"The {what} is larger than {bytes_max} bytes.")
    return body.decode()


def _bounded_input(value: Any, limits: Limits) -> str:
    """Encode an input, or refuse it: what workers and pages read has an end in every direction."""
    body = bounded_json("input", value, limits.input_bytes_max, limits.input_depth_max)
    todo = [value] if len(body) > min(limits.input_items_max, limits.key_chars_max) else []
    while todo:
        item = todo.pop()
        if not isinstance(item, dict | list | tuple):
            continue
        if len(item) > limits.input_items_max:
            raise BadInput("input_too_large", f"The input has more than {limits.input_items_max} items in one place.")
        if isinstance(item, dict) and any(len(str(name)) > limits.key_chars_max for name in item):
            most = limits.key_chars_max
            raise BadInput("input_too_large", f"The input has a field whose name is longer than {most} characters.")
        todo.extend(item.values() if isinstance(item, dict) else item)
    return body


def text_or_none(value: dict[str, Any] | None) -> str | None:
    """Encode notes if there are any."""
    return None if value is None else encode(value)


def _checked_text(what: str, text: str, chars_max: int) -> None:
    if not text.strip() or len(text) > chars_max or not text.isprintable():
        raise BadInput(
            f"invalid_{what.replace(' ', '_')}", f"The {what} must be 1 to {chars_max} printable characters."
        )


def _walk(what: str, value: Any, levels: int) -> None:
    """Refuse depth and numbers that JSON does not have, level by level so that no depth can hurt."""
    layer = [value]
    for _ in range(levels + 1):
        deeper: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                deeper.extend(item.values())
            elif isinstance(item, list | tuple):
                deeper.extend(item)
            elif isinstance(item, float) and not isfinite(item):
                raise BadInput(f"invalid_{what}", f"The {what} holds {item}, which is not JSON.")
        if not deeper:
            return
        layer = deeper
    raise BadInput(f"{what}_too_deep", f"The {what} is nested deeper than {levels} levels.")
