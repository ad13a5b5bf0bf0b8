"""Signing requests to S3 (AWS Signature Version 4): in headers, or in the address for whoever is to send it.

Checked against the values that AWS publishes and against botocore: tests/blobs/test_sigv4.py.
"""

import hashlib
import hmac
import math
import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, urlsplit

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
_SECONDS_MAX = 7 * 24 * 3_600


class S3Keys(NamedTuple):
    """Who signs; a session token goes with keys that are lent for some hours."""

    access_key: str
    secret_key: str
    session_token: str = ""
    ends_at: float | None = None
    """When they are good no longer, and with them whatever they signed; a unix time."""

    def __repr__(self) -> str:
        return "S3Keys(…)"

    def left(self, now: float) -> float:
        """Return for how many seconds they are good."""
        return math.inf if self.ends_at is None else self.ends_at - now


class Signature:
    """Signs for one region, with the keys of the moment."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._derived: tuple[tuple[str, str], bytes] = (("", ""), b"")

    def headers(
        self, keys: S3Keys, method: str, url: str, headers: Mapping[str, str], payload: str, now: float
    ) -> dict[str, str]:
        """Return the headers to send: those given, and those that sign them; `payload` is the body's SHA-256."""
        moment = _moment(now)
        given = {name.lower(): value for name, value in headers.items()}
        given |= {"host": urlsplit(url).netloc, "x-amz-date": moment, "x-amz-content-sha256": payload}
        if keys.session_token:
            given["x-amz-security-token"] = keys.session_token
        names, mark = self._signed(keys, method, url, given, payload, moment)
        scope = self._scope(moment)
        given["authorization"] = (
            f"{ALGORITHM} Credential={keys.access_key}/{scope}, SignedHeaders={names}, Signature={mark}"
        )
        return given

    def address(self, keys: S3Keys, method: str, url: str, headers: Mapping[str, str], seconds: int, now: float) -> str:
        """Return an address that lets anybody send this method with these very headers, for so many seconds."""
        moment = _moment(now)
        given = {name.lower(): value for name, value in headers.items()} | {"host": urlsplit(url).netloc}
        query = {
            "X-Amz-Algorithm": ALGORITHM,
            "X-Amz-Credential": f"{keys.access_key}/{self._scope(moment)}",
            "X-Amz-Date": moment,
            "X-Amz-Expires": str(min(max(seconds, 1), _SECONDS_MAX)),
            "X-Amz-SignedHeaders": ";".join(sorted(given)),
        }
        if keys.session_token:
            query["X-Amz-Security-Token"] = keys.session_token
        url += ("&" if "?" in url else "?") + encoded(query)
        _, mark = self._signed(keys, method, url, given, UNSIGNED, moment)
        return f"{url}&X-Amz-Signature={mark}"

    def _signed(
        self, keys: S3Keys, method: str, url: str, headers: Mapping[str, str], payload: str, moment: str
    ) -> tuple[str, str]:
        parts = urlsplit(url)
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in sorted(headers))
        pairs = sorted(one.partition("=")[::2] for one in parts.query.split("&") if one)
        query = "&".join(f"{name}={value}" for name, value in pairs)
        request = f"{method}\n{parts.path or '/'}\n{query}\n{lines}\n{names}\n{payload}"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"{ALGORITHM}\n{moment}\n{self._scope(moment)}\n{digest}"
        return names, hmac.digest(self._key(keys.secret_key, moment[:8]), text.encode(), "sha256").hex()

    def _scope(self, moment: str) -> str:
        return f"{moment[:8]}/{self._region}/s3/aws4_request"

    def _key(self, secret: str, day: str) -> bytes:
        """Return the key of a day, derived once."""
        known, key = self._derived
        if known != (secret, day):
            key = b"AWS4" + secret.encode()
            for part in (day, self._region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._derived = ((secret, day), key)
        return key


def encoded(query: Mapping[str, str]) -> str:
    """Write a query as S3 reads it."""
    return "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items())


def path_of(key: str) -> str:
    """Write a key as S3 reads it in a path."""
    return quote(key, safe="/")


def _moment(now: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
