"""What every blob store does: the same tests on the local folder, on a strict double of S3 and on a real server.

Rclone's server lacks two features of S3. Where they matter, the test says what happens there instead.
"""

import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
import pytest

from callsheet.blobs import object_keys
from callsheet.blobs.base import BlobExistsError, BlobMismatchError, DeleteSummary, Stat, verify_claim
from callsheet.blobs.s3.store import S3Blobs
from tests.support.doubles.blob_stores import Store, digest, grant_upload_of

BODY = b"\x89PNG not much of a picture"
OTHER = bytes(reversed(BODY))
RACERS = 8


def list_keys(store: Store, tenant: str) -> list[str]:
    return [one.key for one in store.blobs.list(f"{tenant}/", "", 1_000)]


def has_status(answer: httpx.Response, *statuses: int) -> bool:
    return answer.status_code in statuses


# -- by the server itself


def test_markers_are_added_once_and_are_no_blobs(store: Store) -> None:
    existing = set(store.blobs.markers())
    for _ in range(2):
        store.blobs.add_marker("a.b")
    assert set(store.blobs.markers()) - existing == {"a.b"}
    assert (store.blobs.has_marker("a.b"), store.blobs.has_marker("a.c")) == (True, False)
    assert not any(entry.key.startswith(".") for entry in store.blobs.list("", "", 1_000))
    for _ in range(2):
        store.blobs.remove_marker("a.b")
    assert set(store.blobs.markers()) == existing


