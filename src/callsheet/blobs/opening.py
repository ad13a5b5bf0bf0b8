"""Choosing where files lie, by the settings."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from callsheet.blobs.base import Signer, StorageRefused
from callsheet.blobs.keys import prefix_parts
from callsheet.blobs.lenders import NotLent, lender_of
from callsheet.blobs.lent import Lent
from callsheet.blobs.local import LocalBlobs
from callsheet.blobs.s3 import PUT_BYTES_MAX, S3Blobs
from callsheet.blobs.s3wire import S3Place
from callsheet.blobs.sigv4 import S3Keys
from callsheet.config import BlobSettings

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_REGION = re.compile(r"[a-z0-9-]{1,32}\Z")


def blobs_of(
    settings: BlobSettings, data: Path, signer: Signer | None, environ: Mapping[str, str] = os.environ, *,
    file_bytes_max: int = 0,
) -> LocalBlobs | S3Blobs:  # fmt: skip
    """Open the store that the settings name; no file is asked for yet. What is wrong is said in one sentence."""
    place = place_of(settings, file_bytes_max)
    if isinstance(place, S3Place):
        return S3Blobs(place, _keys(environ))
    return LocalBlobs(place or data / "files", signer)


def place_of(settings: BlobSettings, file_bytes_max: int) -> Path | S3Place | None:
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
    return _bucket(settings, url.netloc, url.path.strip("/"))


def _bucket(settings: BlobSettings, bucket: str, prefix: str) -> S3Place:
    if not _BUCKET.match(bucket):
        raise StorageRefused("blobs.url names no bucket: write s3://bucket/prefix.")
    if not _REGION.match(settings.region):
        raise StorageRefused("blobs.region is not a region: write one as eu-central-1.")
    prefix = f"{prefix}/" if prefix else ""
    try:
        prefix_parts(prefix)
    except ValueError:
        raise StorageRefused("blobs.url has a prefix with other than letters, digits and . _ : -") from None
    return S3Place(
        bucket=bucket, prefix=prefix, region=settings.region, path_style=settings.path_style,
        endpoint=_endpoint("endpoint", settings.endpoint),
        public_endpoint=_endpoint("public_endpoint", settings.public_endpoint),
    )  # fmt: skip


def _endpoint(name: str, value: str) -> str:
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


def _keys(environ: Mapping[str, str]) -> Callable[[], S3Keys]:
    """Return who signs: keys of the environment, or those that are lent here, which are fetched now."""
    access, secret = environ.get("AWS_ACCESS_KEY_ID", ""), environ.get("AWS_SECRET_ACCESS_KEY", "")
    if access and secret:
        keys = S3Keys(access, secret, environ.get("AWS_SESSION_TOKEN", ""))
        return lambda: keys
    if access or secret:
        raise StorageRefused("S3 needs both: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment.")
    try:
        lent = Lent(lender_of(environ))
    except NotLent as why:
        raise StorageRefused(
            "S3 needs keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or run where a role "
            f"lends them. Here {why}."
        ) from None
    lent.start()
    return lent
