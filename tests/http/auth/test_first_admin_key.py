"""Secrets of a server: whether a valid API key exists, and which files with secrets a server accepts."""

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


WEAK_SECRETS = {
    "empty": "",
    "one letter": "a\n",
    "prefix of a key": "cs_",
    "another text": "x" * 64,
    "not ASCII": "\xff" * 64,
}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (file, text)
        for file in ("secret.key", "admin.key", "fleet.key")
        for what, text in WEAK_SECRETS.items()
        if (file, what) != ("secret.key", "another text")  # the signing secret has no fixed format
    ],
)
def test_a_file_with_a_weak_secret_is_refused(tmp_path: Path, file: str, text: str) -> None:
    """A guessed signing secret would sign tokens for every user, and a guessed key is a valid key."""
    (tmp_path / file).write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput) as raised, Callsheet(tmp_path / "callsheet.db", tmp_path) as server:
        (server.ensure_admin_key if file == "admin.key" else server.ensure_fleet_key)()
    assert raised.value.code == "invalid_secret"


def test_secret_files_that_others_can_read_become_private(tmp_path: Path) -> None:
    with Callsheet(tmp_path / "callsheet.db", tmp_path) as server:
        files = [server.ensure_admin_key()[0], server.ensure_fleet_key(), tmp_path / "secret.key"]
    before = [file.read_text() for file in files]
    for file in files:
        file.chmod(0o644)
    with Callsheet(tmp_path / "callsheet.db", tmp_path) as server:
        assert (server.ensure_admin_key()[1], server.ensure_fleet_key()) == (False, files[1])
    assert [(file.read_text(), file.stat().st_mode & 0o777) for file in files] == [(text, 0o600) for text in before]
