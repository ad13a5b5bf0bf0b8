"""A server with one file that supports byte ranges and cuts its connections."""

import hashlib
import random
from datetime import UTC, datetime
from typing import Any

from callsheet.client import File
from tests.client.stub_server import ScriptedResponse, StubServer

BODY = random.Random(7).randbytes(300_000)
OTHER = random.Random(8).randbytes(300_000)


def etag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()}"'


def record(body: bytes = BODY) -> File:
    digest = hashlib.sha256(body).hexdigest()
    return File(
        "f1", "a.bin", "application/octet-stream", len(body), digest, "/v1/files/f1", "ready", "ann", None,
        datetime.now(UTC), None,
    )  # fmt: skip


class RangeServer(StubServer):
    """Serves one file with byte ranges (RFC 9110), and closes the first connections after so many bytes each."""

    def __init__(self, cut_after: list[int], *, body: bytes = BODY, ranges: bool = True) -> None:
        super().__init__()
        self.cut_after = cut_after
        self.body = body
        self.ranges = ranges
        self.responses = [ScriptedResponse()]

    def send_response(self, handler: Any, scripted: ScriptedResponse) -> None:  # type: ignore[override]  # noqa: ARG002 - the cuts replace the script
        headers = self.requests[-1].headers
        start = 0
        if self.ranges and headers.get("if-range") == etag(self.body):
            start = int(headers["range"].removeprefix("bytes=").removesuffix("-"))
        whole = self.body[start:]
        cut = self.cut_after.pop(0) if self.cut_after else len(whole)
        handler.close_connection = True
        handler.send_response(206 if start else 200)
        handler.send_header("etag", etag(self.body))
        if start:
            handler.send_header("content-range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        handler.send_header("content-length", str(len(whole)))
        handler.end_headers()
        handler.wfile.write(whole[:cut])

    @property
    def requested_ranges(self) -> list[str | None]:
        return [request.headers.get("range") for request in self.requests]
