"""Bringing files with either client: from a path or from memory, through lost answers, and without showing the key."""

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest

from callsheet.client import APIConnectionError, CallsheetError, DeleteSummary, File
from tests.client.both_clients import ClientFactory
from tests.client.stub_server import ScriptedResponse, StubServer, problem
from tests.support.processes.live_server import LiveServer

PICTURE = b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(700_000)
BODY = b"[1, 2, 3]"
RECORD = {
    "id": "f1", "name": "a.json", "media_type": "application/json", "bytes": len(BODY),
    "sha256": hashlib.sha256(BODY).hexdigest(), "url": "/v1/files/f1", "status": "ready", "user": "ann", "job_id": None,
    "created_at": "2026-01-31T12:00:00.000Z", "expires_at": None,
}  # fmt: skip
ANNOUNCED = ScriptedResponse(
    201,
    {
        "file": {**RECORD, "status": "uploading"},
        "upload": {
            "method": "PUT", "url": "/v1/blobs/signed", "expires_in_seconds": 900,
            "headers": {"content-type": "application/json", "content-length": str(len(BODY)), "if-none-match": "*"},
        },
    },
)  # fmt: skip
THERE = ScriptedResponse(204, "")
FINISHED = ScriptedResponse(200, RECORD)


@pytest.fixture
def client(live_server: LiveServer, client_of: ClientFactory) -> Any:
    return client_of(live_server.url, live_server.keys["client"])


def test_a_file_of_a_path_is_brought_used_listed_and_deleted(client: Any, tmp_path: Path) -> None:
    path = tmp_path / "sketch.png"
    path.write_bytes(PICTURE)
    file = client.files.upload(path, user="ann")
    assert isinstance(file, File)
    assert (file.name, file.media_type, file.bytes, file.status) == ("sketch.png", "image/png", len(PICTURE), "ready")
    assert client.files.get(file.id) == file
    assert client.files.read(file) == client.files.read(file.id) == PICTURE
    assert client.files.download(file, tmp_path / "copy").read_bytes() == PICTURE
    assert list(client.files.list("ann", limit=1)) == [file]
    job = client.jobs.submit("sketch", user="ann", input={"prompt": "like this", "picture": file.reference})
    with pytest.raises(CallsheetError) as refused:
        client.files.delete(file)
    assert refused.value.code == "file_in_use"
    client.jobs.cancel(job.id, grace_seconds=0)
    assert client.files.delete(file) == DeleteSummary(1, len(PICTURE), pending=False)
    with pytest.raises(CallsheetError) as gone:
        client.files.read(file)
    assert (gone.value.code, gone.value.status) == ("file_gone", 410)


@pytest.mark.parametrize("of", ["path", "bytes"])
def test_download_progress_goes_to_the_callback(client: Any, tmp_path: Path, of: str) -> None:
    path, seen = tmp_path / "sketch.png", list[int]()
    path.write_bytes(PICTURE)
    source = path if of == "path" else PICTURE
    file = client.files.upload(source, user="ann", media_type="image/png", progress=seen.append)
    assert client.files.read(file) == PICTURE
    assert (seen == sorted(seen), seen[-1], len(set(seen)) > 2) == (True, len(PICTURE), True)


@pytest.mark.parametrize(
    ("body", "said", "name", "media_type"),
    [
        (PICTURE, {}, "file", "image/png"),
        (PICTURE, {"name": "x.bin"}, "x.bin", "application/octet-stream"),
        (b"hello", {"name": "note.txt"}, "note.txt", "text/plain"),
        (b"hello", {}, "file", "application/octet-stream"),
        (b"", {"media_type": "text/plain"}, "file", "text/plain"),
    ],
)
def test_name_and_type_are_guessed_unless_they_are_said(
    client: Any, body: bytes, said: dict[str, str], name: str, media_type: str
) -> None:
    file = client.files.upload(body, user="ann", **said)
    assert (file.name, file.media_type, file.bytes) == (name, media_type, len(body))
    assert client.files.read(file) == body


