"""Signed addresses of the folder: bodies go to the disk as they come, and every lie has a name of its own."""

import errno
import hashlib
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callsheet.blobs.base import PURPOSE, BlobFact, Grant
from callsheet.blobs.s3 import S3Blobs
from callsheet.blobs.s3wire import S3Place
from callsheet.blobs.sigv4 import S3Keys
from callsheet.config import HttpSettings
from callsheet.http.faults import problem_from
from callsheet.http.sending import CHUNK
from tests.support.stores import Bare, digest, granted
from tests.support.waiting import wait_until

OURS, FOREIGN = "https://app.example", "https://evil.example"
BODY = b"\x89PNG not much of a picture"
MEGABYTE = 1024 * 1024
STEP = 64 * 1024


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    """No database is asked here, so one is enough."""
    data = tmp_path_factory.mktemp("blobs")
    with Bare(data / "callsheet.db", data, HttpSettings(cors_origins=(OURS,), body_seconds=1.0)) as made:
        yield made
        for client in made._clients:  # noqa: SLF001 - it gave them out
            client.close()


@pytest.fixture(scope="module")
def client(house: Bare) -> httpx.Client:
    return house.client(None)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"acme/uploads/{hashlib.sha256(request.node.name.encode()).hexdigest()}"


def put(client: httpx.Client, grant: Grant, body: bytes = BODY, **headers: str) -> httpx.Response:
    return client.put(grant.url, headers=grant.headers | headers, content=body)


def incoming(house: Bare) -> list[Path]:
    folder = house.blobs.path("x").parent / ".incoming"
    return list(folder.iterdir()) if folder.exists() else []


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


# -- sending


