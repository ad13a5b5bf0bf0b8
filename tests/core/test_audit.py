"""The audit log: one line for what an operator or admin changed, none for what changed nothing, and no secret in it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.errors import Refusal
from callsheet.core.model.rows import Audit
from callsheet.core.model.state_machines import Actor
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.core.rule_harness import DRAW, CoreHarness

HASH = "a" * 64
GATED = WorkflowDefinition(name="gated", stages=[StageSpec(name="draw", kind="draw", approval=True)])
OutputFile = tuple[str, str, str, str, Any]


def lines(harness: CoreHarness) -> list[OutputFile]:
    """Return every line: tenant, who, what, to what, with what."""
    return [(a.tenant, a.actor, a.action, a.subject, json.loads(a.data or "null")) for a in harness.all(Audit)]


def since(harness: CoreHarness, command: c.Command) -> list[OutputFile]:
    """Do a command, and return the lines that it left."""
    before = len(lines(harness))
    harness.do(command)
    return lines(harness)[before:]


def key(**fields: Any) -> c.CreateKey:
    return c.CreateKey(
        **{"tenant": "acme", "role": "client", "name": "shop", "secret_hash": HASH, "requested_by": "k1", **fields}
    )


def test_what_is_done_to_the_house_leaves_a_line() -> None:
    harness = CoreHarness(initial_credits=0)
    assert since(harness, c.PutTenant(tenant="new", weight=3, requested_by="k1")) == [
        ("new", "k1", "tenant.put", "new", {"weight": 3})
    ]
    assert since(harness, c.PutWorkflow(definition=DRAW, requested_by="k1")) == [
        ("", "k1", "workflow.put", "draw", None)
    ]
    assert since(harness, c.TopUp(tenant="acme", user="ann", amount=9, idempotency_key="a", requested_by="k1")) == [
        ("acme", "k1", "wallet.topup", "ann", {"amount": 9, "reason": "top-up"})
    ]
    assert since(harness, c.Adjust(tenant="acme", user="ann", amount=-4, reason="Mistake.", requested_by="k1")) == [
        ("acme", "k1", "wallet.adjust", "ann", {"amount": -4, "reason": "Mistake."})
    ]


def test_a_key_leaves_lines_without_its_secret() -> None:
    harness = CoreHarness()
    made = key(id=harness.new_id(), expires_in_seconds=60)
    assert since(harness, made) == [
        ("acme", "k1", "key.create", made.id, {"role": "client", "name": "shop", "expires_in_seconds": 60})
    ]
    assert since(harness, c.RevokeKey(key_id=made.id, tenant="acme", requested_by="k2")) == [
        ("acme", "k2", "key.revoke", made.id, None)
    ]
    assert HASH not in str(list(harness.all(Audit)))


def test_what_changes_nothing_leaves_no_line() -> None:
    harness = CoreHarness(DRAW)
    made = key(id=harness.new_id())
    harness.do(made)
    harness.do(c.RevokeKey(key_id=made.id))
    retrying: list[c.Command] = [
        c.PutTenant(tenant="acme"),
        c.PutWorkflow(definition=DRAW),
        c.TopUp(tenant="acme", user="ann", amount=1_000, idempotency_key="first"),
        c.RevokeKey(key_id=made.id),
    ]
    for command in retrying:
        assert since(harness, command) == []


def test_what_is_refused_leaves_no_line() -> None:
    harness = CoreHarness(DRAW)
    before = lines(harness)
    bad: list[c.Command] = [
        c.PutTenant(tenant="not a name"),
        c.PutWorkflow(definition=WorkflowDefinition(name="empty")),
        c.TopUp(tenant="acme", user="ann", amount=-1),
        c.Adjust(tenant="acme", user="ann", amount=1, reason=" "),
        key(role="king"),
        c.RevokeKey(key_id="nobody"),
        c.Cancel(tenant="acme", job_id="nobody", actor="admin"),
    ]
    assert all(isinstance(result, Refusal) for result in harness.batch(*bad))
    assert lines(harness) == before


def failed(harness: CoreHarness) -> str:
    job_id, lease = harness.started()
    harness.do(c.Fail(lease=lease))
    return job_id


def waiting(harness: CoreHarness) -> tuple[str, str]:
    job_id = harness.submit("gated")
    return job_id, harness.stages(job_id)[0].id


def approve(harness: CoreHarness, actor: Actor) -> c.Command:
    job_id, stage_id = waiting(harness)
    return c.Approve(tenant="acme", job_id=job_id, stage_id=stage_id, approver="bea", actor=actor, requested_by="k1")


MOVES: dict[str, Callable[[CoreHarness, Actor], c.Command]] = {
    "job.cancel": lambda w, actor: c.Cancel(tenant="acme", job_id=w.submit(), actor=actor, requested_by="k1"),
    "job.retry": lambda w, actor: c.Retry(tenant="acme", job_id=failed(w), actor=actor, requested_by="k1"),
    "job.delete": lambda w, actor: c.Delete(tenant="acme", job_id=w.submit(), actor=actor, requested_by="k1"),
    "stage.approve": approve,
}


@pytest.mark.parametrize("action", MOVES)
def test_an_admins_hand_on_a_job_is_written_down_and_a_users_is_not(action: str) -> None:
    harness = CoreHarness(DRAW, GATED)
    assert since(harness, MOVES[action](harness, "user")) == []
    harness = CoreHarness(DRAW, GATED)
    command: Any = MOVES[action](harness, "admin")
    ((tenant, by, what, subject, _),) = since(harness, command)
    assert (tenant, by, what, subject) == ("acme", "k1", action, command.job_id)


def test_an_admin_who_cancels_says_why() -> None:
    harness = CoreHarness(DRAW)
    command = c.Cancel(tenant="acme", job_id=harness.submit(), actor="admin", reason="Fraud.", requested_by="k1")
    assert since(harness, command)[0][-1] == {"reason": "Fraud."}


@pytest.mark.parametrize("action", MOVES)
def test_a_move_that_is_tried_again_after_a_lost_answer_leaves_one_line(action: str) -> None:
    harness = CoreHarness(DRAW, GATED)
    command: Any = MOVES[action](harness, "admin")
    command = replace(command, id=harness.new_id())
    assert len(since(harness, command)) == 1
    before = lines(harness)
    harness.batch(command, retrying=True)
    assert lines(harness) == before


def test_who_cancels_what_is_being_canceled_leaves_a_line_only_if_it_makes_a_difference() -> None:
    harness = CoreHarness(DRAW)
    job_id, _ = harness.started()

    def retrying(grace_seconds: int) -> int:
        harness.advance(1)
        command = c.Cancel(tenant="acme", job_id=job_id, actor="admin", grace_seconds=grace_seconds, requested_by="k1")
        return len(since(harness, command))

    assert [retrying(30), retrying(30), retrying(60), retrying(5), retrying(5)] == [1, 0, 0, 1, 0]
    assert retrying(0) == 1
    assert retrying(0) == 0


def test_a_cancel_with_grace_that_is_tried_again_leaves_one_line() -> None:
    harness = CoreHarness(DRAW)
    job_id, _ = harness.started()
    command = c.Cancel(
        tenant="acme", job_id=job_id, actor="admin", grace_seconds=30, id=harness.new_id(), requested_by="k1"
    )
    assert len(since(harness, command)) == 1
    harness.batch(command, retrying=True)
    assert len([line for line in lines(harness) if line[2] == "job.cancel"]) == 1


def test_two_commands_of_one_batch_leave_a_line_each() -> None:
    harness = CoreHarness()
    before = len(lines(harness))
    harness.batch(c.PutTenant(tenant="one"), c.PutTenant(tenant="two"), c.PutTenant(tenant="bad name"))
    assert [line[3] for line in lines(harness)[before:]] == ["one", "two"]


def test_a_line_carries_the_moment() -> None:
    harness = CoreHarness()
    harness.advance(77)
    harness.do(c.PutTenant(tenant="late"))
    assert list(harness.all(Audit))[-1].at == harness.now
