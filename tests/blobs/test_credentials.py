"""Keys that are lent: asked for as AWS's programs ask, renewed by one before they end, and never told to anybody."""

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from botocore.credentials import ContainerProvider  # type: ignore[import-untyped]
from botocore.utils import InstanceMetadataFetcher  # type: ignore[import-untyped]

from callsheet.blobs.base import CredentialsExpired, Stat, StorageRefused, StorageUnavailable
from callsheet.blobs.factory import open_blobs
from callsheet.blobs.s3 import credential_sources
from callsheet.blobs.s3.credential_sources import CredentialsUnavailable, credential_source
from callsheet.blobs.s3.credentials import REFRESH_BEFORE_SECONDS, CachedCredentials
from callsheet.blobs.s3.sigv4 import S3Credentials
from callsheet.blobs.s3.store import S3Blobs
from callsheet.blobs.s3.transport import S3Location
from callsheet.config import BlobSettings
from tests.support.blob_stores import digest, grant_upload_of
from tests.support.credentials_double import PASS, CredentialsDouble, DoubleCredentials
from tests.support.s3_double import ACCESS, BUCKET, REGION, SECRET, S3Double
from tests.support.wait import wait_until

NOW = 2_000_000_000.0
HOUR = 3_600.0
KEY = "acme/uploads/file"
BODY = b"a film"
LENT = DoubleCredentials("canary-token-1", NOW + HOUR)


@pytest.fixture
def lender() -> Iterator[CredentialsDouble]:
    with CredentialsDouble(LENT) as made:
        yield made


def by_container(lender: CredentialsDouble, **more: str) -> dict[str, str]:
    names = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{lender.url}/creds", "AWS_CONTAINER_AUTHORIZATION_TOKEN": PASS}
    return names | more


def by_instance(lender: CredentialsDouble) -> dict[str, str]:
    return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{lender.url}/"}


def not_lent(environ: dict[str, str]) -> str:
    """Return why there are no keys; nothing that is secret is in it."""
    with pytest.raises(CredentialsUnavailable) as error:
        credential_source(environ)()
    said = f"{error.value!r} {error.value.__cause__!r}"
    assert not [secret for secret in ("canary", SECRET, "127.0.0.1", "http") if secret in said], said
    return str(error.value)


# -- who lends


def test_the_machines_role_lends_keys_by_its_metadata_and_a_token(lender: CredentialsDouble) -> None:
    assert credential_source(by_instance(lender))() == S3Credentials(ACCESS, SECRET, LENT.token, LENT.expires_at)
    assert [method for method, _ in lender.seen] == ["PUT", "GET", "GET"]


def test_a_containers_host_lends_keys_to_who_may_ask(lender: CredentialsDouble, tmp_path: Path) -> None:
    assert credential_source(by_container(lender))() == S3Credentials(ACCESS, SECRET, LENT.token, LENT.expires_at)
    file = tmp_path / "pass"
    environ = by_container(lender, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(file))
    assert "TOKEN_FILE cannot be read" in not_lent(environ)
    ask = credential_source(environ)
    for required_token in ("canary-1", "canary-2"):  # the file counts, and is read each time
        file.write_text(f"{required_token}\n")
        lender.required_token = required_token
        assert ask().session_token == LENT.token
    lender.required_token = ""
    assert credential_source({"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{lender.url}/creds"})().access_key == ACCESS


def test_a_path_alone_is_of_the_containers_host(lender: CredentialsDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credential_sources, "_CONTAINER", lender.url)
    path = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/creds", "AWS_CONTAINER_AUTHORIZATION_TOKEN": PASS}
    full = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/nobody"}
    assert credential_source(full | path)().session_token == LENT.token, "the path goes before the whole address"
    with pytest.raises(StorageRefused, match="not a path"):
        credential_source({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "@evil.example/creds"})


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        ("https://lender.example/creds", True), ("http://127.0.0.1/creds", True), ("http://127.9.9.9:80/", True),
        ("http://[::1]:8080/creds", True), ("http://localhost:1338/creds", True), ("http://169.254.170.2/v2", True),
        ("http://169.254.170.23/v1/credentials", True), ("http://[fd00:ec2::23]/v1/credentials", True),
        ("http://lender.example/creds", False), ("http://169.254.169.254/creds", False), ("http://10.0.0.1/", False),
        ("http://127.0.0.1@evil.example/", False), ("http://localhost.evil.example/", False), ("/creds", False),
        ("http://169.254.170.2.evil.example/", False), ("ftp://127.0.0.1/", False), ("https:///creds", False),
        ("http://[x/", False),
    ],
)  # fmt: skip
def test_keys_are_asked_for_near_by_or_behind_tls_only(url: str, *, taken: bool) -> None:
    environ = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": url}
    if taken:
        assert callable(credential_source(environ))
        return
    with pytest.raises(StorageRefused, match="FULL_URI is neither https nor") as error:
        credential_source(environ)
    assert url not in str(error.value)


