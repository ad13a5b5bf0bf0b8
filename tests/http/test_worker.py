"""The worker protocol over a real socket, said in plain HTTP: what any program would have to send."""

import threading
import time
from typing import Any

import pytest

from callsheet.config import HttpSettings, Settings
from callsheet.core import commands
from callsheet.core.limits import Limits
from callsheet.core.recipe import Recipe, StageSpec
from tests.http.yard import PNG, Machine, Yard, job_of, made_of, said
from tests.support.served import Served
from tests.support.waiting import wait_until


@pytest.fixture
def yard(served: Served) -> Yard:
    return Yard(served)


# -- the whole way


def test_a_worker_registers_claims_puts_a_file_and_completes(yard: Yard) -> None:
    """R198, R199, R200, R214, R222, R233, R240 to R246."""
    job = yard.submit()
    machine = yard.machine()
    assert (machine.told["worker"], machine.told["kinds"], machine.told["approved"]) == (
        yard.name("w1"), [yard.kind], True,
    )  # fmt: skip
    (task,) = machine.claim()
    assert (task["kind"], task["input"], task["files"]) == (yard.kind, {"prompt": "a lighthouse"}, [])
    made = machine.put(task, PNG)
    done = said(machine.say("complete", task, output={"seed": 7}, files=[made]))
    assert (done["status"], done["job_status"], done["replay"]) == ("completed", "completed", False)
    assert said(machine.say("complete", task, output={"seed": 7}, files=[made]))["replay"] is True
    (output,) = said(yard.served.client("client").get(f"/v1/jobs/{job['id']}/outputs"))["outputs"]
    (file,) = output["files"]
    assert yard.served.client("client").get(f"/v1/files/{file['id']}").content == PNG


def test_what_a_worker_gets_names_no_tenant_and_no_object_key(yard: Yard) -> None:
    job = yard.submit()
    machine = yard.machine()
    raw = machine.http.post("/v1/worker/claim", json={})
    assert job["id"] in raw.text
    assert "default" not in raw.text
    assert "jobs/" not in raw.text


def test_a_claim_waits_for_work_and_gets_it_as_soon_as_it_comes(yard: Yard) -> None:
    """R216."""
    machine = yard.machine()
    assert machine.claim() == []
    room = yard.served.callsheet.house.fleet.room
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(machine.claim(wait_seconds=30)))
    thread.start()
    wait_until(lambda: room.count == 1)
    job = yard.submit()
    thread.join()
    assert [task["lease"]["job_id"] for task in got] == [job["id"]]


def test_several_tasks_in_one_claim_and_never_more_than_the_worker_can_do(yard: Yard) -> None:
    """R156."""
    for _ in range(5):
        yard.submit()
    machine = yard.machine(concurrency=3)
    assert len(machine.claim(count=2)) == 2
    assert len(machine.claim(count=5)) == 1
    assert said(machine.http.post("/v1/worker/claim", json={}), 409)["code"] == "worker_full"


def test_only_what_is_assigned_is_handed_out(yard: Yard) -> None:
    """R46, R188, R209: a kind is a word that a workflow brings, made while the house is open."""
    song = yard.workflow(f"sing-{yard.mark}")
    yard.submit(workflow=song)
    job = yard.submit()
    machine = yard.machine("both", yard.kind, song, concurrency=5)
    assert yard.worker("both", kinds=[yard.kind])["kinds"] == [yard.kind]
    assert machine.claim(count=5, kinds=[song]) == []
    assert [task["lease"]["job_id"] for task in machine.claim(count=5)] == [job["id"]]
    yard.worker("both", kinds=[])
    assert [task["kind"] for task in machine.claim(count=5)] == [song]


def test_a_worker_that_may_take_nothing_waits_like_the_others(yard: Yard) -> None:
    """Otherwise it would ask again at once, as fast as it can."""
    yard.machine("w1", yard.kind, "something-else")
    yard.worker("w1", kinds=["something-else"])
    machine = yard.machine()  # it comes again, and does that no more
    begun = time.monotonic()
    assert machine.claim(wait_seconds=0.5) == []
    assert time.monotonic() - begun >= 0.5


