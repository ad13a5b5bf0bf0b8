"""API keys and the audit log in the database: written once, also if the connection is lost at the commit."""

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
    return [ApiKey(*row) for row in harness.reads.fetch("api_keys_after", after="", count=100)]


def audit(harness: EngineHarness, action: str = "") -> list[Audit]:
    """Return the audit entries, oldest first: of one action, or all."""
    found = [Audit(*row) for row in harness.reads.fetch("audit_before", before="~", count=1_000)]
    return [entry for entry in reversed(found) if action in {"", entry.action}]


def test_a_key_is_found_by_the_hash_of_its_secret_and_can_be_revoked(harness: EngineHarness) -> None:
    created = harness.do(key(expires_in_seconds=60))
    ((_, status, *found),) = harness.reads.fetch("api_key_by_hash", key=HASH)
    assert (status, ApiKey(*found)) == ("active", created)
    harness.clock.advance(5)
    revoked = harness.do(c.RevokeKey(key_id=created.id, tenant=TENANT))
    assert (revoked.revoked_at, revoked.expires_at) == (harness.clock.now(), created.created_at + 60_000_000)
    assert keys(harness) == [revoked]
    assert harness.do(c.RevokeKey(key_id=created.id)) == revoked


def test_a_tenant_sees_only_its_own_keys_and_audit_entries(harness: EngineHarness) -> None:
    # R159
    harness.tenant("other")
    own, other = harness.do(key()), harness.do(key(tenant="other", secret_hash="1" * 64))
    listed = harness.reads.fetch("api_keys_of_tenant", tenant=TENANT, after="", count=100)
    assert [row[0] for row in listed] == [own.id]
    entries = harness.reads.fetch("audit_of_tenant", tenant="other", before="~", count=100)
    assert {row[1] for row in entries} == {"other"}
    assert other.id in {row[5] for row in entries}
    assert harness.expect_refusal(c.RevokeKey(key_id=other.id, tenant=TENANT)).code == "key_not_found"


@pytest.mark.parametrize("fields", [{"role": "root"}, {"tenant": ""}, {"tenant": "unknown"}, {"name": ""}], ids=str)
def test_a_refused_key_stores_nothing(harness: EngineHarness, fields: dict[str, str]) -> None:
    before = harness.snapshot()
    assert harness.expect_refusal(key(**fields)).code in {
        "invalid_role", "tenant_required", "tenant_not_found", "invalid_key_name",
    }  # fmt: skip
    assert harness.snapshot() == before


def test_only_the_hash_of_a_secret_is_stored(harness: EngineHarness) -> None:
    harness.do(key())
    assert HASH in str(harness.snapshot()["api_key"])
    assert HASH not in str(harness.snapshot()["audit"])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_key_whose_commit_failed_is_created_once_and_revoked_once(harness: EngineHarness, when: Any) -> None:
    # A4
    with faulty_engine(harness.database, fail_once(when)) as engine:
        created = engine.execute(key(requested_by="k1"))
    assert keys(harness) == [created]
    assert [entry.subject for entry in audit(harness, "key.create")] == [created.id]
    with faulty_engine(harness.database, fail_once(when)) as engine:
        revoked = engine.execute(c.RevokeKey(key_id=created.id, requested_by="k1"))
    assert keys(harness) == [revoked]
    assert [entry.subject for entry in audit(harness, "key.revoke")] == [created.id]


@pytest.mark.parametrize("when", ["before", "after"])
def test_every_admin_command_whose_commit_failed_has_one_audit_entry(harness: EngineHarness, when: Any) -> None:
    # R80, A4
    harness.workflow("gated", stages=[stage("gated", approval=True)])
    failed = harness.submit_job()
    harness.fail(harness.claim_one())
    waiting = harness.submit_job("gated")
    stage_id = harness.stages(waiting)[0].id
    running = harness.submit_job()
    harness.claim_one()
    admin: dict[str, Any] = {"tenant": TENANT, "actor": "admin", "requested_by": "k1"}
    commands: list[tuple[str, c.Command]] = [
        ("tenant.put", c.PutTenant(tenant="new", weight=2)),
        (
            "workflow.put",
            c.PutWorkflow(definition=WorkflowDefinition(name="new", stages=[StageSpec(name="a", kind="a")])),
        ),
        ("wallet.topup", c.TopUp(tenant=TENANT, user="new", amount=5)),
        ("wallet.adjust", c.Adjust(tenant=TENANT, user="new", amount=5, reason="Sorry.")),
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
    assert harness.find_violations() == []


def test_an_audit_entry_has_the_actor_the_subject_the_time_and_the_amount(harness: EngineHarness) -> None:
    harness.do(c.Adjust(tenant=TENANT, user="ada", amount=-3, reason="Mistake.", requested_by="key-7"))
    entry = audit(harness, "wallet.adjust")[0]
    assert (entry.tenant, entry.actor, entry.subject, entry.at) == (TENANT, "key-7", "ada", harness.clock.now())
    assert json.loads(entry.data or "") == {"amount": -3, "reason": "Mistake."}


def test_user_commands_and_replays_have_no_audit_entries(harness: EngineHarness) -> None:
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


def test_only_the_accepted_commands_of_a_batch_have_audit_entries(harness: EngineHarness) -> None:
    before = len(audit(harness))
    results = harness.engine.execute_many(
        [c.TopUp(tenant=TENANT, user="ben", amount=n) for n in (1, -1, 2)]
        + [c.Adjust(tenant=TENANT, user="ben", amount=1, reason="")]
    )
    assert [isinstance(result, Exception) for result in results] == [False, True, False, True]
    amounts = [json.loads(entry.data or "")["amount"] for entry in audit(harness)[before:]]
    assert sorted(amounts) == [1, 2]


def test_a_key_cannot_revoke_itself(harness: EngineHarness) -> None:
    own = harness.do(key(role="admin"))
    with pytest.raises(Conflict, match="another admin key"):
        harness.do(c.RevokeKey(key_id=own.id, requested_by=own.id))
    assert keys(harness)[0].revoked_at is None
