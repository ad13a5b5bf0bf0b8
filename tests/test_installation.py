"""Servers of one database share a signing secret and a file storage: a server with others does not start."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from callsheet.app import Callsheet
from callsheet.core.model.errors import Conflict
from callsheet.engine.signing_secret_and_storage import Installation, fingerprint, recorded_values
from callsheet.settings import BlobSettings, Settings
from tests.support.databases.database_contents import dump_tables
from tests.support.databases.database_pool import DatabasePool
from tests.support.doubles.s3_double import ACCESS, BUCKET, REGION, SECRET, S3Double
from tests.support.engine.concurrency import run_concurrently
from tests.support.processes.live_server import LiveServer

ONE_SECRET, OTHER_SECRET = b"1" * 32, b"2" * 32
STARTS = 4


def storage(folder: Path) -> Settings:
    return Settings(blobs=BlobSettings(url=folder.as_uri()))


def start_code(start: Callable[[], Callsheet]) -> str:
    """Start a server and close it; return `started`, or the code of the refusal."""
    try:
        start().close()
    except Conflict as refusal:
        return refusal.code
    return "started"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tmp_path / "files"


# -- the signing secret


def test_a_server_with_another_secret_does_not_start(database_url: str, tmp_path: Path, files: Path) -> None:
    with Callsheet(database_url, tmp_path / "a", storage(files)):
        with pytest.raises(Conflict, match="--signing-secret-file") as raised:
            Callsheet(database_url, tmp_path / "b", storage(files), secret=OTHER_SECRET)
        assert raised.value.code == "signing_secret_differs"


def test_a_lost_secret_file_is_not_replaced_silently(database_url: str, tmp_path: Path) -> None:
    Callsheet(database_url, tmp_path).close()
    secret = tmp_path / "secret.key"
    text = secret.read_text()
    secret.unlink()
    assert start_code(lambda: Callsheet(database_url, tmp_path)) == "signing_secret_differs"
    assert not secret.exists()
    secret.write_text(text)
    assert start_code(lambda: Callsheet(database_url, tmp_path)) == "started"


def test_the_database_has_a_fingerprint_that_differs_from_database_to_database(
    database_url: str, tmp_path: Path
) -> None:
    with LiveServer(database_url, tmp_path) as server:
        secret = (tmp_path / "secret.key").read_text().strip()
        assert secret not in str(dump_tables(server))
        values = recorded_values(server.engine.reads)
        assert values["signing_secret"] == fingerprint(secret.encode(), values["database_id"])
    assert fingerprint(ONE_SECRET, "a") != fingerprint(ONE_SECRET, "b") != fingerprint(OTHER_SECRET, "b")


def test_a_running_server_is_not_ready_once_the_secret_was_replaced(database_url: str, tmp_path: Path) -> None:
    with LiveServer(database_url, tmp_path) as server:
        probe = server.client()
        assert probe.get("/readyz").status_code == 200
        installation = Installation(server.engine)
        assert installation.accept_secret(OTHER_SECRET) is True
        answer = probe.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        assert "signing secret" in answer.json()["message"]
        assert installation.accept_secret(OTHER_SECRET) is False
        assert installation.accept_secret((tmp_path / "secret.key").read_text().strip().encode()) is True
        assert probe.get("/readyz").status_code == 200
        audit = server.client("operator").get("/v1/admin/audit").json()
        assert "installation.replace" in {line["action"] for line in audit["entries"]}


# -- the file storage


def test_a_server_with_another_storage_does_not_start(database_url: str, tmp_path: Path) -> None:
    with Callsheet(database_url, tmp_path / "a", secret=ONE_SECRET):
        with pytest.raises(Conflict, match=r"blobs\.url") as raised:
            Callsheet(database_url, tmp_path / "b", secret=ONE_SECRET)
        assert raised.value.code == "file_storage_differs"
        assert not (tmp_path / "b" / "files").exists()


def test_a_folder_that_moved_is_the_same_storage(database_url: str, tmp_path: Path) -> None:
    Callsheet(database_url, tmp_path, storage(tmp_path / "old")).close()
    (tmp_path / "old").rename(tmp_path / "new")
    assert start_code(lambda: Callsheet(database_url, tmp_path, storage(tmp_path / "new"))) == "started"


def test_a_bucket_at_another_endpoint_is_the_same_storage_and_another_prefix_is_not(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)

    def start(endpoint: str, prefix: str) -> Callsheet:
        blobs = BlobSettings(url=f"s3://{BUCKET}/{prefix}", endpoint=endpoint, region=REGION)
        return Callsheet(database_url, tmp_path, Settings(blobs=blobs))

    with S3Double() as double:
        renamed = double.endpoint.replace("127.0.0.1", "localhost")
        starts = [(double.endpoint, "one"), (renamed, "one"), (double.endpoint, "two")]
        codes = [start_code(partial(start, *where)) for where in starts]
    assert codes == ["started", "started", "file_storage_differs"]


def test_a_storage_of_another_database_is_refused(tmp_path: Path, files: Path) -> None:
    Callsheet(tmp_path / "one.db", tmp_path / "one", storage(files)).close()
    assert start_code(lambda: Callsheet(tmp_path / "two.db", tmp_path, storage(files))) == "file_storage_taken"
    assert start_code(lambda: Callsheet(tmp_path / "one.db", tmp_path / "one", storage(files))) == "started"


def test_a_storage_that_is_unmounted_is_refused_at_the_start_and_found_out_later(
    database_url: str, tmp_path: Path, files: Path
) -> None:
    with LiveServer(database_url, tmp_path, settings=storage(files)) as server:
        probe, check = server.client(), server.callsheet.state.storage_check
        files.rename(tmp_path / "unmounted")
        files.mkdir()
        check.run_once(0)
        answer = probe.get("/readyz")
        assert (answer.status_code, "is mounted" in answer.json()["message"]) == (503, True)
        assert start_code(lambda: Callsheet(database_url, tmp_path, storage(files))) == "file_storage_differs"
        files.rmdir()
        (tmp_path / "unmounted").rename(files)
        check.run_once(0)
        assert probe.get("/readyz").status_code == 200


def test_a_restored_backup_starts_with_its_files_and_keys(tmp_path: Path) -> None:
    """What docs/guides/backup.md copies is enough, and the copy is the same installation."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    Callsheet(original / "callsheet.db", original).close()
    copy.mkdir()
    shutil.copytree(original / "files", copy / "files")
    for file in ("callsheet.db", "secret.key"):
        shutil.copy(original / file, copy)
    assert start_code(lambda: Callsheet(copy / "callsheet.db", copy)) == "started"


