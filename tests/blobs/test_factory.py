"""The settings choose a store, and what is wrong with them is said in one sentence."""

from pathlib import Path
from typing import Any

import pytest

from callsheet.blobs.base import StorageRefusedError
from callsheet.blobs.factory import open_blobs
from callsheet.blobs.local import LocalBlobs
from callsheet.blobs.s3.store import PUT_BYTES_MAX, S3Blobs
from callsheet.config import BlobSettings
from tests.support.doubles.blob_stores import grant_upload_of

KEYS = {"AWS_ACCESS_KEY_ID": "AKIDPLAIN", "AWS_SECRET_ACCESS_KEY": "canary-secret"}


def test_without_settings_files_lie_beside_the_database(tmp_path: Path) -> None:
    blobs = open_blobs(BlobSettings(), tmp_path, None, {})
    assert isinstance(blobs, LocalBlobs)
    assert blobs.path("a") == tmp_path / "files" / "a"


def test_a_folder_may_be_anywhere(tmp_path: Path) -> None:
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
def test_a_bucket_is_reached_where_the_settings_say(settings: dict[str, Any], url: str) -> None:
    blobs = open_blobs(BlobSettings(**settings), Path("/nowhere"), None, KEYS)
    assert isinstance(blobs, S3Blobs)
    assert grant_upload_of(blobs, "a/b", b"x").url.startswith(url)
    assert "X-Amz-Credential=AKIDPLAIN%2F" in grant_upload_of(blobs, "a/b", b"x").url
    blobs.close()


def test_a_session_token_is_taken_from_the_environment_too() -> None:
    blobs = open_blobs(BlobSettings(url="s3://films"), Path("/nowhere"), None, KEYS | {"AWS_SESSION_TOKEN": "lent"})
    assert "X-Amz-Security-Token=lent" in grant_upload_of(blobs, "a/b", b"x").url
    assert isinstance(blobs, S3Blobs)
    blobs.close()


@pytest.mark.parametrize(
    ("settings", "said"),
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
def test_what_is_wrong_is_said_by_its_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(StorageRefusedError, match=said):
        open_blobs(BlobSettings(**settings), Path("/nowhere"), None, KEYS)


def test_files_larger_than_one_put_of_s3_are_refused_before_anybody_makes_one(tmp_path: Path) -> None:
    bucket, folder = BlobSettings(url="s3://films"), BlobSettings()
    with pytest.raises(StorageRefusedError, match=r"limits.file_bytes_max is 5368709121. S3 allows .* \(5 GiB\)"):
        open_blobs(bucket, tmp_path, None, KEYS, file_bytes_max=PUT_BYTES_MAX + 1)
    opened = open_blobs(bucket, tmp_path, None, KEYS, file_bytes_max=PUT_BYTES_MAX)
    assert isinstance(opened, S3Blobs)
    opened.close()
    assert isinstance(open_blobs(folder, tmp_path, None, {}, file_bytes_max=PUT_BYTES_MAX + 1), LocalBlobs)


@pytest.mark.parametrize("missing", list(KEYS))
def test_s3_without_keys_says_where_they_go_and_nothing_of_the_others(missing: str) -> None:
    given = {name: value for name, value in KEYS.items() if name != missing}
    with pytest.raises(StorageRefusedError, match="AWS_SECRET_ACCESS_KEY") as error:
        open_blobs(BlobSettings(url="s3://films"), Path("/nowhere"), None, given)
    assert "canary" not in str(error.value)