@pytest.mark.parametrize("size", [0, 1, 300_000, 3_000_001])
def test_stored_bytes_are_read_back_unchanged(store: Store, key: str, tmp_path: Path, size: int) -> None:
    body = (b"0123456789" * (size // 10 + 1))[:size]
    for name, source in (("bytes", body), ("path", tmp_path / "body")):
        if isinstance(source, Path):
            source.write_bytes(body)
        store.blobs.put(f"{key}-{name}", source)
        with store.blobs.open(f"{key}-{name}") as file:
            assert file.read() == body
        stat = store.blobs.stat(f"{key}-{name}")
        assert stat is not None
        assert (stat.size, stat.sha256 or digest(body)) == (size, digest(body))
        verify_claim(store.blobs, f"{key}-{name}", size=size, sha256=digest(body))


def test_a_blob_is_read_from_any_position(store: Store, key: str) -> None:
    body = b"".join(b"%07d\n" % number for number in range(100_000))
    store.blobs.put(key, body)
    with store.blobs.open(key) as file:
        assert file.seek(0, io.SEEK_END) == len(body)
        assert file.read(10) == b""
        for at, count in ((700_000, 9), (0, 5), (5, 600_000), (len(body) - 3, 100), (1, 1)):
            assert (file.seek(at), file.read(count)) == (at, body[at : at + count])


def test_a_missing_blob_is_reported_as_missing(store: Store, key: str) -> None:
    assert store.blobs.stat(key) is None
    assert store.blobs.delete([key]) == DeleteSummary(0, 0)
    with pytest.raises(FileNotFoundError):
        store.blobs.open(key)
    with pytest.raises(FileNotFoundError):
        verify_claim(store.blobs, key, size=1, sha256=digest(b"x"))


def test_the_same_bytes_can_be_stored_again_and_other_bytes_cannot(store: Store, key: str) -> None:
    store.blobs.put(key, BODY)
    store.blobs.put(key, BODY)
    if "write_once" in store.missing_features:
        assert isinstance(store.blobs, S3Blobs)
        assert "write_once" in store.blobs.weaknesses()
        return
    with pytest.raises(BlobExistsError):
        store.blobs.put(key, OTHER)
    assert store.blobs.stat(key) == Stat(len(BODY), digest(BODY))


def test_a_preview_can_be_overwritten(store: Store, key: str) -> None:
    for body in (BODY, OTHER, b""):
        store.blobs.put(key, body, overwrite=True)
        with store.blobs.open(key) as file:
            assert file.read() == body


@pytest.mark.parametrize(
    ("claim", "field"), [({"size": 1}, "size"), ({"sha256": digest(OTHER)}, "digest")], ids=["size", "digest"]
)
def test_a_wrong_size_or_digest_is_detected(store: Store, key: str, claim: dict[str, Any], field: str) -> None:
    store.blobs.put(key, BODY)
    with pytest.raises(BlobMismatchError) as mismatch:
        verify_claim(store.blobs, key, **{"size": len(BODY), "sha256": digest(BODY), **claim})
    assert mismatch.value.field == field


# -- upload grants


def test_an_upload_grant_stores_its_bytes_once(store: Store, key: str) -> None:
    grant = grant_upload_of(store.blobs, key, BODY)
    assert (grant.method, grant.expires_in_seconds) == ("PUT", 60)
    assert key not in grant.headers.values()
    assert store.send(grant, BODY).is_success
    verify_claim(store.blobs, key, size=len(BODY), sha256=digest(BODY))
    again = store.send(grant, BODY)
    assert again.status_code == (200 if "write_once" in store.missing_features else 412)


def test_a_second_upload_grant_for_a_key_overwrites_nothing(store: Store, key: str) -> None:
    assert store.send(grant_upload_of(store.blobs, key, BODY), BODY).is_success
    late = store.send(grant_upload_of(store.blobs, key, OTHER), OTHER)
    assert late.status_code == (200 if "write_once" in store.missing_features else 412)
    kept = OTHER if "write_once" in store.missing_features else BODY
    with store.blobs.open(key) as file:
        assert file.read() == kept


@pytest.mark.parametrize(
    ("body", "headers", "statuses"),
    [
        (BODY + b"!", {"content-length": str(len(BODY) + 1)}, (403, 422)),
        (BODY[:-1], {"content-length": str(len(BODY) - 1)}, (403, 422)),
        (b"", {"content-length": "0"}, (403, 422)),
        (BODY, {"content-type": "text/html"}, (403, 422)),
    ],
    ids=["longer", "shorter", "nothing", "other type"],
)
def test_an_upload_of_another_size_or_media_type_is_refused(
    store: Store, tenant: str, key: str, body: bytes, headers: dict[str, str], statuses: tuple[int, ...]
) -> None:
    answer = store.send(grant_upload_of(store.blobs, key, BODY), body, headers=headers)
    assert has_status(answer, *statuses), answer.text
    assert list_keys(store, tenant) == []


def test_bytes_with_another_digest_are_refused_or_detected(store: Store, tenant: str, key: str) -> None:
    answer = store.send(grant_upload_of(store.blobs, key, BODY), OTHER)
    if "digest" in store.missing_features:  # it accepts them and reports the claimed digest, so the bytes are read
        assert answer.is_success
        with pytest.raises(BlobMismatchError):
            verify_claim(store.blobs, key, size=len(BODY), sha256=digest(BODY))
        return
    assert has_status(answer, 400, 422), answer.text
    assert list_keys(store, tenant) == []


@pytest.mark.parametrize("omitted", ["content-type", "if-none-match", "x-amz-checksum-sha256"])
def test_no_header_of_a_grant_can_be_omitted(store: Store, tenant: str, key: str, omitted: str) -> None:
    grant = grant_upload_of(store.blobs, key, BODY)
    headers = {name: value for name, value in grant.headers.items() if name != omitted}
    answer = store.client.put(store.absolute_url(grant.url), headers=headers, content=BODY)
    if omitted in grant.headers:
        assert has_status(answer, 403, 422), answer.text
        assert list_keys(store, tenant) == []
    else:  # the token in a local URL contains these values
        assert (store.name, answer.is_success) == ("local", True)


def test_a_body_without_a_length_is_refused(store: Store, tenant: str, key: str) -> None:
    grant = grant_upload_of(store.blobs, key, BODY)
    headers = {name: value for name, value in grant.headers.items() if name != "content-length"}
    answer = store.client.put(store.absolute_url(grant.url), headers=headers, content=iter([BODY]))
    assert has_status(answer, 403, 411), answer.text
    assert list_keys(store, tenant) == []


# -- signatures


def replace_character(text: str, at: int) -> str:
    """Return a text with another character at a position."""
    return text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]


def forge_urls(store: Store, grant_url: str) -> list[str]:
    """Return copies of a URL with one character changed: in the key, the time, the signature and at both ends."""
    if store.name == "local":
        start = len("/v1/blobs/")
        return [replace_character(grant_url, at) for at in range(start, len(grant_url) - 1, 7)]
    marks = ["/uploads/", "X-Amz-Date=", "X-Amz-Expires=", "X-Amz-Signature=", "X-Amz-Credential=", "SignedHeaders="]
    longer = grant_url.replace("X-Amz-Expires=60", "X-Amz-Expires=600")
    return [longer, *(replace_character(grant_url, grant_url.index(mark) + len(mark)) for mark in marks)]


def test_a_changed_signed_url_is_refused(store: Store, tenant: str, key: str) -> None:
    urls = forge_urls(store, grant_upload_of(store.blobs, key, BODY).url)
    assert len(urls) > 5
    for url in urls:
        answer = store.send(grant_upload_of(store.blobs, key, BODY), BODY, url=url)
        assert has_status(answer, 400, 403), (url, answer.status_code, answer.text)
    assert list_keys(store, tenant) == []


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST", "HEAD"])
def test_an_upload_grant_allows_no_other_method(store: Store, key: str, method: str) -> None:
    store.blobs.put(key, BODY)
    answer = store.send(grant_upload_of(store.blobs, key, BODY), BODY, method=method)
    assert has_status(answer, 403, 405), answer.text
    assert BODY not in answer.content
    assert store.blobs.stat(key) is not None


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_download_grant_allows_no_change(store: Store, key: str, method: str) -> None:
    store.blobs.put(key, BODY)
    grant = store.blobs.grant_download(key, expires_in_seconds=60, name="a.png", media_type="image/png")
    assert has_status(store.send(grant, b"", method=method), 403, 405)
    verify_claim(store.blobs, key, size=len(BODY), sha256=digest(BODY))


def test_a_signed_url_expires(store: Store, tenant: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    long_ago = 1_700_000_000.0
    owner = store.blobs._transport if isinstance(store.blobs, S3Blobs) else store.blobs  # noqa: SLF001 - its clock
    monkeypatch.setattr(owner, "_now", lambda: long_ago)
    put = grant_upload_of(store.blobs, key, BODY)
    get = store.blobs.grant_download(key, expires_in_seconds=60, name="a.png", media_type="image/png")
    monkeypatch.undo()
    assert has_status(store.send(put, BODY), 400, 403)
    assert list_keys(store, tenant) == []
    store.blobs.put(key, BODY)
    answer = store.send(get)
    assert has_status(answer, 400, 403)
    assert BODY not in answer.content


# -- download grants


def test_a_download_has_its_bytes_media_type_and_name(store: Store, key: str) -> None:
    store.blobs.put(key, BODY)
    answer = store.send(
        store.blobs.grant_download(key, expires_in_seconds=60, name="my film.png", media_type="image/png")
    )
    assert (answer.status_code, answer.content) == (200, BODY)
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["content-disposition"] == 'inline; filename="my_film.png"'


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "C:\\x", "a\0b", ".htaccess", "x" * 4_096, 'a"; filename="b', "a\r\nSet-Cookie: b", ""]
)
def test_a_hostile_file_name_is_sanitized(store: Store, tenant: str, key: str, name: str) -> None:
    store.blobs.put(key, BODY)
    answer = store.send(store.blobs.grant_download(key, expires_in_seconds=60, name=name, media_type="text/html"))
    assert (answer.status_code, answer.content) == (200, BODY)
    assert answer.headers["content-type"] == "application/octet-stream"
    disposition = answer.headers["content-disposition"]
    assert disposition.startswith('attachment; filename="')
    assert not set(disposition[len('attachment; filename="') : -1]) & set('/\\"\r\n\0')
    assert "set-cookie" not in answer.headers
    assert list_keys(store, tenant) == [key]