@pytest.mark.parametrize("ask", [by_container, by_instance])
def test_whatever_is_wrong_is_said_without_a_secret(lender: CredentialsDouble, ask: Any) -> None:
    environ = ask(lender)
    for status in (500, 403, 302):
        lender.error_status = status
        assert f"answers {status}" in not_lent(environ)
    lender.error_status = 0
    for said in (
        "canary", "{}", "[]", "\xff", json.dumps({"Code": "AssumeRoleUnauthorizedAccess", "Message": "canary"}),
        json.dumps(LENT.said() | {"Code": "Failed"}), json.dumps(LENT.said() | {"Token": "canary\r\nx: y"}),
        json.dumps(LENT.said() | {"SecretAccessKey": ""}), json.dumps(LENT.said() | {"Expiration": "canary"}),
        json.dumps({**LENT.said(), "AccessKeyId": None}),
    ):  # fmt: skip
        lender.said = said
        assert "something else than keys" in not_lent(environ)


def test_a_pass_that_cannot_be_sent_or_does_not_fit_is_said(lender: CredentialsDouble) -> None:
    assert "answers 403" in not_lent(by_container(lender, AWS_CONTAINER_AUTHORIZATION_TOKEN="canary"))
    told = not_lent(by_container(lender, AWS_CONTAINER_AUTHORIZATION_TOKEN="canary\r\nx: y"))
    assert "not one that can be sent" in told
    assert [method for method, _ in lender.seen] == ["GET"]


def test_a_machine_without_a_role_or_without_metadata_is_said(lender: CredentialsDouble) -> None:
    for role in ("", "../../canary"):
        lender.role = role
        assert not_lent(by_instance(lender)) == "this machine has no role"
    nobody = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9"}
    assert not_lent(nobody) == "the metadata of this machine does not answer"
    assert "DISABLED" in not_lent(by_instance(lender) | {"AWS_EC2_METADATA_DISABLED": "TRUE"})


def test_the_double_lends_to_awss_own_library_too(lender: CredentialsDouble) -> None:
    mine = credential_source(by_instance(lender))()
    theirs = InstanceMetadataFetcher(base_url=f"{lender.url}/").retrieve_iam_role_credentials()
    assert (theirs["access_key"], theirs["secret_key"], theirs["token"]) == mine[:3]
    container = ContainerProvider(environ=by_container(lender)).load()
    assert (container.access_key, container.secret_key, container.token) == mine[:3]


# -- kept fresh


class Clock:
    def __init__(self) -> None:
        self.at = NOW

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_keys_are_renewed_before_they_end_and_not_sooner(lender: CredentialsDouble, clock: Clock) -> None:
    lent = CachedCredentials(credential_source(by_container(lender)), clock)
    lender.keys = DoubleCredentials("canary-token-2", NOW + 2 * HOUR)
    clock.at = LENT.expires_at - REFRESH_BEFORE_SECONDS - 1
    lent.refresh_if_due()
    assert (lent().session_token, lender.credentials_fetched) == (LENT.token, 1)
    clock.at += 1
    lent.refresh_if_due()
    lent.refresh_if_due()
    assert (lent().session_token, lender.credentials_fetched) == ("canary-token-2", 2)


def test_old_keys_hold_while_new_ones_cannot_be_had_and_then_it_is_said(
    lender: CredentialsDouble, clock: Clock
) -> None:
    lent = CachedCredentials(credential_source(by_container(lender)), clock)
    lender.error_status = 500
    clock.at = LENT.expires_at - 60
    lent.refresh_if_due()
    assert lent().session_token == LENT.token
    clock.at = LENT.expires_at - 1
    with pytest.raises(CredentialsExpired, match=r"have ended, and there are no new ones: .* answers 500\.") as error:
        lent()
    assert isinstance(error.value, StorageUnavailable), "it may get better by itself"
    assert "canary" not in str(error.value)
    lender.error_status = 0
    lent.refresh_if_due()
    with pytest.raises(CredentialsExpired, match="those that are lent have ended too"):
        lent()
    lender.keys = DoubleCredentials("canary-token-2", clock.at + HOUR)
    lent.refresh_if_due()
    assert lent().session_token == "canary-token-2"


