"""Who lends keys of S3 for some hours, asked as AWS's programs ask them.

Its token service does for the identity of a service account, the container's host for its role, the machine's own
metadata for the machine's. What they answer is a secret, and so is the way to ask: no error repeats any of it.
"""

import ipaddress
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import msgspec
from msgspec import Struct

from callsheet.blobs.base import StorageRefused
from callsheet.blobs.sigv4 import S3Keys

Lender = Callable[[], S3Keys]
"""Fetches keys, or raises NotLent."""
_CONTAINER: Final = "http://169.254.170.2"
_CONTAINERS: Final = frozenset({"169.254.170.2", "169.254.170.23", "fd00:ec2::23", "localhost"})
_METADATA: Final = "http://169.254.169.254"
_ROLES: Final = "/latest/meta-data/iam/security-credentials/"
_LIFE: Final = {"x-aws-ec2-metadata-token-ttl-seconds": "300"}
_ROLE = re.compile(r"[\w+=,.@-]{1,128}\Z", re.ASCII)
_SENT = re.compile(r"[!-~]+\Z")
"""What can go into a header."""
_REGION = re.compile(r"[a-z0-9-]{1,32}\Z")
_ARN = re.compile(r"arn:[!-~]{1,2043}\Z")
_REASON = re.compile(rb"<Code>([A-Za-z]{1,64})</Code>")
_NOT_FOUND: Final = 404
_NO_ROLE: Final = "this machine has no role"


class NotLent(Exception):  # noqa: N818 - an answer
    """There are no keys now; the text says why, and goes on a sentence."""


class _Answer(Struct, frozen=True, rename="pascal"):
    """What all of them say."""

    access_key_id: str
    secret_access_key: str
    token: str
    expiration: datetime
    code: str = "Success"


def lender_of(environ: Mapping[str, str]) -> Lender:
    """Return who lends keys here, by the environment; without a word there it is the machine itself."""
    if file := environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return Identity(Path(file), environ)
    if relative := environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        if not relative.startswith("/"):
            raise StorageRefused("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is not a path.")
        return Container(_CONTAINER + relative, environ)
    if full := environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        if not _may_lend(full):
            raise StorageRefused(
                "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https nor an address of this machine or its host."
            )
        return Container(full, environ)
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return _nobody
    return Instance(environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _METADATA)


def _may_lend(url: str) -> bool:
    """Say whether keys, and the right to ask for them, stay between us and whoever is meant."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme == "https":
        return bool(host)
    try:
        near = ipaddress.ip_address(host).is_loopback
    except ValueError:
        near = False
    return parts.scheme == "http" and (near or host in _CONTAINERS)


def _nobody() -> S3Keys:
    raise NotLent("AWS_EC2_METADATA_DISABLED is set")


class Identity:
    """A role for the identity of a service account (EKS, or any cluster that the role trusts), by STS."""

    _WHO: Final = "Amazon's token service"

    def __init__(self, file: Path, environ: Mapping[str, str]) -> None:
        self._file = file
        self._role = environ.get("AWS_ROLE_ARN", "")
        self._name = environ.get("AWS_ROLE_SESSION_NAME") or "callsheet"
        if not _ARN.match(self._role) or not _ROLE.match(self._name):
            raise StorageRefused("AWS_WEB_IDENTITY_TOKEN_FILE needs AWS_ROLE_ARN, and a name of the session if any.")
        self._url = environ.get("AWS_ENDPOINT_URL_STS") or _sts(environ)
        if not _may_lend(self._url):
            raise StorageRefused("AWS_ENDPOINT_URL_STS is neither https nor an address of this machine.")

    def __call__(self) -> S3Keys:
        try:
            token = self._file.read_text().strip()  # each time: the cluster writes a new one before the old one ends
        except (OSError, ValueError):
            raise NotLent("the file of AWS_WEB_IDENTITY_TOKEN_FILE cannot be read") from None
        form = {
            "Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": self._role,
            "RoleSessionName": self._name, "WebIdentityToken": token,
        }  # fmt: skip
        try:
            answer = httpx.post(self._url, data=form, timeout=10)
        except (httpx.HTTPError, httpx.InvalidURL):
            raise NotLent(f"{self._WHO} does not answer") from None
        if not answer.is_success:
            reason = _REASON.search(answer.content)
            raise NotLent(f"{self._WHO} answers {reason[1].decode() if reason else answer.status_code}")
        return _keys(_credentials(answer.content), self._WHO)


def _sts(environ: Mapping[str, str]) -> str:
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    if not region:
        return "https://sts.amazonaws.com/"
    if not _REGION.match(region):
        raise StorageRefused("AWS_REGION is not the name of a region.")
    return f"https://sts.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}/"


def _credentials(said: bytes) -> dict[str, str | None]:
    """Return what the token service lends, in the words of the others."""
    try:
        found = {item.tag.rpartition("}")[2]: item.text for item in ET.fromstring(said).iterfind(".//{*}Credentials/*")}  # noqa: S314 - over TLS, from whom we give our identity
    except ET.ParseError:
        return {}
    return {**found, "Token": found.get("SessionToken")}


class Container:
    """The credentials of a container's task or pod (ECS, EKS)."""

    _WHO: Final = "the container's host"

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        self._url = url
        self._environ = environ

    def __call__(self) -> S3Keys:
        headers = {"accept": "application/json", **self._right()}
        with _client() as http:
            return _read(_asked(http, "GET", self._url, headers, self._WHO), self._WHO)

    def _right(self) -> dict[str, str]:
        """Return what lets us ask; a file is read each time, for its text changes."""
        token = self._environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
        if file := self._environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
            try:
                token = Path(file).read_text().strip()
            except (OSError, ValueError):
                raise NotLent("the file of AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE cannot be read") from None
        if token and not all(map(_SENT.match, token.split(" "))):
            raise NotLent("the container's authorization token is not one that can be sent")
        return {"authorization": token} if token else {}


