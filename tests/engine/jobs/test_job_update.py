"""Changes of a job before it ends: notes, priority, added stages and added tasks."""

from typing import Any

import pytest

from callsheet.core.model.commands import AddedTasks, AddStage, AddTasks, Update
from tests.support.engine.engine_harness import EngineHarness, stage

NOTES: dict[str, Any] = {"labels": {"a": "b"}, "metadata": {"n": [1, None]}, "trace": {"traceparent": "00-1"}}
STORED = ('{"a":"b"}', '{"n":[1,null]}', '{"traceparent":"00-1"}')


def notes(row: Any) -> tuple[str | None, str | None, str | None]:
    return row.labels, row.metadata, row.trace


@pytest.fixture
def harness(harness: EngineHarness) -> EngineHarness:
    """A server whose workflow accepts added stages and tasks."""
    harness.workflow(inline=True)
    return harness


def add_stage(job: str, name: str = "more", **fields: Any) -> AddStage:
    return AddStage(tenant="acme", job_id=job, stage=stage(name, **fields))


def add_tasks(harness: EngineHarness, job: str, no: int, inputs: list[Any]) -> AddTasks:
    return AddTasks(tenant="acme", job_id=job, stage_id=harness.stages(job)[no - 1].id, inputs=inputs)


def test_notes_of_a_job_a_stage_or_a_task_can_be_changed(harness: EngineHarness) -> None:
    # R392
    job = harness.submit_job(labels={"old": "x"})
    part, task = harness.stages(job)[0].id, harness.tasks(job)[0].id
    harness.do(Update(tenant="acme", job_id=job, **NOTES))
    assert (notes(harness.job(job)), notes(harness.stages(job)[0])) == (STORED, (None, None, None))
    harness.do(Update(tenant="acme", job_id=job, stage_id=part, **NOTES))
    assert (notes(harness.stages(job)[0]), notes(harness.tasks(job)[0])) == (STORED, (None, None, None))
    harness.do(Update(tenant="acme", job_id=job, task_id=task, **NOTES))
    assert notes(harness.tasks(job)[0]) == STORED
    assert harness.events(job).count("job.changed") == 3


def test_an_update_keeps_the_fields_that_it_does_not_name(harness: EngineHarness) -> None:
    job = harness.submit_job(**NOTES)
    harness.do(Update(tenant="acme", job_id=job, metadata={}))
    assert notes(harness.job(job)) == (STORED[0], "{}", STORED[2])


def test_a_worker_gets_the_trace_of_the_stage_or_else_of_the_job(harness: EngineHarness) -> None:
    harness.workflow("trio", stages=[stage("draw", tasks=1, trace={"of": "stage"})])
    job = harness.submit_job("trio", trace={"of": "job"})
    plain = harness.submit_job(trace={"of": "job"})
    traces = {leased.lease.job_id: leased.trace for leased in harness.claim(count=2)}
    assert traces == {job: '{"of":"stage"}', plain: '{"of":"job"}'}


def test_an_invalid_update_is_refused_and_changes_nothing(harness: EngineHarness) -> None:
    job, other = harness.submit_job(), harness.submit_job()
    foreign_stage, foreign_task = harness.stages(other)[0].id, harness.tasks(other)[0].id
    before = harness.snapshot()
    invalid_updates: list[tuple[dict[str, Any], str]] = [
        ({"stage_id": foreign_stage}, "stage_not_found"),
        ({"task_id": foreign_task}, "task_not_found"),
        ({"task_id": "nothing"}, "task_not_found"),
        ({"priority": 101}, "out_of_range"),
        ({"labels": {"a": "b"}, "priority": -1}, "out_of_range"),
        ({"stage_id": harness.stages(job)[0].id, "priority": 5}, "priority_of_part"),
        ({"labels": {"": "x"}}, "invalid_label"),
        ({"metadata": {"x": "y" * 16_384}}, "metadata_too_large"),
        ({"trace": {"x": "y" * 16_384}}, "trace_too_large"),
    ]
    for fields, code in invalid_updates:
        assert harness.expect_refusal(Update(tenant="acme", job_id=job, **fields)).code == code
    assert harness.snapshot() == before


def test_the_priority_of_an_ended_job_cannot_be_changed(harness: EngineHarness) -> None:
    job = harness.submit_job()
    harness.finish(job)
    assert harness.expect_refusal(Update(tenant="acme", job_id=job, priority=5)).code == "job_ended"


def test_added_stages_run_after_the_existing_ones(harness: EngineHarness) -> None:
    # R398, R404
    job = harness.submit_job()
    first: AddedTasks = harness.do(add_stage(job, "cut", tasks=2))
    second: AddedTasks = harness.do(add_stage(job, "mix"))
    assert (first.stage_no, second.stage_no, first.first_task_no, len(first.task_ids)) == (2, 3, 1, 2)
    assert harness.claim("cut", "mix") == []
    harness.complete(harness.claim_one())
    assert [s.status for s in harness.stages(job)] == ["completed", "pending", "created"]
    for leased in harness.claim("cut", count=9):
        harness.complete(leased.lease)
    harness.finish(job, "mix")
    assert (harness.status(job), harness.job(job).stages_total) == ("completed", 3)


