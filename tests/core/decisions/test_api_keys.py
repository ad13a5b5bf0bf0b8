"""API keys: roles, tenants, expiry and revocation."""

from typing import Any

import pytest

from callsheet.core.decisions.api_keys import ROLES
from callsheet.core.model import commands as c
from callsheet.core.model.clock import SECOND
from callsheet.core.model.rows import ApiKey
from callsheet.core.policy.engine_limits import Limits
from tests.core.rule_harness import CoreHarness

HASH = "a" * 64


def create_key(harness: CoreHarness, **fields: Any) -> ApiKey:
    key: ApiKey = harness.do(key_command(**fields))
    return key


def key_command(**fields: Any) -> c.CreateKey:
    return c.CreateKey(**{"tenant": "acme", "role": "client", "name": "shop", "secret_hash": HASH, **fields})


@pytest.mark.parametrize("role", ROLES)
def test_a_key_of_a_tenant_can_have_every_role_but_worker(role: str) -> None:
    harness = CoreHarness()
    if role == "worker":  # a worker key serves all tenants
        assert harness.expect_refusal(key_command(role=role)).code == "tenant_not_allowed"
        return
    key = create_key(harness, role=role)
    assert (key.tenant, key.role, key.name, key.secret_hash) == ("acme", role, "shop", HASH)
    assert (key.created_at, key.expires_at, key.revoked_at) == (harness.now, None, None)
    assert list(harness.all(ApiKey)) == [key]


@pytest.mark.parametrize("role", ROLES)
def test_only_admin_and_worker_keys_can_be_without_a_tenant(role: str) -> None:
    harness = CoreHarness()
    if role in {"admin", "worker"}:
        assert create_key(harness, role=role, tenant="").tenant == ""
        return
    assert harness.expect_refusal(key_command(role=role, tenant="")).code == "tenant_required"


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"role": "unknown"}, "invalid_role"),
    ({"role": ""}, "invalid_role"),
    ({"tenant": "missing"}, "tenant_not_found"),
    ({"name": ""}, "invalid_key_name"),
    ({"name": "   "}, "invalid_key_name"),
    ({"name": "x" * 129}, "invalid_key_name"),
    ({"name": "two\nlines"}, "invalid_key_name"),
    ({"secret_hash": "the secret itself"}, "invalid_secret"),
    ({"secret_hash": ""}, "invalid_secret"),
    ({"expires_in_seconds": 0}, "out_of_range"),
    ({"expires_in_seconds": -5}, "out_of_range"),
    ({"expires_in_seconds": Limits().key_expires_in_seconds_max + 1}, "out_of_range"),
]


@pytest.mark.parametrize(("fields", "code"), INVALID)
def test_an_invalid_key_is_refused(fields: dict[str, Any], code: str) -> None:
    assert CoreHarness().expect_refusal(key_command(**fields)).code == code


def test_a_key_expires_after_the_requested_time() -> None:
    harness = CoreHarness()
    assert create_key(harness, expires_in_seconds=90).expires_at == harness.now + 90 * SECOND


def test_a_repeated_command_returns_the_key_it_created() -> None:
    harness = CoreHarness()
    command = key_command(id=harness.new_id())
    first = harness.do(command)
    harness.advance(60)
    before = harness.snapshot()
    assert harness.batch(command, retrying=True) == [first]
    assert harness.snapshot() == before


def test_revoking_a_key_again_changes_nothing() -> None:
    harness = CoreHarness()
    key = create_key(harness)
    harness.advance(5)
    revoked = harness.do(c.RevokeKey(key_id=key.id))
    assert revoked.revoked_at == harness.now
    harness.advance(5)
    before = harness.snapshot()
    assert harness.do(c.RevokeKey(key_id=key.id)) == revoked
    assert harness.snapshot() == before


def test_another_tenant_cannot_revoke_a_key() -> None:
    harness = CoreHarness()
    harness.do(c.PutTenant(tenant="other"))
    key = create_key(harness)
    assert harness.expect_refusal(c.RevokeKey(key_id=key.id, tenant="other")).code == "key_not_found"
    assert harness.expect_refusal(c.RevokeKey(key_id="missing", tenant="acme")).code == "key_not_found"
    assert harness.do(c.RevokeKey(key_id=key.id, tenant="acme")).revoked_at == harness.now


def test_an_admin_of_a_tenant_cannot_revoke_a_key_of_the_operator() -> None:
    harness = CoreHarness()
    key = create_key(harness, tenant="", role="admin")
    assert harness.expect_refusal(c.RevokeKey(key_id=key.id, tenant="acme")).code == "key_not_found"
    assert harness.do(c.RevokeKey(key_id=key.id, tenant=None)).revoked_at is not None


def test_a_key_cannot_revoke_itself() -> None:
    harness = CoreHarness()
    key, other = create_key(harness, role="admin"), create_key(harness, role="admin", secret_hash="b" * 64)
    assert harness.expect_refusal(c.RevokeKey(key_id=key.id, requested_by=key.id)).code == "cannot_revoke_own_key"
    assert harness.do(c.RevokeKey(key_id=key.id, requested_by=other.id)).revoked_at is not None
