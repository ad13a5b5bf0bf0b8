"""A small S3 server on a real socket: it checks every signature by its own implementation of SigV4 and injects faults.

It keeps objects in memory and returns the error codes that S3 documents.
"""

import base64
import hashlib
import hmac
import sys
import threading
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from tests.support.doubles.http_double import HttpDouble

ACCESS, SECRET, TOKEN = "AKIDDOUBLE", "double/secret+key", "double-session-token"
REGION, BUCKET = "eu-test-1", "films"
_SKEW_SECONDS = 900
_UNSIGNED = "UNSIGNED-PAYLOAD"
_STATUS = {
    "AccessDenied": 403, "SignatureDoesNotMatch": 403, "InvalidAccessKeyId": 403, "RequestTimeTooSkewed": 403,
    "InvalidToken": 400, "AuthorizationHeaderMalformed": 400, "AuthorizationQueryParametersError": 400,
    "XAmzContentSHA256Mismatch": 400, "BadDigest": 400, "MissingContentLength": 411, "PreconditionFailed": 412,
    "NoSuchKey": 404, "NoSuchBucket": 404, "InvalidRange": 416, "MethodNotAllowed": 405, "MissingContentMD5": 400,
    "SlowDown": 503, "InternalError": 500, "QuotaExceeded": 507,
}  # fmt: skip


class StoredObject(NamedTuple):
    body: bytes
    media_type: str
    sha256: str | None
    at: float


