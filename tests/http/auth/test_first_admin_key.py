"""Who may open the door: whether anybody holds a key, which decides whether a server shows itself to other machines."""

import secrets
from pathlib import Path

import pytest

from callsheet.app import Callsheet
from callsheet.core.model.commands import CreateKey, RevokeKey
from callsheet.core.model.errors import BadInput
from callsheet.core.model.rows import ApiKey


def create_keys(server: Callsheet, count: int) -> list[ApiKey]:
    many = [CreateKey(tenant="", role="admin", name="x", secret_hash=secrets.token_hex(32)) for _ in range(count)]
    keys: list[ApiKey] = server.engine.execute_many(many)
    return keys


def revoke(server: Callsheet, keys: list[ApiKey]) -> None:
    server.engine.execute_many([RevokeKey(key_id=key.id) for key in keys])


def test_a_key_is_found_however_many_older_ones_were_revoked(database_url: str, tmp_path: Path) -> None:
    with Callsheet(database_url, tmp_path) as server:
        assert not server.has_keys()
        for _ in range(2):
            revoke(server, create_keys(server, 600))
        assert not server.has_keys()
        last = create_keys(server, 1)
        assert server.has_keys()
        revoke(server, last)
        assert not server.has_keys()


WEAK = {
    "nothing": "",
    "one letter": "a\n",
    "a key's beginning": "cs_",
    "another text": "x" * 64,
    "no text": "\xff" * 64,
}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (file, text)
        for file in ("secret.key", "admin.key", "fleet.key")
        for what, text in WEAK.items()
        if (file, what) != ("secret.key", "another text")  # what signs has no form of its own
    ],
)
def test_a_file_without_a_valid_secret_opens_no_server(tmp_path: Path, file: str, text: str) -> None:
    """Whoever can guess what is signed with can make tokens for every user; what somebody guesses is a key."""
    (tmp_path / file).write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput) as raised, Callsheet(tmp_path / "callsheet.db", tmp_path) as server:
        (server.ensure_admin_key if file == "admin.key" else server.ensure_fleet_key)()
    assert raised.value.code == "invalid_secret"


def test_secrets_that_others_could_read_become_private(tmp_path: Path) -> None:
    with Callsheet(tmp_path / "callsheet.db", tmp_path) as server:
        files = [server.ensure_admin_key()[0], server.ensure_fleet_key(), tmp_path / "secret.key"]
    before = [file.read_text() for file in files]
    for file in files:
        file.chmod(0o644)
    with Callsheet(tmp_path / "callsheet.db", tmp_path) as server:
        assert (server.ensure_admin_key()[1], server.ensure_fleet_key()) == (False, files[1])
    assert [(file.read_text(), file.stat().st_mode & 0o777) for file in files] == [(text, 0o600) for text in before]
