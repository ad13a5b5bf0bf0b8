"""`callsheet files`, and the checks of stored files that run on the server's machine."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callsheet.blobs import object_keys
from callsheet.blobs.local import LocalBlobs
from callsheet.core.model import commands
from callsheet.store.sqlite import SqliteDatabase
from tests.cli.conftest import Run, invoke_cli
from tests.support.processes.live_server import TENANT, LiveServer

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(1_000)
UNKNOWN_FILE = "00000000-0000-7000-8000-000000000000"
OLD_SECONDS = 2 * 86_400


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "sketch.png"
    path.write_bytes(PICTURE)
    return path


@pytest.fixture
def server_options(live_server: LiveServer) -> list[str]:
    """The options that name the server's folder and database."""
    database: Any = live_server.engine.database
    options = ["--data-dir", str(live_server.callsheet.data)]
    return options if isinstance(database, SqliteDatabase) else [*options, "--database", database.url]


def upload_file(run: Run, picture: Path, user: str = "ann") -> dict[str, Any]:
    done = run("files", "upload", picture, "--user", user, "--json")
    assert done.code == 0, done.err
    file: dict[str, Any] = done.json["files"][0]
    return file


def test_a_file_is_uploaded_printed_listed_downloaded_and_deleted(run: Run, picture: Path, tmp_path: Path) -> None:
    printed = run("files", "upload", picture, "--user", "shell").out
    found = re.fullmatch(r"([0-9a-f-]{36}) is sketch\.png, image/png, 1008 bytes\.\n", printed)
    assert found is not None
    file_id = found[1]
    assert "1008 bytes, ready." in run("files", "show", file_id).out
    assert run("files", "show", file_id, "--json").json["user"] == "shell"
    assert file_id in run("files", "list", "--user", "shell").out
    assert [file["id"] for file in run("files", "list", "--user", "shell", "--json").json["files"]] == [file_id]
    assert run("files", "list", "--user", "other").out == "There are no such files.\n"
    copy = tmp_path / "copy.png"
    assert run("files", "download", file_id, "--output", copy).out == f"{copy}\n"
    assert copy.read_bytes() == PICTURE
    folder = tmp_path / "folder"
    folder.mkdir()
    assert run("files", "download", file_id, "--output", folder, "--json").json == {"path": str(folder / "sketch.png")}
    new = tmp_path / "new" / "folder"
    assert run("files", "download", file_id, "--output", f"{new}/").out == f"{new / 'sketch.png'}\n"
    wrong = run("files", "download", file_id, "--output", f"{copy}/")
    assert (wrong.code, f"{copy}/ is a file. Pass a folder." in wrong.err) == (2, True)
    assert run("files", "delete", file_id).out == "Deleted: 1008 bytes are free.\n"
    deleted = run("files", "download", file_id, "--output", folder)
    assert (deleted.code, deleted.err) == (1, "callsheet: This file was deleted, or its retention period has ended.\n")
    assert "deleted" in run("files", "show", file_id).out
    assert run("files", "delete", file_id, "--json").code == 1


def test_a_file_that_cannot_be_uploaded_is_reported_in_one_sentence(run: Run, picture: Path, tmp_path: Path) -> None:
    missing = run("files", "upload", tmp_path / "nothing.png", "--user", "ann")
    assert (missing.code, missing.err.count("\n")) == (1, 1)
    mismatch = run("files", "upload", picture, "--user", "mia", "--media-type", "video/mp4")
    assert (mismatch.code, mismatch.err.startswith(f"callsheet: {picture}: ")) == (1, True)
    assert "not video/mp4" in mismatch.err
    assert run("files", "list", "--user", "mia", "--json").json["files"] == [], "the upload was withdrawn"
    partial = run("files", "upload", picture, tmp_path / "nothing.png", "--user", "ann")
    assert (partial.code, "sketch.png, image/png" in partial.out, "nothing.png" in partial.err) == (1, True, True)


# -- commands on the server's machine


