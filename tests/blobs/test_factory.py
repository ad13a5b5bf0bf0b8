"""The settings choose the blob store, and each mistake in them is reported in one sentence."""

from pathlib import Path
from typing import Any

import pytest

from callsheet.blobs.base import StorageRefusedError
from callsheet.blobs.factory import open_blobs
from callsheet.blobs.local import LocalBlobs
from callsheet.blobs.s3.store import PUT_BYTES_MAX, S3Blobs
from callsheet.settings import BlobSettings
from tests.support.doubles.blob_stores import grant_upload_of

KEYS = {"AWS_ACCESS_KEY_ID": "AKIDPLAIN", "AWS_SECRET_ACCESS_KEY": "canary-secret"}


def test_files_are_stored_beside_the_database_by_default(tmp_path: Path) -> None:
    blobs = open_blobs(BlobSettings(), tmp_path, None, {})
    assert isinstance(blobs, LocalBlobs)
    assert blobs.path("a") == tmp_path / "files" / "a"


def test_a_file_url_selects_another_folder(tmp_path: Path) -> None:
    blobs = open_blobs(BlobSettings(url=f"file://{tmp_path}/my%20files"), Path("/nowhere"), None, {})
    assert isinstance(blobs, LocalBlobs)
    assert blobs.path("a") == tmp_path / "my files" / "a"


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"url": "s3://films", "region": "eu-central-1"}, "https://films.s3.eu-central-1.amazonaws.com/a/b?"),
        ({"url": "s3://films/some/where/"}, "https://films.s3.us-east-1.amazonaws.com/some/where/a/b?"),
        ({"url": "s3://my.films"}, "https://s3.us-east-1.amazonaws.com/my.films/a/b?"),
        ({"url": "s3://films", "endpoint": "http://minio:9000/"}, "http://minio:9000/films/a/b?"),
        ({"url": "s3://films", "endpoint": "https://s3.example:443"}, "https://s3.example/films/a/b?"),
        ({"url": "s3://films", "endpoint": "https://s3.example", "path_style": False}, "https://films.s3.example/a/b?"),
        ({"url": "s3://films", "endpoint": "http://minio:9000", "public_endpoint": "https://f.example"},
         "https://f.example/films/a/b?"),
    ],
)  # fmt: skip
def test_the_settings_select_the_url_of_the_bucket(settings: dict[str, Any], url: str) -> None:
    blobs = open_blobs(BlobSettings(**settings), Path("/nowhere"), None, KEYS)
    assert isinstance(blobs, S3Blobs)
    assert grant_upload_of(blobs, "a/b", b"x").url.startswith(url)
    assert "X-Amz-Credential=AKIDPLAIN%2F" in grant_upload_of(blobs, "a/b", b"x").url
    blobs.close()


def test_the_session_token_is_read_from_the_environment() -> None:
    blobs = open_blobs(
        BlobSettings(url="s3://films"), Path("/nowhere"), None, KEYS | {"AWS_SESSION_TOKEN": "temporary"}
    )
    assert "X-Amz-Security-Token=temporary" in grant_upload_of(blobs, "a/b", b"x").url
    assert isinstance(blobs, S3Blobs)
    blobs.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "ftp://films"}, "not a supported URL"), ({"url": "/srv/files"}, "not a supported URL"),
        ({"url": "file://host/files"}, "not a supported URL"), ({"url": "s3://"}, "has no valid bucket"),
        ({"url": "s3://Films"}, "has no valid bucket"), ({"url": "s3://films/../x"}, "prefix"),
        ({"url": "s3://films/a b"}, "prefix"), ({"url": "s3://films", "region": "eu central"}, "blobs.region"),
        ({"url": "s3://films", "endpoint": "minio:9000"}, "blobs.endpoint"),
        ({"url": "s3://films", "endpoint": "http://minio/path"}, "blobs.endpoint"),
        ({"url": "s3://films", "public_endpoint": "ftp://x"}, "blobs.public_endpoint"),
    ],
)  # fmt: skip
def test_an_invalid_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(StorageRefusedError, match=message):
        open_blobs(BlobSettings(**settings), Path("/nowhere"), None, KEYS)


def test_a_file_limit_above_the_limit_of_s3_is_refused_at_the_start(tmp_path: Path) -> None:
    bucket, folder = BlobSettings(url="s3://films"), BlobSettings()
    with pytest.raises(StorageRefusedError, match=r"limits.file_bytes_max is 5368709121. S3 allows .* \(5 GiB\)"):
        open_blobs(bucket, tmp_path, None, KEYS, file_bytes_max=PUT_BYTES_MAX + 1)
    opened = open_blobs(bucket, tmp_path, None, KEYS, file_bytes_max=PUT_BYTES_MAX)
    assert isinstance(opened, S3Blobs)
    opened.close()
    assert isinstance(open_blobs(folder, tmp_path, None, {}, file_bytes_max=PUT_BYTES_MAX + 1), LocalBlobs)


@pytest.mark.parametrize("missing", list(KEYS))
def test_a_missing_s3_key_is_named_without_showing_the_other(missing: str) -> None:
    environ = {name: value for name, value in KEYS.items() if name != missing}
    with pytest.raises(StorageRefusedError, match="AWS_SECRET_ACCESS_KEY") as error:
        open_blobs(BlobSettings(url="s3://films"), Path("/nowhere"), None, environ)
    assert "canary" not in str(error.value)
