"""Uploads over HTTP: create, send, finish, download and list files."""

from typing import Any

import pytest

from callsheet.blobs.base import CredentialsExpiredError, Grant, Stat
from callsheet.blobs.local import LocalBlobs
from callsheet.core.model import commands
from callsheet.engine import Engine
from tests.http.upload_requests import PICTURE, code, create_upload, finish, key_of, put, upload_body, upload_file
from tests.support.databases.database_contents import database_contents
from tests.support.processes.live_server import OTHER_TENANT, LiveServer


class UnsignedBlobs(LocalBlobs):
    """A blob store whose credentials have expired."""

    def grant_upload(self, key: str, **claim: Any) -> Grant:
        raise CredentialsExpiredError(f"no credentials for {len(key) + len(claim)}")


class ConcurrentlyFinishedBlobs(LocalBlobs):
    """A blob store that returns an old size; meanwhile another server finishes the upload."""

    engine: Engine

    def stat_verified(self, key: str) -> Stat | None:
        tenant, _, file_id = key.split("/")
        self.engine.execute(commands.FinishUpload(tenant=tenant, file_id=file_id))
        return Stat(1, None)


# -- upload


def test_a_file_is_created_uploaded_finished_and_downloaded(live_server: LiveServer) -> None:
    # R162
    client = live_server.client("client")
    answer = client.post("/v1/files", json=upload_body())
    file, upload = answer.json()["file"], answer.json()["upload"]
    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/files/{file['id']}/info")
    assert (file["status"], file["user"], file["job_id"], upload["method"]) == ("uploading", "ann", None, "PUT")
    assert 0 < upload["expires_in_seconds"] <= 900
    assert code(client.get(file["url"])) == (409, "file_not_finished")
    assert put(live_server, upload).status_code == 204
    done = finish(live_server, file["id"])
    assert (done.status_code, done.json()["status"], done.json()["expires_at"]) == (200, "ready", None)
    assert finish(live_server, file["id"]).json() == done.json() == client.get(f"/v1/files/{file['id']}/info").json()
    got = client.get(file["url"], headers={"range": "bytes=1-3"})
    assert (got.status_code, got.content, got.headers["content-type"]) == (206, b"PNG", "image/png")
    assert client.get(file["url"]).content == PICTURE


def test_an_upload_without_a_url_does_not_count_as_pending(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, client = live_server.callsheet.state, live_server.client("client")
    with monkeypatch.context() as unavailable:
        unavailable.setattr(state.uploads, "_blobs", UnsignedBlobs(live_server.blobs.path("t").parent))
        for _ in range(live_server.engine.settings.limits.uploads_pending_max):
            answer = client.post("/v1/files", json=upload_body(user="unlucky"))
            assert code(answer) == (503, "storage_unavailable")
    assert client.post("/v1/files", json=upload_body(user="unlucky")).status_code == 201


def test_finishing_an_upload_that_was_finished_meanwhile_keeps_its_bytes(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = create_upload(live_server)
    put(live_server, new["upload"]).raise_for_status()
    slow = ConcurrentlyFinishedBlobs(live_server.blobs.path("t").parent)
    slow.engine = live_server.engine
    with monkeypatch.context() as patched:
        patched.setattr(live_server.callsheet.state.uploads, "_blobs", slow)
        answer = finish(live_server, new["file"]["id"])
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    assert live_server.client("client").get(new["file"]["url"]).content == PICTURE


def test_creating_an_upload_again_creates_another_file(live_server: LiveServer) -> None:
    first, second = create_upload(live_server), create_upload(live_server)
    assert first["file"]["id"] != second["file"]["id"]
    assert first["upload"]["url"] != second["upload"]["url"]


def test_an_upload_without_bytes_cannot_be_finished(live_server: LiveServer) -> None:
    new = create_upload(live_server)
    assert code(finish(live_server, new["file"]["id"])) == (422, "file_not_uploaded")
    put(live_server, new["upload"]).raise_for_status()
    assert finish(live_server, new["file"]["id"]).status_code == 200


@pytest.mark.parametrize(
    ("wrong", "error"), [(PICTURE + b"!", "size_mismatch"), (PICTURE[:-1] + b"!", "digest_mismatch")]
)
def test_mismatching_bytes_are_deleted_and_the_right_ones_can_follow(
    live_server: LiveServer, wrong: bytes, error: str
) -> None:
    """The blob store normally refuses such bytes; here they are stored directly."""
    new = create_upload(live_server)
    live_server.blobs.put(key_of(new["file"]), wrong)
    assert code(finish(live_server, new["file"]["id"])) == (422, error)
    assert live_server.blobs.stat(key_of(new["file"])) is None
    put(live_server, new["upload"]).raise_for_status()
    assert finish(live_server, new["file"]["id"]).json()["status"] == "ready"


@pytest.mark.parametrize(
    ("media_type", "body"),
    [("image/png", b"<script>alert(1)</script>"), ("video/mp4", PICTURE), ("text/plain", PICTURE), ("audio/wav", b"")],
)
def test_bytes_of_another_media_type_are_refused_and_deleted(
    live_server: LiveServer, media_type: str, body: bytes
) -> None:
    new = create_upload(live_server, body, media_type=media_type)
    put(live_server, new["upload"], body).raise_for_status()
    assert code(finish(live_server, new["file"]["id"])) == (422, "type_mismatch")
    assert live_server.blobs.stat(key_of(new["file"])) is None


def test_a_type_that_cannot_be_detected_is_accepted_and_served_as_a_download(live_server: LiveServer) -> None:
    page = b"<!doctype html><script>alert(1)</script>"
    file = upload_file(live_server, page, name="page.html", media_type="text/html")
    answer = live_server.client("client").get(file["url"])
    assert (answer.content, answer.headers["content-type"]) == (page, "application/octet-stream")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": "../../etc/passwd"}, "invalid_file"), ({"name": "a/b"}, "invalid_file"),
        ({"name": "n" * 129}, "invalid_file"), ({"name": "a\0b"}, "invalid_text"), ({"bytes": -1}, "out_of_range"),
        ({"bytes": 2**60}, "out_of_range"), ({"sha256": "x"}, "invalid_file"), ({"media_type": "x"}, "invalid_file"),
        ({"user": ""}, "invalid_user"), ({"bytes": "9"}, "invalid_body"), ({"tenant": "other"}, "invalid_body"),
    ],
)  # fmt: skip
def test_an_invalid_upload_is_refused_and_nothing_is_stored(
    live_server: LiveServer, fields: dict[str, Any], error: str
) -> None:
    before = database_contents(live_server)
    assert code(live_server.client("client").post("/v1/files", json=upload_body(**fields))) == (422, error)
    assert database_contents(live_server) == before


