"""Speaking to S3: signed, tried again while it makes sense, and what it says in words that a person can act on."""

import base64
import hashlib
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Final

import httpx
from msgspec import Struct

from callsheet.blobs.base import StorageAway, StorageFull, StorageRefused
from callsheet.blobs.lent import Lent
from callsheet.blobs.sigv4 import S3Keys, Signature, encoded, path_of

_TRIES: Final = 5
_WAIT_SECONDS: Final = 0.1
_WAIT_SECONDS_MAX: Final = 5.0
_LATER: Final = frozenset({408, 429, 500, 502, 503, 504})
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_EMPTY: Final = hashlib.sha256(b"").hexdigest()
_LOOPBACK = re.compile(r"(127\.[0-9.]+|\[?::1\]?|localhost)(:[0-9]+)?")
_CONFLICT: Final = "ConditionalRequestConflict"
_HINTS: Final = {
    "AccessDenied": "the key may not do this: see the policy in docs/files.md",
    "AuthorizationHeaderMalformed": "the region is another one",
    "ExpiredToken": "the session token has ended",
    "InvalidAccessKeyId": "the access key is not known",
    "NoSuchBucket": "there is no such bucket",
    "NotImplemented": "it does not know If-None-Match or checksums; a newer version does",
    "PermanentRedirect": "the bucket is in another region",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
    "SignatureDoesNotMatch": "the secret key is another one",
}
FULL: Final = frozenset({"XMinioStorageFull", "QuotaExceeded", "InsufficientStorage"})

Body = Callable[[], bytes | Iterator[bytes]]
"""Makes what is sent; made anew for every try."""


class S3Place(Struct, frozen=True, kw_only=True):
    """A bucket and how to reach it."""

    bucket: str
    prefix: str = ""
    region: str = "us-east-1"
    endpoint: str = ""
    public_endpoint: str = ""
    path_style: bool = True

    def url(self, key: str, *, public: bool = False) -> str:
        """Return the address of a key, or of the bucket."""
        endpoint = (public and self.public_endpoint) or self.endpoint
        in_host = not (endpoint and self.path_style) and "." not in self.bucket
        scheme, _, host = (endpoint or f"https://s3.{self.region}.amazonaws.com").rstrip("/").partition("://")
        base = f"{scheme}://{self.bucket}.{host}" if in_host else f"{scheme}://{host}/{self.bucket}"
        return f"{base}/{path_of(self.prefix + key)}" if key else f"{base}/" if in_host else base


class Wire:
    """Sends signed requests; safe to use from several threads."""

    def __init__(
        self, place: S3Place, keys: Callable[[], S3Keys], now: Callable[[], float], wait: Callable[[float], None]
    ) -> None:
        self.place = place
        self._keys = keys
        self._now = now
        self._wait = wait
        self._signature = Signature(place.region)
        host = httpx.URL(place.url("")).netloc.decode()
        self._client = httpx.Client(
            timeout=httpx.Timeout(30, connect=5), trust_env=not _LOOPBACK.fullmatch(host), follow_redirects=False,
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=16),
        )  # fmt: skip

    def close(self) -> None:
        self._client.close()
        if isinstance(self._keys, Lent):
            self._keys.close()

    def address(
        self, method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str], seconds: int
    ) -> tuple[str, int]:
        """Return an address for somebody else, and for how long it is good: at most as long as what signs it."""
        url = self.place.url(key, public=True) + ("?" + encoded(query) if query else "")
        keys, now = self._keys(), self._now()
        lasting = int(min(seconds, keys.left(now)))
        return self._signature.address(keys, method, url, headers, lasting, now), lasting

    def send(
        self, method: str, key: str, query: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None,
        body: Body | None = None, digest: str = _EMPTY, *, stream: bool = False,
    ) -> httpx.Response:  # fmt: skip
        """Send until there is an answer that will not be another one later; what is no success is not an error yet."""
        url = self.place.url(key) + ("?" + encoded(query) if query else "")
        why = "it does not answer"
        for no in range(_TRIES):
            if no:
                self._wait(min(_WAIT_SECONDS * 2**no, _WAIT_SECONDS_MAX) * random.uniform(0.5, 1))  # noqa: S311
            signed = self._signature.headers(self._keys(), method, url, headers or {}, digest, self._now())
            request = self._client.build_request(
                method, url, headers=signed | {"accept-encoding": "identity"}, content=body() if body else None
            )
            try:
                answer = self._client.send(request, stream=stream)
                if answer.is_error and stream:
                    answer.read()
                    answer.close()
            except httpx.TransportError as error:
                why = "it does not answer" if isinstance(error, httpx.TimeoutException) else "the connection was lost"
                continue
            if answer.status_code not in _LATER and code_of(answer) != _CONFLICT:
                return answer
            why = f"it says {answer.status_code} {code_of(answer) or HTTPStatus(answer.status_code).phrase}"
        raise StorageAway(f"The object store is away: {why}. It was tried {_TRIES} times.")


def code_of(answer: httpx.Response) -> str:
    """Return S3's own word for what went wrong."""
    if answer.is_success:
        return ""
    found = _CODE.search(answer.text)
    return found[1] if found else ""


def check(answer: httpx.Response) -> None:
    """Raise what an answer says, unless it is a success; keys, addresses and signatures stay out of the words."""
    if answer.is_success:
        return
    code = code_of(answer)
    if answer.status_code == HTTPStatus.INSUFFICIENT_STORAGE or code in FULL:
        raise StorageFull
    forbidden = answer.status_code == HTTPStatus.FORBIDDEN
    hint = _HINTS.get(code) or (_HINTS["AccessDenied"] if forbidden else "see the settings of the storage")
    region = answer.headers.get("x-amz-bucket-region", "")
    hint += f"; the bucket is in {region}" if re.fullmatch(r"[a-z0-9-]{1,32}", region) else ""
    raise StorageRefused(f"The object store says {answer.status_code} {code}".rstrip() + f": {hint}.")


def to_base64(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def from_base64(text: str | None) -> str | None:
    """Return a digest in hexadecimal; None for what is not the SHA-256 of all bytes."""
    try:
        raw = base64.b64decode(text or "", validate=True)
    except ValueError:
        return None
    return raw.hex() if len(raw) == hashlib.sha256().digest_size else None


def sleep(seconds: float) -> None:
    time.sleep(seconds)