def test_bytes_arrive_and_are_read_back(house: Bare, client: httpx.Client, key: str) -> None:
    answer = put(client, granted(house.blobs, key, BODY))
    assert (answer.status_code, answer.content) == (204, b"")
    got = client.get(house.blobs.grant_get(key, seconds=60, name="a.png", media_type="image/png").url)
    assert (got.status_code, got.content) == (200, BODY)
    assert (got.headers["cache-control"], got.headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert "sandbox" in got.headers["content-security-policy"]


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * MEGABYTE + 3])
def test_bodies_of_any_size_arrive_whole(house: Bare, client: httpx.Client, key: str, size: int) -> None:
    body = (b"0123456789" * (size // 10 + 1))[:size]
    assert put(client, granted(house.blobs, key, body), body).status_code == 204
    assert house.blobs.path(key).read_bytes() == body
    assert incoming(house) == []


LIES: list[tuple[str, bytes, dict[str, str], tuple[int, str]]] = [
    ("longer", BODY + b"!", {"content-length": str(len(BODY) + 1)}, (422, "size_mismatch")),
    ("shorter", BODY[1:], {"content-length": str(len(BODY) - 1)}, (422, "size_mismatch")),
    ("other bytes", BODY[::-1], {}, (422, "digest_mismatch")),
    ("other type", BODY, {"content-type": "text/html"}, (422, "type_mismatch")),
    ("compressed", BODY, {"content-encoding": "gzip"}, (415, "unsupported_encoding")),
]


@pytest.mark.parametrize(("body", "headers", "said"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
def test_every_lie_has_its_name_and_leaves_nothing(
    house: Bare, client: httpx.Client, key: str, body: bytes, headers: dict[str, str], said: tuple[int, str]
) -> None:
    grant = granted(house.blobs, key, BODY)
    answer = put(client, grant, body, **headers)
    assert code(answer) == said
    assert (house.blobs.has(key), incoming(house)) == (False, [])
    assert key not in answer.text
    assert put(client, grant).status_code == 204, "the grant is still good for the truth"


def test_a_second_put_is_refused_before_its_body_is_asked_for(house: Bare, client: httpx.Client, key: str) -> None:
    grant = granted(house.blobs, key, BODY)
    assert put(client, grant).status_code == 204
    assert code(put(client, grant)) == (412, "already_put")
    sender = Sender(house, grant, len(BODY), "Expect: 100-continue\r\n")
    assert sender.hear().startswith(b"HTTP/1.1 412")


def test_a_refusal_is_heard_by_who_still_sends_a_large_body(house: Bare, client: httpx.Client, key: str) -> None:
    body = b"x" * 8 * MEGABYTE
    house.blobs.put(key, BODY)
    assert code(put(client, granted(house.blobs, key, body), body)) == (412, "already_put")
    assert code(put(client, granted(house.blobs, key, body, seconds=-2), body)) == (403, "url_expired")


def test_a_body_without_its_length_is_refused(house: Bare, client: httpx.Client, key: str) -> None:
    grant = granted(house.blobs, key, BODY)
    headers = {"content-type": "image/png"}
    assert code(client.put(grant.url, headers=headers, content=iter([BODY]))) == (411, "length_required")
    preview = house.blobs.grant_put_over(key, bytes_max=9, media_type="image/png", seconds=60)
    assert code(client.put(preview.url, headers=headers, content=iter([BODY]))) == (411, "length_required")
    assert code(put(client, preview)) == (413, "body_too_large")
    assert not house.blobs.has(key)


def test_a_body_that_says_its_length_in_two_ways_is_not_read(house: Bare, key: str) -> None:
    sender = Sender(house, granted(house.blobs, key, BODY), len(BODY), "Transfer-Encoding: chunked\r\n")
    sender.send(b"400\r\n" + b"x" * 0x400 + b"\r\n0\r\n\r\n")
    assert sender.hear().startswith(b"HTTP/1.1 400")
    assert (house.blobs.has(key), incoming(house)) == (False, [])


# -- who may


def fact(method: str, key: str, **more: Any) -> BlobFact:
    return BlobFact(method, key, int(time.time()) + 60, "image/png", **more)


@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD"])
def test_only_what_we_signed_for_this_opens_anything(house: Bare, client: httpx.Client, key: str, method: str) -> None:
    signed = house.callsheet.house.signed
    allowed = "PUT" if method == "PUT" else "GET"
    right = fact(allowed, key, size=len(BODY), sha256=digest(BODY))
    texts = {
        "nothing of ours": "x", "empty": "%20", "not text": "%C3%A9", "long": "A" * 4_000, "dots": "..%2F..%2Fetc",
        "for something else": signed.sign("user", right), "for another method": signed.sign(
            PURPOSE, fact("GET" if allowed == "PUT" else "PUT", key, size=len(BODY), sha256=digest(BODY))),
        "another shape": signed.sign(PURPOSE, ["PUT"]),
    }  # fmt: skip
    house.blobs.put(key, BODY) if method != "PUT" else None
    for name, text in texts.items():
        answer = client.request(method, f"/v1/blobs/{text}", headers={"content-type": "image/png"}, content=BODY)
        assert (name, answer.status_code) == (name, 403)
        assert method == "HEAD" or answer.json()["code"] == "invalid_signature"
    body = BODY if method == "PUT" else b""
    good = client.request(
        method, f"/v1/blobs/{signed.sign(PURPOSE, right)}", headers={"content-type": "image/png"}, content=body
    )
    assert good.is_success


def test_an_address_that_has_ended_says_so(house: Bare, client: httpx.Client, key: str) -> None:
    assert code(put(client, granted(house.blobs, key, BODY, seconds=-2))) == (403, "url_expired")
    ended = house.blobs.grant_get(key, seconds=-2, name="a", media_type="image/png")
    assert code(client.get(ended.url)) == (403, "url_expired")


def test_a_key_that_could_lead_elsewhere_is_nowhere_even_if_signed(house: Bare, client: httpx.Client) -> None:
    for hostile in ("../secret.key", "acme/../../secret.key", "/etc/passwd"):
        text = house.callsheet.house.signed.sign(PURPOSE, fact("GET", hostile))
        answer = client.get(f"/v1/blobs/{text}")
        assert code(answer) == (403, "invalid_signature")


def test_a_house_on_s3_has_no_such_addresses(house: Bare, client: httpx.Client, key: str) -> None:
    grant, local = granted(house.blobs, key, BODY), house.blobs
    elsewhere = S3Blobs(S3Place(bucket="films"), lambda: S3Keys("a", "b"))
    house.callsheet.house.blobs = elsewhere
    answer = put(client, grant)
    house.callsheet.house.blobs = local
    elsewhere.close()
    assert code(answer) == (404, "file_not_found")


# -- browsers


def test_a_page_of_ours_may_send_and_others_may_not(house: Bare, client: httpx.Client, key: str) -> None:
    # R164
    grant = granted(house.blobs, key, BODY)
    asked = {"access-control-request-method": "PUT", "access-control-request-headers": "content-type,if-none-match"}
    first = client.options(grant.url, headers=asked | {"origin": OURS})
    assert (first.status_code, first.headers["access-control-allow-origin"]) == (204, OURS)
    assert "PUT" in first.headers["access-control-allow-methods"]
    assert {"content-type", "if-none-match", "range"} <= set(first.headers["access-control-allow-headers"].split(", "))
    then = put(client, grant, origin=OURS)
    assert (then.status_code, then.headers["access-control-allow-origin"]) == (204, OURS)
    foreign = client.options(grant.url, headers=asked | {"origin": FOREIGN})
    assert "access-control-allow-origin" not in foreign.headers


def test_parts_and_what_is_known_are_answered_as_for_any_file(house: Bare, client: httpx.Client, key: str) -> None:
    house.blobs.put(key, BODY)
    url = house.blobs.grant_get(key, seconds=60, name="a.png", media_type="image/png").url
    whole = client.get(url)
    tag = whole.headers["etag"]
    part = client.get(url, headers={"range": "bytes=2-4", "if-range": tag})
    assert (part.status_code, part.content) == (206, BODY[2:5])
    assert part.headers["content-range"] == f"bytes 2-4/{len(BODY)}"
    assert client.get(url, headers={"range": "bytes=2-4", "if-range": '"x"'}).content == BODY
    assert client.get(url, headers={"if-none-match": tag}).status_code == 304
    assert code(client.get(url, headers={"range": "bytes=99-"})) == (416, "range_not_satisfiable")
    head = client.head(url)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(BODY)))
    house.blobs.delete([key])
    assert code(client.get(url)) == (404, "file_not_found")


# -- slow, large and broken


class Sender:
    """A connection that sends a body when it is told to."""

    def __init__(self, house: Bare, grant: Grant, size: int, more: str = "") -> None:
        self._socket = socket.create_connection(("127.0.0.1", int(house.url.rpartition(":")[2])), timeout=30)
        head = f"PUT {grant.url} HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: {size}\r\n{more}\r\n"
        self._socket.sendall(head.encode())

    def send(self, body: bytes) -> None:
        self._socket.sendall(body)

    def hear(self) -> bytes:
        """Return what is answered, and leave."""
        with self._socket:
            return self._socket.recv(65_536)

    def leave(self) -> None:
        self._socket.close()


def test_a_large_body_goes_to_the_disk_as_it_comes_and_is_gone_with_its_sender(house: Bare, key: str) -> None:
    size = 50 * MEGABYTE
    grant = granted(house.blobs, key, b"", size=size)
    sender = Sender(house, grant, size)
    sender.send(b"x" * 3 * MEGABYTE)
    wait_until(lambda: any(path.stat().st_size >= 2 * MEGABYTE for path in incoming(house)))
    sender.leave()
    wait_until(lambda: incoming(house) == [])
    assert not house.blobs.has(key)


def test_a_body_may_take_longer_than_the_limit_for_as_long_as_it_moves(house: Bare, key: str) -> None:
    body = b"0123456789abcdef" * (STEP // 16) * 6
    sender = Sender(house, granted(house.blobs, key, body), len(body))
    begun = time.monotonic()
    for no in range(6):
        sender.send(body[no * STEP : (no + 1) * STEP])
        then = begun + (no + 1) * 0.3
        wait_until(lambda then=then: time.monotonic() > then)  # type: ignore[misc]
    assert time.monotonic() - begun > house.callsheet.house.settings.body_seconds
    assert sender.hear().startswith(b"HTTP/1.1 204")
    assert house.blobs.path(key).read_bytes() == body


def test_a_body_that_does_not_move_ends(house: Bare, key: str) -> None:
    sender = Sender(house, granted(house.blobs, key, BODY), len(BODY))
    sender.send(BODY[:-1])
    answer = sender.hear()
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body_timeout" in answer
    wait_until(lambda: incoming(house) == [])
    assert not house.blobs.has(key)


def test_a_full_disk_is_said_and_leaves_nothing(house: Bare, client: httpx.Client, key: str) -> None:
    body = b"x" * 3 * MEGABYTE
    grant = granted(house.blobs, key, body)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, before[1]))  # the system says it as of a full disk
    try:
        answer = put(client, grant, body)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code(answer) == (507, "storage_full")
    wait_until(lambda: incoming(house) == [])
    assert not house.blobs.has(key)
    assert put(client, grant, body).status_code == 204, "with room it is taken"


def test_a_folder_that_cannot_be_written_is_the_operators_to_mend(
    house: Bare, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[Any] = []
    monkeypatch.setattr(house.callsheet.house, "fault", lambda _id, error: faults.append(error))
    house.blobs.path("blocked").write_text("not a folder")
    answer = put(client, granted(house.blobs, "blocked/uploads/x", BODY))
    assert code(answer) == (503, "storage_unavailable")
    assert answer.headers["retry-after"]
    assert "blocked" not in answer.text
    assert [type(fault).__name__ for fault in faults] == ["StorageRefused"]


@pytest.mark.parametrize(("number", "wanted"), [(errno.EMFILE, 503), (errno.ENFILE, 503), (errno.EIO, 500)])
def test_a_server_that_can_open_no_file_asks_to_come_back_and_tells_its_operator(
    house: Bare, capfd: pytest.CaptureFixture[str], number: int, wanted: int
) -> None:
    # F28
    problem = problem_from(house.callsheet.house, "r1", OSError(number, "no", "/srv/somewhere"))
    assert (problem.status, "retry-after" in problem.headers) == (wanted, wanted == 503)
    assert "somewhere" not in problem.message
    assert "request r1 broke" in capfd.readouterr().err
