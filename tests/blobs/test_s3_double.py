"""The S3 double refuses what S3 refuses, so that our tests notice the same mistakes."""

from collections.abc import Iterator

import httpx
import pytest

from callsheet.blobs.s3.sigv4 import S3Credentials, SigV4Signer
from callsheet.blobs.s3.transport import S3Location
from tests.support.doubles.blob_stores import digest
from tests.support.doubles.s3_double import ACCESS, BUCKET, REGION, SECRET, S3Double

KEYS = S3Credentials(ACCESS, SECRET)
BODY = b"five!"


@pytest.fixture(scope="module")
def double() -> Iterator[S3Double]:
    with S3Double() as made:
        yield made


def url_of(double: S3Double, key: str = "k") -> str:
    return S3Location(bucket=BUCKET, region=REGION, endpoint=double.endpoint).url(key)


def send_signed(double: S3Double, **changed: str) -> tuple[int, str]:
    """Send a PUT request whose headers were changed after they were signed."""
    signed = SigV4Signer(REGION).headers(
        KEYS, "PUT", url_of(double), {"content-length": "5"}, digest(BODY), double.now()
    )
    headers = {name: value for name, value in (signed | changed).items() if value}
    with httpx.Client(verify=False) as client:
        answer = client.put(url_of(double), headers=headers, content=BODY)
    return answer.status_code, answer.text


def test_a_signed_request_is_accepted(double: S3Double) -> None:
    assert send_signed(double) == (200, "")
    assert double.objects.pop("k").body == BODY


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"authorization": ""}, "AccessDenied"),
        ({"x-amz-date": "20130524T000000Z"}, "RequestTimeTooSkewed"),
        ({"x-amz-content-sha256": digest(b"other")}, "XAmzContentSHA256Mismatch"),
        ({"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}, "SignatureDoesNotMatch"),
        ({"x-amz-acl": "public-read"}, "AccessDenied"),
        ({"x-amz-security-token": "token"}, "InvalidToken"),
        ({"host": "elsewhere"}, "SignatureDoesNotMatch"),
    ],
    ids=["unsigned", "old", "other body", "body unsigned", "header unsigned", "token", "host"],
)
def test_a_request_that_was_changed_after_signing_is_refused(
    double: S3Double, changed: dict[str, str], code: str
) -> None:
    status, text = send_signed(double, **changed)
    assert (status in {400, 403}, f"<Code>{code}</Code>" in text) == (True, True), text
    assert double.objects == {}


def test_a_url_with_one_changed_character_in_its_signature_is_refused(double: S3Double) -> None:
    url = SigV4Signer(REGION).presign_url(KEYS, "PUT", url_of(double), {}, 60, double.now())
    with httpx.Client(verify=False) as client:
        for at in range(len(url) - 64, len(url)):
            forged = url[:at] + ("0" if url[at] != "0" else "1") + url[at + 1 :]
            assert client.put(forged, content=BODY).status_code == 403
        assert double.objects == {}
        assert client.put(url, content=BODY).status_code == 200