# -- heartbeats


def test_heartbeats_of_several_leases_carry_progress_and_log_up_and_cancel_down(yard: Yard) -> None:
    """R107, R227, R229."""
    jobs = [yard.submit(), yard.submit()]
    machine = yard.machine(concurrency=2)
    tasks = machine.claim(count=2)
    yard.served.client("client").post(f"/v1/jobs/{jobs[1]['id']}/cancel", json={"grace_seconds": 60}).raise_for_status()
    answer = machine.beat(*tasks, progress=40, message="halfway", log=["loaded", "drawing /home/me/x"])
    by_job = {task["lease"]["job_id"]: beat for task, beat in zip(tasks, answer["beats"], strict=True)}
    assert [by_job[job["id"]]["cancel"] for job in jobs] == [False, True]
    assert all(beat["lease_seconds"] > 800 for beat in by_job.values())
    events = said(yard.served.client("client").get(f"/v1/jobs/{jobs[0]['id']}/events"))["events"]
    logged = [event["data"]["lines"] for event in events if event["type"] == "task.logged"]
    assert logged[0][0] == "loaded"
    assert "/home/me" not in str(logged)
    assert job_of(yard.served, jobs[0])["progress"] == 40


def test_one_bad_lease_among_several_is_refused_alone(yard: Yard) -> None:
    yard.submit()
    machine = yard.machine()
    (task,) = machine.claim()
    other = {"lease": {**task["lease"], "token": "made up"}}
    good, bad = machine.beat(task, other)["beats"]
    assert (good["refused"], bad["refused"]["code"]) == (None, "lease_not_found")


def test_a_lease_is_prolonged_and_the_others_are_answered_though_an_address_cannot_be_given(yard: Yard) -> None:
    canceled, _ = yard.submit(), yard.submit()
    machine = yard.machine(concurrency=2)
    tasks = machine.claim(count=2)
    yard.served.client("client").post(f"/v1/jobs/{canceled['id']}/cancel", json={"grace_seconds": 0}).raise_for_status()
    beats = machine.beat(*tasks, gets=["nowhere"])["beats"]
    by_job = {task["lease"]["job_id"]: beat for task, beat in zip(tasks, beats, strict=True)}
    assert by_job.pop(canceled["id"])["cancel"] is True
    (other,) = by_job.values()
    assert other["lease_seconds"] > 800
    assert (other["refused"], other["grants"], other["ungranted"]["code"]) == (None, None, "file_not_found")


def test_a_heartbeat_brings_fresh_addresses_for_the_same_lease(yard: Yard) -> None:
    """R234."""
    yard.submit()
    machine = yard.machine()
    (task,) = machine.claim()
    (beat,) = machine.beat(task, puts=[made_of(PNG)])["beats"]
    put = beat["grants"]["puts"][0]["put"]
    answer = machine.http.request(put["method"], put["url"], content=PNG, headers=put["headers"])
    assert answer.is_success
    said(machine.say("complete", task, files=[made_of(PNG)]))


def test_a_worker_that_calls_far_too_often_is_told_to_wait(place: Any, tmp_path: Any) -> None:
    with Served(place, tmp_path, HttpSettings(beats_per_second_max=3)) as served:
        yard = Yard(served)
        yard.submit()
        machine = yard.machine()
        (task,) = machine.claim()
        body = {"beats": [{"lease": task["lease"]}]}
        answers = [machine.http.post("/v1/worker/heartbeat", json=body) for _ in range(50)]
    late = [answer for answer in answers if answer.status_code == 429]
    assert late
    assert {answer.json()["code"] for answer in late} == {"too_many_calls"}
    assert late[0].headers["retry-after"] == "1"


