"""Choosing where files lie, by the settings."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from callsheet.blobs.base import PayloadSigner, StorageRefused
from callsheet.blobs.local import LocalBlobs
from callsheet.blobs.object_keys import split_prefix
from callsheet.blobs.s3.credential_sources import CredentialsUnavailable, credential_source
from callsheet.blobs.s3.credentials import CachedCredentials
from callsheet.blobs.s3.sigv4 import S3Credentials
from callsheet.blobs.s3.store import PUT_BYTES_MAX, S3Blobs
from callsheet.blobs.s3.transport import S3Location
from callsheet.config import BlobSettings

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_REGION_NAME = re.compile(r"[a-z0-9-]{1,32}\Z")


def open_blobs(
    settings: BlobSettings, data_folder: Path, signer: PayloadSigner | None, environ: Mapping[str, str] = os.environ, *,
    file_bytes_max: int = 0,
) -> LocalBlobs | S3Blobs:  # fmt: skip
    """Open the store that the settings name; no file is asked for yet. What is wrong is said in one sentence."""
    location = parse_blob_location(settings, file_bytes_max)
    if isinstance(location, S3Location):
        return S3Blobs(location, _credentials(environ))
    return LocalBlobs(location or data_folder / "files", signer)


def parse_blob_location(settings: BlobSettings, file_bytes_max: int) -> Path | S3Location | None:
    """Return the folder or the bucket that the settings name, None for the folder beside the database.

    What is wrong begins with the name of its setting.
    """
    if not settings.url:
        return None
    url = urlsplit(settings.url)
    if url.scheme == "file" and not url.netloc and url.path.startswith("/"):
        return Path(unquote(url.path))
    if url.scheme != "s3":
        raise StorageRefused("blobs.url is neither file:///folder nor s3://bucket/prefix.")
    if file_bytes_max > PUT_BYTES_MAX:
        raise StorageRefused(
            f"limits.file_bytes_max is {file_bytes_max}, and S3 takes at most {PUT_BYTES_MAX} (5 GiB) in one PUT: "
            "lower it, or keep files in a folder."
        )
    return _s3_location(settings, url.netloc, url.path.strip("/"))


def _s3_location(settings: BlobSettings, bucket: str, prefix: str) -> S3Location:
    if not _BUCKET_NAME.match(bucket):
        raise StorageRefused("blobs.url names no bucket: write s3://bucket/prefix.")
    if not _REGION_NAME.match(settings.region):
        raise StorageRefused("blobs.region is not a region: write one as eu-central-1.")
    prefix = f"{prefix}/" if prefix else ""
    try:
        split_prefix(prefix)
    except ValueError:
        raise StorageRefused("blobs.url has a prefix with other than letters, digits and . _ : -") from None
    return S3Location(
        bucket=bucket, prefix=prefix, region=settings.region, path_style=settings.path_style,
        endpoint=_normalize_endpoint("endpoint", settings.endpoint),
        public_endpoint=_normalize_endpoint("public_endpoint", settings.public_endpoint),
    )  # fmt: skip


def _normalize_endpoint(name: str, value: str) -> str:
    """Return an endpoint without the port that goes without saying, which browsers leave out of the signed host."""
    if not value:
        return ""
    parts = urlsplit(value)
    try:
        netloc = httpx.URL(value).netloc.decode()
    except httpx.InvalidURL:
        netloc = ""
    if not netloc or parts.scheme not in {"http", "https"} or parts.path.strip("/") or parts.query:
        raise StorageRefused(f"blobs.{name} is not an address: write it as https://host:port.")
    return f"{parts.scheme}://{netloc}"


def _credentials(environ: Mapping[str, str]) -> Callable[[], S3Credentials]:
    """Return who signs: keys of the environment, or those that are lent here, which are fetched now."""
    access_key, secret_key = environ.get("AWS_ACCESS_KEY_ID", ""), environ.get("AWS_SECRET_ACCESS_KEY", "")
    if access_key and secret_key:
        keys = S3Credentials(access_key, secret_key, environ.get("AWS_SESSION_TOKEN", ""))
        return lambda: keys
    if access_key or secret_key:
        raise StorageRefused("S3 needs both: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment.")
    try:
        lent = CachedCredentials(credential_source(environ))
    except CredentialsUnavailable as reason:
        raise StorageRefused(
            "S3 needs keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or run where a role "
            f"lends them. Here {reason}."
        ) from None
    lent.start()
    return lent
