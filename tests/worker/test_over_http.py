"""A worker on another machine: how it is let in, what happens on a bad way, and what it sends to whom."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from callsheet.config import HttpSettings
from callsheet.core.recipe import StageSpec
from callsheet.worker import Context, HttpLink, Lost, Worker
from callsheet.worker.facts import Arrived, Left
from tests.support.lossy import AWAY, LOST, Lossy, Wrong
from tests.support.waiting import wait_until
from tests.worker.floor import Floor
from tests.worker.test_shift import Handler


@pytest.fixture
def way(remote: Floor) -> Iterator[Lossy]:
    """A way to the house on which things go wrong."""
    with Lossy(remote.served.url) as made:
        yield made


def test_a_worker_comes_works_and_goes(remote: Floor, worker: Worker) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    shift = remote.start(worker, concurrency=3)
    assert remote.ended(remote.submit()).status == "completed"
    here = remote.worker()
    assert (here.status, here.offered, here.concurrency) == ("approved", '["draw"]', 3)
    shift.stop()
    assert remote.worker().status == "gone"
    assert isinstance(remote.facts[0], Arrived)
    assert isinstance(remote.facts[-1], Left)
    assert remote.faults == []


CALLS = ("register", "claim", "heartbeat", "files", "earlier", "complete")


@pytest.mark.parametrize(
    ("wrong", "calls"),
    [
        (LOST, (*CALLS, "blobs")),
        (AWAY, (*CALLS, "blobs")),
        (Wrong(status=429), (*CALLS, "blobs")),
        (Wrong(status=200, body=b"<html>"), CALLS),  # of a store nobody can tell
    ],
    ids=["answer lost", "503", "429", "a proxy's page"],
)
def test_calls_that_go_wrong_are_sent_again_and_the_work_is_done_once(
    remote: Floor, worker: Worker, way: Lossy, wrong: Wrong, calls: tuple[str, ...]
) -> None:
    """Each call of a task's life goes wrong twice in a row."""

    @worker.task("draw")
    def draw(ctx: Context) -> str:
        ctx.log("a line")
        ctx.upload("a.txt", b"hello", "text/plain")
        return "".join(str(earlier.output) for earlier in ctx.before()) + "done"

    for path in calls:
        way.wrong[path].extend([wrong, wrong])
    shift = remote.start(worker, remote.link(url=way.url))
    job_id = remote.submit(lease_seconds=20)
    assert remote.ended(job_id).status == "completed"
    wait_until(lambda: remote.endings)
    assert [path for path in calls if way.wrong[path]] == []
    assert [remote.bytes_of(file) for file in remote.files(job_id)] == [b"hello"]
    assert remote.outcomes(job_id)[-1] == "completed"
    assert set(remote.outcomes(job_id)[:-1]) <= {"requeued"}  # a claim whose answer was lost
    assert remote.task(job_id).attempts_charged == 1
    shift.stop()
    assert remote.endings == ["completed"]


def test_a_house_that_says_later_is_asked_later(remote: Floor, worker: Worker, way: Lossy) -> None:
    way.wrong["complete"].append(Wrong(status=429, headers={"retry-after": "1"}))
    worker.task("draw")(lambda ctx: ctx.attempt)
    remote.start(worker, remote.link(url=way.url))
    assert remote.ended(remote.submit()).status == "completed"
    first, second = way.calls("complete")
    assert second.at - first.at >= 1


def test_the_token_goes_to_the_house_only_and_nowhere_else(remote: Floor, worker: Worker, way: Lossy) -> None:
    """No redirect is followed with it, and no address of a file gets it, not even one of the house."""

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        ctx.upload("a.txt", b"hello", "text/plain")
        ctx.preview(b"\xff\xd8\xffand so on")

    with Lossy(remote.served.url) as elsewhere:
        away = Wrong(status=307, headers={"location": f"{elsewhere.url}/v1/worker/complete"})
        way.wrong["complete"].append(away)
        remote.start(worker, remote.link(url=way.url))
        job = remote.ended(remote.submit())
        assert elsewhere.passed == []
    assert (job.status, job.error_code) == ("failed", "refused")
    files = way.calls("/v1/blobs/")
    assert [call.method for call in files] == ["PUT", "PUT"]
    assert [call.path for call in way.passed if "authorization" not in call.headers] == [call.path for call in files]


