"""At startup the server warns about an object store that ignores a feature of S3."""

import threading
from pathlib import Path

import pytest

from callsheet.app import Callsheet
from callsheet.blobs.base import StorageRefusedError
from callsheet.settings import BlobSettings, Settings
from tests.support.doubles.s3_double import ACCESS, BUCKET, REGION, SECRET, S3Double

_JOIN_SECONDS = 20.0
SLOWER = "files are read again to verify them, which is slower."


def startup_warnings(double: S3Double, database_url: str, data: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Start a server on a store, wait for its probe, and return what it printed."""
    blobs = BlobSettings(url=f"s3://{BUCKET}/prefix", endpoint=double.endpoint, region=REGION)
    with Callsheet(database_url, data, Settings(blobs=blobs)) as server:
        server.start()
        for probe in (thread for thread in threading.enumerate() if thread.name == "callsheet-probe"):
            probe.join(_JOIN_SECONDS)
            assert not probe.is_alive()
    assert any(method == "PUT" and "/.probe/" in path for method, path in double.requests)
    assert all("/.identity/" in key for key in double.objects)
    return capsys.readouterr().err


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)


def test_a_complete_store_causes_no_warning(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with S3Double() as double:
        assert startup_warnings(double, database_url, tmp_path, capsys) == ""


@pytest.mark.parametrize(
    ("header", "weakness"),
    [
        ("if-none-match", "allows a file to be overwritten"),
        ("x-amz-checksum-sha256", "accepts bytes with another digest than was signed"),
    ],
)
def test_an_ignored_header_is_reported_at_startup(
    header: str, weakness: str, database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with S3Double(ignored_headers=[header]) as double:
        assert startup_warnings(double, database_url, tmp_path, capsys) == f"The storage {weakness}: {SLOWER}\n"


def test_refused_credentials_are_reported_at_startup(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with S3Double() as double:
        startup_warnings(double, database_url, tmp_path, capsys)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-7")
        text = startup_warnings(double, database_url, tmp_path, capsys)
    assert "The file storage could not be checked: " in text
    assert "The storage could not be checked: " in text
    assert "canary-7" not in text


def test_the_first_start_on_a_storage_that_refuses_fails(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-7")
    with S3Double() as double:
        blobs = BlobSettings(url=f"s3://{BUCKET}/prefix", endpoint=double.endpoint, region=REGION)
        with pytest.raises(StorageRefusedError) as raised:
            Callsheet(database_url, tmp_path, Settings(blobs=blobs))
    assert "canary-7" not in str(raised.value)
