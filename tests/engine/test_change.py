"""What may change while a job lives: notes and priority; more stages at its end, more tasks in an open stage."""

from typing import Any

import pytest

from callsheet.core.commands import Added, AddStage, AddTasks, Change
from tests.support.studio import Studio, stage

NOTES: dict[str, Any] = {"labels": {"a": "b"}, "metadata": {"n": [1, None]}, "trace": {"traceparent": "00-1"}}
STORED = ('{"a":"b"}', '{"n":[1,null]}', '{"traceparent":"00-1"}')


def notes(row: Any) -> tuple[str | None, str | None, str | None]:
    return row.labels, row.metadata, row.trace


@pytest.fixture
def studio(studio: Studio) -> Studio:
    """One whose workflow takes more work than its own."""
    studio.workflow(inline=True)
    return studio


def add_stage(job: str, name: str = "more", **fields: Any) -> AddStage:
    return AddStage(tenant="acme", job_id=job, stage=stage(name, **fields))


def add_tasks(studio: Studio, job: str, no: int, inputs: list[Any]) -> AddTasks:
    return AddTasks(tenant="acme", job_id=job, stage_id=studio.stages(job)[no - 1].id, inputs=inputs)


def test_notes_are_changed_on_a_job_a_stage_or_a_task(studio: Studio) -> None:
    # R392
    job = studio.ask(labels={"old": "x"})
    part, task = studio.stages(job)[0].id, studio.tasks(job)[0].id
    studio.do(Change(tenant="acme", job_id=job, **NOTES))
    assert (notes(studio.job(job)), notes(studio.stages(job)[0])) == (STORED, (None, None, None))
    studio.do(Change(tenant="acme", job_id=job, stage_id=part, **NOTES))
    assert (notes(studio.stages(job)[0]), notes(studio.tasks(job)[0])) == (STORED, (None, None, None))
    studio.do(Change(tenant="acme", job_id=job, task_id=task, **NOTES))
    assert notes(studio.tasks(job)[0]) == STORED
    assert studio.events(job).count("job.changed") == 3


def test_what_is_not_named_stays(studio: Studio) -> None:
    job = studio.ask(**NOTES)
    studio.do(Change(tenant="acme", job_id=job, metadata={}))
    assert notes(studio.job(job)) == (STORED[0], "{}", STORED[2])


def test_the_nearest_trace_goes_to_the_worker(studio: Studio) -> None:
    studio.workflow("trio", stages=[stage("draw", tasks=1, trace={"of": "stage"})])
    job = studio.ask("trio", trace={"of": "job"})
    plain = studio.ask(trace={"of": "job"})
    traces = {leased.lease.job_id: leased.trace for leased in studio.claim(count=2)}
    assert traces == {job: '{"of":"stage"}', plain: '{"of":"job"}'}


def test_a_wrong_change_changes_nothing(studio: Studio) -> None:
    # R24, R159
    job, other = studio.ask(), studio.ask()
    foreign_stage, foreign_task = studio.stages(other)[0].id, studio.tasks(other)[0].id
    before = studio.snapshot()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"stage_id": foreign_stage}, "stage_not_found"),
        ({"task_id": foreign_task}, "task_not_found"),
        ({"task_id": "nothing"}, "task_not_found"),
        ({"priority": 101}, "out_of_range"),
        ({"labels": {"a": "b"}, "priority": -1}, "out_of_range"),
        ({"stage_id": studio.stages(job)[0].id, "priority": 5}, "priority_of_part"),
        ({"labels": {"": "x"}}, "invalid_label"),
        ({"metadata": {"x": "y" * 16_384}}, "metadata_too_large"),
        ({"trace": {"x": "y" * 16_384}}, "trace_too_large"),
    ]
    for fields, code in wrong:
        assert studio.refused(Change(tenant="acme", job_id=job, **fields)).code == code
    assert studio.snapshot() == before


def test_the_priority_of_an_ended_job_cannot_be_changed(studio: Studio) -> None:
    job = studio.ask()
    studio.finish(job)
    assert studio.refused(Change(tenant="acme", job_id=job, priority=5)).code == "job_ended"


def test_a_stage_is_added_to_the_end_of_an_unfinished_job(studio: Studio) -> None:
    # R398, R404
    job = studio.ask()
    first: Added = studio.do(add_stage(job, "cut", tasks=2))
    second: Added = studio.do(add_stage(job, "mix"))
    assert (first.stage_no, second.stage_no, first.first_task_no, len(first.task_ids)) == (2, 3, 1, 2)
    assert studio.claim("cut", "mix") == []
    studio.complete(studio.take())
    assert [s.status for s in studio.stages(job)] == ["completed", "pending", "created"]
    for leased in studio.claim("cut", count=9):
        studio.complete(leased.lease)
    studio.finish(job, "mix")
    assert (studio.status(job), studio.job(job).stages_total) == ("completed", 3)


