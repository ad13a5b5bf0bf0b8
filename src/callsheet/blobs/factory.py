"""Opens the blob store that the settings name: a local folder or an S3 bucket."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from callsheet.blobs.base import PayloadSigner, StorageRefusedError
from callsheet.blobs.local import LocalBlobs
from callsheet.blobs.object_keys import split_prefix
from callsheet.blobs.s3.credentials import open_credentials
from callsheet.blobs.s3.store import PUT_BYTES_MAX, S3Blobs
from callsheet.blobs.s3.transport import S3Location
from callsheet.settings import BlobSettings

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_REGION_NAME = re.compile(r"[a-z0-9-]{1,32}\Z")


def open_blobs(
    settings: BlobSettings, data_folder: Path, signer: PayloadSigner | None, environ: Mapping[str, str] = os.environ, *,
    file_bytes_max: int = 0,
) -> LocalBlobs | S3Blobs:  # fmt: skip
    """Open the store without accessing any file. Raises StorageRefusedError for an invalid setting."""
    location = parse_blob_location(settings, file_bytes_max)
    if isinstance(location, S3Location):
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or location.region
        return S3Blobs(location, open_credentials(environ, region))
    return LocalBlobs(location or data_folder / "files", signer)


def parse_blob_location(settings: BlobSettings, file_bytes_max: int) -> Path | S3Location | None:
    """Return the folder or bucket that the settings name; None for the default folder beside the database.

    Error messages begin with the name of the setting.
    """
    if not settings.url:
        return None
    url = urlsplit(settings.url)
    if url.scheme == "file" and not url.netloc and url.path.startswith("/"):
        return Path(unquote(url.path))
    if url.scheme != "s3":
        raise StorageRefusedError("blobs.url is not a supported URL. Use file:///folder or s3://bucket/prefix.")
    if file_bytes_max > PUT_BYTES_MAX:
        raise StorageRefusedError(
            f"limits.file_bytes_max is {file_bytes_max}. S3 allows at most {PUT_BYTES_MAX} bytes (5 GiB) per upload. "
            "Lower the limit, or store files in a folder."
        )
    return _s3_location(settings, url.netloc, url.path.strip("/"))


def _s3_location(settings: BlobSettings, bucket: str, prefix: str) -> S3Location:
    if not _BUCKET_NAME.match(bucket):
        raise StorageRefusedError(f"blobs.url has no valid bucket name: {bucket!r}. Use s3://bucket/prefix.")
    if not _REGION_NAME.match(settings.region):
        raise StorageRefusedError(f"blobs.region is {settings.region!r}. Use a region name such as eu-central-1.")
    prefix = f"{prefix}/" if prefix else ""
    try:
        split_prefix(prefix)
    except ValueError:
        raise StorageRefusedError("blobs.url has an invalid prefix. Use letters, digits and . _ : - only.") from None
    return S3Location(
        bucket=bucket, prefix=prefix, region=settings.region, path_style=settings.path_style,
        endpoint=_normalize_endpoint("endpoint", settings.endpoint),
        public_endpoint=_normalize_endpoint("public_endpoint", settings.public_endpoint),
    )  # fmt: skip


def _normalize_endpoint(name: str, value: str) -> str:
    """Return an endpoint without the scheme's default port: browsers omit it from Host, which is signed."""
    if not value:
        return ""
    parts = urlsplit(value)
    try:
        netloc = httpx.URL(value).netloc.decode()
    except httpx.InvalidURL:
        netloc = ""
    if not netloc or parts.scheme not in {"http", "https"} or parts.path.strip("/") or parts.query:
        raise StorageRefusedError(f"blobs.{name} is not a URL without a path. Use https://host:port.")
    return f"{parts.scheme}://{netloc}"
