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

from callsheet.blobs import lenders
from callsheet.blobs.base import KeysEnded, Stat, StorageAway, StorageRefused
from callsheet.blobs.lenders import NotLent, lender_of
from callsheet.blobs.lent import EARLY_SECONDS, Lent
from callsheet.blobs.opening import blobs_of
from callsheet.blobs.s3 import S3Blobs
from callsheet.blobs.s3wire import S3Place
from callsheet.blobs.sigv4 import S3Keys
from callsheet.config import BlobSettings
from tests.support.lender import PASS, Keys, LenderDouble
from tests.support.s3double import ACCESS, BUCKET, REGION, SECRET, Double
from tests.support.stores import digest, granted
from tests.support.waiting import wait_until

NOW = 2_000_000_000.0
HOUR = 3_600.0
KEY = "acme/uploads/file"
BODY = b"a film"
LENT = Keys("canary-token-1", NOW + HOUR)


@pytest.fixture
def lender() -> Iterator[LenderDouble]:
    with LenderDouble(LENT) as made:
        yield made


def by_container(lender: LenderDouble, **more: str) -> dict[str, str]:
    names = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{lender.url}/creds", "AWS_CONTAINER_AUTHORIZATION_TOKEN": PASS}
    return names | more


def by_instance(lender: LenderDouble) -> dict[str, str]:
    return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{lender.url}/"}


def not_lent(environ: dict[str, str]) -> str:
    """Return why there are no keys; nothing that is secret is in it."""
    with pytest.raises(NotLent) as error:
        lender_of(environ)()
    said = f"{error.value!r} {error.value.__cause__!r}"
    assert not [secret for secret in ("canary", SECRET, "127.0.0.1", "http") if secret in said], said
    return str(error.value)


# -- who lends


def test_the_machines_role_lends_keys_by_its_metadata_and_a_token(lender: LenderDouble) -> None:
    assert lender_of(by_instance(lender))() == S3Keys(ACCESS, SECRET, LENT.token, LENT.ends_at)
    assert [method for method, _ in lender.seen] == ["PUT", "GET", "GET"]


def test_a_containers_host_lends_keys_to_who_may_ask(lender: LenderDouble, tmp_path: Path) -> None:
    assert lender_of(by_container(lender))() == S3Keys(ACCESS, SECRET, LENT.token, LENT.ends_at)
    file = tmp_path / "pass"
    environ = by_container(lender, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(file))
    assert "TOKEN_FILE cannot be read" in not_lent(environ)
    ask = lender_of(environ)
    for right in ("canary-1", "canary-2"):  # the file counts, and is read each time
        file.write_text(f"{right}\n")
        lender.right = right
        assert ask().session_token == LENT.token
    lender.right = ""
    assert lender_of({"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{lender.url}/creds"})().access_key == ACCESS


def test_a_path_alone_is_of_the_containers_host(lender: LenderDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lenders, "_CONTAINER", lender.url)
    path = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/creds", "AWS_CONTAINER_AUTHORIZATION_TOKEN": PASS}
    full = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/nobody"}
    assert lender_of(full | path)().session_token == LENT.token, "the path goes before the whole address"
    with pytest.raises(StorageRefused, match="not a path"):
        lender_of({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "@evil.example/creds"})


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
        assert callable(lender_of(environ))
        return
    with pytest.raises(StorageRefused, match="FULL_URI is neither https nor") as error:
        lender_of(environ)
    assert url not in str(error.value)


