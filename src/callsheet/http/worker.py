"""The worker protocol: machines that come for work, hold leases, and hand in what they made."""

from typing import Any

from msgspec.structs import replace

from callsheet import protocol
from callsheet.blobs.base import BlobError
from callsheet.core import commands, rows
from callsheet.core.claim import kinds_of
from callsheet.core.commands import TaskState
from callsheet.core.errors import Conflict, Refusal
from callsheet.engine.room import give_back
from callsheet.http.auth import WORKER_PREFIX, hashed, new_secret
from callsheet.http.codes import VALUES
from callsheet.http.house import House
from callsheet.http.problem import Problem
from callsheet.http.request import Request
from callsheet.http.route import FLEET, MACHINES, Answer, Route
from callsheet.http.storage import problem_of_storage


async def register_worker(house: House, request: Request) -> Answer:
    body: protocol.Register = request.content
    await house.fleet.verify(body, request.address)
    token = new_secret(WORKER_PREFIX)
    state: commands.WorkerState = await house.engine.aexecute(
        commands.Register(
            worker_id=body.worker, kinds=tuple(body.kinds), token_hash=hashed(token), concurrency=body.concurrency,
            capabilities=body.capabilities, labels=body.labels, approved=not house.settings.worker_approval,
            by=request.who.id,
        )
    )  # fmt: skip
    house.keys.forget()
    settings = house.settings
    return Answer(
        protocol.Registered(
            state.worker_id, token, list(state.kinds), state.status == "approved", settings.worker_beat_seconds,
            settings.wait_seconds_max,
        ),
        201,
    )  # fmt: skip


async def claim_tasks(house: House, request: Request) -> Answer:
    body: protocol.Claim = request.content
    worker = _worker(house, request)
    if not 0 <= body.wait_seconds <= house.settings.wait_seconds_max:
        raise Problem(422, "out_of_range", f"wait_seconds must be from 0 to {house.settings.wait_seconds_max:g}.")
    if worker.draining_at is not None:
        return Answer(protocol.Claimed([], drain=True))
    may, asked = kinds_of(worker), None if body.kinds is None else set(body.kinds)
    kinds = may if asked is None else tuple(kind for kind in may if kind in asked)
    if not kinds:
        await request.unless_gone(house.fleet.room.rest(body.wait_seconds))
        return Answer(protocol.Claimed([], drain=False))
    count = body.count if body.count > house.engine.settings.limits.claim_max else min(body.count, worker.concurrency)
    command = commands.Claim(
        worker_id=worker.id, kinds=kinds, count=count, session=worker.token_hash,
        holds=None if body.holds is None else tuple(body.holds),
    )  # fmt: skip
    try:
        tasks = await request.unless_gone(house.fleet.claim(command, body.wait_seconds))
    except Conflict as refusal:
        if refusal.code != "worker_draining":
            raise
        return Answer(protocol.Claimed([], drain=True))
    if not tasks:
        request.who = await house.keys.who(request)  # what was decided about it while it waited
        return Answer(protocol.Claimed([], _worker(house, request).draining_at is not None))
    try:
        works = await house.handing.works(tasks)
    except BaseException:
        await give_back(house.engine, tasks, "the house could not hand it out")
        raise
    return Answer(protocol.Claimed(works, drain=False))


async def beat(house: House, request: Request) -> Answer:
    body: protocol.Heartbeat = request.content
    worker = _worker(house, request)
    house.fleet.pace.take(worker.id, worker.concurrency, len(body.beats))
    many = [
        commands.Heartbeat(
            lease=beat.lease, lease_seconds=beat.lease_seconds, progress=beat.progress, message=beat.message,
            preview=beat.preview, log=tuple(beat.log), worker_id=worker.id,
        )
        for beat in body.beats
    ]  # fmt: skip
    answers: list[Any] = await house.engine.aexecute_many(many)
    beats = [await _beaten(house, worker, *pair) for pair in zip(body.beats, answers, strict=True)]
    return Answer(protocol.Heartbeaten(beats, worker.draining_at is not None))


async def _beaten(
    house: House, worker: rows.Worker, beat: protocol.Beat, answer: commands.Beat | Exception
) -> protocol.Beaten:
    if isinstance(answer, Refusal):
        return protocol.Beaten(beat.lease.task_id, refused=protocol.Refused(answer.code, answer.message))
    if isinstance(answer, Exception):
        raise answer
    beaten = protocol.Beaten(beat.lease.task_id, answer.lease_seconds, answer.cancel)
    if not (beat.gets or beat.puts):
        return beaten
    try:
        grants = await house.handing.grants(await house.handing.held(worker.id, beat.lease), beat)
    except (Refusal, Problem, BlobError) as error:  # the lease is prolonged, and the others stand
        why = problem_of_storage(error) if isinstance(error, BlobError) else error
        return replace(beaten, ungranted=protocol.Refused(why.code, why.message))
    return replace(beaten, grants=grants)


async def grant_files(house: House, request: Request) -> Answer:
    body: protocol.Files = request.content
    worker = _worker(house, request)
    return Answer(await house.handing.grants(await house.handing.held(worker.id, body.lease), body))


async def list_earlier(house: House, request: Request) -> Answer:
    body: protocol.Before = request.content
    worker = _worker(house, request)
    task = await house.handing.held(worker.id, body.lease)
    return Answer(await house.handing.earlier(task, body.after))


async def note_submitted(house: House, request: Request) -> Answer:
    body: protocol.Submitted = request.content
    worker = _worker(house, request)
    return await _reported(
        house, commands.Submitting(lease=body.lease, provider=body.provider, ref=body.ref, worker_id=worker.id)
    )


