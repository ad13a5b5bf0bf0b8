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
from callsheet.blobs.s3.sigv4 import S3Credentials

CredentialSource = Callable[[], S3Credentials]
"""Fetches keys, or raises NotLent."""
_CONTAINER_URL: Final = "http://169.254.170.2"
_CONTAINER_HOSTS: Final = frozenset({"169.254.170.2", "169.254.170.23", "fd00:ec2::23", "localhost"})
_METADATA_URL: Final = "http://169.254.169.254"
_ROLES_PATH: Final = "/latest/meta-data/iam/security-credentials/"
_TOKEN_TTL_HEADERS: Final = {"x-aws-ec2-metadata-token-ttl-seconds": "300"}
_ROLE_NAME = re.compile(r"[\w+=,.@-]{1,128}\Z", re.ASCII)
_HEADER_VALUE = re.compile(r"[!-~]+\Z")
"""What can go into a header."""
_REGION = re.compile(r"[a-z0-9-]{1,32}\Z")
_ARN = re.compile(r"arn:[!-~]{1,2043}\Z")
_ERROR_CODE = re.compile(rb"<Code>([A-Za-z]{1,64})</Code>")
_NOT_FOUND: Final = 404
_NO_ROLE_MESSAGE: Final = "this machine has no role"


class CredentialsUnavailable(Exception):  # noqa: N818 - an answer
    """There are no keys now; the text says why, and goes on a sentence."""


class _CredentialsResponse(Struct, frozen=True, rename="pascal"):
    """What all of them say."""

    access_key_id: str
    secret_access_key: str
    token: str
    expiration: datetime
    code: str = "Success"


def credential_source(environ: Mapping[str, str]) -> CredentialSource:
    """Return who lends keys here, by the environment; without a word there it is the machine itself."""
    if file := environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return WebIdentitySource(Path(file), environ)
    if relative_uri := environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        if not relative_uri.startswith("/"):
            raise StorageRefused("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is not a path.")
        return ContainerSource(_CONTAINER_URL + relative_uri, environ)
    if full_uri := environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        if not _is_trusted_url(full_uri):
            raise StorageRefused(
                "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https nor an address of this machine or its host."
            )
        return ContainerSource(full_uri, environ)
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return _no_source
    return InstanceMetadataSource(environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _METADATA_URL)


def _is_trusted_url(url: str) -> bool:
    """Say whether keys, and the right to ask for them, stay between us and whoever is meant."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme == "https":
        return bool(host)
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    return parts.scheme == "http" and (is_loopback or host in _CONTAINER_HOSTS)


def _no_source() -> S3Credentials:
    raise CredentialsUnavailable("AWS_EC2_METADATA_DISABLED is set")


class WebIdentitySource:
    """A role for the identity of a service account (EKS, or any cluster that the role trusts), by STS."""

    _SOURCE_NAME: Final = "Amazon's token service"

    def __init__(self, file: Path, environ: Mapping[str, str]) -> None:
        self._file = file
        self._role = environ.get("AWS_ROLE_ARN", "")
        self._name = environ.get("AWS_ROLE_SESSION_NAME") or "callsheet"
        if not _ARN.match(self._role) or not _ROLE_NAME.match(self._name):
            raise StorageRefused("AWS_WEB_IDENTITY_TOKEN_FILE needs AWS_ROLE_ARN, and a name of the session if any.")
        self._url = environ.get("AWS_ENDPOINT_URL_STS") or _sts_url(environ)
        if not _is_trusted_url(self._url):
            raise StorageRefused("AWS_ENDPOINT_URL_STS is neither https nor an address of this machine.")

    def __call__(self) -> S3Credentials:
        try:
            token = self._file.read_text().strip()  # each time: the cluster writes a new one before the old one ends
        except (OSError, ValueError):
            raise CredentialsUnavailable("the file of AWS_WEB_IDENTITY_TOKEN_FILE cannot be read") from None
        form = {
            "Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": self._role,
            "RoleSessionName": self._name, "WebIdentityToken": token,
        }  # fmt: skip
        try:
            response = httpx.post(self._url, data=form, timeout=10)
        except (httpx.HTTPError, httpx.InvalidURL):
            raise CredentialsUnavailable(f"{self._SOURCE_NAME} does not answer") from None
        if not response.is_success:
            reason = _ERROR_CODE.search(response.content)
            raise CredentialsUnavailable(
                f"{self._SOURCE_NAME} answers {reason[1].decode() if reason else response.status_code}"
            )
        return _parse_credentials(_parse_sts_response(response.content), self._SOURCE_NAME)


def _sts_url(environ: Mapping[str, str]) -> str:
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    if not region:
        return "https://sts.amazonaws.com/"
    if not _REGION.match(region):
        raise StorageRefused("AWS_REGION is not the name of a region.")
    return f"https://sts.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}/"


def _parse_sts_response(body: bytes) -> dict[str, str | None]:
    """Return what the token service lends, in the words of the others."""
    try:
        found = {item.tag.rpartition("}")[2]: item.text for item in ET.fromstring(body).iterfind(".//{*}Credentials/*")}  # noqa: S314 - over TLS, from whom we give our identity
    except ET.ParseError:
        return {}
    return {**found, "Token": found.get("SessionToken")}


class ContainerSource:
    """The credentials of a container's task or pod (ECS, EKS)."""

    _SOURCE_NAME: Final = "the container's host"

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        self._url = url
        self._environ = environ

    def __call__(self) -> S3Credentials:
        headers = {"accept": "application/json", **self._authorization_headers()}
        with _client() as http:
            return _parse_json_response(_request(http, "GET", self._url, headers, self._SOURCE_NAME), self._SOURCE_NAME)

    def _authorization_headers(self) -> dict[str, str]:
        """Return what lets us ask; a file is read each time, for its text changes."""
        token = self._environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
        if file := self._environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
            try:
                token = Path(file).read_text().strip()
            except (OSError, ValueError):
                raise CredentialsUnavailable(
                    "the file of AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE cannot be read"
                ) from None
        if token and not all(map(_HEADER_VALUE.match, token.split(" "))):
            raise CredentialsUnavailable("the container's authorization token is not one that can be sent")
        return {"authorization": token} if token else {}


