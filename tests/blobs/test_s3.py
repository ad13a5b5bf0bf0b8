"""S3 when it is slow, busy, cut off, forgetful or strict: what is tried again, what is said, and what never leaks."""

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


# -- what goes wrong for a while (F22)


@pytest.mark.parametrize("fault", ["SlowDown", "InternalError", "cut_before"])
@pytest.mark.parametrize("call", ["put", "stat", "open", "list", "delete"])
def test_what_fails_for_a_moment_is_tried_again(double: S3Double, blobs: S3Blobs, fault: str, call: str) -> None:
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
    ("fault", "said"), [("SlowDown", "503 SlowDown"), ("InternalError", "500 InternalError"), ("cut_before", "lost")]
)
def test_what_stays_away_is_named_and_tried_a_few_times_only(
    double: S3Double, blobs: S3Blobs, fault: str, said: str
) -> None:
    double.fail(fault, times=99)
    with pytest.raises(StorageUnavailableError, match=said):
        blobs.put(KEY, BODY)
    assert len(double.requests) == 5
    assert double.objects == {}


def test_nobody_there_is_named(tmp_path: Path) -> None:
    nobody = open_s3_blobs("http://127.0.0.1:9", REGION, KEYS)
    (tmp_path / "body").write_bytes(BODY)
    for body in (BODY, tmp_path / "body"):
        with pytest.raises(StorageUnavailableError, match="unavailable"):
            nobody.put(KEY, body)
    nobody.close()


def test_waits_grow_and_end(double: S3Double) -> None:
    waits: list[float] = []
    location = S3Location(bucket=BUCKET, region=REGION, endpoint=double.endpoint)
    blobs = S3Blobs(location, lambda: KEYS, wait=waits.append)
    double.fail("SlowDown", times=99)
    with pytest.raises(StorageUnavailableError):
        blobs.list("", "", 1)
    assert len(waits) == 4
    assert all(0.05 * 2**no <= wait <= 0.1 * 2**no for no, wait in enumerate(waits, 1))
    blobs.close()


def test_a_put_whose_answer_was_lost_counts_as_done(double: S3Double, blobs: S3Blobs) -> None:
    double.fail("cut_after", method="PUT")
    blobs.put(KEY, BODY)
    assert [method for method, _ in double.requests] == ["PUT", "PUT", "HEAD"]
    assert blobs.stat(KEY) == Stat(len(BODY), digest(BODY))


def test_a_put_whose_answer_was_lost_is_not_done_if_others_bytes_are_there(double: S3Double, blobs: S3Blobs) -> None:
    double.objects[f"some/where/{KEY}"] = StoredObject(b"theirs", "image/png", digest(b"theirs"), 0.0)
    double.fail("cut_before", method="PUT")
    with pytest.raises(BlobExistsError):
        blobs.put(KEY, BODY)
    assert double.objects[f"some/where/{KEY}"].body == b"theirs"


@pytest.mark.parametrize("fault", ["truncated", "cut_before", "SlowDown"])
def test_a_stream_that_breaks_is_taken_up_where_it_broke(double: S3Double, blobs: S3Blobs, fault: str) -> None:
    blobs.put(KEY, BODY)
    double.fail(fault, times=2, method="GET")
    with blobs.open(KEY) as file:
        assert file.read(5) == BODY[:5]
        assert hashlib.sha256(BODY[:5] + file.read()).hexdigest() == digest(BODY)


def test_a_blob_is_read_in_order_over_one_request(double: S3Double, blobs: S3Blobs) -> None:
    blobs.put(KEY, BODY)
    double.requests.clear()
    with blobs.open(KEY) as file:
        assert b"".join(iter(lambda: file.read(70_000), b"")) == BODY
    assert [method for method, _ in double.requests] == ["HEAD", "GET"]


def test_a_blob_that_changes_while_it_is_read_breaks_off(double: S3Double, blobs: S3Blobs) -> None:
    blobs.put(KEY, BODY)
    double.fail("truncated", method="GET")
    with blobs.open(KEY) as file:
        file.read(5)
        double.objects[f"some/where/{KEY}"] = StoredObject(bytes(len(BODY)), "image/png", None, 0.0)
        with pytest.raises(EOFError):
            file.read()


def test_what_is_missing_after_a_write_is_not_taken_for_granted(double: S3Double, blobs: S3Blobs) -> None:
    blobs.put(KEY, BODY)
    double.fail("missing", method="HEAD")
    with pytest.raises(FileNotFoundError):
        verify_claim(blobs, KEY, size=len(BODY), sha256=digest(BODY))
    verify_claim(blobs, KEY, size=len(BODY), sha256=digest(BODY))
    double.objects.clear()  # deleted later
    with pytest.raises(FileNotFoundError):
        verify_claim(blobs, KEY, size=len(BODY), sha256=digest(BODY))


