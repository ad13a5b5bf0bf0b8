"""Keys for the identity of a service account: taken at the token service as AWS's own library takes them."""

from collections.abc import Iterator
from pathlib import Path

import botocore.session  # type: ignore[import-untyped]
import pytest
from botocore import UNSIGNED
from botocore.config import Config  # type: ignore[import-untyped]

from callsheet.blobs.base import StorageRefused
from callsheet.blobs.s3 import credential_sources
from callsheet.blobs.s3.credential_sources import CredentialsUnavailable, credential_source
from callsheet.blobs.s3.sigv4 import S3Credentials
from tests.support.credentials_double import ARN, CredentialsDouble, DoubleCredentials, sts_response
from tests.support.s3_double import ACCESS, SECRET

LENT = DoubleCredentials("canary-token-1", 2_000_000_000.0)


@pytest.fixture
def lender() -> Iterator[CredentialsDouble]:
    with CredentialsDouble(LENT) as made:
        made.required_token = "canary-identity"
        yield made


@pytest.fixture
def environ(lender: CredentialsDouble, tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "token"
    file.write_text(lender.required_token)
    return {"AWS_WEB_IDENTITY_TOKEN_FILE": str(file), "AWS_ROLE_ARN": ARN, "AWS_ENDPOINT_URL_STS": f"{lender.url}/"}


def not_lent(environ: dict[str, str]) -> str:
    """Return why there are no keys; nothing that is secret is in it."""
    with pytest.raises(CredentialsUnavailable) as error:
        credential_source(environ)()
    said = f"{error.value!r} {error.value.__cause__!r}"
    assert not [secret for secret in ("canary", SECRET, ARN, "127.0.0.1", "http") if secret in said], said
    return str(error.value)


def test_a_service_account_takes_its_role_and_gets_keys(lender: CredentialsDouble, environ: dict[str, str]) -> None:
    assert credential_source(environ)() == S3Credentials(ACCESS, SECRET, LENT.token, LENT.expires_at)
    assert credential_source(environ | {"AWS_ROLE_SESSION_NAME": "films-2"})().session_token == LENT.token
    assert (lender.sessions, lender.seen) == (["callsheet", "films-2"], [("POST", "/")] * 2)


def test_it_goes_before_the_roles_of_containers_and_machines(
    lender: CredentialsDouble, environ: dict[str, str]
) -> None:
    others = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{lender.url}/creds",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{lender.url}/",
    }
    assert credential_source(others | environ)().session_token == LENT.token
    assert lender.seen == [("POST", "/")]


def test_its_token_is_read_each_time(lender: CredentialsDouble, environ: dict[str, str]) -> None:
    ask, file = credential_source(environ), Path(environ["AWS_WEB_IDENTITY_TOKEN_FILE"])
    for required_token in ("canary-2", "canary-3"):
        lender.required_token = required_token
        assert not_lent(environ) == "Amazon's token service answers InvalidIdentityToken"
        file.write_text(f"{required_token}\n")
        assert ask().session_token == LENT.token
    file.unlink()
    assert not_lent(environ) == "the file of AWS_WEB_IDENTITY_TOKEN_FILE cannot be read"


def test_whatever_is_wrong_is_said_without_a_secret(lender: CredentialsDouble, environ: dict[str, str]) -> None:
    other = environ | {"AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/canary"}
    assert not_lent(other) == "Amazon's token service answers AccessDenied"
    for status in (500, 403, 302):
        lender.error_status = status
        assert not_lent(environ) == f"Amazon's token service answers {status}"
    lender.error_status = 0
    for said in (
        "canary", "", "<a/>", "<a><Credentials><AccessKeyId>canary</AccessKeyId></Credentials></a>",
        sts_response(LENT, SecretAccessKey=""), sts_response(LENT, SessionToken="canary&#10;x: y"),
        sts_response(LENT, Expiration="canary"),
    ):  # fmt: skip
        lender.said = said
        assert not_lent(environ) == "Amazon's token service answers something else than keys"
    away = environ | {"AWS_ENDPOINT_URL_STS": "http://127.0.0.1:9/"}
    assert not_lent(away) == "Amazon's token service does not answer"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"AWS_ROLE_ARN": ""}, "needs AWS_ROLE_ARN"), ({"AWS_ROLE_ARN": "films"}, "needs AWS_ROLE_ARN"),
        ({"AWS_ROLE_SESSION_NAME": "a b"}, "name of the session"),
        ({"AWS_ENDPOINT_URL_STS": "http://sts.example/"}, "neither https nor"),
        ({"AWS_ENDPOINT_URL_STS": "", "AWS_REGION": "x.evil.example/"}, "not the name of a region"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_at_once(environ: dict[str, str], other: dict[str, str], said: str) -> None:
    with pytest.raises(StorageRefused, match=said):
        credential_source(environ | other)


def test_the_double_lends_to_awss_own_library_too(
    lender: CredentialsDouble, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (environ | {"AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "eu-central-1"}).items():
        monkeypatch.setenv(name, value)
    theirs = botocore.session.Session().get_credentials().get_frozen_credentials()
    assert (theirs.access_key, theirs.secret_key, theirs.token) == credential_source(environ)()[:3]
    assert lender.credentials_fetched == 2


@pytest.mark.parametrize("region", ["eu-central-1", "us-east-1", "us-gov-west-1", "cn-north-1"])
def test_the_service_is_looked_for_where_awss_own_library_looks(region: str) -> None:
    client = botocore.session.Session().create_client("sts", region, config=Config(signature_version=UNSIGNED))
    assert credential_sources._sts_url({"AWS_REGION": region}) == f"{client.meta.endpoint_url}/"  # noqa: SLF001 - nothing is sent


def test_without_a_region_the_service_is_the_one_for_all() -> None:
    assert credential_sources._sts_url({}) == "https://sts.amazonaws.com/"  # noqa: SLF001 - nothing is sent