class InstanceMetadataSource:
    """The role of an EC2 instance, by its metadata (IMDSv2)."""

    _SOURCE_NAME: Final = "the metadata of this machine"

    def __init__(self, base: str) -> None:
        self._base = base.rstrip("/")

    def __call__(self) -> S3Credentials:
        with _client() as http:
            token = _request(http, "PUT", f"{self._base}/latest/api/token", _TOKEN_TTL_HEADERS, self._SOURCE_NAME).text
            if not _HEADER_VALUE.match(token):
                raise CredentialsUnavailable(f"{self._SOURCE_NAME} gives no token")
            token_headers = {"x-aws-ec2-metadata-token": token}
            roles = _request(
                http,
                "GET",
                self._base + _ROLES_PATH,
                token_headers,
                self._SOURCE_NAME,
                not_found_message=_NO_ROLE_MESSAGE,
            ).text
            role = roles.strip().partition("\n")[0]
            if not _ROLE_NAME.match(role):
                raise CredentialsUnavailable(_NO_ROLE_MESSAGE)
            return _parse_json_response(
                _request(http, "GET", self._base + _ROLES_PATH + role, token_headers, self._SOURCE_NAME),
                self._SOURCE_NAME,
            )


def _client() -> httpx.Client:
    # Near enough that no proxy of the environment leads there, and quick if there at all.
    return httpx.Client(transport=httpx.HTTPTransport(retries=1), timeout=httpx.Timeout(2, connect=1), trust_env=False)


def _request(
    http: httpx.Client, method: str, url: str, headers: Mapping[str, str], source_name: str, not_found_message: str = ""
) -> httpx.Response:
    try:
        response = http.request(method, url, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL):
        raise CredentialsUnavailable(f"{source_name} does not answer") from None
    if not response.is_success:
        missing = not_found_message if response.status_code == _NOT_FOUND else ""
        raise CredentialsUnavailable(missing or f"{source_name} answers {response.status_code}")
    return response


def _parse_json_response(response: httpx.Response, source_name: str) -> S3Credentials:
    try:
        body = msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        body = None
    return _parse_credentials(body, source_name)


def _parse_credentials(body: Any, source_name: str) -> S3Credentials:
    """Return the keys of an answer, if it is one."""
    try:
        parsed = msgspec.convert(body, _CredentialsResponse)
    except msgspec.ValidationError:
        raise CredentialsUnavailable(f"{source_name} answers something else than keys") from None
    parts = (parsed.access_key_id, parsed.secret_access_key, parsed.token)
    if parsed.code != "Success" or not all(map(_HEADER_VALUE.match, parts)):
        raise CredentialsUnavailable(f"{source_name} answers something else than keys")
    expires_at = parsed.expiration if parsed.expiration.tzinfo else parsed.expiration.replace(tzinfo=UTC)
    return S3Credentials(*parts, expires_at.timestamp())
