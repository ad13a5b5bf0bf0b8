"""Faults of S3: which requests are retried, which errors are reported, and that no secret is shown."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callsheet.blobs.base import (
    BlobError,
    BlobExistsError,
    BlobTooLargeError,
    DeleteSummary,
    Stat,
    StorageFullError,
    StorageRefusedError,
    StorageUnavailableError,
    verify_claim,
)
from callsheet.blobs.s3.sigv4 import S3Credentials
from callsheet.blobs.s3.store import PUT_BYTES_MAX, S3Blobs
from callsheet.blobs.s3.transport import S3Location
from tests.support.doubles.blob_stores import digest, grant_upload_of, open_s3_blobs
from tests.support.doubles.s3_double import ACCESS, BUCKET, REGION, SECRET, TOKEN, S3Double, StoredObject

KEYS = S3Credentials(ACCESS, SECRET)
KEY = "acme/uploads/file"
BODY = b"0123456789" * 100_000


@pytest.fixture
def double() -> Iterator[S3Double]:
    with S3Double() as made:
        yield made


@pytest.fixture
def blobs(double: S3Double) -> Iterator[S3Blobs]:
    made = open_s3_blobs(double.endpoint, REGION, KEYS)
    assert made.weaknesses() == ()
    double.requests.clear()
    yield made
    made.close()


# -- temporary faults


@pytest.mark.parametrize("fault", ["SlowDown", "InternalError", "cut_before"])
@pytest.mark.parametrize("call", ["put", "stat", "open", "list", "delete"])
def test_a_temporary_fault_is_retried(double: S3Double, blobs: S3Blobs, fault: str, call: str) -> None:
    # F22
    blobs.put("acme/uploads/other", BODY)
    double.fail(fault, times=3)
    if call == "put":
        blobs.put(KEY, BODY)
        assert double.objects[f"some/where/{KEY}"].body == BODY
    elif call == "stat":
        assert blobs.stat("acme/uploads/other") == Stat(len(BODY), digest(BODY))
    elif call == "open":
        assert blobs.open("acme/uploads/other").read() == BODY
    elif call == "list":
        assert [one.key for one in blobs.list("acme/", "", 9)] == ["acme/uploads/other"]
    else:
        assert blobs.delete(["acme/uploads/other"]) == DeleteSummary(1, len(BODY))


@pytest.mark.parametrize(
    ("fault", "message"), [("SlowDown", "503 SlowDown"), ("InternalError", "500 InternalError"), ("cut_before", "lost")]
)
def test_a_lasting_fault_is_reported_after_five_requests(
    double: S3Double, blobs: S3Blobs, fault: str, message: str
) -> None:
    double.fail(fault, times=99)
    with pytest.raises(StorageUnavailableError, match=message):
        blobs.put(KEY, BODY)
    assert len(double.requests) == 5
    assert double.objects == {}


def test_an_unreachable_store_is_reported(tmp_path: Path) -> None:
    unreachable = open_s3_blobs("http://127.0.0.1:9", REGION, KEYS)
    (tmp_path / "body").write_bytes(BODY)
    for body in (BODY, tmp_path / "body"):
        with pytest.raises(StorageUnavailableError, match="unavailable"):
            unreachable.put(KEY, body)
    unreachable.close()


def test_the_delays_between_retries_grow_and_end(double: S3Double) -> None:
    waits: list[float] = []
    location = S3Location(bucket=BUCKET, region=REGION, endpoint=double.endpoint)
    blobs = S3Blobs(location, lambda: KEYS, wait=waits.append)
    double.fail("SlowDown", times=99)
    with pytest.raises(StorageUnavailableError):
        blobs.list("", "", 1)
    assert len(waits) == 4
    assert all(0.05 * 2**no <= wait <= 0.1 * 2**no for no, wait in enumerate(waits, 1))
    blobs.close()


def test_an_upload_whose_response_was_lost_succeeds(double: S3Double, blobs: S3Blobs) -> None:
    double.fail("cut_after", method="PUT")
    blobs.put(KEY, BODY)
    assert [method for method, _ in double.requests] == ["PUT", "PUT", "HEAD"]
    assert blobs.stat(KEY) == Stat(len(BODY), digest(BODY))


def test_a_retried_upload_fails_if_other_bytes_are_stored(double: S3Double, blobs: S3Blobs) -> None:
    double.objects[f"some/where/{KEY}"] = StoredObject(b"theirs", "image/png", digest(b"theirs"), 0.0)
    double.fail("cut_before", method="PUT")
    with pytest.raises(BlobExistsError):
        blobs.put(KEY, BODY)
    assert double.objects[f"some/where/{KEY}"].body == b"theirs"


@pytest.mark.parametrize("fault", ["truncated", "cut_before", "SlowDown"])
def test_an_interrupted_download_resumes_where_it_stopped(double: S3Double, blobs: S3Blobs, fault: str) -> None:
    # F22
    blobs.put(KEY, BODY)
    double.fail(fault, times=2, method="GET")
    with blobs.open(KEY) as file:
        assert file.read(5) == BODY[:5]
        assert hashlib.sha256(BODY[:5] + file.read()).hexdigest() == digest(BODY)


def test_a_blob_is_read_sequentially_with_one_request(double: S3Double, blobs: S3Blobs) -> None:
    blobs.put(KEY, BODY)
    double.requests.clear()
    with blobs.open(KEY) as file:
        assert b"".join(iter(lambda: file.read(70_000), b"")) == BODY
    assert [method for method, _ in double.requests] == ["HEAD", "GET"]


def test_a_read_fails_if_the_blob_changes_meanwhile(double: S3Double, blobs: S3Blobs) -> None:
    blobs.put(KEY, BODY)
    double.fail("truncated", method="GET")
    with blobs.open(KEY) as file:
        file.read(5)
        double.objects[f"some/where/{KEY}"] = StoredObject(bytes(len(BODY)), "image/png", None, 0.0)
        with pytest.raises(EOFError):
            file.read()


def test_a_claim_fails_while_the_blob_is_missing(double: S3Double, blobs: S3Blobs) -> None:
    blobs.put(KEY, BODY)
    double.fail("missing", method="HEAD")
    with pytest.raises(FileNotFoundError):
        verify_claim(blobs, KEY, size=len(BODY), sha256=digest(BODY))
    verify_claim(blobs, KEY, size=len(BODY), sha256=digest(BODY))
    double.objects.clear()  # deleted later
    with pytest.raises(FileNotFoundError):
        verify_claim(blobs, KEY, size=len(BODY), sha256=digest(BODY))


def test_bytes_without_a_stored_digest_are_read(double: S3Double, blobs: S3Blobs) -> None:
    double.objects[f"some/where/{KEY}"] = StoredObject(BODY, "image/png", None, 0.0)
    assert blobs.stat(KEY) == Stat(len(BODY), None)
    verify_claim(blobs, KEY, size=len(BODY), sha256=digest(BODY))
    assert double.requests[-1][0] == "GET"


def test_a_store_that_does_not_respond_is_reported(
    double: S3Double, blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs._transport._client, "timeout", httpx.Timeout(0.05))  # noqa: SLF001 - not 30 seconds
    double.fail("hung", times=5)
    with pytest.raises(StorageUnavailableError, match="does not answer"):
        blobs.stat(KEY)
    double.release.set()


# -- permanent errors


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"keys": KEYS._replace(secret_key="another-secret")}, "SignatureDoesNotMatch: the secret key"),
        ({"keys": KEYS._replace(access_key="AKIDNOBODY")}, "InvalidAccessKeyId: the access key"),
        ({"keys": KEYS._replace(session_token="old-token")}, "InvalidToken"),
        ({"region": "us-east-1"}, "AuthorizationHeaderMalformed: the region"),
        ({"bucket": "missing"}, "NoSuchBucket: there is no such bucket"),
        ({"now": lambda: 1_700_000_000.0}, "RequestTimeTooSkewed: the clock"),
    ],
    ids=["secret", "access key", "token", "region", "bucket", "clock"],
)  # fmt: skip
def test_a_wrong_setting_is_reported_without_secrets(double: S3Double, changed: dict[str, Any], message: str) -> None:
    keys = changed.get("keys", KEYS)
    location = S3Location(
        bucket=changed.get("bucket", BUCKET), region=changed.get("region", REGION), endpoint=double.endpoint
    )
    more = {"now": changed["now"]} if "now" in changed else {}
    blobs = S3Blobs(location, lambda: keys, **more)
    with pytest.raises(StorageRefusedError, match=message) as error:
        blobs.put(KEY, BODY)
    assert len(double.requests) == 1, "a permanent error is not retried"
    for secret in (*keys, KEY, double.endpoint):
        assert not secret or secret not in str(error.value)
    blobs.close()


def test_a_full_store_is_reported(double: S3Double, blobs: S3Blobs) -> None:
    double.fail("QuotaExceeded", method="PUT")
    with pytest.raises(StorageFullError):
        blobs.put(KEY, BODY)


def test_a_file_above_the_limit_of_s3_is_refused_before_anything_is_sent(double: S3Double, blobs: S3Blobs) -> None:
    with pytest.raises(BlobTooLargeError, match="5 GiB"):
        grant_upload_of(blobs, KEY, b"", size=PUT_BYTES_MAX + 1)
    assert grant_upload_of(blobs, KEY, b"", size=PUT_BYTES_MAX).method == "PUT"
    assert double.requests == []


def test_a_response_that_is_not_xml_is_reported(double: S3Double, blobs: S3Blobs) -> None:
    double.objects["some/where/acme/\x01"] = StoredObject(b"", "", None, 0.0)
    with pytest.raises(StorageRefusedError, match="not XML"):
        blobs.list("acme/", "", 1)


# -- credentials


def test_a_session_token_is_signed_into_headers_and_urls() -> None:
    with S3Double(session_token=TOKEN) as double, httpx.Client(verify=False) as client:
        blobs = open_s3_blobs(double.endpoint, REGION, KEYS._replace(session_token=TOKEN))
        grant = grant_upload_of(blobs, KEY, BODY)
        assert client.put(grant.url, headers=grant.headers, content=BODY).is_success
        assert blobs.stat(KEY) == Stat(len(BODY), digest(BODY))
        blobs.close()


def test_new_credentials_are_used_by_the_next_request(double: S3Double) -> None:
    current = [KEYS._replace(secret_key="old")]
    blobs = S3Blobs(S3Location(bucket=BUCKET, region=REGION, endpoint=double.endpoint), lambda: current[0])
    with pytest.raises(StorageRefusedError):
        blobs.put(KEY, BODY)
    current[0] = KEYS
    blobs.put(KEY, BODY)
    assert blobs.stat(KEY) == Stat(len(BODY), digest(BODY))
    blobs.close()


def test_grants_use_the_public_endpoint_and_the_server_the_internal_one(double: S3Double) -> None:
    location = S3Location(
        bucket=BUCKET, region=REGION, endpoint=double.endpoint, public_endpoint="https://files.example:8443"
    )
    blobs = S3Blobs(location, lambda: KEYS)
    assert grant_upload_of(blobs, KEY, BODY).url.startswith(f"https://files.example:8443/{BUCKET}/{KEY}?")
    blobs.put(KEY, BODY)
    assert double.requests == [("PUT", f"/{BUCKET}/{KEY}")]
    blobs.close()


def test_many_threads_share_one_store(double: S3Double, blobs: S3Blobs) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            blobs.put(f"acme/uploads/{number}", b"%d" % number)
            assert blobs.stat(f"acme/uploads/{number}") == Stat(len(str(number)), digest(b"%d" % number))
        except (AssertionError, BlobError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert len(double.objects) == 16


def test_a_large_prefix_is_deleted_page_by_page(double: S3Double, blobs: S3Blobs) -> None:
    for number in range(2_345):
        double.objects[f"some/where/acme/jobs/j/{number:05}"] = StoredObject(b"xy", "", None, 0.0)
    double.objects["some/where/acme/jobs/k/1"] = StoredObject(b"xy", "", None, 0.0)
    double.objects["elsewhere/acme/jobs/j/1"] = StoredObject(b"xy", "", None, 0.0)
    assert len(blobs.list("acme/", "", 1_500)) == 1_500
    assert blobs.delete_prefix("acme/jobs/j/") == DeleteSummary(2_345, 4_690)
    assert sorted(double.objects) == ["elsewhere/acme/jobs/j/1", "some/where/acme/jobs/k/1"]