def test_a_wrong_secret_ends_the_shift_with_a_sentence(remote: Floor, worker: Worker) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    remote.served.keys["worker"] = "cs_wrong"
    shift = remote.start(worker)
    assert shift.wait(20)
    assert shift.failure == "The house does not take this fleet secret: it is wrong, or was revoked."


def test_a_worker_that_never_came_says_no_goodbye(remote: Floor, worker: Worker, way: Lossy) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    way.wrong["register"].extend([AWAY] * 1_000)
    shift = remote.start(worker, remote.link(url=way.url))
    wait_until(lambda: remote.waits)
    shift.stop()
    assert (way.calls("deregister"), remote.faults) == ([], [])


def test_an_address_that_is_no_house_is_said(remote: Floor, worker: Worker) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    shift = remote.start(worker, remote.link(url=f"{remote.served.url}/elsewhere"))
    assert shift.wait(20)
    assert "does not let this worker in" in str(shift.failure)
    for wrong in ("ftp://house", "house", "http://"):
        with pytest.raises(ValueError, match="http:// or https://"):
            HttpLink(wrong, str, "w1")


def test_a_worker_waits_for_its_approval_and_says_so_once(worker: Worker, tmp_path: Path, place: str) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    with Floor(place, tmp_path, http=HttpSettings(worker_approval=True)) as floor:
        floor.start(worker)
        wait_until(lambda: floor.waits)
        job_id = floor.submit()
        assert floor.worker().status == "pending"
        floor.operator.patch("/v1/admin/workers/w1", json={"approved": True}).raise_for_status()
        assert floor.ended(job_id).status == "completed"
        assert len(floor.waits) == 1
        assert "approve" in floor.waits[0]


def test_a_revoked_worker_is_stopped_and_not_let_in_again(remote: Floor, worker: Worker) -> None:
    """Weak point 17 of the original: its work is another's at once, and it says why it ended."""
    handler = Handler(remote)
    worker.task("draw")(handler)
    shift = remote.start(worker)
    job_id = remote.submit()
    assert handler.began.wait(20)
    remote.operator.post("/v1/admin/workers/w1/revoke").raise_for_status()
    assert shift.wait(20)
    assert handler.stopped_by == [Lost]
    assert "revoked" in str(shift.failure)
    remote.start(worker, remote.link("w2"))
    assert remote.ended(job_id).status == "completed"
    assert remote.outcomes(job_id) == ["requeued", "completed"]


def test_a_worker_whose_token_was_changed_comes_again(remote: Floor, worker: Worker) -> None:
    handler = Handler(remote)
    worker.task("draw")(handler)
    remote.start(worker)
    job_id = remote.submit()
    assert handler.began.wait(20)
    remote.operator.post("/v1/admin/workers/w1/rotate").raise_for_status()
    assert remote.ended(job_id).status == "completed"
    assert handler.stopped_by == [Lost]
    assert remote.worker().starts == 2
    assert remote.outcomes(job_id) == ["requeued", "completed"]


def test_two_workers_of_one_name_do_not_fight_for_ever(worker: Worker, tmp_path: Path, place: str) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    with Floor(place, tmp_path, http=HttpSettings(wait_seconds_max=0.1)) as floor:
        shifts = [floor.start(worker, floor.link("twin")) for _ in range(2)]
        wait_until(lambda: any(shift.failure for shift in shifts), 40)
        (failed,) = [shift.failure for shift in shifts if shift.failure]
        assert "same name" in failed
        assert floor.ended(floor.submit()).status == "completed"


def test_a_drained_worker_ends_what_it_holds_and_goes(remote: Floor, worker: Worker) -> None:
    began, go = threading.Event(), threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> str:
        began.set()
        assert go.wait(20)
        return f"by try {ctx.attempt}"

    shift = remote.start(worker)
    job_id = remote.submit(lease_seconds=2)
    assert began.wait(20)
    remote.operator.patch("/v1/admin/workers/w1", json={"draining": True}).raise_for_status()
    wait_until(lambda: shift.draining, 20)
    later = remote.submit()
    go.set()
    assert shift.wait(20)
    assert shift.failure is None
    assert remote.ended(job_id).status == "completed"
    assert remote.outcomes(job_id) == ["completed"]
    assert remote.job(later).status == "queued"
    assert remote.worker().status == "gone"


def test_an_idle_worker_that_is_drained_goes(worker: Worker, tmp_path: Path, place: str) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    with Floor(place, tmp_path, http=HttpSettings(wait_seconds_max=0.1)) as floor:
        shift = floor.start(worker)
        wait_until(lambda: any(isinstance(fact, Arrived) for fact in floor.facts))
        floor.operator.patch("/v1/admin/workers/w1", json={"draining": True}).raise_for_status()
        assert shift.wait(20)
        assert (shift.failure, floor.worker().status) == (None, "gone")


