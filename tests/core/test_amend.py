"""What may change while a job lives, what may be appended to it, and the places of readers."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.rows import Stage, Task
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from tests.core.rule_harness import DRAW, CoreHarness

MORE = replace(DRAW, inline=True)
OPEN = WorkflowDefinition(name="open", price=4, inline=True)
DRAWN = StageSpec(name="more", kind="draw")


def _of(job_id: str, **more: Any) -> dict[str, Any]:
    return {"tenant": "acme", "job_id": job_id, **more}


def test_notes_of_job_stage_and_task_change_and_the_job_says_so() -> None:
    """R392: they do not touch the execution."""
    harness = CoreHarness(DRAW)
    job_id = harness.submit(labels={"a": "1"})
    stage, task = harness.stages(job_id)[0], harness.tasks(job_id)[0]
    harness.do(c.Update(**_of(job_id, labels={"a": "2"}, metadata={"n": 1})))
    harness.do(c.Update(**_of(job_id, stage_id=stage.id, metadata={"n": 2})))
    harness.do(c.Update(**_of(job_id, task_id=task.id, trace={"t": "3"})))
    assert (harness.job(job_id).labels, harness.job(job_id).metadata) == ('{"a":"2"}', '{"n":1}')
    assert harness.get(Stage, stage.id).metadata == '{"n":2}'
    assert harness.get(Task, task.id).trace == '{"t":"3"}'
    assert harness.event_types(job_id)[1:] == ["job.changed"] * 3


def test_what_is_paid_for_is_the_workflows_own_work() -> None:
    """A price is for the stages of the workflow: nobody adds others to it, and other stages only where they may be."""
    harness = CoreHarness(DRAW, replace(DRAW, name="free", price=0))
    paid, free = harness.submit(), harness.submit("free")
    for job_id, code in ((paid, "price_is_fixed"), (free, None)):
        add = c.AddTasks(**_of(job_id, stage_id=harness.stages(job_id)[0].id, inputs=[1]))
        assert (harness.expect_refusal(add).code if code else harness.do(add).first_task_no) == (code or 2)
        assert harness.expect_refusal(c.AddStage(**_of(job_id, stage=DRAWN))).code == "stages_not_allowed"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"stage_id": "none", "labels": {}}, "stage_not_found"),
        ({"task_id": "none", "labels": {}}, "task_not_found"),
        ({"priority": 101}, "out_of_range"),
        ({"labels": {"": "x"}}, "invalid_label"),
        ({"labels": {"a": "b"}, "priority": -1}, "out_of_range"),
        ({"metadata": {"a": "x" * 17_000}}, "metadata_too_large"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused_whole(wrong: dict[str, Any], code: str) -> None:
    harness = CoreHarness(DRAW)
    assert harness.expect_refusal(c.Update(**_of(harness.submit(), **wrong))).code == code


def test_a_part_has_no_priority_of_its_own_and_an_ended_job_has_none_at_all() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    part = c.Update(**_of(job_id, stage_id=harness.stages(job_id)[0].id, priority=5))
    assert harness.expect_refusal(part).code == "priority_of_part"
    harness.do(c.Cancel(**_of(job_id)))
    assert harness.expect_refusal(c.Update(**_of(job_id, priority=5))).code == "job_ended"


def test_a_foreign_task_is_not_found() -> None:
    harness = CoreHarness(DRAW)
    mine, other = harness.submit(), harness.submit()
    foreign = c.Update(**_of(mine, task_id=harness.tasks(other)[0].id, labels={"a": "b"}))
    assert harness.expect_refusal(foreign).code == "task_not_found"


def test_a_job_begins_with_nothing_and_grows() -> None:
    """R377, R398, C19."""
    harness = CoreHarness(OPEN)
    job_id = harness.submit("open")
    first = harness.do(c.AddStage(**_of(job_id, stage=DRAWN)))
    second = harness.do(c.AddStage(**_of(job_id, stage=replace(DRAWN, inputs=[1, 2]))))
    assert (first.stage_no, second.stage_no, len(second.task_ids)) == (1, 2, 2)
    assert [stage.status for stage in harness.stages(job_id)] == ["pending", "created"]
    assert harness.event_types(job_id) == ["job.created", "stage.added", "stage.opened", "stage.added"]
    for _ in range(3):
        harness.do(c.Complete(lease=harness.lease()))
    assert harness.job(job_id).status == "completed"
    assert harness.expect_refusal(c.AddStage(**_of(job_id, stage=DRAWN))).code == "job_ended"


def test_tasks_are_added_to_an_open_stage_and_offered_at_once() -> None:
    """R393."""
    harness = CoreHarness(MORE)
    job_id, _ = harness.started()
    stage = harness.stages(job_id)[0]
    added = harness.do(c.AddTasks(**_of(job_id, stage_id=stage.id, inputs=[{"n": 2}, {"n": 3}])))
    assert (added.first_task_no, len(added.task_ids)) == (2, 2)
    assert harness.event_types(job_id)[-1] == "stage.extended"
    assert [leased.input for leased in harness.claim(5)] == ['{"n":2}', '{"n":3}']


@pytest.mark.parametrize("inputs", [[], [None] * 1_000], ids=["none", "too many"])
def test_a_stage_takes_all_the_tasks_or_none(inputs: list[Any]) -> None:
    harness = CoreHarness(MORE)
    job_id = harness.submit()
    add = c.AddTasks(**_of(job_id, stage_id=harness.stages(job_id)[0].id, inputs=inputs))
    assert harness.expect_refusal(add).code == "too_many_tasks"


def test_an_added_task_with_bad_input_adds_none_of_its_neighbours() -> None:
    harness = CoreHarness(MORE)
    job_id = harness.submit()
    stage_id = harness.stages(job_id)[0].id
    add = c.AddTasks(**_of(job_id, stage_id=stage_id, inputs=[1, float("nan")]))
    assert harness.expect_refusal(add).code == "invalid_input"


def test_an_ended_stage_takes_no_more_tasks() -> None:
    harness = CoreHarness(WorkflowDefinition(name="two", stages=[DRAWN, replace(DRAWN, name="last")]))
    job_id = harness.submit("two")
    harness.do(c.Complete(lease=harness.lease()))
    add = c.AddTasks(**_of(job_id, stage_id=harness.stages(job_id)[0].id, inputs=[1]))
    assert harness.expect_refusal(add).code == "stage_ended"


def test_stages_have_a_limit_and_are_checked() -> None:
    harness = CoreHarness(OPEN, limits=Limits(stages_per_job_max=1))
    job_id = harness.submit("open")
    harness.do(c.AddStage(**_of(job_id, stage=DRAWN)))
    assert harness.expect_refusal(c.AddStage(**_of(job_id, stage=DRAWN))).code == "too_many_stages"
    bad = replace(DRAWN, kind="a b")
    job_id = harness.submit("open")
    assert harness.expect_refusal(c.AddStage(**_of(job_id, stage=bad))).code == "invalid_kind"


@pytest.mark.parametrize("what", ["stage", "tasks"])
def test_what_was_added_before_its_answer_was_lost_is_found_again(what: str) -> None:
    """F7."""
    harness = CoreHarness(OPEN)
    job_id = harness.submit("open", stages=[DRAWN])
    command: c.Command = (
        c.AddStage(**_of(job_id, stage=replace(DRAWN, tasks=2)), id=harness.new_id())
        if what == "stage"
        else c.AddTasks(**_of(job_id, stage_id=harness.stages(job_id)[0].id, inputs=[1, 2]), id=harness.new_id())
    )
    first = harness.do(command)
    before = harness.snapshot()
    [retrying] = harness.batch(command, retrying=True)
    assert retrying.task_ids == first.task_ids
    assert harness.snapshot() == before


def test_a_retry_plans_the_added_tasks_again_too() -> None:
    harness = CoreHarness(MORE)
    job_id, lease = harness.started()
    stage = harness.stages(job_id)[0]
    harness.do(c.AddTasks(**_of(job_id, stage_id=stage.id, inputs=[1, 2])))
    harness.do(c.Fail(lease=lease, retryable=False))
    assert {task.status for task in harness.tasks(job_id)} == {"failed", "canceled"}
    harness.do(c.Retry(**_of(job_id)))
    assert len(harness.claim(5)) == 3


# -- readers of the event order


def _take(name: str, holder: str) -> c.AcquireCursor:
    return c.AcquireCursor(name=name, holder=holder, lock_seconds=60)


def test_one_reader_at_a_time_has_a_place_and_a_dead_one_loses_it() -> None:
    harness = CoreHarness()
    assert harness.do(_take("log", "a")) == c.CursorPosition(0, 0, reserved=True)
    assert not harness.do(_take("log", "b")).reserved
    assert harness.do(_take("log", "a")).reserved, "its own hold is no obstacle"
    assert harness.do(_take("webhooks", "b")).reserved, "places do not know each other"
    harness.advance(60)
    assert harness.do(_take("log", "b")).reserved
    assert not harness.do(c.AdvanceCursor(name="log", holder="a", tx=9, position=9)).reserved
    assert harness.do(c.AdvanceCursor(name="log", holder="b", tx=5, position=7)) == c.CursorPosition(
        5, 7, reserved=False
    )
    assert harness.do(_take("log", "c")) == c.CursorPosition(5, 7, reserved=True)


def test_a_place_never_goes_back() -> None:
    """H21."""
    harness = CoreHarness()
    for tx, position in ((5, 7), (5, 3), (4, 9)):
        harness.do(_take("log", "a"))
        assert harness.do(c.AdvanceCursor(name="log", holder="a", tx=tx, position=position)) == c.CursorPosition(
            5, 7, reserved=False
        )
    assert harness.do(c.AdvanceCursor(name="none", holder="a", tx=1, position=1)) == c.CursorPosition(
        0, 0, reserved=False
    )