def test_a_call_counts_as_the_heartbeats_in_it(place: Any, tmp_path: Any) -> None:
    """However they are put together: what one call took too much is owed, and the wait for it is true."""
    with Served(place, tmp_path, HttpSettings(beats_per_second_max=1)) as served:
        yard = Yard(served)
        yard.submit()
        machine, other = yard.machine(), yard.machine("w2", concurrency=500)
        (task,) = machine.claim()
        said(machine.http.post("/v1/worker/heartbeat", json={"beats": [{"lease": task["lease"]}] * 500}))
        late = machine.http.post("/v1/worker/heartbeat", json={"beats": [{"lease": task["lease"]}]})
        assert said(late, 429)["code"] == "too_many_calls"
        assert 400 < int(late.headers["retry-after"]) <= 500
        strange = {"beats": [{"lease": task["lease"]}] * 500}
        assert len(said(other.http.post("/v1/worker/heartbeat", json=strange))["beats"]) == 500
        late = other.http.post("/v1/worker/heartbeat", json=strange)
        assert late.status_code == 200 or late.headers["retry-after"] == "1"


# -- the end of a try


def test_a_result_counts_only_with_its_files_as_claimed(yard: Yard) -> None:
    """C13, R248: nothing there, another size, another digest; then the truth."""
    job = yard.submit()
    machine = yard.machine()
    (task,) = machine.claim()
    assert said(machine.say("complete", task, files=[made_of(PNG)]), 422)["code"] == "file_not_put"
    made = machine.put(task, PNG)
    lies = {"bytes": len(PNG) + 1}, {"sha256": "0" * 64}
    codes = [said(machine.say("complete", task, files=[made | lie]), 422)["code"] for lie in lies]
    assert codes == ["size_mismatch", "digest_mismatch"]
    assert job_of(yard.served, job)["status"] == "running"
    said(machine.say("complete", task, files=[made]))
    assert job_of(yard.served, job)["status"] == "completed"


def test_a_lease_with_another_number_is_none_and_lets_no_file_pass_unseen(yard: Yard) -> None:
    job = yard.submit()
    machine = yard.machine()
    (task,) = machine.claim()
    lie = {"lease": task["lease"] | {"attempt": task["lease"]["attempt"] + 1}}
    assert said(machine.say("complete", lie, files=[made_of(PNG)]), 404)["code"] == "lease_not_found"
    assert machine.beat(lie)["beats"][0]["refused"]["code"] == "lease_not_found"
    assert job_of(yard.served, job)["status"] == "running"


def test_what_no_database_keeps_is_refused_and_not_asked_for(yard: Yard) -> None:
    yard.submit()
    machine = yard.machine()
    (task,) = machine.claim()
    lie = {"lease": task["lease"] | {"attempt": 2**63}}
    for verb, more in (("complete", {}), ("fail", {}), ("requeue", {"reason": "spot"})):
        assert said(machine.say(verb, lie, **more), 422)["code"] == "out_of_range"
    assert said(machine.say("files", task, gets=["a\0b"]), 404)["code"] == "file_not_found"
    body = {"workflow": yard.kind, "user": "ann", "input": {"picture": {"$file": "a\0b"}}}
    assert said(yard.served.client("client").post("/v1/jobs", json=body), 404)["code"] == "file_not_found"


def test_addresses_for_more_files_than_a_task_may_have_are_refused(yard: Yard) -> None:
    yard.submit()
    machine = yard.machine()
    (task,) = machine.claim()
    limits = yard.served.engine.settings.limits
    many = {"puts": [made_of(PNG)] * (limits.files_per_task_max + 1)}, {"gets": ["x"] * (limits.bulk_max + 1)}
    assert [said(machine.say("files", task, **one), 422)["code"] for one in many] == ["out_of_range"] * 2


