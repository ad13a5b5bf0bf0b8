"""HTTP requests to S3: signed, retried, and with errors that tell the operator what to do."""

import base64
import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Final

import httpx
from msgspec import Struct

from callsheet.blobs.base import StorageFullError, StorageRefusedError, StorageUnavailableError
from callsheet.blobs.s3.credentials import RefreshingCredentials
from callsheet.blobs.s3.sigv4 import S3Credentials, SigV4Signer, encode_path, encode_query
from callsheet.transport.backoff import delay_after

_ATTEMPTS_MAX: Final = 5
_RETRY_SECONDS: Final = 0.2
_RETRY_SECONDS_MAX: Final = 5.0
_RETRYABLE_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
_ERROR_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
_LOOPBACK_HOST = re.compile(r"(127\.[0-9.]+|\[?::1\]?|localhost)(:[0-9]+)?")
_CONFLICT_CODE: Final = "ConditionalRequestConflict"
_HINT_BY_CODE: Final = {
    "AccessDenied": "the credentials lack a permission; see the policy in docs/guides/files.md",
    "AuthorizationHeaderMalformed": "the region is wrong; check blobs.region",
    "ExpiredToken": "the session token has expired; renew the credentials",
    "InvalidAccessKeyId": "the access key is unknown; check AWS_ACCESS_KEY_ID",
    "NoSuchBucket": "there is no such bucket; check blobs.url",
    "NotImplemented": "it does not support If-None-Match or checksums; use a newer version",
    "PermanentRedirect": "the bucket is in another region; check blobs.region",
    "RequestTimeTooSkewed": "the clock of this machine is wrong; correct it",
    "SignatureDoesNotMatch": "the secret key is wrong; check AWS_SECRET_ACCESS_KEY",
}
STORAGE_FULL_CODES: Final = frozenset({"XMinioStorageFull", "QuotaExceeded", "InsufficientStorage"})

BodyFactory = Callable[[], bytes | Iterator[bytes]]
"""Creates the request body; called again for every attempt."""


class S3Location(Struct, frozen=True, kw_only=True):
    """A bucket and its endpoints."""

    bucket: str
    prefix: str = ""
    region: str = "us-east-1"
    endpoint: str = ""
    public_endpoint: str = ""
    path_style: bool = True

    def url(self, key: str, *, public: bool = False) -> str:
        """Return the URL of a key, or of the bucket."""
        endpoint = (public and self.public_endpoint) or self.endpoint
        virtual_hosted = not (endpoint and self.path_style) and "." not in self.bucket
        scheme, _, host = (endpoint or f"https://s3.{self.region}.amazonaws.com").rstrip("/").partition("://")
        base = f"{scheme}://{self.bucket}.{host}" if virtual_hosted else f"{scheme}://{host}/{self.bucket}"
        return f"{base}/{encode_path(self.prefix + key)}" if key else f"{base}/" if virtual_hosted else base


class S3Transport:
    """Sends signed requests. Thread-safe."""

    def __init__(
        self,
        location: S3Location,
        keys: Callable[[], S3Credentials],
        now: Callable[[], float],
        wait: Callable[[float], None],
    ) -> None:
        self.location = location
        self._keys = keys
        self._now = now
        self._wait = wait
        self._signer = SigV4Signer(location.region)
        host = httpx.URL(location.url("")).netloc.decode()
        self._client = httpx.Client(
            timeout=httpx.Timeout(30, connect=5), trust_env=not _LOOPBACK_HOST.fullmatch(host), follow_redirects=False,
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=16),
        )  # fmt: skip

    def close(self) -> None:
        self._client.close()
        if isinstance(self._keys, RefreshingCredentials):
            self._keys.close()

    def presign_url(
        self, method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str], seconds: int
    ) -> tuple[str, int]:
        """Return a presigned URL and its lifetime in seconds, which never exceeds that of the credentials."""
        url = self.location.url(key, public=True) + ("?" + encode_query(query) if query else "")
        keys, now = self._keys(), self._now()
        valid_seconds = int(min(seconds, keys.remaining_seconds(now)))
        return self._signer.presign_url(keys, method, url, headers, valid_seconds, now), valid_seconds

    def send(
        self, method: str, key: str, query: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None,
        body: BodyFactory | None = None, digest: str = _EMPTY_SHA256, *, stream: bool = False,
    ) -> httpx.Response:  # fmt: skip
        """Send a request and retry temporary failures. The caller checks the status of the response."""
        url = self.location.url(key) + ("?" + encode_query(query) if query else "")
        reason = "it does not answer"
        for attempt in range(_ATTEMPTS_MAX):
            if attempt:
                self._wait(delay_after(attempt, _RETRY_SECONDS, _RETRY_SECONDS_MAX))
            signed_headers = self._signer.headers(self._keys(), method, url, headers or {}, digest, self._now())
            request = self._client.build_request(
                method, url, headers=signed_headers | {"accept-encoding": "identity"}, content=body() if body else None
            )
            try:
                response = self._client.send(request, stream=stream)
                if response.is_error and stream:
                    response.read()
                    response.close()
            except httpx.TransportError as error:
                reason = (
                    "it does not answer" if isinstance(error, httpx.TimeoutException) else "the connection was lost"
                )
                continue
            if response.status_code not in _RETRYABLE_STATUSES and error_code(response) != _CONFLICT_CODE:
                return response
            code = error_code(response) or HTTPStatus(response.status_code).phrase
            reason = f"it returned {response.status_code} {code}"
        raise StorageUnavailableError(f"The object store is unavailable: {reason}. Tried {_ATTEMPTS_MAX} times.")


def error_code(response: httpx.Response) -> str:
    """Return the S3 error code of a response; empty if it has none."""
    if response.is_success:
        return ""
    found = _ERROR_CODE.search(response.text)
    return found[1] if found else ""


def raise_for_error(response: httpx.Response) -> None:
    """Raise the error of an unsuccessful response. Messages contain no keys, URLs or signatures."""
    if response.is_success:
        return
    code = error_code(response)
    if response.status_code == HTTPStatus.INSUFFICIENT_STORAGE or code in STORAGE_FULL_CODES:
        raise StorageFullError
    forbidden = response.status_code == HTTPStatus.FORBIDDEN
    hint = _HINT_BY_CODE.get(code) or (_HINT_BY_CODE["AccessDenied"] if forbidden else "check the blobs settings")
    region = response.headers.get("x-amz-bucket-region", "")
    hint += f"; the bucket is in {region}" if re.fullmatch(r"[a-z0-9-]{1,32}", region) else ""
    raise StorageRefusedError(f"The object store returned {response.status_code} {code}".rstrip() + f": {hint}.")


def hex_to_base64(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def base64_to_hex(text: str | None) -> str | None:
    """Return a digest in hexadecimal; None if it is not the SHA-256 of the whole object."""
    try:
        raw = base64.b64decode(text or "", validate=True)
    except ValueError:
        return None
    return raw.hex() if len(raw) == hashlib.sha256().digest_size else None


def sleep(seconds: float) -> None:
    time.sleep(seconds)
