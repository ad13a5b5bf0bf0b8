"""AWS credentials: a static key or botocore's chain, refreshed before expiry, and never shown in an error."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from botocore.credentials import RefreshableCredentials  # type: ignore[import-untyped]

from callsheet.blobs.base import CredentialsExpiredError, Stat, StorageRefusedError, StorageUnavailableError
from callsheet.blobs.factory import open_blobs
from callsheet.blobs.s3.credentials import CredentialsUnavailableError, RefreshingCredentials, botocore_source
from callsheet.blobs.s3.sigv4 import S3Credentials
from callsheet.blobs.s3.store import S3Blobs
from callsheet.blobs.s3.transport import S3Location
from callsheet.settings import BlobSettings
from tests.support.doubles.blob_stores import digest, grant_upload_of
from tests.support.doubles.credentials_double import ARN, PASS, CredentialsDouble, DoubleCredentials
from tests.support.doubles.s3_double import ACCESS, BUCKET, REGION, SECRET, S3Double
from tests.support.wait import wait_until

HOUR, FIVE_MINUTES = 3_600.0, 300.0
KEY = "acme/uploads/file"
BODY = b"a film"
SOURCES = ["container", "instance", "web identity"]


def expiring_in(seconds: float, token: str = "canary-token-1") -> DoubleCredentials:
    return DoubleCredentials(token, float(int(time.time() + seconds)))


@pytest.fixture
def double() -> Iterator[CredentialsDouble]:
    with CredentialsDouble(expiring_in(HOUR)) as made:
        yield made


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the credentials of the machine that runs the tests."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def use(double: CredentialsDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "Use":
    return Use(double, monkeypatch, tmp_path)


class BotocoreClock:
    """Moves the time by which botocore decides whether credentials are about to expire."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offset = 0.0
        monkeypatch.setattr("botocore.credentials._local_now", self.now)
        monkeypatch.setattr(RefreshableCredentials, "_seconds_remaining", self._seconds_remaining(self))

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.offset)

    @staticmethod
    def _seconds_remaining(clock: "BotocoreClock") -> Callable[[Any], float]:
        return lambda credentials: (credentials._expiry_time - clock.now()).total_seconds()  # noqa: SLF001


@pytest.fixture
def botocore_clock(monkeypatch: pytest.MonkeyPatch) -> BotocoreClock:
    return BotocoreClock(monkeypatch)


class Use:
    """Configures where the credential chain finds credentials."""

    def __init__(self, double: CredentialsDouble, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._double = double
        self._monkeypatch = monkeypatch
        self._folder = folder

    def __call__(self, source: str) -> None:
        match source:
            case "container":
                self.container()
            case "instance":
                self.instance()
            case _:
                self.web_identity()

    def container(self) -> None:
        self._monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{self._double.url}/creds")
        self._monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", PASS)

    def instance(self) -> None:
        self._monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        self._monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{self._double.url}/")

    def web_identity(self) -> None:
        file = self._folder / "identity"
        self._double.required_token = "canary-identity"
        file.write_text(self._double.required_token)
        self._monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(file))
        self._monkeypatch.setenv("AWS_ROLE_ARN", ARN)
        self._monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"{self._double.url}/")

    def profile(self, name: str) -> None:
        (self._folder / "credentials").write_text(
            f"[{name}]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = canary-secret\n"
        )
        self._monkeypatch.setenv("AWS_PROFILE", name)


def failure() -> str:
    """Return why the chain has no credentials; the text contains no secret."""
    with pytest.raises(CredentialsUnavailableError) as error:
        botocore_source(REGION)()
    text = f"{error.value!r} {error.value.__cause__!r}"
    assert not [secret for secret in ("canary", SECRET, ARN, "127.0.0.1", "http") if secret in text], text
    return str(error.value)


# -- the chain


@pytest.mark.parametrize("source", SOURCES)
def test_temporary_credentials_come_with_their_expiry(double: CredentialsDouble, use: Use, source: str) -> None:
    use(source)
    assert botocore_source(REGION)() == S3Credentials(ACCESS, SECRET, double.keys.token, double.keys.expires_at)
    assert double.credentials_fetched == 1


def test_a_profile_gives_a_key_that_does_not_expire(use: Use) -> None:
    use.profile("films")
    assert botocore_source(REGION)() == S3Credentials("AKIDPROFILE", "canary-secret", "", None)


