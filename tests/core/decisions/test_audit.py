"""The audit log: one entry per change by an operator or admin, none without a change, and no secrets."""

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
Entry = tuple[str, str, str, str, Any]
"""Tenant, actor, action, subject and data."""


def entries(harness: CoreHarness) -> list[Entry]:
    """Return the entries of the audit log."""
    return [(a.tenant, a.actor, a.action, a.subject, json.loads(a.data or "null")) for a in harness.all(Audit)]


def added_by(harness: CoreHarness, command: c.Command) -> list[Entry]:
    """Execute a command and return the entries that it added."""
    before = len(entries(harness))
    harness.do(command)
    return entries(harness)[before:]


def key_command(**fields: Any) -> c.CreateKey:
    return c.CreateKey(
        **{"tenant": "acme", "role": "client", "name": "shop", "secret_hash": HASH, "requested_by": "k1", **fields}
    )


def test_changes_of_tenants_workflows_and_wallets_are_in_the_audit_log() -> None:
    """R80."""
    harness = CoreHarness(initial_credits=0)
    assert added_by(harness, c.PutTenant(tenant="new", weight=3, requested_by="k1")) == [
        ("new", "k1", "tenant.put", "new", {"weight": 3})
    ]
    assert added_by(harness, c.PutWorkflow(definition=DRAW, requested_by="k1")) == [
        ("", "k1", "workflow.put", "draw", None)
    ]
    assert added_by(harness, c.TopUp(tenant="acme", user="ann", amount=9, idempotency_key="a", requested_by="k1")) == [
        ("acme", "k1", "wallet.topup", "ann", {"amount": 9, "reason": "top-up"})
    ]
    assert added_by(harness, c.Adjust(tenant="acme", user="ann", amount=-4, reason="Mistake.", requested_by="k1")) == [
        ("acme", "k1", "wallet.adjust", "ann", {"amount": -4, "reason": "Mistake."})
    ]


def test_keys_are_in_the_audit_log_without_their_secret() -> None:
    """R80."""
    harness = CoreHarness()
    create = key_command(id=harness.new_id(), expires_in_seconds=60)
    assert added_by(harness, create) == [
        ("acme", "k1", "key.create", create.id, {"role": "client", "name": "shop", "expires_in_seconds": 60})
    ]
    assert added_by(harness, c.RevokeKey(key_id=create.id, tenant="acme", requested_by="k2")) == [
        ("acme", "k2", "key.revoke", create.id, None)
    ]
    assert HASH not in str(list(harness.all(Audit)))


def test_a_command_that_changes_nothing_adds_no_entry() -> None:
    harness = CoreHarness(DRAW)
    create = key_command(id=harness.new_id())
    harness.do(create)
    harness.do(c.RevokeKey(key_id=create.id))
    repeated: list[c.Command] = [
        c.PutTenant(tenant="acme"),
        c.PutWorkflow(definition=DRAW),
        c.TopUp(tenant="acme", user="ann", amount=1_000, idempotency_key="first"),
        c.RevokeKey(key_id=create.id),
    ]
    for command in repeated:
        assert added_by(harness, command) == []


def test_a_refused_command_adds_no_entry() -> None:
    harness = CoreHarness(DRAW)
    before = entries(harness)
    invalid: list[c.Command] = [
        c.PutTenant(tenant="not a name"),
        c.PutWorkflow(definition=WorkflowDefinition(name="empty")),
        c.TopUp(tenant="acme", user="ann", amount=-1),
        c.Adjust(tenant="acme", user="ann", amount=1, reason=" "),
        key_command(role="unknown"),
        c.RevokeKey(key_id="missing"),
        c.Cancel(tenant="acme", job_id="missing", actor="admin"),
    ]
    assert all(isinstance(result, Refusal) for result in harness.batch(*invalid))
    assert entries(harness) == before


def failed_job(harness: CoreHarness) -> str:
    job_id, lease = harness.started()
    harness.do(c.Fail(lease=lease))
    return job_id


def waiting_stage(harness: CoreHarness) -> tuple[str, str]:
    job_id = harness.submit("gated")
    return job_id, harness.stages(job_id)[0].id


