"""The audit log: one line for what an operator or admin changed, none for what changed nothing, and no secret in it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core import commands as c
from callsheet.core.errors import Refusal
from callsheet.core.machine import Actor
from callsheet.core.recipe import Recipe, StageSpec
from callsheet.core.rows import Audit
from tests.core.world import DRAW, World

HASH = "a" * 64
GATED = Recipe(name="gated", stages=[StageSpec(name="draw", kind="draw", gate=True)])
Made = tuple[str, str, str, str, Any]


def lines(world: World) -> list[Made]:
    """Return every line: tenant, who, what, to what, with what."""
    return [(a.tenant, a.actor, a.action, a.subject, json.loads(a.data or "null")) for a in world.all(Audit)]


def since(world: World, command: c.Command) -> list[Made]:
    """Do a command, and return the lines that it left."""
    before = len(lines(world))
    world.do(command)
    return lines(world)[before:]


def key(**fields: Any) -> c.CreateKey:
    return c.CreateKey(
        **{"tenant": "acme", "role": "client", "name": "shop", "secret_hash": HASH, "by": "k1", **fields}
    )


def test_what_is_done_to_the_house_leaves_a_line() -> None:
    world = World(credits_=0)
    assert since(world, c.PutTenant(tenant="new", weight=3, by="k1")) == [
        ("new", "k1", "tenant.put", "new", {"weight": 3})
    ]
    assert since(world, c.PutWorkflow(recipe=DRAW, by="k1")) == [("", "k1", "workflow.put", "draw", None)]
    assert since(world, c.TopUp(tenant="acme", user="ann", amount=9, idempotency_key="a", by="k1")) == [
        ("acme", "k1", "wallet.topup", "ann", {"amount": 9, "reason": "top-up"})
    ]
    assert since(world, c.Adjust(tenant="acme", user="ann", amount=-4, reason="Mistake.", by="k1")) == [
        ("acme", "k1", "wallet.adjust", "ann", {"amount": -4, "reason": "Mistake."})
    ]


def test_a_key_leaves_lines_without_its_secret() -> None:
    world = World()
    made = key(id=world.new_id(), expires_in_seconds=60)
    assert since(world, made) == [
        ("acme", "k1", "key.create", made.id, {"role": "client", "name": "shop", "expires_in_seconds": 60})
    ]
    assert since(world, c.RevokeKey(key_id=made.id, tenant="acme", by="k2")) == [
        ("acme", "k2", "key.revoke", made.id, None)
    ]
    assert HASH not in str(list(world.all(Audit)))


def test_what_changes_nothing_leaves_no_line() -> None:
    world = World(DRAW)
    made = key(id=world.new_id())
    world.do(made)
    world.do(c.RevokeKey(key_id=made.id))
    again: list[c.Command] = [
        c.PutTenant(tenant="acme"),
        c.PutWorkflow(recipe=DRAW),
        c.TopUp(tenant="acme", user="ann", amount=1_000, idempotency_key="first"),
        c.RevokeKey(key_id=made.id),
    ]
    for command in again:
        assert since(world, command) == []


def test_what_is_refused_leaves_no_line() -> None:
    world = World(DRAW)
    before = lines(world)
    bad: list[c.Command] = [
        c.PutTenant(tenant="not a name"),
        c.PutWorkflow(recipe=Recipe(name="empty")),
        c.TopUp(tenant="acme", user="ann", amount=-1),
        c.Adjust(tenant="acme", user="ann", amount=1, reason=" "),
        key(role="king"),
        c.RevokeKey(key_id="nobody"),
        c.Cancel(tenant="acme", job_id="nobody", actor="admin"),
    ]
    assert all(isinstance(result, Refusal) for result in world.batch(*bad))
    assert lines(world) == before


def failed(world: World) -> str:
    job_id, lease = world.started()
    world.do(c.Fail(lease=lease))
    return job_id


def waiting(world: World) -> tuple[str, str]:
    job_id = world.submit("gated")
    return job_id, world.stages(job_id)[0].id


def approve(world: World, actor: Actor) -> c.Command:
    job_id, stage_id = waiting(world)
    return c.Approve(tenant="acme", job_id=job_id, stage_id=stage_id, approver="bea", actor=actor, by="k1")


MOVES: dict[str, Callable[[World, Actor], c.Command]] = {
    "job.cancel": lambda w, actor: c.Cancel(tenant="acme", job_id=w.submit(), actor=actor, by="k1"),
    "job.retry": lambda w, actor: c.Retry(tenant="acme", job_id=failed(w), actor=actor, by="k1"),
    "job.delete": lambda w, actor: c.Delete(tenant="acme", job_id=w.submit(), actor=actor, by="k1"),
    "stage.approve": approve,
}


@pytest.mark.parametrize("action", MOVES)
def test_an_admins_hand_on_a_job_is_written_down_and_a_users_is_not(action: str) -> None:
    world = World(DRAW, GATED)
    assert since(world, MOVES[action](world, "user")) == []
    world = World(DRAW, GATED)
    command: Any = MOVES[action](world, "admin")
    ((tenant, by, what, subject, _),) = since(world, command)
    assert (tenant, by, what, subject) == ("acme", "k1", action, command.job_id)


def test_an_admin_who_cancels_says_why() -> None:
    world = World(DRAW)
    command = c.Cancel(tenant="acme", job_id=world.submit(), actor="admin", reason="Fraud.", by="k1")
    assert since(world, command)[0][-1] == {"reason": "Fraud."}


@pytest.mark.parametrize("action", MOVES)
def test_a_move_that_is_tried_again_after_a_lost_answer_leaves_one_line(action: str) -> None:
    world = World(DRAW, GATED)
    command: Any = MOVES[action](world, "admin")
    command = replace(command, id=world.new_id())
    assert len(since(world, command)) == 1
    before = lines(world)
    world.batch(command, again=True)
    assert lines(world) == before


def test_who_cancels_what_is_being_canceled_leaves_a_line_only_if_it_makes_a_difference() -> None:
    world = World(DRAW)
    job_id, _ = world.started()

    def again(grace_seconds: int) -> int:
        world.pass_(1)
        command = c.Cancel(tenant="acme", job_id=job_id, actor="admin", grace_seconds=grace_seconds, by="k1")
        return len(since(world, command))

    assert [again(30), again(30), again(60), again(5), again(5)] == [1, 0, 0, 1, 0]
    assert again(0) == 1
    assert again(0) == 0


def test_a_cancel_with_grace_that_is_tried_again_leaves_one_line() -> None:
    world = World(DRAW)
    job_id, _ = world.started()
    command = c.Cancel(tenant="acme", job_id=job_id, actor="admin", grace_seconds=30, id=world.new_id(), by="k1")
    assert len(since(world, command)) == 1
    world.batch(command, again=True)
    assert len([line for line in lines(world) if line[2] == "job.cancel"]) == 1


def test_two_commands_of_one_batch_leave_a_line_each() -> None:
    world = World()
    before = len(lines(world))
    world.batch(c.PutTenant(tenant="one"), c.PutTenant(tenant="two"), c.PutTenant(tenant="bad name"))
    assert [line[3] for line in lines(world)[before:]] == ["one", "two"]


def test_a_line_carries_the_moment() -> None:
    world = World()
    world.pass_(77)
    world.do(c.PutTenant(tenant="late"))
    assert list(world.all(Audit))[-1].at == world.now