def test_a_failure_is_tried_again_or_not_as_the_worker_says(yard: Yard) -> None:
    """R250 to R256, R266, C6."""
    machine = yard.machine(concurrency=2)
    one, two = yard.submit(), yard.submit()
    for task in machine.claim(count=2):
        again = task["lease"]["job_id"] == one["id"]
        text = "no memory: https://bucket.example/x?X-Amz-Signature=abc"
        said(machine.say("fail", task, code="out_of_memory", message=text, retryable=again))
    assert [job_of(yard.served, job)["status"] for job in (one, two)] == ["running", "failed"]
    error = job_of(yard.served, two)["error"]
    assert error["code"] == "out_of_memory"
    assert "X-Amz-Signature" not in error["message"]


def test_a_task_given_back_uses_up_no_try_and_says_why(yard: Yard) -> None:
    """R257 to R261."""
    job = yard.submit()
    machine = yard.machine()
    for attempt in (1, 2):
        (task,) = machine.claim()
        assert task["lease"]["attempt"] == attempt
        said(machine.say("requeue", task, reason="taken away", cause="spot"))
    row = yard.task_of(job)
    assert (row["attempts"], row["attempts_charged"]) == (2, 0)
    found = f"/v1/jobs/{job['id']}/tasks/{row['id']}/attempts"
    attempts = said(yard.served.client("client").get(found))["attempts"]
    assert [attempt["error"]["code"] for attempt in attempts] == ["spot", "spot"]


def test_work_that_lies_elsewhere_is_found_by_the_next_try_and_by_nobody_else(yard: Yard) -> None:
    job = yard.submit()
    machine = yard.machine()
    (task,) = machine.claim()
    assert task["resumed"] is None
    said(machine.say("submitted", task, provider="comfy-cloud", ref="prompt-4711"))
    said(machine.say("submitted", task, provider="comfy-cloud", ref="prompt-4711"))
    said(machine.say("requeue", task, reason="spot"))
    (task,) = machine.claim()
    assert task["resumed"] == {"provider": "comfy-cloud", "ref": "prompt-4711"}
    said(machine.say("fail", task, retryable=True))
    client = yard.served.client("client")
    for path in ("", "/tasks", "/events", f"/tasks/{task['lease']['task_id']}/attempts"):
        assert "prompt-4711" not in client.get(f"/v1/jobs/{job['id']}{path}").text


# -- whose lease it is


def test_a_lease_is_good_for_the_worker_that_took_it_and_no_other(yard: Yard) -> None:
    """R159, R194, weak point 19 of the original."""
    job = yard.submit()
    mine, theirs = yard.machine("mine"), yard.machine("theirs")
    (task,) = mine.claim()
    for verb, more in (("complete", {}), ("fail", {}), ("requeue", {"reason": "x"}), ("files", {}), ("earlier", {})):
        assert said(theirs.say(verb, task, **more), 404)["code"] == "lease_not_found"
    assert theirs.beat(task)["beats"][0]["refused"]["code"] == "lease_not_found"
    assert job_of(yard.served, job)["status"] == "running"


def test_reports_of_an_old_lease_are_refused_and_change_nothing(yard: Yard) -> None:
    yard.submit()
    machine = yard.machine()
    (old,) = machine.claim()
    said(machine.say("requeue", old, reason="spot"))
    (new,) = machine.claim()
    for verb in ("complete", "fail"):
        assert said(machine.say(verb, old), 409)["code"] == "lease_lost"
    assert said(machine.say("files", old, puts=[made_of(PNG)]), 409)["code"] == "lease_lost"
    said(machine.say("complete", new))


def test_a_lease_whose_answer_was_lost_is_given_back_at_the_next_claim(yard: Yard) -> None:
    job = yard.submit()
    machine = yard.machine()
    assert len(machine.claim()) == 1  # and the answer never arrived
    (task,) = machine.claim(holds=[], wait_seconds=30)
    assert (task["lease"]["job_id"], task["lease"]["attempt"]) == (job["id"], 2)
    row = yard.task_of(job)
    assert row["attempts_charged"] == 1


# -- coming and going


