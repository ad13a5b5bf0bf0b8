"""Blob stores for the contract tests: local storage with the server's signed URLs, the S3 double, a real S3 server."""

import hashlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
from msgspec import Struct

from callsheet.blobs.base import Blobs, Grant
from callsheet.blobs.s3.sigv4 import S3Credentials
from callsheet.blobs.s3.store import S3Blobs
from callsheet.blobs.s3.transport import S3Location
from callsheet.core.model.commands import CreateUpload, PutTenant
from tests.support.doubles.s3_double import ACCESS, BUCKET, REGION, SECRET, S3Double
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

_STARTED_SECONDS = 20.0


class Store(Struct):
    """A store, a client for its grants, and the features of S3 that it lacks."""

    name: str
    blobs: Blobs
    base: str
    client: httpx.Client
    missing_features: frozenset[str] = frozenset()
    double: S3Double | None = None
    expect_upload: Callable[[str], None] = lambda _key: None
    """Creates the upload of a key: the server accepts bytes only for a file that exists."""

    def send(
        self, grant: Grant, body: bytes | None = None, *, method: str | None = None, url: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:  # fmt: skip
        """Send the request of a grant, or a changed one."""
        sent = {**grant.headers, **(headers or {})}
        return self.client.request(
            method or grant.method, self.absolute_url(url or grant.url), headers=sent, content=body
        )

    def absolute_url(self, url: str) -> str:
        return self.base + url if url.startswith("/") else url


class KeylessServer(LiveServer):
    """A server without API keys: its signed URLs need none."""

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(_STARTED_SECONDS):
            raise TimeoutError("the server did not start")
        return self

    def expect_upload(self, key: str) -> None:
        """Create the upload whose bytes have this key."""
        tenant, _, file_id = key.split("/")
        self.engine.execute(PutTenant(tenant=tenant))
        self.engine.execute(
            CreateUpload(
                id=file_id, tenant=tenant, user="ann", name="a", media_type="image/png", bytes=1, sha256="0" * 64
            )
        )


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def grant_upload_of(blobs: Blobs, key: str, body: bytes, **other: Any) -> Grant:
    """Grant a PUT of these bytes."""
    claim: dict[str, Any] = {
        "size": len(body),
        "sha256": digest(body),
        "media_type": "image/png",
        "expires_in_seconds": 60,
    }
    return blobs.grant_upload(key, **claim | other)


def open_s3_blobs(endpoint: str, region: str, keys: S3Credentials, **more: Any) -> S3Blobs:
    location = S3Location(bucket=BUCKET, region=region, endpoint=endpoint, prefix="some/where/")
    return S3Blobs(location, lambda: keys, wait=lambda _: None, **more)


@contextmanager
def local(folder: Path) -> Iterator[Store]:
    with KeylessServer(folder / "callsheet.db", folder) as live_server, httpx.Client(verify=False) as client:
        yield Store("local", live_server.blobs, live_server.url, client, expect_upload=live_server.expect_upload)


@contextmanager
def double() -> Iterator[Store]:
    with S3Double() as server, httpx.Client(verify=False) as client:
        blobs = open_s3_blobs(server.endpoint, REGION, S3Credentials(ACCESS, SECRET))
        yield Store("s3 double", blobs, "", client, double=server)
        blobs.close()


@contextmanager
def rclone(folder: Path) -> Iterator[Store]:
    """Rclone's S3 server on a folder. It checks signatures, but it ignores If-None-Match and returns a digest that it
    has not checked.
    """
    (folder / BUCKET).mkdir()
    port = _free_port()
    program = shutil.which("rclone", path=str(Path(sys.executable).parent)) or "rclone"
    access, secret = "AKIDCONTRACT", "contract-secret-key"
    command = [
        program, "serve", "s3", "--auth-key", f"{access},{secret}", "--addr", f"127.0.0.1:{port}",
        "--config", str(folder / "none.conf"), "--log-level", "ERROR", str(folder),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: process.poll() is not None or _listens(port))
            assert process.poll() is None, "rclone does not run"
            blobs = open_s3_blobs(f"http://127.0.0.1:{port}", "us-east-1", S3Credentials(access, secret))
            with httpx.Client(verify=False) as client:
                yield Store("rclone", blobs, "", client, frozenset({"write_once", "digest"}))
            blobs.close()
        finally:
            process.terminate()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