def test_a_claim_that_waits_does_not_hold_up_a_worker_that_goes(remote: Floor, worker: Worker, way: Lossy) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    shift = remote.start(worker, remote.link(url=way.url))
    wait_until(lambda: way.calls("claim"))
    shift.stop()
    claimed, gone = ("answered", "/v1/worker/claim"), ("asked", "/v1/worker/deregister")
    assert claimed not in way.order[: way.order.index(gone)]


def test_all_that_is_in_hand_stops_when_a_claim_finds_the_token_changed(
    worker: Worker, tmp_path: Path, place: str
) -> None:
    """No heartbeat is due for minutes: the claim alone tells."""
    began, stopped = threading.Event(), threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        if ctx.attempt == 1:
            began.set()
            wait_until(lambda: ctx.canceled or floor.over.is_set(), 60)
            stopped.set()
            ctx.progress(1)

    settings = HttpSettings(wait_seconds_max=0.1, worker_beat_seconds=600)
    with Floor(place, tmp_path, http=settings) as floor:
        floor.start(worker, concurrency=2)
        job_id = floor.submit(lease_seconds=3_600)
        assert began.wait(20)
        floor.operator.post("/v1/admin/workers/w1/rotate").raise_for_status()
        assert stopped.wait(20)
        assert floor.ended(job_id).status == "completed"


def test_a_worker_that_goes_does_not_take_again_what_it_gives_back(remote: Floor, worker: Worker) -> None:
    """With a free hand, a claim of its own still waits; given back is given back, once."""
    began = threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        began.set()
        wait_until(lambda: ctx.canceled, 20)
        ctx.progress(1)

    shift = remote.start(worker, concurrency=2)
    job_id = remote.submit()
    assert began.wait(20)
    room = remote.served.callsheet.house.fleet.room
    wait_until(lambda: room.count)
    shift.stop(cause="spot")
    task = remote.task(job_id)
    assert (remote.outcomes(job_id), task.requeues, task.attempts_charged) == (["requeued"], 1, 0)


def test_work_that_comes_to_a_worker_that_is_drained_is_given_back(remote: Floor, worker: Worker, way: Lossy) -> None:
    """A claim of its own still waits at the house: what it gets is not left to a lease that nobody prolongs."""
    handler = Handler(remote)
    worker.task("draw")(handler)
    shift = remote.start(worker, remote.link(url=way.url), concurrency=2)
    remote.submit()
    assert handler.began.wait(20)
    room = remote.served.callsheet.house.fleet.room
    wait_until(lambda: room.count)
    way.wrong["requeue"].append(AWAY)
    shift.drain()
    late = remote.submit(lease_seconds=600)
    wait_until(lambda: remote.outcomes(late) == ["requeued"], 20)
    task = remote.task(late)
    assert (task.status, task.requeues, task.attempts_charged) == ("retried", 1, 0)
    assert (shift.busy, handler.stopped_by) == (1, [])


def test_work_that_was_claimed_and_never_heard_of_is_given_back(remote: Floor, worker: Worker, way: Lossy) -> None:
    """H6 without the wait: the next claim says what is in hand, and the house finds out what was lost."""
    worker.task("draw")(lambda ctx: ctx.attempt)
    job_id = remote.submit(lease_seconds=600)
    way.wrong["claim"].append(LOST)
    remote.start(worker, remote.link(url=way.url))
    assert remote.ended(job_id).status == "completed"
    task = remote.task(job_id)
    assert (task.attempts_charged, task.requeues) == (1, 1)


def test_a_task_of_a_kind_that_was_not_assigned_is_left_alone(remote: Floor, worker: Worker) -> None:
    done: list[str] = []
    for kind in ("draw", "write"):
        worker.task(kind)(lambda ctx: done.append(ctx.kind))
    remote.start(worker)
    wait_until(lambda: any(isinstance(fact, Arrived) for fact in remote.facts))
    remote.operator.patch("/v1/admin/workers/w1", json={"kinds": ["write"]}).raise_for_status()
    drawn = remote.submit()
    written = remote.submit(StageSpec(name="write", kind="write"))
    assert remote.ended(written).status == "completed"
    assert (done, remote.job(drawn).status) == (["write"], "queued")