@pytest.mark.parametrize("ask", [by_container, by_instance])
def test_whatever_is_wrong_is_said_without_a_secret(lender: LenderDouble, ask: Any) -> None:
    environ = ask(lender)
    for status in (500, 403, 302):
        lender.failing = status
        assert f"answers {status}" in not_lent(environ)
    lender.failing = 0
    for said in (
        "canary", "{}", "[]", "\xff", json.dumps({"Code": "AssumeRoleUnauthorizedAccess", "Message": "canary"}),
        json.dumps(LENT.said() | {"Code": "Failed"}), json.dumps(LENT.said() | {"Token": "canary\r\nx: y"}),
        json.dumps(LENT.said() | {"SecretAccessKey": ""}), json.dumps(LENT.said() | {"Expiration": "canary"}),
        json.dumps({**LENT.said(), "AccessKeyId": None}),
    ):  # fmt: skip
        lender.said = said
        assert "something else than keys" in not_lent(environ)


def test_a_pass_that_cannot_be_sent_or_does_not_fit_is_said(lender: LenderDouble) -> None:
    assert "answers 403" in not_lent(by_container(lender, AWS_CONTAINER_AUTHORIZATION_TOKEN="canary"))
    told = not_lent(by_container(lender, AWS_CONTAINER_AUTHORIZATION_TOKEN="canary\r\nx: y"))
    assert "not one that can be sent" in told
    assert [method for method, _ in lender.seen] == ["GET"]


def test_a_machine_without_a_role_or_without_metadata_is_said(lender: LenderDouble) -> None:
    for role in ("", "../../canary"):
        lender.role = role
        assert not_lent(by_instance(lender)) == "this machine has no role"
    nobody = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9"}
    assert not_lent(nobody) == "the metadata of this machine does not answer"
    assert "DISABLED" in not_lent(by_instance(lender) | {"AWS_EC2_METADATA_DISABLED": "TRUE"})


def test_the_double_lends_to_awss_own_library_too(lender: LenderDouble) -> None:
    mine = lender_of(by_instance(lender))()
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


def test_keys_are_renewed_before_they_end_and_not_sooner(lender: LenderDouble, clock: Clock) -> None:
    lent = Lent(lender_of(by_container(lender)), clock)
    lender.keys = Keys("canary-token-2", NOW + 2 * HOUR)
    clock.at = LENT.ends_at - EARLY_SECONDS - 1
    lent.keep()
    assert (lent().session_token, lender.fetched) == (LENT.token, 1)
    clock.at += 1
    lent.keep()
    lent.keep()
    assert (lent().session_token, lender.fetched) == ("canary-token-2", 2)


def test_old_keys_hold_while_new_ones_cannot_be_had_and_then_it_is_said(lender: LenderDouble, clock: Clock) -> None:
    lent = Lent(lender_of(by_container(lender)), clock)
    lender.failing = 500
    clock.at = LENT.ends_at - 60
    lent.keep()
    assert lent().session_token == LENT.token
    clock.at = LENT.ends_at - 1
    with pytest.raises(KeysEnded, match=r"have ended, and there are no new ones: .* answers 500\.") as error:
        lent()
    assert isinstance(error.value, StorageAway), "it may get better by itself"
    assert "canary" not in str(error.value)
    lender.failing = 0
    lent.keep()
    with pytest.raises(KeysEnded, match="those that are lent have ended too"):
        lent()
    lender.keys = Keys("canary-token-2", clock.at + HOUR)
    lent.keep()
    assert lent().session_token == "canary-token-2"


def test_one_fetches_for_all(lender: LenderDouble, clock: Clock) -> None:
    lent = Lent(lender_of(by_container(lender)), clock)
    clock.at = LENT.ends_at - 60
    with ThreadPoolExecutor(8) as pool:
        assert {keys.session_token for keys in pool.map(lambda _: lent(), range(400))} == {LENT.token}
    assert lender.fetched == 1, "whoever signs asks nobody"
    lender.keys = Keys("canary-token-2", NOW + 2 * HOUR)
    lent.start(0.001)
    wait_until(lambda: lent().session_token == "canary-token-2")
    assert lender.fetched == 2
    lent.close()


# -- signing with them


def address_seconds(url: str) -> int:
    return int(parse_qs(urlsplit(url).query)["X-Amz-Expires"][0])


