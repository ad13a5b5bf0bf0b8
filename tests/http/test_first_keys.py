"""Who may open the door: whether anybody holds a key, which decides whether a server shows itself to other machines."""

import secrets
from pathlib import Path

from callsheet.app import Callsheet
from callsheet.core.commands import CreateKey, RevokeKey
from callsheet.core.rows import ApiKey


def made(house: Callsheet, count: int) -> list[ApiKey]:
    many = [CreateKey(tenant="", role="admin", name="x", secret_hash=secrets.token_hex(32)) for _ in range(count)]
    keys: list[ApiKey] = house.engine.execute_many(many)
    return keys


def revoke(house: Callsheet, keys: list[ApiKey]) -> None:
    house.engine.execute_many([RevokeKey(key_id=key.id) for key in keys])


def test_a_key_is_found_however_many_older_ones_were_revoked(place: str, tmp_path: Path) -> None:
    with Callsheet(place, tmp_path) as house:
        assert not house.has_keys()
        for _ in range(2):
            revoke(house, made(house, 600))
        assert not house.has_keys()
        last = made(house, 1)
        assert house.has_keys()
        revoke(house, last)
        assert not house.has_keys()