@pytest.mark.parametrize("range_header", ["bytes=2-5", "bytes=5-", "bytes=-4"])
def test_a_range_request_returns_that_part(store: Store, key: str, range_header: str) -> None:
    store.blobs.put(key, BODY)
    answer = store.send(
        store.blobs.grant_download(key, expires_in_seconds=60, name="a", media_type="image/png"),
        headers={"range": range_header},
    )
    part = {"bytes=2-5": BODY[2:6], "bytes=5-": BODY[5:], "bytes=-4": BODY[-4:]}[range_header]
    assert (answer.is_success, answer.content) == (True, part)
    assert answer.headers["content-range"].endswith(f"/{len(BODY)}")


def test_a_download_of_a_deleted_blob_answers_404(store: Store, key: str) -> None:
    store.blobs.put(key, BODY)
    grant = store.blobs.grant_download(key, expires_in_seconds=60, name="a", media_type="image/png")
    assert store.send(grant).is_success
    store.blobs.delete([key])
    assert store.send(grant).status_code == 404


# -- races and late uploads


def test_one_of_many_concurrent_uploads_wins(store: Store, key: str) -> None:
    bodies = [b"%d" % number * 50_000 for number in range(RACERS)]
    grants = [grant_upload_of(store.blobs, key, body) for body in bodies]
    gate = Barrier(RACERS)

    def race(number: int) -> int:
        gate.wait(30)
        return store.send(grants[number], bodies[number]).status_code

    with ThreadPoolExecutor(RACERS) as pool:
        answers = list(pool.map(race, range(RACERS)))
    winners = [bodies[number] for number, status in enumerate(answers) if status < 300]
    if "write_once" in store.missing_features:  # several can win there, or none, so claims are always verified
        with suppress(FileNotFoundError), store.blobs.open(key) as file:
            assert file.read() in bodies
        return
    with store.blobs.open(key) as file:
        assert [file.read()] == winners
    assert set(answers) <= {200, 204, 412, 429}