class Instance:
    """The role of an EC2 instance, by its metadata (IMDSv2)."""

    _WHO: Final = "the metadata of this machine"

    def __init__(self, base: str) -> None:
        self._base = base.rstrip("/")

    def __call__(self) -> S3Keys:
        with _client() as http:
            token = _asked(http, "PUT", f"{self._base}/latest/api/token", _LIFE, self._WHO).text
            if not _SENT.match(token):
                raise NotLent(f"{self._WHO} gives no token")
            mine = {"x-aws-ec2-metadata-token": token}
            roles = _asked(http, "GET", self._base + _ROLES, mine, self._WHO, absent=_NO_ROLE).text
            role = roles.strip().partition("\n")[0]
            if not _ROLE.match(role):
                raise NotLent(_NO_ROLE)
            return _read(_asked(http, "GET", self._base + _ROLES + role, mine, self._WHO), self._WHO)


def _client() -> httpx.Client:
    # Near enough that no proxy of the environment leads there, and quick if there at all.
    return httpx.Client(transport=httpx.HTTPTransport(retries=1), timeout=httpx.Timeout(2, connect=1), trust_env=False)


def _asked(
    http: httpx.Client, method: str, url: str, headers: Mapping[str, str], who: str, absent: str = ""
) -> httpx.Response:
    try:
        answer = http.request(method, url, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL):
        raise NotLent(f"{who} does not answer") from None
    if not answer.is_success:
        missing = absent if answer.status_code == _NOT_FOUND else ""
        raise NotLent(missing or f"{who} answers {answer.status_code}")
    return answer


def _read(answer: httpx.Response, who: str) -> S3Keys:
    try:
        said = msgspec.json.decode(answer.content)
    except msgspec.DecodeError:
        said = None
    return _keys(said, who)


def _keys(said: Any, who: str) -> S3Keys:
    """Return the keys of an answer, if it is one."""
    try:
        lent = msgspec.convert(said, _Answer)
    except msgspec.ValidationError:
        raise NotLent(f"{who} answers something else than keys") from None
    parts = (lent.access_key_id, lent.secret_access_key, lent.token)
    if lent.code != "Success" or not all(map(_SENT.match, parts)):
        raise NotLent(f"{who} answers something else than keys")
    ends = lent.expiration if lent.expiration.tzinfo else lent.expiration.replace(tzinfo=UTC)
    return S3Keys(*parts, ends.timestamp())