@pytest.fixture
def orphan(live_server: LiveServer) -> Iterator[str]:
    """An old object of an attempt that completed without it."""
    live_server.submit()
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w", kinds=("draw",)))
    live_server.engine.execute(commands.Complete(lease=leased.lease))
    lease = leased.lease
    key = object_keys.output_key(TENANT, lease.job_id, lease.task_id, lease.attempt, 1)
    live_server.blobs.put(key, b"orphan")
    old = time.time() - OLD_SECONDS
    os.utime(live_server.blobs.path(key), (old, old))
    yield key
    live_server.blobs.delete([key])


def test_a_dry_run_of_prune_reports_what_prune_would_delete(
    live_server: LiveServer, run: Run, picture: Path, server_options: list[str], orphan: str
) -> None:
    file = upload_file(run, picture, "sweeper")
    elsewhere = object_keys.upload_key("elsewhere", UNKNOWN_FILE)
    live_server.blobs.put(elsewhere, b"?")
    old = time.time() - OLD_SECONDS
    os.utime(live_server.blobs.path(elsewhere), (old, old))
    live_server.blobs.put("not/ours", b"?")
    preview = invoke_cli("files", "prune", *server_options, "--dry-run", "--json").json
    assert (preview["dry_run"], preview["summary"]["orphans"], preview["summary"]["bytes"]) == (True, 1, 6)
    assert (preview["summary"]["unknown"], preview["summary"]["foreign"]) == (1, 1)
    assert live_server.blobs.stat(orphan) is not None
    lines = invoke_cli("files", "prune", *server_options, "--dry-run").out.splitlines()
    assert "objects (6 bytes) would be deleted" in lines[0]
    assert [line.endswith("They are kept.") for line in lines] == [False, False, True, True]
    assert "(6 bytes) were deleted" in invoke_cli("files", "prune", *server_options).out
    assert live_server.blobs.stat(orphan) is None
    assert invoke_cli("files", "prune", *server_options, "--json").json["summary"]["orphans"] == 0
    assert "stored; none were deleted." in invoke_cli("files", "prune", *server_options).out
    assert run("files", "show", file["id"], "--json").json["status"] == "ready"
    assert live_server.blobs.stat(object_keys.upload_key(TENANT, file["id"])) is not None
    live_server.blobs.delete([elsewhere, "not/ours"])


def test_verify_reports_a_file_whose_bytes_are_missing(
    live_server: LiveServer, run: Run, picture: Path, server_options: list[str]
) -> None:
    file = upload_file(run, picture)
    upload_file(run, picture)
    valid = invoke_cli("verify", *server_options, "--files", "--json")
    assert (valid.code, valid.json["sound"]) == (0, True), valid.out
    key = object_keys.upload_key(TENANT, file["id"])
    live_server.blobs.delete([key])
    database = server_options if "--database" not in server_options else server_options[2:]
    assert invoke_cli("verify", *database).code == 0
    broken = invoke_cli("verify", *server_options, "--files")
    assert broken.code == 1
    assert broken.out.startswith("O8 is broken by 1 row: A ready file has its bytes.")
    assert file["id"] in broken.out
    assert invoke_cli("verify", *server_options, "--files", "--newest", "1").code == 0
    assert invoke_cli("verify", *database, "--newest", "1").code == 2
    [violation] = json.loads(invoke_cli("verify", *server_options, "--files", "--json").out)["violations"]
    assert violation["rows"] == [{"file": file["id"], "bytes": len(PICTURE), "stored_bytes": None}]
    live_server.blobs.put(key, PICTURE)


def test_prune_uses_the_storage_of_the_settings_file(
    live_server: LiveServer, tmp_path: Path, server_options: list[str]
) -> None:
    config, copy = tmp_path / "callsheet.toml", LocalBlobs(tmp_path / "elsewhere")
    config.write_text(f'[blobs]\nurl = "file://{tmp_path}/elsewhere"\n')
    for marker in live_server.blobs.markers():
        copy.add_marker(marker)
    found = invoke_cli("files", "prune", *server_options, "--config", config, "--dry-run", "--json").json["summary"]
    assert found["objects"] == 0
    config.write_text('[blobs]\nurl = "ftp://x"\n')
    wrong = invoke_cli("files", "prune", *server_options, "--config", config)
    assert (wrong.code, wrong.err.startswith(f"callsheet: {config}:2: blobs.url is not a supported URL")) == (1, True)