def test_the_same_name_again_is_a_restart(yard: Yard) -> None:
    """R202, R203, R210, R212: a new token, the old one fails, what it held is given back."""
    job = yard.submit()
    before = yard.machine()
    (task,) = before.claim()
    after = yard.machine()
    assert said(before.http.post("/v1/worker/claim", json={}), 401)["code"] == "invalid_key"
    assert said(after.say("complete", task), 409)["code"] == "lease_lost"
    (again,) = after.claim()
    assert (again["lease"]["job_id"], again["lease"]["attempt"]) == (job["id"], 2)


def test_who_goes_gives_back_what_it_held(yard: Yard) -> None:
    """R211, R212."""
    yard.submit()
    machine = yard.machine()
    machine.claim()
    assert said(machine.http.post("/v1/worker/deregister", json={"reason": "night"})) == {"requeued": 1}
    assert said(machine.http.post("/v1/worker/claim", json={}), 401)["code"] == "invalid_key"
    assert len(yard.machine("w2").claim()) == 1


def test_a_wrong_secret_is_refused_and_after_twenty_a_minute_told_to_wait(yard: Yard) -> None:
    """R198; a right one from the same address is let in all the same."""
    wrong = yard.served.client(headers={"authorization": "Bearer cs_wrong"})
    body = {"worker": "w", "kinds": ["draw"]}
    answers = [wrong.post("/v1/worker/register", json=body) for _ in range(21)]
    assert [answer.status_code for answer in answers] == [401] * 20 + [429]
    assert answers[-1].json()["code"] == "too_many_wrong_keys"
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
    assert yard.served.register(yard.name("w"))["worker"] == yard.name("w")


def test_the_fleet_has_a_cap_and_those_who_go_make_room(place: Any, tmp_path: Any) -> None:
    """R201."""
    with Served(place, tmp_path, settings=Settings(limits=Limits(workers_max=3))) as served:
        machine = Machine(served, "a")  # beside m1 of the fixture
        Machine(served, "b")
        body = {"worker": "c", "kinds": ["draw"]}
        refused = said(served.client("worker").post("/v1/worker/register", json=body), 409)
        assert (refused["code"], refused["max"]) == ("fleet_full", 3)
        Machine(served, "b")  # a restart takes no further place
        machine.http.post("/v1/worker/deregister", json={}).raise_for_status()
        Machine(served, "c")


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"worker": "../x"}, "invalid_worker"),
        ({"kinds": []}, "out_of_range"),
        ({"kinds": ["a b"]}, "invalid_kind"),
        ({"concurrency": 0}, "out_of_range"),
        ({"labels": {"": "x"}}, "invalid_label"),
        ({"capabilities": {"x": "y" * 20_000}}, "capabilities_too_large"),
        ({"token": "mine"}, "invalid_body"),
    ],
)
def test_a_registration_that_makes_no_sense_is_refused(yard: Yard, wrong: dict[str, Any], code: str) -> None:
    # R199
    body = {"worker": "w", "kinds": ["draw"], **wrong}
    assert said(yard.served.client("worker").post("/v1/worker/register", json=body), 422)["code"] == code


def test_what_earlier_stages_made_comes_in_pages(yard: Yard) -> None:
    kind = yard.kind
    stages = [StageSpec(name="draw", kind=kind, tasks=6), StageSpec(name="cut", kind=kind)]
    yard.served.engine.execute(commands.PutWorkflow(recipe=Recipe(name=kind, stages=stages)))
    yard.submit()
    machine = yard.machine()
    for _ in range(6):
        (task,) = machine.claim()
        said(machine.say("complete", task, output="x" * 1_000_000))
    (task,) = machine.claim()
    pages = [said(machine.say("earlier", task))]
    while after := pages[-1]["next"]:
        pages.append(said(machine.say("earlier", task, after=after)))
    assert [[one["task_no"] for one in page["tasks"]] for page in pages] == [[1, 2, 3, 4], [5, 6]]
    for wrong in (-1, 2**63):
        answer = machine.say("earlier", task, after={"stage_no": wrong, "task_no": 1})
        assert said(answer, 422)["code"] == "out_of_range"
    said(machine.say("complete", task))
