"""A SQLite file that cannot be opened is reported with its reason."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from callsheet.store.connection import StoreError
from callsheet.store.sqlite import SqliteDatabase

MESSAGES = {
    apsw.CantOpenError: "SQLite cannot open callsheet.db: check that its folder exists and is writable.",
    apsw.ReadOnlyError: "SQLite cannot open callsheet.db: make its folder writable, which SQLite needs even to read.",
    apsw.NotADBError: "callsheet.db is not a SQLite database: choose another file.",
    apsw.CorruptError: "callsheet.db is damaged: restore it from a backup.",
    apsw.AuthError: "a message of SQLite",
}


@pytest.mark.parametrize("reading", [True, False])
def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path, *, reading: bool) -> None:
    (tmp_path / "callsheet.db").write_bytes(b"not a database" * 1_000)
    with pytest.raises(StoreError) as raised:
        SqliteDatabase(tmp_path / "callsheet.db").connect(reading=reading)
    assert str(raised.value) == MESSAGES[apsw.NotADBError]


@pytest.mark.parametrize("kind", MESSAGES)
def test_every_open_error_has_its_message(
    kind: type[apsw.Error], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise kind("a message of SQLite")

    monkeypatch.setattr(apsw, "Connection", refuse)
    with pytest.raises(StoreError) as raised:
        SqliteDatabase(tmp_path / "callsheet.db").connect()
    assert str(raised.value) == MESSAGES[kind]