def test_a_job_that_began_without_stages_gets_them_later(studio: Studio) -> None:
    # R377, R398
    studio.workflow("free", stages=[], inline=True)
    job = studio.ask("free")
    assert (studio.status(job), studio.claim("more")) == ("queued", [])
    studio.do(add_stage(job, tasks=0))
    assert studio.stages(job)[0].status == "pending"
    added: Added = studio.do(add_tasks(studio, job, 1, [{"n": 1}, {"n": 2}]))
    assert (added.stage_no, added.first_task_no) == (1, 1)
    assert [leased.input for leased in studio.claim("more", count=9)] == ['{"n":1}', '{"n":2}']


def test_tasks_are_added_to_an_open_stage_and_numbered_on(studio: Studio) -> None:
    # R393, R401, G2
    studio.workflow("film", inline=True, stages=[stage("draw", tasks=2), stage("cut")])
    job = studio.ask("film")
    first, second = studio.claim(count=2)
    studio.complete(first.lease)
    added: Added = studio.do(add_tasks(studio, job, 1, [{"n": 3}, None]))
    assert (added.first_task_no, len(added.task_ids)) == (3, 2)
    later: Added = studio.do(add_tasks(studio, job, 2, [None]))
    assert (later.stage_no, later.first_task_no) == (2, 2)
    assert studio.complete(second.lease).job_status == "running"
    assert studio.stages(job)[0].status == "running", "the stage waits for what was added"
    assert [leased.task_no for leased in studio.claim("draw", "cut", count=9)] == [3, 4]
    assert [task.no for task in studio.tasks(job)] == [1, 2, 3, 4, 1, 2]


def test_tasks_added_to_a_stage_that_waits_are_handed_out_after_the_approval(studio: Studio) -> None:
    # R407
    studio.workflow("film", inline=True, stages=[stage("draw", gate=True)])
    job = studio.ask("film")
    studio.do(add_tasks(studio, job, 1, [None]))
    assert studio.claim() == []
    studio.approve(job, 1)
    assert len(studio.claim(count=9)) == 2


def test_tasks_added_to_a_paused_job_wait_for_the_resume(studio: Studio) -> None:
    # R387
    job = studio.ask()
    studio.pause(job)
    studio.do(add_tasks(studio, job, 1, [None]))
    assert studio.claim() == []
    studio.resume(job)
    assert len(studio.claim(count=9)) == 2


@pytest.mark.parametrize("how", ["complete", "fail", "cancel"])
def test_nothing_is_added_to_what_has_ended(studio: Studio, how: str) -> None:
    # R24, J9
    job = studio.ask()
    if how == "cancel":
        studio.cancel(job)
    else:
        getattr(studio, how)(studio.take())
    before = studio.snapshot()
    assert studio.refused(add_stage(job)).code == "job_ended"
    assert studio.refused(add_tasks(studio, job, 1, [None])).code == "stage_ended"
    assert studio.snapshot() == before


def test_nothing_is_added_to_a_completed_stage(studio: Studio) -> None:
    # R401
    studio.workflow("film", inline=True, stages=[stage("draw"), stage("cut")])
    job = studio.ask("film")
    studio.complete(studio.take())
    assert studio.refused(add_tasks(studio, job, 1, [None])).code == "stage_ended"


def test_what_is_added_has_limits(studio: Studio) -> None:
    job = studio.ask()
    before = studio.snapshot()
    assert studio.refused(add_tasks(studio, job, 1, [])).code == "too_many_tasks"
    assert studio.refused(add_tasks(studio, job, 1, [None] * 1_000)).code == "too_many_tasks"
    assert studio.refused(add_tasks(studio, job, 1, ["x" * 256 * 1024])).code == "input_too_large"
    assert studio.refused(add_stage(job, "no spaces")).code == "invalid_stage"
    assert studio.refused(add_stage(job, tasks=1_001)).code == "out_of_range"
    assert studio.refused(add_stage(job, labels={"": "x"})).code == "invalid_label"
    assert studio.snapshot() == before
    for _ in range(63):
        studio.do(add_stage(job))
    assert studio.refused(add_stage(job)).code == "too_many_stages"


def test_a_job_that_is_being_canceled_hands_out_nothing_that_is_added(studio: Studio) -> None:
    # R122, L9
    job = studio.ask()
    lease = studio.take()
    studio.cancel(job)
    studio.engine.execute_many([add_tasks(studio, job, 1, [None]), add_stage(job)])
    assert studio.claim("draw", "more") == []
    assert studio.fail(lease).job_status == "canceled"