def test_one_fetches_for_all(lender: CredentialsDouble, clock: Clock) -> None:
    lent = CachedCredentials(credential_source(by_container(lender)), clock)
    clock.at = LENT.expires_at - 60
    with ThreadPoolExecutor(8) as pool:
        assert {keys.session_token for keys in pool.map(lambda _: lent(), range(400))} == {LENT.token}
    assert lender.credentials_fetched == 1, "whoever signs asks nobody"
    lender.keys = DoubleCredentials("canary-token-2", NOW + 2 * HOUR)
    lent.start(0.001)
    wait_until(lambda: lent().session_token == "canary-token-2")
    assert lender.credentials_fetched == 2
    lent.close()


# -- signing with them


def address_seconds(url: str) -> int:
    return int(parse_qs(urlsplit(url).query)["X-Amz-Expires"][0])


def test_an_address_never_outlives_the_keys_that_signed_it(clock: Clock) -> None:
    keys = S3Credentials(ACCESS, SECRET, "token", NOW + HOUR)
    blobs = S3Blobs(S3Location(bucket=BUCKET, region=REGION), lambda: keys, now=clock)
    for at, given in ((NOW, 900), (NOW + HOUR - 900.5, 900), (NOW + HOUR - 899.5, 899), (NOW + HOUR - 2, 2)):
        clock.at = at
        for grant in (
            grant_upload_of(blobs, KEY, BODY, expires_in_seconds=900),
            blobs.grant_download(KEY, expires_in_seconds=900, name="a", media_type="image/png"),
            blobs.grant_overwrite(KEY, bytes_max=9, media_type="image/png", expires_in_seconds=900),
        ):
            assert (grant.expires_in_seconds, address_seconds(grant.url)) == (given, given)
            assert math.floor(at) + grant.expires_in_seconds <= NOW + HOUR
    blobs.close()


@pytest.mark.parametrize("ask", [by_container, by_instance])
def test_a_bucket_is_used_with_keys_that_change_meanwhile(ask: Any, clock: Clock) -> None:
    with (
        S3Double(session_token=LENT.token, now=clock) as s3,
        CredentialsDouble(LENT) as lender,
        httpx.Client(verify=False) as http,
    ):
        lent = CachedCredentials(credential_source(ask(lender)), clock)
        blobs = S3Blobs(S3Location(bucket=BUCKET, region=REGION, endpoint=s3.endpoint), lent, clock)
        grant = grant_upload_of(blobs, KEY, BODY)
        assert http.put(grant.url, headers=grant.headers, content=BODY).is_success
        clock.at = LENT.expires_at - 5
        s3.session_token = "canary-token-2"
        lender.keys = DoubleCredentials("canary-token-2", clock.at + HOUR)
        with pytest.raises(StorageRefused, match="InvalidToken") as error:
            blobs.list("", "", 1)
        assert "canary" not in str(error.value)
        lent.refresh_if_due()
        assert blobs.stat(KEY) == Stat(len(BODY), digest(BODY))
        grant = blobs.grant_download(KEY, expires_in_seconds=60, name="a", media_type="image/png")
        assert http.get(grant.url).content == BODY
        assert http.get(grant.url.replace("canary-token-2", LENT.token)).status_code == 400
        clock.at = lender.keys.expires_at
        with pytest.raises(CredentialsExpired):
            grant_upload_of(blobs, KEY, BODY)
        blobs.close()


# -- chosen by the environment


def opened(environ: dict[str, str]) -> str:
    """Open a bucket and return the session token that signs for it."""
    blobs = open_blobs(BlobSettings(url="s3://films"), Path("/nowhere"), None, environ)
    assert isinstance(blobs, S3Blobs)
    query = parse_qs(urlsplit(grant_upload_of(blobs, KEY, BODY).url).query)
    blobs.close()
    assert "canary" not in repr(blobs._transport._keys())  # noqa: SLF001 - what a log could show of it
    return query.get("X-Amz-Security-Token", [""])[0]


def test_the_environments_own_keys_go_first_then_the_containers_then_the_machines(lender: CredentialsDouble) -> None:
    lender.keys = DoubleCredentials("canary-token", 4e9)
    static = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "canary", "AWS_SESSION_TOKEN": "mine"}
    both = by_container(lender) | by_instance(lender)
    assert opened(static | both) == "mine"
    assert lender.seen == []
    assert opened(both) == "canary-token"
    assert lender.seen == [("GET", "/creds")]
    assert opened(by_instance(lender)) == "canary-token"
    assert lender.credentials_fetched == 2


def test_without_any_keys_a_house_does_not_open(lender: CredentialsDouble) -> None:
    lender.error_status = 503
    for environ, why in ((by_container(lender), "host answers 503"), ({"AWS_EC2_METADATA_DISABLED": "true"}, "set")):
        with pytest.raises(StorageRefused, match=f"AWS_SECRET_ACCESS_KEY.* role lends them. Here .*{why}") as error:
            opened(environ)
        assert "canary" not in str(error.value)