def test_stages_and_tasks_can_be_added_to_a_job_without_stages(harness: EngineHarness) -> None:
    # R377, R398
    harness.workflow("free", stages=[], inline=True)
    job = harness.submit_job("free")
    assert (harness.status(job), harness.claim("more")) == ("queued", [])
    harness.do(add_stage(job, tasks=0))
    assert harness.stages(job)[0].status == "pending"
    added: AddedTasks = harness.do(add_tasks(harness, job, 1, [{"n": 1}, {"n": 2}]))
    assert (added.stage_no, added.first_task_no) == (1, 1)
    assert [leased.input for leased in harness.claim("more", count=9)] == ['{"n":1}', '{"n":2}']


def test_tasks_added_to_an_open_stage_continue_its_numbering(harness: EngineHarness) -> None:
    # R401, G2
    harness.workflow("film", inline=True, stages=[stage("draw", tasks=2), stage("cut")])
    job = harness.submit_job("film")
    first, second = harness.claim(count=2)
    harness.complete(first.lease)
    added: AddedTasks = harness.do(add_tasks(harness, job, 1, [{"n": 3}, None]))
    assert (added.first_task_no, len(added.task_ids)) == (3, 2)
    later: AddedTasks = harness.do(add_tasks(harness, job, 2, [None]))
    assert (later.stage_no, later.first_task_no) == (2, 2)
    assert harness.complete(second.lease).job_status == "running"
    assert harness.stages(job)[0].status == "running", "the stage waits for the added tasks"
    assert [leased.task_no for leased in harness.claim("draw", "cut", count=9)] == [3, 4]
    assert [task.no for task in harness.tasks(job)] == [1, 2, 3, 4, 1, 2]


def test_tasks_added_to_a_waiting_stage_are_leased_after_the_approval(harness: EngineHarness) -> None:
    # R407
    harness.workflow("film", inline=True, stages=[stage("draw", approval=True)])
    job = harness.submit_job("film")
    harness.do(add_tasks(harness, job, 1, [None]))
    assert harness.claim() == []
    harness.approve(job, 1)
    assert len(harness.claim(count=9)) == 2


def test_tasks_added_to_a_paused_job_wait_for_the_resume(harness: EngineHarness) -> None:
    # R387
    job = harness.submit_job()
    harness.pause(job)
    harness.do(add_tasks(harness, job, 1, [None]))
    assert harness.claim() == []
    harness.resume(job)
    assert len(harness.claim(count=9)) == 2


@pytest.mark.parametrize("how", ["complete", "fail", "cancel"])
def test_nothing_can_be_added_to_an_ended_job(harness: EngineHarness, how: str) -> None:
    # G5
    job = harness.submit_job()
    if how == "cancel":
        harness.cancel(job)
    else:
        getattr(harness, how)(harness.claim_one())
    before = harness.snapshot()
    assert harness.expect_refusal(add_stage(job)).code == "job_ended"
    assert harness.expect_refusal(add_tasks(harness, job, 1, [None])).code == "stage_ended"
    assert harness.snapshot() == before


def test_no_task_can_be_added_to_a_completed_stage(harness: EngineHarness) -> None:
    # G2
    harness.workflow("film", inline=True, stages=[stage("draw"), stage("cut")])
    job = harness.submit_job("film")
    harness.complete(harness.claim_one())
    assert harness.expect_refusal(add_tasks(harness, job, 1, [None])).code == "stage_ended"


def test_added_stages_and_tasks_are_limited(harness: EngineHarness) -> None:
    job = harness.submit_job()
    before = harness.snapshot()
    assert harness.expect_refusal(add_tasks(harness, job, 1, [])).code == "too_many_tasks"
    assert harness.expect_refusal(add_tasks(harness, job, 1, [None] * 1_000)).code == "too_many_tasks"
    assert harness.expect_refusal(add_tasks(harness, job, 1, ["x" * 256 * 1024])).code == "input_too_large"
    assert harness.expect_refusal(add_stage(job, "no spaces")).code == "invalid_stage"
    assert harness.expect_refusal(add_stage(job, tasks=1_001)).code == "out_of_range"
    assert harness.expect_refusal(add_stage(job, labels={"": "x"})).code == "invalid_label"
    assert harness.snapshot() == before
    for _ in range(63):
        harness.do(add_stage(job))
    assert harness.expect_refusal(add_stage(job)).code == "too_many_stages"


def test_tasks_added_to_a_job_that_is_being_canceled_are_not_leased(harness: EngineHarness) -> None:
    # R122, L9
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.cancel(job)
    harness.engine.execute_many([add_tasks(harness, job, 1, [None]), add_stage(job)])
    assert harness.claim("draw", "more") == []
    assert harness.fail(lease).job_status == "canceled"
