"""Keys and the audit log at rest: written once, on both databases, even when the connection is lost at the commit."""

import json
from typing import Any

import pytest

from callsheet.core.model import commands as c
from callsheet.core.model.errors import Conflict
from callsheet.core.model.rows import ApiKey, Audit
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.support.databases.faulty_database import fail_once, faulty_engine
from tests.support.engine.engine_harness import TENANT, EngineHarness, stage

HASH = "0" * 64


def key(**fields: Any) -> c.CreateKey:
    return c.CreateKey(**{"tenant": TENANT, "role": "client", "name": "the shop", "secret_hash": HASH, **fields})


def keys(harness: EngineHarness) -> list[ApiKey]:
    return [ApiKey(*row) for row in harness.reads.fetch("api_keys_after", tenant="", all=1, after="", count=100)]


def audit(harness: EngineHarness, action: str = "") -> list[Audit]:
    """Return the lines, oldest first: of one action, or all."""
    found = [Audit(*row) for row in harness.reads.fetch("audit_of", tenant="", all=1, before="~", count=1_000)]
    return [line for line in reversed(found) if action in {"", line.action}]


def test_a_key_is_found_by_the_hash_of_its_secret_and_ends_when_revoked(harness: EngineHarness) -> None:
    made = harness.do(key(expires_in_seconds=60))
    ((status, *found),) = harness.reads.fetch("api_key_by_hash", key=HASH)
    assert (status, ApiKey(*found)) == ("active", made)
    harness.clock.advance(5)
    ended = harness.do(c.RevokeKey(key_id=made.id, tenant=TENANT))
    assert (ended.revoked_at, ended.expires_at) == (harness.clock.now(), made.created_at + 60_000_000)
    assert keys(harness) == [ended]
    assert harness.do(c.RevokeKey(key_id=made.id)) == ended


def test_a_tenant_sees_its_own_keys_and_lines_only(harness: EngineHarness) -> None:
    harness.tenant("other")
    mine, theirs = harness.do(key()), harness.do(key(tenant="other", secret_hash="1" * 64))
    own = harness.reads.fetch("api_keys_after", tenant=TENANT, all=0, after="", count=100)
    assert [row[0] for row in own] == [mine.id]
    lines = harness.reads.fetch("audit_of", tenant="other", all=0, before="~", count=100)
    assert {row[1] for row in lines} == {"other"}
    assert theirs.id in {row[5] for row in lines}
    assert harness.expect_refusal(c.RevokeKey(key_id=theirs.id, tenant=TENANT)).code == "key_not_found"


@pytest.mark.parametrize("fields", [{"role": "king"}, {"tenant": ""}, {"tenant": "nobody"}, {"name": ""}], ids=str)
def test_a_refused_key_leaves_nothing_at_all(harness: EngineHarness, fields: dict[str, str]) -> None:
    before = harness.snapshot()
    assert harness.expect_refusal(key(**fields)).code in {
        "invalid_role", "tenant_required", "tenant_not_found", "invalid_key_name",
    }  # fmt: skip
    assert harness.snapshot() == before


def test_of_a_secret_only_its_hash_is_in_the_database(harness: EngineHarness) -> None:
    harness.do(key())
    assert HASH in str(harness.snapshot()["api_key"])
    assert HASH not in str(harness.snapshot()["audit"])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_key_whose_commit_was_cut_is_made_once_and_revoked_once(harness: EngineHarness, when: Any) -> None:
    with faulty_engine(harness.database, fail_once(when)) as engine:
        made = engine.execute(key(requested_by="k1"))
    assert keys(harness) == [made]
    assert [line.subject for line in audit(harness, "key.create")] == [made.id]
    with faulty_engine(harness.database, fail_once(when)) as engine:
        ended = engine.execute(c.RevokeKey(key_id=made.id, requested_by="k1"))
    assert keys(harness) == [ended]
    assert [line.subject for line in audit(harness, "key.revoke")] == [made.id]


@pytest.mark.parametrize("when", ["before", "after"])
def test_every_audited_command_whose_commit_was_cut_leaves_one_line(harness: EngineHarness, when: Any) -> None:
    harness.workflow("gated", stages=[stage("gated", approval=True)])
    failed = harness.submit_job()
    harness.fail(harness.claim_one())
    waiting = harness.submit_job("gated")
    stage_id = harness.stages(waiting)[0].id
    running = harness.submit_job()
    harness.claim_one()
    admin: dict[str, Any] = {"tenant": TENANT, "actor": "admin", "requested_by": "k1"}
    commands: list[tuple[str, c.Command]] = [
        ("tenant.put", c.PutTenant(tenant="cut", weight=2)),
        (
            "workflow.put",
            c.PutWorkflow(definition=WorkflowDefinition(name="cut", stages=[StageSpec(name="a", kind="a")])),
        ),
        ("wallet.topup", c.TopUp(tenant=TENANT, user="cut", amount=5)),
        ("wallet.adjust", c.Adjust(tenant=TENANT, user="cut", amount=5, reason="Sorry.")),
        ("job.retry", c.Retry(job_id=failed, **admin)),
        ("stage.approve", c.Approve(job_id=waiting, stage_id=stage_id, approver="bea", **admin)),
        ("job.cancel", c.Cancel(job_id=running, grace_seconds=60, **admin)),
        ("job.delete", c.Delete(job_id=waiting, **admin)),
    ]
    for action, command in commands:
        before = len(audit(harness, action))
        with faulty_engine(harness.database, fail_once(when)) as engine:
            engine.execute(command)
        assert (action, len(audit(harness, action)) - before) == (action, 1)


def test_a_line_says_who_what_and_with_which_numbers(harness: EngineHarness) -> None:
    harness.do(c.Adjust(tenant=TENANT, user="ada", amount=-3, reason="Mistake.", requested_by="key-7"))
    line = audit(harness, "wallet.adjust")[0]
    assert (line.tenant, line.actor, line.subject, line.at) == (TENANT, "key-7", "ada", harness.clock.now())
    assert json.loads(line.data or "") == {"amount": -3, "reason": "Mistake."}


def test_users_leave_no_lines_and_replays_leave_none(harness: EngineHarness) -> None:
    harness.top_up(5, key="once")
    before = audit(harness)
    harness.top_up(5, key="once")
    harness.workflow()
    harness.tenant()
    job = harness.submit_job()
    harness.cancel(job)
    harness.cancel(job)
    harness.delete(job)
    assert audit(harness) == before


def test_lines_of_one_batch_are_written_with_it_and_those_of_refused_ones_are_not(harness: EngineHarness) -> None:
    before = len(audit(harness))
    results = harness.engine.execute_many(
        [c.TopUp(tenant=TENANT, user="ben", amount=n) for n in (1, -1, 2)]
        + [c.Adjust(tenant=TENANT, user="ben", amount=1, reason="")]
    )
    assert [isinstance(result, Exception) for result in results] == [False, True, False, True]
    told = [json.loads(line.data or "")["amount"] for line in audit(harness)[before:]]
    assert sorted(told) == [1, 2]


def test_a_key_cannot_revoke_itself(harness: EngineHarness) -> None:
    made = harness.do(key(role="admin"))
    with pytest.raises(Conflict, match="another admin key"):
        harness.do(c.RevokeKey(key_id=made.id, requested_by=made.id))
    assert keys(harness)[0].revoked_at is None
