"""What may change while a job lives, what may be appended to it, and the places of readers."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core import commands as c
from callsheet.core.limits import Limits
from callsheet.core.recipe import Recipe, StageSpec
from callsheet.core.rows import Stage, Task
from tests.core.world import DRAW, World

MORE = replace(DRAW, inline=True)
OPEN = Recipe(name="open", price=4, inline=True)
DRAWN = StageSpec(name="more", kind="draw")


def _of(job_id: str, **more: Any) -> dict[str, Any]:
    return {"tenant": "acme", "job_id": job_id, **more}


def test_notes_of_job_stage_and_task_change_and_the_job_says_so() -> None:
    """R392: they do not touch the execution."""
    world = World(DRAW)
    job_id = world.submit(labels={"a": "1"})
    stage, task = world.stages(job_id)[0], world.tasks(job_id)[0]
    world.do(c.Change(**_of(job_id, labels={"a": "2"}, metadata={"n": 1})))
    world.do(c.Change(**_of(job_id, stage_id=stage.id, metadata={"n": 2})))
    world.do(c.Change(**_of(job_id, task_id=task.id, trace={"t": "3"})))
    assert (world.job(job_id).labels, world.job(job_id).metadata) == ('{"a":"2"}', '{"n":1}')
    assert world.get(Stage, stage.id).metadata == '{"n":2}'
    assert world.get(Task, task.id).trace == '{"t":"3"}'
    assert world.told(job_id)[1:] == ["job.changed"] * 3


def test_what_is_paid_for_is_the_workflows_own_work() -> None:
    """A price is for the stages of the workflow: nobody adds others to it, and other stages only where they may be."""
    world = World(DRAW, replace(DRAW, name="free", price=0))
    paid, free = world.submit(), world.submit("free")
    for job_id, code in ((paid, "priced_stages"), (free, None)):
        add = c.AddTasks(**_of(job_id, stage_id=world.stages(job_id)[0].id, inputs=[1]))
        assert (world.refused(add).code if code else world.do(add).first_task_no) == (code or 2)
        assert world.refused(c.AddStage(**_of(job_id, stage=DRAWN))).code == "inline_stages"


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
    world = World(DRAW)
    assert world.refused(c.Change(**_of(world.submit(), **wrong))).code == code


def test_a_part_has_no_priority_of_its_own_and_an_ended_job_has_none_at_all() -> None:
    world = World(DRAW)
    job_id = world.submit()
    part = c.Change(**_of(job_id, stage_id=world.stages(job_id)[0].id, priority=5))
    assert world.refused(part).code == "priority_of_part"
    world.do(c.Cancel(**_of(job_id)))
    assert world.refused(c.Change(**_of(job_id, priority=5))).code == "job_ended"


def test_a_foreign_task_is_not_found() -> None:
    world = World(DRAW)
    mine, other = world.submit(), world.submit()
    foreign = c.Change(**_of(mine, task_id=world.tasks(other)[0].id, labels={"a": "b"}))
    assert world.refused(foreign).code == "task_not_found"


def test_a_job_begins_with_nothing_and_grows() -> None:
    """R377, R398, C19."""
    world = World(OPEN)
    job_id = world.submit("open")
    first = world.do(c.AddStage(**_of(job_id, stage=DRAWN)))
    second = world.do(c.AddStage(**_of(job_id, stage=replace(DRAWN, inputs=[1, 2]))))
    assert (first.stage_no, second.stage_no, len(second.task_ids)) == (1, 2, 2)
    assert [stage.status for stage in world.stages(job_id)] == ["pending", "created"]
    assert world.told(job_id) == ["job.created", "stage.added", "stage.opened", "stage.added"]
    for _ in range(3):
        world.do(c.Complete(lease=world.lease()))
    assert world.job(job_id).status == "completed"
    assert world.refused(c.AddStage(**_of(job_id, stage=DRAWN))).code == "job_ended"


def test_tasks_are_added_to_an_open_stage_and_offered_at_once() -> None:
    """R393."""
    world = World(MORE)
    job_id, _ = world.started()
    stage = world.stages(job_id)[0]
    added = world.do(c.AddTasks(**_of(job_id, stage_id=stage.id, inputs=[{"n": 2}, {"n": 3}])))
    assert (added.first_task_no, len(added.task_ids)) == (2, 2)
    assert world.told(job_id)[-1] == "stage.extended"
    assert [leased.input for leased in world.claim(5)] == ['{"n":2}', '{"n":3}']


@pytest.mark.parametrize("inputs", [[], [None] * 1_000], ids=["none", "too many"])
def test_a_stage_takes_all_the_tasks_or_none(inputs: list[Any]) -> None:
    world = World(MORE)
    job_id = world.submit()
    add = c.AddTasks(**_of(job_id, stage_id=world.stages(job_id)[0].id, inputs=inputs))
    assert world.refused(add).code == "too_many_tasks"


def test_an_added_task_with_bad_input_adds_none_of_its_neighbours() -> None:
    world = World(MORE)
    job_id = world.submit()
    stage_id = world.stages(job_id)[0].id
    add = c.AddTasks(**_of(job_id, stage_id=stage_id, inputs=[1, float("nan")]))
    assert world.refused(add).code == "invalid_input"


def test_an_ended_stage_takes_no_more_tasks() -> None:
    world = World(Recipe(name="two", stages=[DRAWN, replace(DRAWN, name="last")]))
    job_id = world.submit("two")
    world.do(c.Complete(lease=world.lease()))
    add = c.AddTasks(**_of(job_id, stage_id=world.stages(job_id)[0].id, inputs=[1]))
    assert world.refused(add).code == "stage_ended"


def test_stages_have_a_limit_and_are_checked() -> None:
    world = World(OPEN, limits=Limits(stages_per_job_max=1))
    job_id = world.submit("open")
    world.do(c.AddStage(**_of(job_id, stage=DRAWN)))
    assert world.refused(c.AddStage(**_of(job_id, stage=DRAWN))).code == "too_many_stages"
    bad = replace(DRAWN, kind="a b")
    job_id = world.submit("open")
    assert world.refused(c.AddStage(**_of(job_id, stage=bad))).code == "invalid_kind"


@pytest.mark.parametrize("what", ["stage", "tasks"])
def test_what_was_added_before_its_answer_was_lost_is_found_again(what: str) -> None:
    """F7."""
    world = World(OPEN)
    job_id = world.submit("open", stages=[DRAWN])
    command: c.Command = (
        c.AddStage(**_of(job_id, stage=replace(DRAWN, tasks=2)), id=world.new_id())
        if what == "stage"
        else c.AddTasks(**_of(job_id, stage_id=world.stages(job_id)[0].id, inputs=[1, 2]), id=world.new_id())
    )
    first = world.do(command)
    before = world.snapshot()
    [again] = world.batch(command, again=True)
    assert again.task_ids == first.task_ids
    assert world.snapshot() == before


def test_a_retry_plans_the_added_tasks_again_too() -> None:
    world = World(MORE)
    job_id, lease = world.started()
    stage = world.stages(job_id)[0]
    world.do(c.AddTasks(**_of(job_id, stage_id=stage.id, inputs=[1, 2])))
    world.do(c.Fail(lease=lease, retryable=False))
    assert {task.status for task in world.tasks(job_id)} == {"failed", "canceled"}
    world.do(c.Retry(**_of(job_id)))
    assert len(world.claim(5)) == 3


# -- readers of the event order


def _take(name: str, holder: str) -> c.TakeCursor:
    return c.TakeCursor(name=name, holder=holder, hold_seconds=60)


def test_one_reader_at_a_time_has_a_place_and_a_dead_one_loses_it() -> None:
    world = World()
    assert world.do(_take("log", "a")) == c.Place(0, 0, held=True)
    assert not world.do(_take("log", "b")).held
    assert world.do(_take("log", "a")).held, "its own hold is no obstacle"
    assert world.do(_take("webhooks", "b")).held, "places do not know each other"
    world.pass_(60)
    assert world.do(_take("log", "b")).held
    assert not world.do(c.MoveCursor(name="log", holder="a", tx=9, position=9)).held
    assert world.do(c.MoveCursor(name="log", holder="b", tx=5, position=7)) == c.Place(5, 7, held=False)
    assert world.do(_take("log", "c")) == c.Place(5, 7, held=True)


def test_a_place_never_goes_back() -> None:
    """H21."""
    world = World()
    for tx, position in ((5, 7), (5, 3), (4, 9)):
        world.do(_take("log", "a"))
        assert world.do(c.MoveCursor(name="log", holder="a", tx=tx, position=position)) == c.Place(5, 7, held=False)
    assert world.do(c.MoveCursor(name="none", holder="a", tx=1, position=1)) == c.Place(0, 0, held=False)
