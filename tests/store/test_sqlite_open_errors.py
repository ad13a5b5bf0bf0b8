"""A file that cannot be opened as a house's database says why, in a sentence for whoever runs the house."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from callsheet.store.connection import StoreError
from callsheet.store.sqlite import SqliteDatabase

SENTENCES = {
    apsw.CantOpenError: "SQLite cannot open house.db: is its folder there and writable?",
    apsw.ReadOnlyError: "SQLite cannot open house.db: it must be able to write into its folder, even to read.",
    apsw.NotADBError: "house.db is not a SQLite database.",
    apsw.CorruptError: "house.db is damaged: take it from a backup.",
    apsw.AuthError: "as SQLite says it",
}


@pytest.mark.parametrize("reading", [True, False])
def test_a_file_that_is_no_database_is_called_so(tmp_path: Path, *, reading: bool) -> None:
    (tmp_path / "house.db").write_bytes(b"no database" * 1_000)
    with pytest.raises(StoreError) as raised:
        SqliteDatabase(tmp_path / "house.db").connect(reading=reading)
    assert str(raised.value) == SENTENCES[apsw.NotADBError]


@pytest.mark.parametrize("kind", SENTENCES)
def test_every_reason_has_its_sentence(kind: type[apsw.Error], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise kind("as SQLite says it")

    monkeypatch.setattr(apsw, "Connection", refuse)
    with pytest.raises(StoreError) as raised:
        SqliteDatabase(tmp_path / "house.db").connect()
    assert str(raised.value) == SENTENCES[kind]