def test_bytes_that_are_not_what_they_are_called_are_refused(client: Any) -> None:
    with pytest.raises(CallsheetError) as refused:
        client.files.upload(b"no picture", user="ann", name="a.png")
    assert refused.value.code == "type_mismatch"
    assert [file.status for file in client.files.list("ann") if file.name == "a.png"] == []


def test_a_path_that_is_not_there_is_the_callers_to_know(client: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        client.files.upload(tmp_path / "nothing.png", user="ann")


def test_the_bytes_go_with_the_headers_of_the_grant_and_without_the_key(
    stub: StubServer, client_of: ClientFactory
) -> None:
    stub.responses = [ANNOUNCED, THERE, FINISHED]
    client_of(stub.url, "cs_secret").files.upload(BODY, user="ann", name="a.json")
    announce, put, finish = stub.asked
    assert (announce.method, announce.path, announce.body["user"]) == ("POST", "/v1/files", "ann")
    assert (put.method, put.path, put.body) == ("PUT", "/v1/blobs/signed", [1, 2, 3])
    assert (put.headers["if-none-match"], put.headers["content-length"]) == ("*", str(len(BODY)))
    assert "transfer-encoding" not in put.headers
    assert "authorization" not in put.headers
    assert (finish.path, finish.headers["authorization"]) == ("/v1/files/f1/finish", "Bearer cs_secret")


def test_a_lost_answer_is_asked_for_again_and_bytes_that_are_there_already_are_finished(
    stub: StubServer, client_of: ClientFactory, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(BODY)
    stub.responses = [
        ANNOUNCED,
        ScriptedResponse(drop=True),
        ScriptedResponse(503, ""),
        problem(412, "already_uploaded"),
        ScriptedResponse(drop=True),
        FINISHED,
    ]
    assert client_of(stub.url).files.upload(path, user="ann").id == "f1"
    assert [asked.method for asked in stub.asked] == ["POST", "PUT", "PUT", "PUT", "POST", "POST"]
    assert [asked.body for asked in stub.asked[1:4]] == [[1, 2, 3]] * 3, "every try sends all of it"


def test_a_storage_that_refuses_ends_it_and_one_that_is_away_too(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [ANNOUNCED, ScriptedResponse(403, "<Error><Code>AccessDenied</Code></Error>")]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url).files.upload(BODY, user="ann", name="a.json")
    assert (refused.value.code, refused.value.status) == ("http_403", 403)
    assert (stub.asked[-1].method, stub.asked[-1].path) == ("DELETE", "/v1/files/f1"), "nobody waits for it any more"
    stub.responses = [ANNOUNCED, ScriptedResponse(drop=True)]
    with pytest.raises(APIConnectionError):
        client_of(stub.url).files.upload(BODY, user="ann", name="a.json")
    assert stub.asked[-1].method == "PUT"


@pytest.mark.parametrize(
    "location", ["{url}/bucket/f1?X-Amz-Signature=s", "//evil.example/x", "ftp://evil.example/x", ""]
)
def test_a_file_in_a_bucket_is_fetched_there_without_the_key(
    stub: StubServer, client_of: ClientFactory, location: str
) -> None:
    tag = f'"{RECORD["sha256"]}"'
    elsewhere = ScriptedResponse(307, "", {"location": location.format(url=stub.url), "etag": tag})
    stub.responses = [elsewhere, ScriptedResponse(200, BODY, {"etag": '"of the bucket"'})]
    client = client_of(stub.url, "cs_secret")
    if not location.startswith("{url}"):
        with pytest.raises(CallsheetError):
            client.files.read("f1")
        assert len(stub.asked) == 1
        return
    assert client.files.read("f1") == BODY
    assert stub.asked[1].path == "/bucket/f1?X-Amz-Signature=s"
    assert ["authorization" in asked.headers for asked in stub.asked] == [True, False]
    stub.responses = [elsewhere, ScriptedResponse(200, b"other", {"etag": tag})]
    with pytest.raises(CallsheetError) as damaged:
        client.files.read("f1")
    assert damaged.value.code == "corrupt_file"