def test_a_profile_may_run_a_program_that_prints_credentials(
    double: CredentialsDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = double.keys.json_fields()
    output = tmp_path / "output.json"
    output.write_text(
        f'{{"Version": 1, "AccessKeyId": "{ACCESS}", "SecretAccessKey": "{SECRET}", '
        f'"SessionToken": "canary-token-1", "Expiration": "{published["Expiration"]}"}}'
    )
    (tmp_path / "config").write_text(f"[profile films]\ncredential_process = cat {output}\n")
    monkeypatch.setenv("AWS_PROFILE", "films")
    assert botocore_source(REGION)() == S3Credentials(ACCESS, SECRET, "canary-token-1", double.keys.expires_at)


def test_the_web_identity_token_is_read_again_for_every_refresh(
    double: CredentialsDouble, use: Use, botocore_clock: BotocoreClock, tmp_path: Path
) -> None:
    use.web_identity()
    fetch = botocore_source(REGION)
    fetch()
    double.required_token, double.keys = "canary-2", expiring_in(2 * HOUR, "canary-token-2")
    (tmp_path / "identity").write_text("canary-2")
    botocore_clock.offset = HOUR - FIVE_MINUTES
    assert fetch().session_token == "canary-token-2"


@pytest.mark.parametrize("source", SOURCES)
def test_a_failing_source_is_reported_without_secrets(double: CredentialsDouble, use: Use, source: str) -> None:
    use(source)
    double.error_status = 403
    assert failure() in {"CredentialRetrievalError", "the credential chain is empty", "ResponseParserError"}


def test_an_error_code_of_sts_is_reported(double: CredentialsDouble, use: Use) -> None:
    use.web_identity()
    double.required_token = "another"
    assert failure() == "InvalidIdentityTokenException InvalidIdentityToken"


def test_a_missing_profile_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "canary")
    assert failure() == "ProfileNotFound"


def test_a_token_that_cannot_be_sent_in_a_header_is_rejected(double: CredentialsDouble, use: Use) -> None:
    use.container()
    double.keys = expiring_in(HOUR, "canary\r\nx: y")
    assert failure() == "the credential chain returned an invalid key"


# -- refresh


@pytest.mark.parametrize("source", SOURCES)
def test_credentials_are_refreshed_before_they_expire_and_not_sooner(
    double: CredentialsDouble, use: Use, botocore_clock: BotocoreClock, source: str
) -> None:
    use(source)
    credentials = RefreshingCredentials(botocore_source(REGION))
    double.keys = expiring_in(2 * HOUR, "canary-token-2")
    botocore_clock.offset = HOUR / 2
    credentials.refresh()
    assert (credentials().session_token, double.credentials_fetched) == ("canary-token-1", 1)
    botocore_clock.offset = HOUR - FIVE_MINUTES
    credentials.refresh()
    credentials.refresh()
    assert (credentials().session_token, double.credentials_fetched) == ("canary-token-2", 2)


def test_signing_never_waits_for_the_source(double: CredentialsDouble, use: Use, botocore_clock: BotocoreClock) -> None:
    use.container()
    credentials = RefreshingCredentials(botocore_source(REGION))
    botocore_clock.offset = HOUR - FIVE_MINUTES
    with ThreadPoolExecutor(8) as pool:
        tokens = {current.session_token for current in pool.map(lambda _: credentials(), range(400))}
    assert (tokens, double.credentials_fetched) == ({"canary-token-1"}, 1)
    double.keys = expiring_in(2 * HOUR, "canary-token-2")
    credentials.start(0.001)
    wait_until(lambda: credentials().session_token == "canary-token-2")
    assert double.credentials_fetched == 2
    credentials.close()


class Clock:
    """A clock that tests move."""

    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def test_old_credentials_stay_in_use_until_they_expire_if_a_refresh_fails(
    double: CredentialsDouble, use: Use, botocore_clock: BotocoreClock
) -> None:
    use.container()
    clock = Clock(time.time())
    credentials = RefreshingCredentials(botocore_source(REGION), clock)
    double.error_status = 500
    botocore_clock.offset = HOUR - FIVE_MINUTES
    credentials.refresh()
    assert credentials().session_token == "canary-token-1"
    clock.at = double.keys.expires_at - 1
    with pytest.raises(CredentialsExpiredError, match="could not be refreshed: CredentialRetrievalError") as error:
        credentials()
    assert isinstance(error.value, StorageUnavailableError), "retryable"
    assert "canary" not in str(error.value)
    double.error_status, double.keys = 0, expiring_in(2 * HOUR, "canary-token-2")
    credentials.refresh()
    assert credentials().session_token == "canary-token-2"


# -- signing


