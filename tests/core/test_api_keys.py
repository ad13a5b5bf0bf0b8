"""Keys: who may have one, what is kept of it, and how it ends."""

from typing import Any

import pytest

from callsheet.core.decisions.api_keys import ROLES
from callsheet.core.model import commands as c
from callsheet.core.model.clock import SECOND
from callsheet.core.model.rows import ApiKey
from callsheet.core.policy.engine_limits import Limits
from tests.core.rule_harness import CoreHarness

HASH = "a" * 64


def made(harness: CoreHarness, **fields: Any) -> ApiKey:
    key: ApiKey = harness.do(key_of(**fields))
    return key


def key_of(**fields: Any) -> c.CreateKey:
    return c.CreateKey(**{"tenant": "acme", "role": "client", "name": "the shop", "secret_hash": HASH, **fields})


@pytest.mark.parametrize("role", ROLES)
def test_a_key_of_a_tenant_may_have_any_role_but_the_fleets(role: str) -> None:
    harness = CoreHarness()
    if role == "worker":  # it serves all tenants
        assert harness.expect_refusal(key_of(role=role)).code == "tenant_not_allowed"
        return
    key = made(harness, role=role)
    assert (key.tenant, key.role, key.name, key.secret_hash) == ("acme", role, "the shop", HASH)
    assert (key.created_at, key.expires_at, key.revoked_at) == (harness.now, None, None)
    assert list(harness.all(ApiKey)) == [key]


@pytest.mark.parametrize("role", ROLES)
def test_only_an_admin_and_the_fleet_may_be_without_a_tenant(role: str) -> None:
    harness = CoreHarness()
    if role in {"admin", "worker"}:
        assert made(harness, role=role, tenant="").tenant == ""
        return
    assert harness.expect_refusal(key_of(role=role, tenant="")).code == "tenant_required"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"role": "king"}, "invalid_role"),
    ({"role": ""}, "invalid_role"),
    ({"tenant": "nobody"}, "tenant_not_found"),
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


@pytest.mark.parametrize(("fields", "code"), BAD)
def test_a_key_that_makes_no_sense_is_refused(fields: dict[str, Any], code: str) -> None:
    assert CoreHarness().expect_refusal(key_of(**fields)).code == code


def test_a_key_expires_when_it_was_told_to() -> None:
    harness = CoreHarness()
    assert made(harness, expires_in_seconds=90).expires_at == harness.now + 90 * SECOND


def test_the_same_command_again_finds_its_own_key() -> None:
    harness = CoreHarness()
    command = key_of(id=harness.new_id())
    first = harness.do(command)
    harness.advance(60)
    before = harness.snapshot()
    assert harness.batch(command, retrying=True) == [first]
    assert harness.snapshot() == before


def test_a_revoked_key_stays_as_it_ended() -> None:
    harness = CoreHarness()
    key = made(harness)
    harness.advance(5)
    ended = harness.do(c.RevokeKey(key_id=key.id))
    assert ended.revoked_at == harness.now
    harness.advance(5)
    before = harness.snapshot()
    assert harness.do(c.RevokeKey(key_id=key.id)) == ended
    assert harness.snapshot() == before


def test_a_key_is_revoked_by_its_own_tenant_or_the_operator_only() -> None:
    harness = CoreHarness()
    harness.do(c.PutTenant(tenant="other"))
    key = made(harness)
    assert harness.expect_refusal(c.RevokeKey(key_id=key.id, tenant="other")).code == "key_not_found"
    assert harness.expect_refusal(c.RevokeKey(key_id="nobody", tenant="acme")).code == "key_not_found"
    assert harness.do(c.RevokeKey(key_id=key.id, tenant="acme")).revoked_at == harness.now


def test_a_tenants_admin_never_reaches_the_operators_key() -> None:
    harness = CoreHarness()
    key = made(harness, tenant="", role="admin")
    assert harness.expect_refusal(c.RevokeKey(key_id=key.id, tenant="acme")).code == "key_not_found"
    assert harness.do(c.RevokeKey(key_id=key.id, tenant=None)).revoked_at is not None


def test_a_key_does_not_revoke_itself() -> None:
    harness = CoreHarness()
    key, other = made(harness, role="admin"), made(harness, role="admin", secret_hash="b" * 64)
    assert harness.expect_refusal(c.RevokeKey(key_id=key.id, requested_by=key.id)).code == "cannot_revoke_own_key"
    assert harness.do(c.RevokeKey(key_id=key.id, requested_by=other.id)).revoked_at is not None