async def complete_task(house: House, request: Request) -> Answer:
    body: protocol.Complete = request.content
    worker = _worker(house, request)
    task = await house.handing.live(worker.id, body.lease) if body.files else None
    if task is not None:  # if it has ended, the rules know whether this is the same report again
        await house.handing.check(task, body.files)
    return await _reported(
        house,
        commands.Complete(
            lease=body.lease, output=body.output, files=tuple(body.files), delivered=body.delivered,
            worker_id=worker.id,
        ),
    )  # fmt: skip


async def fail_task(house: House, request: Request) -> Answer:
    body: protocol.Fail = request.content
    worker = _worker(house, request)
    return await _reported(
        house,
        commands.Fail(
            lease=body.lease, code=body.code, message=body.message, retryable=body.retryable, resume=body.resume,
            worker_id=worker.id,
        ),
    )  # fmt: skip


async def requeue_task(house: House, request: Request) -> Answer:
    body: protocol.Requeue = request.content
    worker = _worker(house, request)
    house.fleet.room.let_go(worker.id)  # or a claim of its own that still waits would take it again
    return await _reported(
        house,
        commands.Requeue(lease=body.lease, reason=body.reason, cause=body.cause, worker_id=worker.id),
    )


async def deregister_worker(house: House, request: Request) -> Answer:
    body: protocol.Deregister = request.content
    worker = _worker(house, request)
    state: commands.WorkerState = await house.engine.aexecute(
        commands.Deregister(worker_id=worker.id, session=worker.token_hash or "", reason=body.reason, by=request.who.id)
    )
    house.keys.forget()
    return Answer(protocol.Gone(state.requeued))


def _worker(house: House, request: Request) -> rows.Worker:
    """Return who calls, and note that it was heard of."""
    worker: rows.Worker = request.who.worker
    house.fleet.heard(worker.id)
    return worker


async def _reported(house: House, command: commands.Command) -> Answer:
    state: TaskState = await house.engine.aexecute(command)
    return Answer(protocol.Reported(state.task_id, state.status, state.job_status, state.skipped, state.replay))


_LEASE = ("404 task_not_found", "404 lease_not_found", "409 lease_lost", *VALUES)
_NAMES = ("422 invalid_worker", "422 invalid_kind", "422 invalid_label", "422 too_many_labels",
          "422 capabilities_too_large", "422 capabilities_too_deep")  # fmt: skip
_FILE = ("404 file_not_found", "422 invalid_file")
ROUTES = (
    Route("POST", "/v1/worker/register", register_worker, FLEET, "Register a worker", protocol.Registered,
          protocol.Register, status=201, guarded=True,
          problems=("403 worker_revoked", "403 worker_not_ours", "409 fleet_full", "429 too_many_wrong_keys",
                    "503 worker_not_verified", *_NAMES, *VALUES),
          details="The key is the fleet's secret: a key of the role worker. The same name again is a restart: the old "
          "token is good no longer, and what the worker held is given back without using up a try."),
    Route("POST", "/v1/worker/claim", claim_tasks, MACHINES, "Claim tasks, and wait for some if there are none",
          protocol.Claimed, protocol.Claim,
          problems=("401 not_admitted", "403 worker_not_approved", "409 worker_full", "409 kind_not_assigned",
                    "503 stopping", *VALUES)),
    Route("POST", "/v1/worker/heartbeat", beat, MACHINES, "Heartbeat: prolong leases, say how far the work is",
          protocol.Heartbeaten, protocol.Heartbeat,
          problems=("429 too_many_calls", "422 too_many_commands", *VALUES),
          details="Each lease has its own answer, in the order of the question: one that is refused says so in "
          "`refused`, and the others stand. Addresses that cannot be given are said in `ungranted`; that lease is "
          "prolonged all the same."),
    Route("POST", "/v1/worker/files", grant_files, MACHINES, "Get addresses to read and to put files", protocol.Grants,
          protocol.Files, problems=(*_LEASE, *_FILE)),
    Route("POST", "/v1/worker/earlier", list_earlier, MACHINES, "What earlier stages made", protocol.EarlierStages,
          protocol.Before, problems=_LEASE,
          details="In the order of stages and tasks, page by page: ask again with `after` as `next` says, until it is "
          "null."),
    Route("POST", "/v1/worker/submitted", note_submitted, MACHINES, "Write down where the work lies elsewhere",
          protocol.Reported, protocol.Submitted, problems=("422 invalid_provider", "422 invalid_ref", *_LEASE),
          details="The reference is shown to nobody. If this try is cut short, the next one gets it with the task, and "
          "looks there before it does the work again."),
    Route("POST", "/v1/worker/complete", complete_task, MACHINES, "Complete a task", protocol.Reported,
          protocol.Complete, carries="output_bytes_max",
          problems=("422 file_not_put", "422 size_mismatch", "422 digest_mismatch", "422 output_too_large",
                    "422 output_too_deep", "422 invalid_file", *_LEASE)),
    Route("POST", "/v1/worker/fail", fail_task, MACHINES, "Fail a try", protocol.Reported,
          protocol.Fail, problems=_LEASE),
    Route("POST", "/v1/worker/requeue", requeue_task, MACHINES, "Requeue a task without using up a try",
          protocol.Reported, protocol.Requeue, problems=("422 reason_required", *_LEASE)),
    Route("POST", "/v1/worker/deregister", deregister_worker, MACHINES, "Deregister a worker", protocol.Gone,
          protocol.Deregister, problems=("401 not_admitted", *VALUES)),
)  # fmt: skip