@pytest.mark.parametrize("name", [".htaccess", "C:x", "ünïcode 絵.png", "a b.png", "con"])
def test_a_file_name_does_not_affect_the_storage_key(live_server: LiveServer, name: str) -> None:
    file = upload_file(live_server, name=name)
    assert file["name"] == name
    assert live_server.blobs.stat(key_of(file)) is not None
    disposition = live_server.client("client").get(file["url"]).headers["content-disposition"]
    assert disposition.isascii()


def test_a_user_has_a_limited_number_of_pending_uploads(live_server: LiveServer) -> None:
    client = live_server.client("client")
    answers = [client.post("/v1/files", json=upload_body(user="hoarder")) for _ in range(101)]
    assert [answer.status_code for answer in answers] == [201] * 100 + [429]
    assert (answers[-1].json()["code"], answers[-1].headers["retry-after"]) == ("too_many_uploads", "5")
    assert client.post("/v1/files", json=upload_body(user="another")).status_code == 201


# -- access


def test_a_file_of_another_tenant_or_user_is_not_found(live_server: LiveServer) -> None:
    # R159
    theirs, bobs, mine = (
        upload_file(live_server, role="other client"),
        upload_file(live_server, user="bob"),
        upload_file(live_server),
    )
    before = database_contents(live_server)
    client, user = live_server.client("client"), live_server.client("user")
    for path in ("", "/info"):
        assert code(client.get(theirs["url"] + path)) == (404, "file_not_found")
        assert code(user.get(theirs["url"] + path)) == code(user.get(bobs["url"] + path)) == (404, "file_not_found")
        assert user.get(mine["url"] + path).status_code == client.get(bobs["url"] + path).status_code == 200
    assert code(finish(live_server, theirs["id"])) == code(client.delete(theirs["url"])) == (404, "file_not_found")
    assert database_contents(live_server) == before
    assert live_server.blobs.stat(key_of(theirs, OTHER_TENANT)) is not None


def test_the_files_of_a_user_are_listed_newest_first_page_by_page(live_server: LiveServer) -> None:
    client = live_server.client("client")
    files = [create_upload(live_server, user="lister")["file"]["id"] for _ in range(3)]
    files += [upload_file(live_server, user="lister")["id"] for _ in range(2)]
    upload_file(live_server, user="lister", role="other client")
    client.delete(f"/v1/files/{files.pop(1)}").raise_for_status()
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (
            client.get("/v1/files", params={"user": "lister", "limit": 3, "cursor": cursor}).raise_for_status().json()
        )
        found += [file["id"] for file in page["files"]]
        cursor = page["next"]
        if cursor:
            other = client.get("/v1/files", params={"user": "ann", "cursor": cursor})
            assert code(other) == (422, "invalid_cursor")
    assert found == files[::-1]
    assert code(client.get("/v1/files")) == (422, "invalid_query")


def test_a_user_token_lists_the_files_of_its_user_only(live_server: LiveServer) -> None:
    upload_file(live_server, user="bob")
    mine = upload_file(live_server)
    found = live_server.client("user").get("/v1/files", params={"user": "bob"}).raise_for_status().json()["files"]
    assert mine["id"] in {file["id"] for file in found}
    assert {file["user"] for file in found} == {"ann"}