class S3Error(Exception):
    """An error answer of S3."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.message = message


class Fault(NamedTuple):
    """A fault of one request: an error code of S3, or cut_before, cut_after, truncated, missing, hung."""

    kind: str
    method: str | None


class S3Double(HttpDouble):
    """The server; tests may read and change `objects` between requests.

    It accepts `ignored_headers` without obeying them, as some S3-compatible stores do.
    """

    def __init__(
        self, *, session_token: str = "", now: Callable[[], float] = time.time, ignored_headers: Collection[str] = ()
    ) -> None:
        self.ignored_headers = ignored_headers
        self.session_token = session_token
        self.now = now
        self.objects: dict[str, StoredObject] = {}
        self.requests: list[tuple[str, str]] = []
        self.release = threading.Event()
        """Set to let a hung request continue."""
        self.lock = threading.Lock()
        self._faults: list[Fault] = []
        double = self

        class Bound(_Handler):
            s3 = double

        super().__init__(Bound, _Server)
        self.endpoint = self.url

    def close(self) -> None:
        self.release.set()
        super().close()

    def fail(self, kind: str, times: int = 1, method: str | None = None) -> None:
        """Inject a fault into the next requests, or the next requests of a method."""
        self._faults += [Fault(kind, method)] * times

    def take_fault(self, method: str) -> str:
        with self.lock:
            for fault in self._faults:
                if fault.method in {None, method}:
                    self._faults.remove(fault)
                    return fault.kind
        return ""


class _Server(ThreadingHTTPServer):
    """An HTTP server that does not print the errors of clients that disconnect."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    s3: S3Double
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def log_message(self, *_: Any) -> None:
        return

    def handle_all(self) -> None:
        self.url = urlsplit(self.path)
        self.query = dict(parse_qsl(self.url.query, keep_blank_values=True))
        self.request_headers = {name.lower(): value for name, value in self.headers.items()}
        self.s3.requests.append((self.command, self.url.path))
        fault = self.s3.take_fault(self.command)
        if fault == "cut_before":
            self.close_connection = True
            return
        try:
            body = self._body()
            if fault == "hung":
                self.s3.release.wait(30)
            _SignatureCheck(self, body).check()
            self._do(body, fault)
        except S3Error as refused:
            text = f"<Error><Code>{refused.code}</Code><Message>{escape(refused.message)}</Message></Error>"
            self._answer(_STATUS[refused.code], text.encode(), {"content-type": "application/xml"})

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_all  # noqa: N815 - the names that http.server calls

    def _body(self) -> bytes:
        length = self.request_headers.get("content-length")
        if length is None and self.command in {"PUT", "POST"}:
            self.close_connection = True
            raise S3Error("MissingContentLength")
        return self.rfile.read(int(length or 0))

    def _do(self, body: bytes, fault: str) -> None:
        if fault in _STATUS:
            raise S3Error(fault)
        bucket, _, key = unquote(self.url.path).lstrip("/").partition("/")
        if bucket != BUCKET:
            raise S3Error("NoSuchBucket")
        if not key:
            if self.command == "POST" and "delete" in self.query:
                self._delete_many(body)
            elif self.command == "GET" and self.query.get("list-type") == "2":
                self._list()
            else:
                raise S3Error("MethodNotAllowed")
        elif self.command == "PUT":
            self._put(key, body, fault)
        elif self.command == "DELETE":
            self.s3.objects.pop(key, None)
            self._answer(204, b"")
        else:
            self._get(key, fault)

    def _put(self, key: str, body: bytes, fault: str) -> None:
        headers = {name: value for name, value in self.request_headers.items() if name not in self.s3.ignored_headers}
        checksum = headers.get("x-amz-checksum-sha256")
        digest = hashlib.sha256(body)
        if checksum is not None and checksum != base64.b64encode(digest.digest()).decode():
            raise S3Error("BadDigest")
        with self.s3.lock:
            if headers.get("if-none-match") == "*" and key in self.s3.objects:
                raise S3Error("PreconditionFailed")
            media_type = self.request_headers.get("content-type", "binary/octet-stream")
            self.s3.objects[key] = StoredObject(
                body, media_type, digest.hexdigest() if checksum else None, self.s3.now()
            )
        if fault == "cut_after":
            self.close_connection = True
            return
        self._answer(200, b"", {"etag": _tag(body)})

    def _get(self, key: str, fault: str) -> None:
        stored = self.s3.objects.get(key)
        if stored is None or fault == "missing":
            raise S3Error("NoSuchKey")
        headers = {
            "etag": _tag(stored.body), "content-type": self.query.get("response-content-type", stored.media_type),
            "last-modified": formatdate(stored.at, usegmt=True), "accept-ranges": "bytes",
        }  # fmt: skip
        if "response-content-disposition" in self.query:
            headers["content-disposition"] = self.query["response-content-disposition"]
        if self.request_headers.get("x-amz-checksum-mode") == "ENABLED" and stored.sha256:
            headers["x-amz-checksum-sha256"] = base64.b64encode(bytes.fromhex(stored.sha256)).decode()
        if self.request_headers.get("if-match", headers["etag"]) not in {headers["etag"], "*"}:
            raise S3Error("PreconditionFailed")
        status, body = 200, stored.body
        if "range" in self.request_headers and self.command == "GET":
            first, _, last = self.request_headers["range"].removeprefix("bytes=").partition("-")
            start, end = (int(first), int(last or len(body))) if first else (max(len(body) - int(last), 0), len(body))
            if start >= len(body):
                raise S3Error("InvalidRange")
            status, body = 206, body[start : end + 1]
            headers["content-range"] = f"bytes {start}-{start + len(body) - 1}/{len(stored.body)}"
        self._answer(status, body, headers, truncate=fault == "truncated")

    def _list(self) -> None:
        prefix, after = self.query.get("prefix", ""), self.query.get("start-after", "")
        max_keys = min(int(self.query.get("max-keys", 1000)), 1000)
        found = sorted(key for key in self.s3.objects if key.startswith(prefix) and key > after)
        lines = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_iso(self.s3.objects[key].at)}</LastModified>"
            f"<Size>{len(self.s3.objects[key].body)}</Size></Contents>"
            for key in found[:max_keys]
        )
        text = f"<IsTruncated>{str(len(found) > max_keys).lower()}</IsTruncated>{lines}"
        self._xml(f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{text}</ListBucketResult>')

    def _delete_many(self, body: bytes) -> None:
        if self.request_headers.get("content-md5") != base64.b64encode(hashlib.md5(body).digest()).decode():
            raise S3Error("MissingContentMD5")
        for part in body.decode().split("<Key>")[1:]:
            self.s3.objects.pop(unescape(part.partition("</Key>")[0]), None)
        self._xml("<DeleteResult></DeleteResult>")

    def _xml(self, text: str) -> None:
        self._answer(200, f'<?xml version="1.0"?>{text}'.encode(), {"content-type": "application/xml"})

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, *, truncate: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        if self.close_connection:  # otherwise the client might send its next request on a connection that closes
            self.send_header("connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if truncate else body)
        self.close_connection |= truncate


class _SignatureCheck:
    """Checks the signature of a request; written from the specification and not from our client."""

    def __init__(self, request: _Handler, body: bytes) -> None:
        self.request, self.s3, self.request_headers, self.query = (
            request,
            request.s3,
            request.request_headers,
            request.query,
        )
        self.body = body

    def check(self) -> None:
        in_query = "X-Amz-Signature" in self.query
        if in_query == ("authorization" in self.request_headers):
            raise S3Error("AccessDenied", "one signature is needed")
        if in_query:
            fields = {
                name: self.query.get(f"X-Amz-{name}", "") for name in ("Credential", "SignedHeaders", "Signature")
            }
            amz_date, payload = self.query.get("X-Amz-Date", ""), _UNSIGNED
            token = self.query.get("X-Amz-Security-Token", "")
            self._check_expiry(amz_date)
        else:
            algorithm, _, rest = self.request_headers["authorization"].partition(" ")
            fields = dict(one.strip().split("=", 1) for one in rest.split(",")) | {"algorithm": algorithm}
            amz_date, payload = (
                self.request_headers.get("x-amz-date", ""),
                self.request_headers.get("x-amz-content-sha256", ""),
            )
            token = self.request_headers.get("x-amz-security-token", "")
            if abs(_unix(amz_date) - self.s3.now()) > _SKEW_SECONDS:
                raise S3Error("RequestTimeTooSkewed")
            if payload not in {_UNSIGNED, hashlib.sha256(self.body).hexdigest()}:
                raise S3Error("XAmzContentSHA256Mismatch")
        access, day, region, *service = fields["Credential"].split("/")
        if access != ACCESS:
            raise S3Error("InvalidAccessKeyId")
        if token != self.s3.session_token:
            raise S3Error("InvalidToken")
        if (region, *service) != (REGION, "s3", "aws4_request") or day != amz_date[:8]:
            raise S3Error("AuthorizationHeaderMalformed")
        names = fields["SignedHeaders"].split(";")
        self._check_names(names)
        if not hmac.compare_digest(fields["Signature"], self._signature(names, amz_date, payload)):
            raise S3Error("SignatureDoesNotMatch")

    def _check_expiry(self, amz_date: str) -> None:
        expires = self.query.get("X-Amz-Expires", "")
        seconds = int(expires) if expires.isdecimal() else 0
        if self.query.get("X-Amz-Algorithm") != "AWS4-HMAC-SHA256" or not 1 <= seconds <= 604_800:
            raise S3Error("AuthorizationQueryParametersError")
        if self.s3.now() > _unix(amz_date) + seconds or self.s3.now() < _unix(amz_date) - _SKEW_SECONDS:
            raise S3Error("AccessDenied", "Request has expired")

    def _check_names(self, names: list[str]) -> None:
        if names != sorted(names) or "host" not in names or any(name not in self.request_headers for name in names):
            raise S3Error("SignatureDoesNotMatch", "a signed header is missing")
        unsigned = [name for name in self.request_headers if name.startswith("x-amz-") and name not in names]
        if unsigned:
            raise S3Error("AccessDenied", f"There were headers present which were not signed: {unsigned}")

    def _signature(self, names: list[str], amz_date: str, payload: str) -> str:
        pairs = [
            part.split("=", 1) if "=" in part else [part, ""] for part in self.request.url.query.split("&") if part
        ]
        canonical_query = "&".join(
            "=".join(pair) for pair in sorted(pair for pair in pairs if pair[0] != "X-Amz-Signature")
        )
        canonical_headers = "".join(f"{name}:{' '.join(self.request_headers[name].split())}\n" for name in names)
        canonical = "\n".join(
            [self.request.command, self.request.url.path, canonical_query, canonical_headers, ";".join(names), payload]
        )
        scope = f"{amz_date[:8]}/{REGION}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", amz_date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = b"AWS4" + SECRET.encode()
        for part in (*scope.split("/"), text):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return key.hex()


def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _unix(amz_date: str) -> float:
    try:
        return datetime.strptime(amz_date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise S3Error("AccessDenied", "a date is needed") from None
