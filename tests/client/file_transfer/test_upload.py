"""Uploads by both clients: from a path or from memory, with lost responses, and without the API key for the storage."""

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest

from callsheet.client import APIConnectionError, CallsheetError, DeleteSummary, File
from tests.client.both_clients import ClientFactory
from tests.client.stub_server import ScriptedResponse, StubServer, problem

PICTURE = b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(700_000)
BODY = b"[1, 2, 3]"
RECORD = {
    "id": "f1", "name": "a.json", "media_type": "application/json", "bytes": len(BODY),
    "sha256": hashlib.sha256(BODY).hexdigest(), "url": "/v1/files/f1", "status": "ready", "user": "ann", "job_id": None,
    "created_at": "2026-01-31T12:00:00.000Z", "expires_at": None,
}  # fmt: skip
CREATED = ScriptedResponse(
    201,
    {
        "file": {**RECORD, "status": "uploading"},
        "upload": {
            "method": "PUT", "url": "/v1/blobs/signed", "expires_in_seconds": 900,
            "headers": {"content-type": "application/json", "content-length": str(len(BODY)), "if-none-match": "*"},
        },
    },
)  # fmt: skip
STORED = ScriptedResponse(204, "")
FINISHED = ScriptedResponse(200, RECORD)


def test_a_file_from_a_path_is_uploaded_used_listed_and_deleted(client: Any, tmp_path: Path) -> None:
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
    with pytest.raises(CallsheetError) as deleted:
        client.files.read(file)
    assert (deleted.value.code, deleted.value.status) == ("file_gone", 410)


@pytest.mark.parametrize("source_type", ["path", "bytes"])
def test_upload_progress_is_reported_to_the_callback(client: Any, tmp_path: Path, source_type: str) -> None:
    path, seen = tmp_path / "sketch.png", list[int]()
    path.write_bytes(PICTURE)
    source = path if source_type == "path" else PICTURE
    file = client.files.upload(source, user="ann", media_type="image/png", progress=seen.append)
    assert client.files.read(file) == PICTURE
    assert (seen == sorted(seen), seen[-1], len(set(seen)) > 2) == (True, len(PICTURE), True)


@pytest.mark.parametrize(
    ("body", "options", "name", "media_type"),
    [
        (PICTURE, {}, "file", "image/png"),
        (PICTURE, {"name": "x.bin"}, "x.bin", "application/octet-stream"),
        (b"hello", {"name": "note.txt"}, "note.txt", "text/plain"),
        (b"hello", {}, "file", "application/octet-stream"),
        (b"", {"media_type": "text/plain"}, "file", "text/plain"),
    ],
)
def test_name_and_media_type_are_guessed_unless_the_caller_passes_them(
    client: Any, body: bytes, options: dict[str, str], name: str, media_type: str
) -> None:
    file = client.files.upload(body, user="ann", **options)
    assert (file.name, file.media_type, file.bytes) == (name, media_type, len(body))
    assert client.files.read(file) == body


def test_bytes_that_do_not_match_their_media_type_are_rejected(client: Any) -> None:
    with pytest.raises(CallsheetError) as refused:
        client.files.upload(b"no picture", user="ann", name="a.png")
    assert refused.value.code == "type_mismatch"
    assert [file.status for file in client.files.list("ann") if file.name == "a.png"] == []


def test_a_missing_path_raises_file_not_found(client: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        client.files.upload(tmp_path / "nothing.png", user="ann")


def test_the_bytes_are_sent_with_the_headers_of_the_upload_and_without_the_api_key(
    stub: StubServer, client_of: ClientFactory
) -> None:
    stub.responses = [CREATED, STORED, FINISHED]
    client_of(stub.url, "cs_secret").files.upload(BODY, user="ann", name="a.json")
    create, put, finish = stub.requests
    assert (create.method, create.path, create.body["user"]) == ("POST", "/v1/files", "ann")
    assert (put.method, put.path, put.body) == ("PUT", "/v1/blobs/signed", [1, 2, 3])
    assert (put.headers["if-none-match"], put.headers["content-length"]) == ("*", str(len(BODY)))
    assert "transfer-encoding" not in put.headers
    assert "authorization" not in put.headers
    assert (finish.path, finish.headers["authorization"]) == ("/v1/files/f1/finish", "Bearer cs_secret")


def test_an_upload_is_retried_after_lost_responses_and_finished_if_the_bytes_are_stored(
    stub: StubServer, client_of: ClientFactory, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(BODY)
    stub.responses = [
        CREATED,
        ScriptedResponse(drop=True),
        ScriptedResponse(503, ""),
        problem(412, "already_uploaded"),
        ScriptedResponse(drop=True),
        FINISHED,
    ]
    assert client_of(stub.url).files.upload(path, user="ann").id == "f1"
    assert [request.method for request in stub.requests] == ["POST", "PUT", "PUT", "PUT", "POST", "POST"]
    assert [request.body for request in stub.requests[1:4]] == [[1, 2, 3]] * 3, "every attempt sends all bytes"


def test_an_upload_fails_if_the_storage_rejects_it_or_does_not_answer(
    stub: StubServer, client_of: ClientFactory
) -> None:
    stub.responses = [CREATED, ScriptedResponse(403, "<Error><Code>AccessDenied</Code></Error>")]
    with pytest.raises(CallsheetError) as refused:
        client_of(stub.url).files.upload(BODY, user="ann", name="a.json")
    assert (refused.value.code, refused.value.status) == ("http_403", 403)
    assert (stub.requests[-1].method, stub.requests[-1].path) == ("DELETE", "/v1/files/f1"), "the upload is withdrawn"
    stub.responses = [CREATED, ScriptedResponse(drop=True)]
    with pytest.raises(APIConnectionError):
        client_of(stub.url).files.upload(BODY, user="ann", name="a.json")
    assert stub.requests[-1].method == "PUT"
