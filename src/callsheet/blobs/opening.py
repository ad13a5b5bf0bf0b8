"""Choosing where files lie, by the settings."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from callsheet.blobs.base import Signer, StorageRefused
from callsheet.blobs.keys import prefix_parts
from callsheet.blobs.local import LocalBlobs
from callsheet.blobs.s3 import S3Blobs
from callsheet.blobs.s3wire import S3Place
from callsheet.blobs.sigv4 import S3Keys
from callsheet.config import BlobSettings

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_REGION = re.compile(r"[a-z0-9-]{1,32}\Z")


def blobs_of(
    settings: BlobSettings, data: Path, signer: Signer | None, environ: Mapping[str, str] = os.environ
) -> LocalBlobs | S3Blobs:
    """Open the store that the settings name; nothing is sent yet. What is wrong with them is said in one sentence."""
    url = urlsplit(settings.url)
    if not settings.url:
        return LocalBlobs(data / "files", signer)
    if url.scheme == "file" and not url.netloc and url.path.startswith("/"):
        return LocalBlobs(Path(unquote(url.path)), signer)
    if url.scheme != "s3":
        raise StorageRefused("blobs.url is neither file:///folder nor s3://bucket/prefix.")
    keys = _keys(environ)
    return S3Blobs(_place(settings, url.netloc, url.path.strip("/")), lambda: keys)


def _place(settings: BlobSettings, bucket: str, prefix: str) -> S3Place:
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
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or parts.query:
        raise StorageRefused(f"blobs.{name} is not an address: write it as https://host:port.")
    return f"{parts.scheme}://{httpx.URL(value).netloc.decode()}"


def _keys(environ: Mapping[str, str]) -> S3Keys:
    keys = S3Keys(
        environ.get("AWS_ACCESS_KEY_ID", ""),
        environ.get("AWS_SECRET_ACCESS_KEY", ""),
        environ.get("AWS_SESSION_TOKEN", ""),
    )
    if not keys.access_key or not keys.secret_key:
        raise StorageRefused("S3 needs keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment.")
    return keys
