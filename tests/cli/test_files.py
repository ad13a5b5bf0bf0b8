"""Files from the shell: brought, listed, fetched and deleted; swept and proved on the house's own machine."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callsheet.blobs import keys
from callsheet.core import commands
from callsheet.store.sqlite import SqliteDatabase
from tests.cli.conftest import Run, ran
from tests.support.served import TENANT, Served

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(1_000)
NOBODY = "00000000-0000-7000-8000-000000000000"
OLD_SECONDS = 2 * 86_400


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "sketch.png"
    path.write_bytes(PICTURE)
    return path


@pytest.fixture
def house(served: Served) -> list[str]:
    """The words that name the house's folder and database."""
    database: Any = served.engine.database
    words = ["--data", str(served.callsheet.data)]
    return words if isinstance(database, SqliteDatabase) else [*words, "--database", database.url]


def brought(run: Run, picture: Path, user: str = "ann") -> dict[str, Any]:
    done = run("files", "upload", picture, "--user", user, "--json")
    assert done.code == 0, done.err
    file: dict[str, Any] = done.json["files"][0]
    return file


def test_a_file_is_brought_shown_listed_fetched_and_deleted(run: Run, picture: Path, tmp_path: Path) -> None:
    said = run("files", "upload", picture, "--user", "shell").out
    found = re.fullmatch(r"([0-9a-f-]{36}) is sketch\.png, image/png, 1008 bytes\.\n", said)
    assert found is not None
    file_id = found[1]
    assert "1008 bytes, ready." in run("files", "show", file_id).out
    assert run("files", "show", file_id, "--json").json["user"] == "shell"
    assert file_id in run("files", "list", "--user", "shell").out
    assert [file["id"] for file in run("files", "list", "--user", "shell", "--json").json["files"]] == [file_id]
    assert run("files", "list", "--user", "nobody").out == "There are no such files.\n"
    copy = tmp_path / "copy.png"
    assert run("files", "download", file_id, "--to", copy).out == f"{copy}\n"
    assert copy.read_bytes() == PICTURE
    folder = tmp_path / "folder"
    folder.mkdir()
    assert run("files", "download", file_id, "--to", folder, "--json").json == {"file": str(folder / "sketch.png")}
    new = tmp_path / "new" / "folder"
    assert run("files", "download", file_id, "--to", f"{new}/").out == f"{new / 'sketch.png'}\n"
    wrong = run("files", "download", file_id, "--to", f"{copy}/")
    assert (wrong.code, f"{copy}/ is a file: name a folder." in wrong.err) == (2, True)
    assert run("files", "delete", file_id).out == "Deleted: 1008 bytes are free.\n"
    gone = run("files", "download", file_id, "--to", folder)
    assert (gone.code, gone.err) == (1, "callsheet: This file was deleted, or is not kept any longer.\n")
    assert "dropped" in run("files", "show", file_id).out
    assert run("files", "delete", file_id, "--json").code == 1


def test_what_cannot_be_brought_is_said_in_a_sentence(run: Run, picture: Path, tmp_path: Path) -> None:
    missing = run("files", "upload", tmp_path / "nothing.png", "--user", "ann")
    assert (missing.code, missing.err.count("\n")) == (1, 1)
    lying = run("files", "upload", picture, "--user", "liar", "--type", "video/mp4")
    assert (lying.code, lying.err.startswith(f"callsheet: {picture}: "), "not video/mp4" in lying.err) == (
        1,
        True,
        True,
    )
    assert run("files", "list", "--user", "liar", "--json").json["files"] == [], "nobody will bring it any more"
    some = run("files", "upload", picture, tmp_path / "nothing.png", "--user", "ann")
    assert (some.code, "sketch.png, image/png" in some.out, "nothing.png" in some.err) == (1, True, True)


# -- the house's own machine


@pytest.fixture
def orphan(served: Served) -> Iterator[str]:
    """An old object of a task's try that ended without it."""
    served.submit()
    (leased,) = served.engine.execute(commands.Claim(worker_id="w", kinds=("draw",)))
    served.engine.execute(commands.Complete(lease=leased.lease))
    lease = leased.lease
    key = keys.made(TENANT, lease.job_id, lease.task_id, lease.attempt, 1)
    served.blobs.put(key, b"orphan")
    old = time.time() - OLD_SECONDS
    os.utime(served.blobs.path(key), (old, old))
    yield key
    served.blobs.delete([key])


def test_a_sweep_says_what_would_go_before_it_does(
    served: Served, run: Run, picture: Path, house: list[str], orphan: str
) -> None:
    file = brought(run, picture, "sweeper")
    elsewhere = keys.uploaded("elsewhere", NOBODY)
    served.blobs.put(elsewhere, b"?")
    old = time.time() - OLD_SECONDS
    os.utime(served.blobs.path(elsewhere), (old, old))
    served.blobs.put("not/ours", b"?")
    would = ran("files", "sweep", *house, "--dry-run", "--json").json
    assert (would["dry_run"], would["found"]["orphans"], would["found"]["bytes"]) == (True, 1, 6)
    assert (would["found"]["unknown"], would["found"]["foreign"]) == (1, 1)
    assert served.blobs.stat(orphan) is not None
    said = ran("files", "sweep", *house, "--dry-run").out.splitlines()
    assert "objects (6 bytes) would be removed" in said[0]
    assert [line.endswith("They are left alone.") for line in said] == [False, False, True, True]
    assert "(6 bytes) were removed" in ran("files", "sweep", *house).out
    assert served.blobs.stat(orphan) is None
    assert ran("files", "sweep", *house, "--json").json["found"]["orphans"] == 0
    assert "there, and none of them were removed." in ran("files", "sweep", *house).out
    assert run("files", "show", file["id"], "--json").json["status"] == "ready"
    assert served.blobs.stat(keys.uploaded(TENANT, file["id"])) is not None
    served.blobs.delete([elsewhere, "not/ours"])


def test_a_file_whose_bytes_are_gone_is_a_violation(served: Served, run: Run, picture: Path, house: list[str]) -> None:
    file = brought(run, picture)
    brought(run, picture)
    sound = ran("verify", *house, "--files", "--json")
    assert (sound.code, sound.json["sound"]) == (0, True), sound.out
    key = keys.uploaded(TENANT, file["id"])
    served.blobs.delete([key])
    database = house if "--database" not in house else house[2:]
    assert ran("verify", *database).code == 0
    broken = ran("verify", *house, "--files")
    assert broken.code == 1
    assert broken.out.startswith("O8 is broken by 1 row: A ready file has its bytes.")
    assert file["id"] in broken.out
    assert ran("verify", *house, "--files", "--newest", "1").code == 0
    assert ran("verify", *database, "--newest", "1").code == 2
    [violation] = json.loads(ran("verify", *house, "--files", "--json").out)["violations"]
    assert violation["rows"] == [{"file": file["id"], "bytes": len(PICTURE), "bytes_there": None}]
    served.blobs.put(key, PICTURE)


def test_settings_say_where_files_lie(tmp_path: Path, house: list[str]) -> None:
    config = tmp_path / "callsheet.toml"
    config.write_text(f'[blobs]\nurl = "file://{tmp_path}/elsewhere"\n')
    found = ran("files", "sweep", *house, "--config", config, "--dry-run", "--json").json["found"]
    assert found["objects"] == 0
    config.write_text('[blobs]\nurl = "ftp://x"\n')
    wrong = ran("files", "sweep", *house, "--config", config)
    assert (wrong.code, wrong.err.startswith(f"callsheet: {config}:2: blobs.url is neither")) == (1, True)
