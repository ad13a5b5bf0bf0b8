"""Keys: who may have one, what is kept of it, and how it ends."""

from typing import Any

import pytest

from callsheet.core import commands as c
from callsheet.core.clock import SECOND
from callsheet.core.keys import ROLES
from callsheet.core.limits import Limits
from callsheet.core.rows import ApiKey
from tests.core.world import World

HASH = "a" * 64


def made(world: World, **fields: Any) -> ApiKey:
    key: ApiKey = world.do(key_of(**fields))
    return key


def key_of(**fields: Any) -> c.CreateKey:
    return c.CreateKey(**{"tenant": "acme", "role": "client", "name": "the shop", "secret_hash": HASH, **fields})


@pytest.mark.parametrize("role", ROLES)
def test_a_key_of_a_tenant_may_have_any_role_but_the_fleets(role: str) -> None:
    world = World()
    if role == "worker":  # it serves all tenants
        assert world.refused(key_of(role=role)).code == "tenant_not_allowed"
        return
    key = made(world, role=role)
    assert (key.tenant, key.role, key.name, key.secret_hash) == ("acme", role, "the shop", HASH)
    assert (key.created_at, key.expires_at, key.revoked_at) == (world.now, None, None)
    assert list(world.all(ApiKey)) == [key]


@pytest.mark.parametrize("role", ROLES)
def test_only_an_admin_and_the_fleet_may_be_without_a_tenant(role: str) -> None:
    world = World()
    if role in {"admin", "worker"}:
        assert made(world, role=role, tenant="").tenant == ""
        return
    assert world.refused(key_of(role=role, tenant="")).code == "tenant_required"


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
    ({"expires_in_seconds": Limits().key_seconds_max + 1}, "out_of_range"),
]


@pytest.mark.parametrize(("fields", "code"), BAD)
def test_a_key_that_makes_no_sense_is_refused(fields: dict[str, Any], code: str) -> None:
    assert World().refused(key_of(**fields)).code == code


def test_a_key_expires_when_it_was_told_to() -> None:
    world = World()
    assert made(world, expires_in_seconds=90).expires_at == world.now + 90 * SECOND


def test_the_same_command_again_finds_its_own_key() -> None:
    world = World()
    command = key_of(id=world.new_id())
    first = world.do(command)
    world.pass_(60)
    before = world.snapshot()
    assert world.batch(command, again=True) == [first]
    assert world.snapshot() == before


def test_a_revoked_key_stays_as_it_ended() -> None:
    world = World()
    key = made(world)
    world.pass_(5)
    ended = world.do(c.RevokeKey(key_id=key.id))
    assert ended.revoked_at == world.now
    world.pass_(5)
    before = world.snapshot()
    assert world.do(c.RevokeKey(key_id=key.id)) == ended
    assert world.snapshot() == before


def test_a_key_is_revoked_by_its_own_tenant_or_the_operator_only() -> None:
    world = World()
    world.do(c.PutTenant(tenant="other"))
    key = made(world)
    assert world.refused(c.RevokeKey(key_id=key.id, tenant="other")).code == "key_not_found"
    assert world.refused(c.RevokeKey(key_id="nobody", tenant="acme")).code == "key_not_found"
    assert world.do(c.RevokeKey(key_id=key.id, tenant="acme")).revoked_at == world.now


def test_a_tenants_admin_never_reaches_the_operators_key() -> None:
    world = World()
    key = made(world, tenant="", role="admin")
    assert world.refused(c.RevokeKey(key_id=key.id, tenant="acme")).code == "key_not_found"
    assert world.do(c.RevokeKey(key_id=key.id, tenant=None)).revoked_at is not None


def test_a_key_does_not_revoke_itself() -> None:
    world = World()
    key, other = made(world, role="admin"), made(world, role="admin", secret_hash="b" * 64)
    assert world.refused(c.RevokeKey(key_id=key.id, by=key.id)).code == "own_key"
    assert world.do(c.RevokeKey(key_id=key.id, by=other.id)).revoked_at is not None