def approve(harness: CoreHarness, actor: Actor) -> c.Command:
    job_id, stage_id = waiting_stage(harness)
    return c.Approve(tenant="acme", job_id=job_id, stage_id=stage_id, approver="bea", actor=actor, requested_by="k1")


JOB_ACTIONS: dict[str, Callable[[CoreHarness, Actor], c.Command]] = {
    "job.cancel": lambda harness, actor: c.Cancel(
        tenant="acme", job_id=harness.submit(), actor=actor, requested_by="k1"
    ),
    "job.retry": lambda harness, actor: c.Retry(
        tenant="acme", job_id=failed_job(harness), actor=actor, requested_by="k1"
    ),
    "job.delete": lambda harness, actor: c.Delete(
        tenant="acme", job_id=harness.submit(), actor=actor, requested_by="k1"
    ),
    "stage.approve": approve,
}


@pytest.mark.parametrize("action", JOB_ACTIONS)
def test_an_action_of_an_admin_on_a_job_is_in_the_audit_log_and_one_of_a_user_is_not(action: str) -> None:
    """R80."""
    harness = CoreHarness(DRAW, GATED)
    assert added_by(harness, JOB_ACTIONS[action](harness, "user")) == []
    harness = CoreHarness(DRAW, GATED)
    command: Any = JOB_ACTIONS[action](harness, "admin")
    ((tenant, actor, recorded, subject, _),) = added_by(harness, command)
    assert (tenant, actor, recorded, subject) == ("acme", "k1", action, command.job_id)


def test_the_entry_of_a_cancel_has_its_reason() -> None:
    harness = CoreHarness(DRAW)
    command = c.Cancel(tenant="acme", job_id=harness.submit(), actor="admin", reason="Fraud.", requested_by="k1")
    assert added_by(harness, command)[0][-1] == {"reason": "Fraud."}


@pytest.mark.parametrize("action", JOB_ACTIONS)
def test_a_command_that_is_repeated_after_a_lost_answer_adds_one_entry(action: str) -> None:
    harness = CoreHarness(DRAW, GATED)
    command: Any = JOB_ACTIONS[action](harness, "admin")
    command = replace(command, id=harness.new_id())
    assert len(added_by(harness, command)) == 1
    before = entries(harness)
    harness.batch(command, retrying=True)
    assert entries(harness) == before


def test_a_second_cancel_adds_an_entry_only_if_it_shortens_the_grace_time() -> None:
    harness = CoreHarness(DRAW)
    job_id, _ = harness.started()

    def entries_of_cancel(grace_seconds: int) -> int:
        harness.advance(1)
        command = c.Cancel(tenant="acme", job_id=job_id, actor="admin", grace_seconds=grace_seconds, requested_by="k1")
        return len(added_by(harness, command))

    assert [entries_of_cancel(grace) for grace in (30, 30, 60, 5, 5)] == [1, 0, 0, 1, 0]
    assert entries_of_cancel(0) == 1
    assert entries_of_cancel(0) == 0


def test_a_repeated_cancel_with_a_grace_time_adds_one_entry() -> None:
    harness = CoreHarness(DRAW)
    job_id, _ = harness.started()
    command = c.Cancel(
        tenant="acme", job_id=job_id, actor="admin", grace_seconds=30, id=harness.new_id(), requested_by="k1"
    )
    assert len(added_by(harness, command)) == 1
    harness.batch(command, retrying=True)
    assert len([entry for entry in entries(harness) if entry[2] == "job.cancel"]) == 1


def test_each_command_of_a_batch_adds_its_entry() -> None:
    harness = CoreHarness()
    before = len(entries(harness))
    harness.batch(c.PutTenant(tenant="one"), c.PutTenant(tenant="two"), c.PutTenant(tenant="bad name"))
    assert [entry[3] for entry in entries(harness)[before:]] == ["one", "two"]


def test_an_entry_has_the_time_of_its_command() -> None:
    harness = CoreHarness()
    harness.advance(77)
    harness.do(c.PutTenant(tenant="late"))
    assert list(harness.all(Audit))[-1].at == harness.now