def test_an_address_never_outlives_the_keys_that_signed_it(clock: Clock) -> None:
    keys = S3Keys(ACCESS, SECRET, "token", NOW + HOUR)
    blobs = S3Blobs(S3Place(bucket=BUCKET, region=REGION), lambda: keys, now=clock)
    for at, given in ((NOW, 900), (NOW + HOUR - 900.5, 900), (NOW + HOUR - 899.5, 899), (NOW + HOUR - 2, 2)):
        clock.at = at
        for grant in (
            granted(blobs, KEY, BODY, seconds=900),
            blobs.grant_get(KEY, seconds=900, name="a", media_type="image/png"),
            blobs.grant_put_over(KEY, bytes_max=9, media_type="image/png", seconds=900),
        ):
            assert (grant.seconds, address_seconds(grant.url)) == (given, given)
            assert math.floor(at) + grant.seconds <= NOW + HOUR
    blobs.close()


@pytest.mark.parametrize("ask", [by_container, by_instance])
def test_a_bucket_is_used_with_keys_that_change_meanwhile(ask: Any, clock: Clock) -> None:
    with (
        Double(session_token=LENT.token, now=clock) as s3,
        LenderDouble(LENT) as lender,
        httpx.Client(verify=False) as http,
    ):
        lent = Lent(lender_of(ask(lender)), clock)
        blobs = S3Blobs(S3Place(bucket=BUCKET, region=REGION, endpoint=s3.endpoint), lent, clock)
        grant = granted(blobs, KEY, BODY)
        assert http.put(grant.url, headers=grant.headers, content=BODY).is_success
        clock.at = LENT.ends_at - 5
        s3.session_token = "canary-token-2"
        lender.keys = Keys("canary-token-2", clock.at + HOUR)
        with pytest.raises(StorageRefused, match="InvalidToken") as error:
            blobs.list("", "", 1)
        assert "canary" not in str(error.value)
        lent.keep()
        assert blobs.stat(KEY) == Stat(len(BODY), digest(BODY))
        grant = blobs.grant_get(KEY, seconds=60, name="a", media_type="image/png")
        assert http.get(grant.url).content == BODY
        assert http.get(grant.url.replace("canary-token-2", LENT.token)).status_code == 400
        clock.at = lender.keys.ends_at
        with pytest.raises(KeysEnded):
            granted(blobs, KEY, BODY)
        blobs.close()


# -- chosen by the environment


def opened(environ: dict[str, str]) -> str:
    """Open a bucket and return the session token that signs for it."""
    blobs = blobs_of(BlobSettings(url="s3://films"), Path("/nowhere"), None, environ)
    assert isinstance(blobs, S3Blobs)
    query = parse_qs(urlsplit(granted(blobs, KEY, BODY).url).query)
    blobs.close()
    assert "canary" not in repr(blobs._wire._keys())  # noqa: SLF001 - what a log could show of it
    return query.get("X-Amz-Security-Token", [""])[0]


def test_the_environments_own_keys_go_first_then_the_containers_then_the_machines(lender: LenderDouble) -> None:
    lender.keys = Keys("canary-token", 4e9)
    static = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "canary", "AWS_SESSION_TOKEN": "mine"}
    both = by_container(lender) | by_instance(lender)
    assert opened(static | both) == "mine"
    assert lender.seen == []
    assert opened(both) == "canary-token"
    assert lender.seen == [("GET", "/creds")]
    assert opened(by_instance(lender)) == "canary-token"
    assert lender.fetched == 2


def test_without_any_keys_a_house_does_not_open(lender: LenderDouble) -> None:
    lender.failing = 503
    for environ, why in ((by_container(lender), "host answers 503"), ({"AWS_EC2_METADATA_DISABLED": "true"}, "set")):
        with pytest.raises(StorageRefused, match=f"AWS_SECRET_ACCESS_KEY.* role lends them. Here .*{why}") as error:
            opened(environ)
        assert "canary" not in str(error.value)
