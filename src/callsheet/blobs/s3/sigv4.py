"""AWS Signature Version 4 for S3: signed headers and presigned URLs.

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
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
_EXPIRY_SECONDS_MAX = 7 * 24 * 3_600


class S3Credentials(NamedTuple):
    """AWS credentials; temporary ones have a session token and an expiry."""

    access_key: str
    secret_key: str
    session_token: str = ""
    expires_at: float | None = None
    """Unix time of the expiry, which also ends every URL that they signed."""

    def __repr__(self) -> str:
        return "S3Credentials(…)"

    def remaining_seconds(self, now: float) -> float:
        """Return the seconds until the expiry."""
        return math.inf if self.expires_at is None else self.expires_at - now


class SigV4Signer:
    """Signs requests for one region."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._cached_key: tuple[tuple[str, str], bytes] = (("", ""), b"")

    def headers(
        self, keys: S3Credentials, method: str, url: str, headers: Mapping[str, str], payload_sha256: str, now: float
    ) -> dict[str, str]:
        """Return the given headers and those that sign them."""
        amz_date = _amz_date(now)
        signed_headers = {name.lower(): value for name, value in headers.items()}
        signed_headers |= {"host": urlsplit(url).netloc, "x-amz-date": amz_date, "x-amz-content-sha256": payload_sha256}
        if keys.session_token:
            signed_headers["x-amz-security-token"] = keys.session_token
        names, signature = self._sign(keys, method, url, signed_headers, payload_sha256, amz_date)
        scope = self._scope(amz_date)
        signed_headers["authorization"] = (
            f"{ALGORITHM} Credential={keys.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        return signed_headers

    def presign_url(
        self,
        keys: S3Credentials,
        method: str,
        url: str,
        headers: Mapping[str, str],
        expires_in_seconds: int,
        now: float,
    ) -> str:
        """Return a URL that allows this method with exactly these headers until it expires."""
        amz_date = _amz_date(now)
        signed_headers = {name.lower(): value for name, value in headers.items()} | {"host": urlsplit(url).netloc}
        query = {
            "X-Amz-Algorithm": ALGORITHM,
            "X-Amz-Credential": f"{keys.access_key}/{self._scope(amz_date)}",
            "X-Amz-Date": amz_date,
            "X-Amz-Expires": str(min(max(expires_in_seconds, 1), _EXPIRY_SECONDS_MAX)),
            "X-Amz-SignedHeaders": ";".join(sorted(signed_headers)),
        }
        if keys.session_token:
            query["X-Amz-Security-Token"] = keys.session_token
        url += ("&" if "?" in url else "?") + encode_query(query)
        _, signature = self._sign(keys, method, url, signed_headers, UNSIGNED_PAYLOAD, amz_date)
        return f"{url}&X-Amz-Signature={signature}"

    def _sign(
        self, keys: S3Credentials, method: str, url: str, headers: Mapping[str, str], payload_sha256: str, amz_date: str
    ) -> tuple[str, str]:
        parts = urlsplit(url)
        names = ";".join(sorted(headers))
        canonical_headers = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in sorted(headers))
        pairs = sorted(one.partition("=")[::2] for one in parts.query.split("&") if one)
        query = "&".join(f"{name}={value}" for name, value in pairs)
        canonical_request = f"{method}\n{parts.path or '/'}\n{query}\n{canonical_headers}\n{names}\n{payload_sha256}"
        digest = hashlib.sha256(canonical_request.encode()).hexdigest()
        string_to_sign = f"{ALGORITHM}\n{amz_date}\n{self._scope(amz_date)}\n{digest}"
        return names, hmac.digest(
            self._signing_key(keys.secret_key, amz_date[:8]), string_to_sign.encode(), "sha256"
        ).hex()

    def _scope(self, amz_date: str) -> str:
        return f"{amz_date[:8]}/{self._region}/s3/aws4_request"

    def _signing_key(self, secret: str, date: str) -> bytes:
        """Return the signing key of a day; cached."""
        cached_for, key = self._cached_key
        if cached_for != (secret, date):
            key = b"AWS4" + secret.encode()
            for part in (date, self._region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._cached_key = ((secret, date), key)
        return key


def encode_query(query: Mapping[str, str]) -> str:
    """Encode a query string as S3 expects it."""
    return "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items())


def encode_path(key: str) -> str:
    """Encode a key for a URL path as S3 expects it."""
    return quote(key, safe="/")


def _amz_date(now: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
