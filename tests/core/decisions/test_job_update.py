"""Changes of a job that has been submitted: annotations, added stages and tasks; and event cursors."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.rows import Stage, Task
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from tests.core.rule_harness import DRAW, CoreHarness

EXTENSIBLE = replace(DRAW, inline=True)
INLINE = WorkflowDefinition(name="inline", price=4, inline=True)
DRAW_STAGE = StageSpec(name="more", kind="draw")


def _of(job_id: str, **more: Any) -> dict[str, Any]:
    return {"tenant": "acme", "job_id": job_id, **more}


def test_labels_metadata_and_trace_can_be_changed_and_each_change_is_an_event() -> None:
    """R392."""
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


def test_a_priced_job_takes_no_added_tasks_and_only_an_inline_workflow_takes_stages() -> None:
    """A price covers the tasks that the workflow defines."""
    harness = CoreHarness(DRAW, replace(DRAW, name="free", price=0))
    paid, free = harness.submit(), harness.submit("free")
    for job_id, code in ((paid, "price_is_fixed"), (free, None)):
        add = c.AddTasks(**_of(job_id, stage_id=harness.stages(job_id)[0].id, inputs=[1]))
        assert (harness.expect_refusal(add).code if code else harness.do(add).first_task_no) == (code or 2)
        assert harness.expect_refusal(c.AddStage(**_of(job_id, stage=DRAW_STAGE))).code == "stages_not_allowed"


@pytest.mark.parametrize(
    ("invalid", "code"),
    [
        ({"stage_id": "none", "labels": {}}, "stage_not_found"),
        ({"task_id": "none", "labels": {}}, "task_not_found"),
        ({"priority": 101}, "out_of_range"),
        ({"labels": {"": "x"}}, "invalid_label"),
        ({"labels": {"a": "b"}, "priority": -1}, "out_of_range"),
        ({"metadata": {"a": "x" * 17_000}}, "metadata_too_large"),
    ],
)
def test_an_invalid_change_is_refused_as_a_whole(invalid: dict[str, Any], code: str) -> None:
    harness = CoreHarness(DRAW)
    assert harness.expect_refusal(c.Update(**_of(harness.submit(), **invalid))).code == code


def test_the_priority_of_a_stage_or_of_an_ended_job_cannot_be_changed() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    update = c.Update(**_of(job_id, stage_id=harness.stages(job_id)[0].id, priority=5))
    assert harness.expect_refusal(update).code == "priority_of_part"
    harness.do(c.Cancel(**_of(job_id)))
    assert harness.expect_refusal(c.Update(**_of(job_id, priority=5))).code == "job_ended"


def test_a_task_of_another_job_is_not_found() -> None:
    harness = CoreHarness(DRAW)
    job_id, other = harness.submit(), harness.submit()
    update = c.Update(**_of(job_id, task_id=harness.tasks(other)[0].id, labels={"a": "b"}))
    assert harness.expect_refusal(update).code == "task_not_found"


def test_stages_are_added_to_a_job_that_was_submitted_without_stages() -> None:
    """R377, R398."""
    harness = CoreHarness(INLINE)
    job_id = harness.submit("inline")
    first = harness.do(c.AddStage(**_of(job_id, stage=DRAW_STAGE)))
    second = harness.do(c.AddStage(**_of(job_id, stage=replace(DRAW_STAGE, inputs=[1, 2]))))
    assert (first.stage_no, second.stage_no, len(second.task_ids)) == (1, 2, 2)
    assert [stage.status for stage in harness.stages(job_id)] == ["pending", "created"]
    assert harness.event_types(job_id) == ["job.created", "stage.added", "stage.opened", "stage.added"]
    for _ in range(3):
        harness.do(c.Complete(lease=harness.lease()))
    assert harness.job(job_id).status == "completed"
    assert harness.expect_refusal(c.AddStage(**_of(job_id, stage=DRAW_STAGE))).code == "job_ended"


def test_tasks_added_to_an_open_stage_can_be_claimed_at_once() -> None:
    """R393."""
    harness = CoreHarness(EXTENSIBLE)
    job_id, _ = harness.started()
    stage = harness.stages(job_id)[0]
    added = harness.do(c.AddTasks(**_of(job_id, stage_id=stage.id, inputs=[{"n": 2}, {"n": 3}])))
    assert (added.first_task_no, len(added.task_ids)) == (2, 2)
    assert harness.event_types(job_id)[-1] == "stage.extended"
    parallel = [*harness.claim(worker="w2"), *harness.claim(worker="w3")]
    assert [leased.input for leased in parallel] == ['{"n":2}', '{"n":3}']


@pytest.mark.parametrize("inputs", [[], [None] * 1_000], ids=["none", "too many"])
def test_an_empty_or_too_long_list_of_tasks_is_refused(inputs: list[Any]) -> None:
    harness = CoreHarness(EXTENSIBLE)
    job_id = harness.submit()
    add = c.AddTasks(**_of(job_id, stage_id=harness.stages(job_id)[0].id, inputs=inputs))
    assert harness.expect_refusal(add).code == "too_many_tasks"


def test_tasks_are_not_added_if_one_of_them_has_invalid_input() -> None:
    harness = CoreHarness(EXTENSIBLE)
    job_id = harness.submit()
    stage_id = harness.stages(job_id)[0].id
    add = c.AddTasks(**_of(job_id, stage_id=stage_id, inputs=[1, float("nan")]))
    assert harness.expect_refusal(add).code == "invalid_input"


def test_no_task_is_added_to_an_ended_stage() -> None:
    harness = CoreHarness(WorkflowDefinition(name="two", stages=[DRAW_STAGE, replace(DRAW_STAGE, name="last")]))
    job_id = harness.submit("two")
    harness.do(c.Complete(lease=harness.lease()))
    add = c.AddTasks(**_of(job_id, stage_id=harness.stages(job_id)[0].id, inputs=[1]))
    assert harness.expect_refusal(add).code == "stage_ended"


def test_an_added_stage_is_validated_and_the_number_of_stages_is_limited() -> None:
    harness = CoreHarness(INLINE, limits=Limits(stages_per_job_max=1))
    job_id = harness.submit("inline")
    harness.do(c.AddStage(**_of(job_id, stage=DRAW_STAGE)))
    assert harness.expect_refusal(c.AddStage(**_of(job_id, stage=DRAW_STAGE))).code == "too_many_stages"
    invalid = replace(DRAW_STAGE, kind="a b")
    job_id = harness.submit("inline")
    assert harness.expect_refusal(c.AddStage(**_of(job_id, stage=invalid))).code == "invalid_kind"


@pytest.mark.parametrize("added", ["stage", "tasks"])
def test_a_repeated_command_returns_what_it_added_the_first_time(added: str) -> None:
    """F7."""
    harness = CoreHarness(INLINE)
    job_id = harness.submit("inline", stages=[DRAW_STAGE])
    command: c.Command = (
        c.AddStage(**_of(job_id, stage=replace(DRAW_STAGE, tasks=2)), id=harness.new_id())
        if added == "stage"
        else c.AddTasks(**_of(job_id, stage_id=harness.stages(job_id)[0].id, inputs=[1, 2]), id=harness.new_id())
    )
    first = harness.do(command)
    before = harness.snapshot()
    [retrying] = harness.batch(command, retrying=True)
    assert retrying.task_ids == first.task_ids
    assert harness.snapshot() == before


def test_a_retry_also_runs_the_added_tasks() -> None:
    harness = CoreHarness(EXTENSIBLE)
    job_id, lease = harness.started()
    stage = harness.stages(job_id)[0]
    harness.do(c.AddTasks(**_of(job_id, stage_id=stage.id, inputs=[1, 2])))
    harness.do(c.Fail(lease=lease, retryable=False))
    assert {task.status for task in harness.tasks(job_id)} == {"failed", "canceled"}
    harness.do(c.Retry(**_of(job_id)))
    assert len(harness.claim(5)) == 3


# -- event cursors


def _acquire(name: str, holder: str) -> c.AcquireCursor:
    return c.AcquireCursor(name=name, holder=holder, lock_seconds=60)


def test_one_reader_holds_a_cursor_until_its_lock_expires() -> None:
    harness = CoreHarness()
    assert harness.do(_acquire("log", "a")) == c.CursorPosition(0, 0, reserved=True)
    assert not harness.do(_acquire("log", "b")).reserved
    assert harness.do(_acquire("log", "a")).reserved, "the holder can acquire it again"
    assert harness.do(_acquire("webhooks", "b")).reserved, "cursors are independent"
    harness.advance(60)
    assert harness.do(_acquire("log", "b")).reserved
    assert not harness.do(c.AdvanceCursor(name="log", holder="a", tx=9, position=9)).reserved
    assert harness.do(c.AdvanceCursor(name="log", holder="b", tx=5, position=7)) == c.CursorPosition(
        5, 7, reserved=False
    )
    assert harness.do(_acquire("log", "c")) == c.CursorPosition(5, 7, reserved=True)


def test_a_cursor_never_moves_back() -> None:
    harness = CoreHarness()
    for tx, position in ((5, 7), (5, 3), (4, 9)):
        harness.do(_acquire("log", "a"))
        assert harness.do(c.AdvanceCursor(name="log", holder="a", tx=tx, position=position)) == c.CursorPosition(
            5, 7, reserved=False
        )
    assert harness.do(c.AdvanceCursor(name="none", holder="a", tx=1, position=1)) == c.CursorPosition(
        0, 0, reserved=False
    )
