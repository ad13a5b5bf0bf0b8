"""Media types and digests: files and blob claims accept the same values."""

import pytest

from callsheet.blobs.base import validate_blob_claim
from callsheet.core.decisions.files import check_file
from callsheet.core.model.errors import BadInput
from callsheet.core.policy.engine_limits import Limits

DIGEST = "0f" * 32


@pytest.mark.parametrize(
    "media_type",
    ["image/png", "application/vnd.x_y+json", "text/plain; charset=utf-8", "video/mp4;a=1; b=2", "x/y!#$&^"],
)
def test_a_media_type_that_a_file_may_have_is_valid_in_a_blob_claim(media_type: str) -> None:
    check_file("a", media_type, 1, DIGEST, Limits())
    validate_blob_claim(media_type=media_type, size=1, sha256=DIGEST)
    assert "/" in media_type


@pytest.mark.parametrize(
    ("media_type", "sha256"),
    [
        ("image", DIGEST), ("image/png\r\nx: y", DIGEST), ("image/png\n", DIGEST), ("imäge/png", DIGEST),
        ("a/b/c", DIGEST), ('text/plain; a="b"', DIGEST), ("a" * 65 + "/b", DIGEST), ("image/png", DIGEST.upper()),
        ("image/png", DIGEST[1:]), ("image/png", DIGEST + "\n"),
    ],
)  # fmt: skip
def test_an_invalid_media_type_or_digest_is_refused_for_files_and_for_blob_claims(media_type: str, sha256: str) -> None:
    with pytest.raises(BadInput, match=r"(media type|SHA-256) .* is invalid"):
        check_file("a", media_type, 1, sha256, Limits())
    with pytest.raises(ValueError, match=r"type/subtype|hexadecimal"):
        validate_blob_claim(media_type=media_type, size=1, sha256=sha256)