def test_an_upload_after_a_delete_is_refused_or_listed_for_the_collector(store: Store, tenant: str) -> None:
    key = object_keys.output_key(tenant, "job", "task", 1, 1)
    grant = grant_upload_of(store.blobs, key, BODY)
    store.blobs.put(key, BODY)
    assert store.blobs.delete_prefix(object_keys.job_prefix(tenant, "job")) == DeleteSummary(1, len(BODY))
    assert list_keys(store, tenant) == []
    assert store.send(grant, BODY).status_code in ({410} if store.name == "local" else {200, 204})
    assert list_keys(store, tenant) == ([] if store.name == "local" else [key])


# -- list and delete


def test_keys_are_listed_in_byte_order_page_by_page(store: Store, tenant: str) -> None:
    names = ["a", "a-b/x", "a.b", "a/x", "a/y/1", "a0", "b:c", "B", "job/t/10/1", "job/t/2/1", "job/t/2/preview"]
    paths = [f"{tenant}/{name}" for name in names if store.name == "s3 double" or name != "a"]
    for path in paths:  # in a folder, a name is either a file or a folder; our ids are never both
        store.blobs.put(path, path.encode())
    pages: list[str] = []
    while page := store.blobs.list(f"{tenant}/", pages[-1] if pages else "", 3):
        assert len(page) <= 3
        assert [one.size for one in page] == [len(one.key) for one in page]
        assert all(one.modified_at > 1_700_000_000_000_000 for one in page)
        pages += [one.key for one in page]
    assert pages == sorted(paths, key=str.encode)
    later = [one.key for one in store.blobs.list(f"{tenant}/", f"{tenant}/a/", 100)]
    assert later == [path for path in pages if path > f"{tenant}/a/"]
    inner = [one.key for one in store.blobs.list(f"{tenant}/job/t/2/", "", 100)]
    assert inner == [f"{tenant}/job/t/2/1", f"{tenant}/job/t/2/preview"]


