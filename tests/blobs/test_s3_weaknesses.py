"""What a server says at its start of a store that keeps less of S3's word than it should."""

import threading
from pathlib import Path

import pytest

from callsheet.app import Callsheet
from callsheet.config import BlobSettings, Settings
from tests.support.doubles.s3_double import ACCESS, BUCKET, REGION, SECRET, S3Double

_JOIN_SECONDS = 20.0
AGAIN = "files are read again to verify them, which is slower."


def said(double: S3Double, database_url: str, data: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Start a house on a store, and return what it says of it once it has tried."""
    blobs = BlobSettings(url=f"s3://{BUCKET}/house", endpoint=double.endpoint, region=REGION)
    with Callsheet(database_url, data, Settings(blobs=blobs)) as house:
        house.start()
        for probe in (thread for thread in threading.enumerate() if thread.name == "callsheet-probe"):
            probe.join(_JOIN_SECONDS)
            assert not probe.is_alive()
    assert any(method == "PUT" and "/.probe/" in path for method, path in double.requests)
    assert double.objects == {}
    return capsys.readouterr().err


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)


def test_a_store_that_keeps_its_word_is_not_spoken_of(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with S3Double() as double:
        assert said(double, database_url, tmp_path, capsys) == ""


@pytest.mark.parametrize(
    ("header", "weakness"),
    [
        ("if-none-match", "allows a file to be overwritten"),
        ("x-amz-checksum-sha256", "accepts bytes with another digest than was signed"),
    ],
)
def test_a_store_that_ignores_a_condition_is_named_at_the_start(
    header: str, weakness: str, database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody learns of it from a file that was overwritten."""
    with S3Double(ignored_headers=[header]) as double:
        assert said(double, database_url, tmp_path, capsys) == f"The storage {weakness}: {AGAIN}\n"


def test_a_store_that_does_not_let_us_in_is_named_at_the_start(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-7")
    with S3Double() as double:
        text = said(double, database_url, tmp_path, capsys)
    assert "The storage could not be checked: " in text
    assert "canary-7" not in text