# -- races


@pytest.fixture
def postgresql(database_pool: DatabasePool) -> Iterator[str]:
    url = database_pool.acquire()
    yield url
    database_pool.release(url)


def start_together(database_url: str, folder: Path, *, secret: bytes | None, settings: Settings | None) -> list[str]:
    """Start servers with their own data folders at the same moment; return what became of each."""
    starts = [partial(Callsheet, database_url, folder / str(n), settings, secret=secret) for n in range(STARTS)]
    return sorted(run_concurrently(*(partial(start_code, start) for start in starts)))


def test_of_servers_with_different_secrets_one_wins(postgresql: str, tmp_path: Path, files: Path) -> None:
    codes = start_together(postgresql, tmp_path, secret=None, settings=storage(files))
    assert codes == ["signing_secret_differs"] * (STARTS - 1) + ["started"]


def test_of_servers_with_different_storages_one_wins(postgresql: str, tmp_path: Path) -> None:
    codes = start_together(postgresql, tmp_path, secret=ONE_SECRET, settings=None)
    assert codes == ["file_storage_differs"] * (STARTS - 1) + ["started"]
    assert len(list(tmp_path.glob("*/files/.identity/*"))) == 1


def test_servers_with_one_secret_and_one_storage_agree(postgresql: str, tmp_path: Path, files: Path) -> None:
    assert start_together(postgresql, tmp_path, secret=ONE_SECRET, settings=storage(files)) == ["started"] * STARTS
    assert len(list(files.glob(".identity/*"))) == 1