def test_a_delete_returns_what_it_freed_and_keeps_other_keys(store: Store, tenant: str) -> None:
    mine = [object_keys.output_key(tenant, "1", "task", attempt, no) for attempt in (1, 2) for no in (1, 2)]
    others = [object_keys.output_key(tenant, "10", "task", 1, 1), object_keys.upload_key(tenant, "1")]
    for key in (*mine, *others):
        store.blobs.put(key, BODY)
    assert store.blobs.delete([mine[0], f"{tenant}/uploads/nothing"]) == DeleteSummary(1, len(BODY))
    assert store.blobs.delete_prefix(object_keys.job_prefix(tenant, "1")) == DeleteSummary(3, 3 * len(BODY))
    assert store.blobs.delete_prefix(object_keys.job_prefix(tenant, "1")) == DeleteSummary(0, 0)
    assert list_keys(store, tenant) == sorted(others)


def test_an_invalid_prefix_deletes_nothing(store: Store, key: str) -> None:
    store.blobs.put(key, BODY)
    for prefix in ("", "/", key, "../", f"{key}/../"):
        with pytest.raises(ValueError, match=r"blob|prefix|ids"):
            store.blobs.delete_prefix(prefix)
    assert store.blobs.stat(key) is not None


HOSTILE = [
    "", "/", "..", "../../etc/passwd", "t/../../x", "t//x", "/etc/passwd", "t/x/", "t/a\0b", "t/a\nb", "t/.htaccess",
    "C:\\x", "t/" + "x" * 4_096, "t/é", "t/%2e%2e", "t/a b", "~/x",
]  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE)
def test_an_invalid_key_is_refused_by_every_call(store: Store, hostile: str) -> None:
    blobs = store.blobs
    for call in (
        lambda: blobs.put(hostile, BODY), lambda: blobs.open(hostile), lambda: blobs.stat(hostile),
        lambda: blobs.delete([hostile]), lambda: grant_upload_of(blobs, hostile, BODY),
        lambda: blobs.grant_download(hostile, expires_in_seconds=1, name="a", media_type="image/png"),
        lambda: blobs.grant_overwrite(hostile, bytes_max=9, media_type="image/png", expires_in_seconds=1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="must consist of ids") as error:
            call()
        assert hostile not in str(error.value) or not hostile


@pytest.mark.parametrize(
    "media_type", ["", "png", "image/png\r\nx: y", "image/png\n", "a/b/c", "image/é", "a/" + "b" * 99]
)
def test_an_invalid_media_type_is_not_signed(store: Store, key: str, media_type: str) -> None:
    with pytest.raises(ValueError, match="media type"):
        grant_upload_of(store.blobs, key, BODY, media_type=media_type)


def test_an_overwrite_grant_can_be_used_repeatedly(store: Store, key: str) -> None:
    grant = store.blobs.grant_overwrite(key, bytes_max=100, media_type="image/png", expires_in_seconds=60)
    for body in (BODY, OTHER):
        assert store.send(grant, body).is_success
        with store.blobs.open(key) as file:
            assert file.read() == body
    assert has_status(store.send(grant, BODY, headers={"content-type": "text/html"}), 403, 422)
    large = store.send(grant, b"x" * 101)
    assert large.status_code == (413 if store.name == "local" else 200), "a signed S3 PUT cannot limit the size"