def test_bytes_that_the_store_has_no_digest_of_are_read(double: S3Double, blobs: S3Blobs) -> None:
    double.objects[f"some/where/{KEY}"] = StoredObject(BODY, "image/png", None, 0.0)
    assert blobs.stat(KEY) == Stat(len(BODY), None)
    verify_claim(blobs, KEY, size=len(BODY), sha256=digest(BODY))
    assert double.requests[-1][0] == "GET"


def test_a_store_that_hangs_is_left_alone(double: S3Double, blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs._transport._client, "timeout", httpx.Timeout(0.05))  # noqa: SLF001 - not 30 seconds
    double.fail("hung", times=5)
    with pytest.raises(StorageUnavailableError, match="does not answer"):
        blobs.stat(KEY)
    double.release.set()


# -- what stays wrong until somebody mends it


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"keys": KEYS._replace(secret_key="another-secret")}, "SignatureDoesNotMatch: the secret key"),
        ({"keys": KEYS._replace(access_key="AKIDNOBODY")}, "InvalidAccessKeyId: the access key"),
        ({"keys": KEYS._replace(session_token="old-token")}, "InvalidToken"),
        ({"region": "us-east-1"}, "AuthorizationHeaderMalformed: the region"),
        ({"bucket": "nobodys"}, "NoSuchBucket: there is no such bucket"),
        ({"now": lambda: 1_700_000_000.0}, "RequestTimeTooSkewed: the clock"),
    ],
    ids=["secret", "access key", "token", "region", "bucket", "clock"],
)  # fmt: skip
def test_wrong_settings_are_said_in_a_sentence_without_secrets(
    double: S3Double, changed: dict[str, Any], said: str
) -> None:
    keys = changed.get("keys", KEYS)
    location = S3Location(
        bucket=changed.get("bucket", BUCKET), region=changed.get("region", REGION), endpoint=double.endpoint
    )
    more = {"now": changed["now"]} if "now" in changed else {}
    blobs = S3Blobs(location, lambda: keys, **more)
    with pytest.raises(StorageRefusedError, match=said) as error:
        blobs.put(KEY, BODY)
    assert len(double.requests) == 1, "nothing that will not change is tried again"
    for secret in (*keys, KEY, double.endpoint):
        assert not secret or secret not in str(error.value)
    blobs.close()


def test_a_full_store_is_named(double: S3Double, blobs: S3Blobs) -> None:
    double.fail("QuotaExceeded", method="PUT")
    with pytest.raises(StorageFullError):
        blobs.put(KEY, BODY)


def test_more_than_one_put_takes_is_refused_before_anything_is_sent(double: S3Double, blobs: S3Blobs) -> None:
    with pytest.raises(BlobTooLargeError, match="5 GiB"):
        grant_upload_of(blobs, KEY, b"", size=PUT_BYTES_MAX + 1)
    assert grant_upload_of(blobs, KEY, b"", size=PUT_BYTES_MAX).method == "PUT"
    assert double.requests == []


def test_an_answer_that_is_not_xml_is_said(double: S3Double, blobs: S3Blobs) -> None:
    double.objects["some/where/acme/\x01"] = StoredObject(b"", "", None, 0.0)
    with pytest.raises(StorageRefusedError, match="not XML"):
        blobs.list("acme/", "", 1)


# -- who signs


def test_keys_with_a_session_token_sign_headers_and_addresses() -> None:
    with S3Double(session_token=TOKEN) as double, httpx.Client(verify=False) as client:
        blobs = open_s3_blobs(double.endpoint, REGION, KEYS._replace(session_token=TOKEN))
        grant = grant_upload_of(blobs, KEY, BODY)
        assert client.put(grant.url, headers=grant.headers, content=BODY).is_success
        assert blobs.stat(KEY) == Stat(len(BODY), digest(BODY))
        blobs.close()


def test_new_keys_are_used_from_the_next_request_on(double: S3Double) -> None:
    current = [KEYS._replace(secret_key="old")]
    blobs = S3Blobs(S3Location(bucket=BUCKET, region=REGION, endpoint=double.endpoint), lambda: current[0])
    with pytest.raises(StorageRefusedError):
        blobs.put(KEY, BODY)
    current[0] = KEYS
    blobs.put(KEY, BODY)
    assert blobs.stat(KEY) == Stat(len(BODY), digest(BODY))
    blobs.close()


def test_grants_lead_to_the_public_address_and_the_house_to_the_inner_one(double: S3Double) -> None:
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
