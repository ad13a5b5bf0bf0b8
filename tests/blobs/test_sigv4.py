"""AWS signatures: the published examples, and the same results as botocore for our requests."""

import calendar
import datetime as dt
from collections.abc import Callable
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]

from callsheet.blobs.s3.sigv4 import S3Credentials, SigV4Signer, encode_query
from callsheet.blobs.s3.transport import S3Location

# The examples of "Signature Calculations for the Authorization Header" and "… Using Query Parameters" of the S3 API.
KEYS = S3Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
AT = calendar.timegm((2013, 5, 24, 0, 0, 0))
HOST = "https://examplebucket.s3.amazonaws.com"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize(
    ("method", "url", "headers", "payload", "signature"),
    [
        ("GET", f"{HOST}/test.txt", {"Range": "bytes=0-9"}, EMPTY,
         "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        ("PUT", f"{HOST}/test%24file.text",
         {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
         "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
         "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
        ("GET", f"{HOST}/?lifecycle", {}, EMPTY, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("GET", f"{HOST}/?max-keys=2&prefix=J", {}, EMPTY,
         "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
    ids=["get", "put", "lifecycle", "list"],
)  # fmt: skip
def test_the_published_examples_have_the_published_signatures(
    method: str, url: str, headers: dict[str, str], payload: str, signature: str
) -> None:
    signed = SigV4Signer("us-east-1").headers(KEYS, method, url, headers, payload, AT)
    assert signed["authorization"].endswith(f"Signature={signature}")
    assert KEYS.secret_key not in repr(KEYS)


def test_the_published_url_has_the_published_signature() -> None:
    url = SigV4Signer("us-east-1").presign_url(KEYS, "GET", f"{HOST}/test.txt", {}, 86_400, AT)
    assert url == (
        f"{HOST}/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256"
        "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
        "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )


CASES = [
    ("GET", "a/b:c/1", {}, {}),
    ("PUT", "t/jobs/x/y/1/2", {}, {"content-type": "image/png", "content-length": "5", "if-none-match": "*",
                                   "x-amz-checksum-sha256": "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="}),
    ("GET", "k", {"response-content-disposition": 'attachment; filename="a_b.png"',
                  "response-content-type": "image/png"}, {"range": "bytes=1-2"}),
    ("GET", "", {"list-type": "2", "max-keys": "3", "prefix": "a b/é", "start-after": "a+b/~c"}, {}),
    ("POST", "", {"delete": ""}, {"content-md5": "1B2M2Y8AsgTpgAmY7PhCfg==", "content-type": "application/xml"}),
    ("HEAD", "k", {}, {"x-amz-checksum-mode": "ENABLED", "x-odd": "  two   words "}),
]  # fmt: skip
PLACES = [
    S3Location(bucket="films", region="eu-central-1"),
    S3Location(bucket="films.example", region="eu-central-1"),
    S3Location(bucket="films", region="eu-central-1", endpoint="http://127.0.0.1:9000", prefix="some/where/"),
]


def sign_with_botocore(
    make: Callable[[Credentials], Any], method: str, url: str, headers: dict[str, str], keys: S3Credentials
) -> AWSRequest:
    """Let botocore sign the request with the same time."""
    request = AWSRequest(method=method, url=url, headers=headers, data=b"")
    with mock.patch("botocore.auth.get_current_datetime") as now:
        now.return_value = dt.datetime.fromtimestamp(AT, dt.UTC)
        make(Credentials(keys.access_key, keys.secret_key, keys.session_token or None)).add_auth(request)
    return request


@pytest.mark.parametrize("location", PLACES, ids=["in the host", "dots", "endpoint"])
@pytest.mark.parametrize("token", ["", "a/session+token=="], ids=["no token", "token"])
@pytest.mark.parametrize(("method", "key", "query", "headers"), CASES, ids=range(len(CASES)))
def test_botocore_signs_the_same(
    location: S3Location, token: str, method: str, key: str, query: dict[str, str], headers: dict[str, str]
) -> None:
    keys = KEYS._replace(session_token=token)
    url = location.url(key) + ("?" + encode_query(query) if query else "")
    signature = SigV4Signer(location.region)
    other = sign_with_botocore(lambda who: S3SigV4Auth(who, "s3", location.region), method, url, dict(headers), keys)
    mine = signature.headers(keys, method, url, headers, EMPTY, AT)
    assert mine["authorization"] == other.headers["Authorization"]
    other = sign_with_botocore(
        lambda who: S3SigV4QueryAuth(who, "s3", location.region, expires=600), method, url, dict(headers), keys
    )
    mine_url = signature.presign_url(keys, method, url, headers, 600, AT)
    assert parse_qs(urlsplit(mine_url).query) == parse_qs(urlsplit(other.url).query)
    assert urlsplit(mine_url)._replace(query="") == urlsplit(other.url)._replace(query="")


def test_a_signed_url_is_valid_for_one_second_to_one_week() -> None:
    for requested, granted in ((0, 1), (60, 60), (10**9, 604_800)):
        url = SigV4Signer("x").presign_url(KEYS, "GET", f"{HOST}/k", {}, requested, AT)
        assert parse_qs(urlsplit(url).query)["X-Amz-Expires"] == [str(granted)]