def url_seconds(url: str) -> int:
    return int(parse_qs(urlsplit(url).query)["X-Amz-Expires"][0])


def test_a_signed_url_expires_no_later_than_the_credentials() -> None:
    now = 2_000_000_000.0
    clock = Clock(now)
    keys = S3Credentials(ACCESS, SECRET, "token", now + HOUR)
    blobs = S3Blobs(S3Location(bucket=BUCKET, region=REGION), lambda: keys, now=clock)
    for at, seconds in ((now, 900), (now + HOUR - 900.5, 900), (now + HOUR - 899.5, 899), (now + HOUR - 2, 2)):
        clock.at = at
        for grant in (
            grant_upload_of(blobs, KEY, BODY, expires_in_seconds=900),
            blobs.grant_download(KEY, expires_in_seconds=900, name="a", media_type="image/png"),
            blobs.grant_overwrite(KEY, bytes_max=9, media_type="image/png", expires_in_seconds=900),
        ):
            assert (grant.expires_in_seconds, url_seconds(grant.url)) == (seconds, seconds)
            assert math.floor(at) + grant.expires_in_seconds <= now + HOUR
    blobs.close()


@pytest.mark.parametrize("source", SOURCES)
def test_a_bucket_stays_usable_while_credentials_change(
    double: CredentialsDouble, use: Use, botocore_clock: BotocoreClock, source: str
) -> None:
    use(source)
    clock = Clock(time.time())
    with S3Double(session_token=double.keys.token, now=clock) as s3, httpx.Client(verify=False) as http:
        credentials = RefreshingCredentials(botocore_source(REGION), clock)
        blobs = S3Blobs(S3Location(bucket=BUCKET, region=REGION, endpoint=s3.endpoint), credentials, clock)
        grant = grant_upload_of(blobs, KEY, BODY)
        assert http.put(grant.url, headers=grant.headers, content=BODY).is_success
        s3.session_token = "canary-token-2"
        double.keys = expiring_in(2 * HOUR, "canary-token-2")
        botocore_clock.offset = HOUR - FIVE_MINUTES
        with pytest.raises(StorageRefusedError, match="InvalidToken") as error:
            blobs.list("", "", 1)
        assert "canary" not in str(error.value)
        credentials.refresh()
        assert blobs.stat(KEY) == Stat(len(BODY), digest(BODY))
        grant = blobs.grant_download(KEY, expires_in_seconds=60, name="a", media_type="image/png")
        assert http.get(grant.url).content == BODY
        assert http.get(grant.url.replace("canary-token-2", "canary-token-1")).status_code == 400
        clock.at = double.keys.expires_at
        with pytest.raises(CredentialsExpiredError):
            grant_upload_of(blobs, KEY, BODY)
        blobs.close()


# -- selected by the environment


def signing_token(environ: dict[str, str] | None = None) -> str:
    """Open a bucket and return the session token that signs for it."""
    blobs = open_blobs(BlobSettings(url="s3://films"), Path("/nowhere"), None, environ or {})
    assert isinstance(blobs, S3Blobs)
    query = parse_qs(urlsplit(grant_upload_of(blobs, KEY, BODY).url).query)
    blobs.close()
    assert "canary" not in repr(blobs._transport._keys())  # noqa: SLF001 - what a log could show of it
    return query.get("X-Amz-Security-Token", [""])[0]


def test_a_static_key_in_the_environment_comes_first(double: CredentialsDouble, use: Use) -> None:
    use.container()
    static = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "canary", "AWS_SESSION_TOKEN": "mine"}
    assert signing_token(static) == "mine"
    assert double.seen == []
    assert signing_token() == "canary-token-1"
    assert double.credentials_fetched == 1


def test_without_credentials_the_store_does_not_open(double: CredentialsDouble, use: Use) -> None:
    with pytest.raises(StorageRefusedError, match=r"the credential chain is empty\. Set AWS_ACCESS_KEY_ID"):
        signing_token()
    use.container()
    double.error_status = 503
    with pytest.raises(StorageRefusedError, match=r"S3: CredentialRetrievalError\. Set AWS_ACCESS_KEY_ID") as error:
        signing_token()
    assert "canary" not in str(error.value)


def test_without_the_extra_only_a_static_key_works(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("botocore", "botocore.session"):
        monkeypatch.setitem(sys.modules, name, None)
    assert signing_token({"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "x", "AWS_SESSION_TOKEN": "t"}) == "t"
    with pytest.raises(StorageRefusedError, match=r"the extra `s3`: in a checkout, run pip install '\.\[s3\]'"):
        signing_token()
