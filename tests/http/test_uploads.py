"""Files that people bring, over HTTP: announced, put, looked at, used by jobs, listed, deleted."""

import hashlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from callsheet.blobs import object_keys
from callsheet.blobs.base import CredentialsExpiredError, DeleteSummary, Grant, Stat, StorageUnavailableError
from callsheet.blobs.local import LocalBlobs
from callsheet.core.model import commands
from callsheet.core.model.commands import OutputFile
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.engine import Engine
from callsheet.engine.loops.orphan_files import OrphanCollector
from tests.support.databases.database_contents import database_contents
from tests.support.processes.live_server import OTHER_TENANT, TENANT, LiveServer

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 300
OPEN = WorkflowDefinition(name="open", inline=True)
NOBODY = "00000000-0000-7000-8000-000000000000"


def upload_body(body: bytes = PICTURE, **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(body).hexdigest()
    return {"user": "ann", "name": "a.png", "media_type": "image/png", "bytes": len(body), "sha256": digest} | more


def create_upload(live_server: LiveServer, body: bytes = PICTURE, role: str = "client", **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = (
        live_server.client(role).post("/v1/files", json=upload_body(body, **more)).raise_for_status().json()
    )
    return made


def put(live_server: LiveServer, upload: dict[str, Any], body: bytes = PICTURE) -> httpx.Response:
    """Send bytes as the answer says, without a key."""
    return live_server.client(None).request(upload["method"], upload["url"], headers=upload["headers"], content=body)


def finish(live_server: LiveServer, file_id: str, role: str = "client") -> httpx.Response:
    return live_server.client(role).post(f"/v1/files/{file_id}/finish")


def upload_file(live_server: LiveServer, body: bytes = PICTURE, role: str = "client", **more: Any) -> dict[str, Any]:
    new = create_upload(live_server, body, role, **more)
    put(live_server, new["upload"], body).raise_for_status()
    done: dict[str, Any] = finish(live_server, new["file"]["id"], role).raise_for_status().json()
    return done


def key_of(file: dict[str, Any], tenant: str = TENANT) -> str:
    return object_keys.upload_key(tenant, file["id"])


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, str(answer.json()["code"])


class UnsignedBlobs(LocalBlobs):
    """A storage whose keys have ended."""

    def grant_upload(self, key: str, **claim: Any) -> Grant:
        raise CredentialsExpiredError(f"nobody lends for {len(key) + len(claim)}")


class ConcurrentlyFinishedBlobs(LocalBlobs):
    """A storage that shows what lay there before; while it is looked at, another server finishes the file."""

    engine: Engine

    def stat_verified(self, key: str) -> Stat | None:
        tenant, _, file_id = key.split("/")
        self.engine.execute(commands.FinishUpload(tenant=tenant, file_id=file_id))
        return Stat(1, None)


# -- bringing


def test_a_file_is_announced_put_finished_and_fetched(live_server: LiveServer) -> None:
    # R162, R163
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


def test_a_file_that_nobody_could_put_does_not_count_among_those_that_wait(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, client = live_server.callsheet.state, live_server.client("client")
    with monkeypatch.context() as away:
        away.setattr(state.uploads, "_blobs", UnsignedBlobs(live_server.blobs.path("t").parent))
        for _ in range(live_server.engine.settings.limits.uploads_pending_max):
            answer = client.post("/v1/files", json=upload_body(user="unlucky"))
            assert code(answer) == (503, "storage_unavailable")
    assert client.post("/v1/files", json=upload_body(user="unlucky")).status_code == 201


def test_a_look_that_is_overtaken_takes_nothing_away(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    new = create_upload(live_server)
    put(live_server, new["upload"]).raise_for_status()
    slow = ConcurrentlyFinishedBlobs(live_server.blobs.path("t").parent)
    slow.engine = live_server.engine
    with monkeypatch.context() as overtaken:
        overtaken.setattr(live_server.callsheet.state.uploads, "_blobs", slow)
        answer = finish(live_server, new["file"]["id"])
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    assert live_server.client("client").get(new["file"]["url"]).content == PICTURE


def test_announcing_again_makes_another_file(live_server: LiveServer) -> None:
    first, second = create_upload(live_server), create_upload(live_server)
    assert first["file"]["id"] != second["file"]["id"]
    assert first["upload"]["url"] != second["upload"]["url"]


def test_a_file_that_was_not_put_is_not_finished(live_server: LiveServer) -> None:
    new = create_upload(live_server)
    assert code(finish(live_server, new["file"]["id"])) == (422, "file_not_uploaded")
    put(live_server, new["upload"]).raise_for_status()
    assert finish(live_server, new["file"]["id"]).status_code == 200


@pytest.mark.parametrize(
    ("wrong", "said"), [(PICTURE + b"!", "size_mismatch"), (PICTURE[:-1] + b"!", "digest_mismatch")]
)
def test_other_bytes_than_were_announced_are_removed_and_the_right_ones_can_follow(
    live_server: LiveServer, wrong: bytes, said: str
) -> None:
    """The store refuses them by itself; here somebody got them in all the same."""
    new = create_upload(live_server)
    live_server.blobs.put(key_of(new["file"]), wrong)
    assert code(finish(live_server, new["file"]["id"])) == (422, said)
    assert live_server.blobs.stat(key_of(new["file"])) is None
    put(live_server, new["upload"]).raise_for_status()
    assert finish(live_server, new["file"]["id"]).json()["status"] == "ready"


@pytest.mark.parametrize(
    ("said", "body"),
    [("image/png", b"<script>alert(1)</script>"), ("video/mp4", PICTURE), ("text/plain", PICTURE), ("audio/wav", b"")],
)
def test_bytes_of_another_type_than_was_said_are_refused_and_removed(
    live_server: LiveServer, said: str, body: bytes
) -> None:
    new = create_upload(live_server, body, media_type=said)
    put(live_server, new["upload"], body).raise_for_status()
    assert code(finish(live_server, new["file"]["id"])) == (422, "type_mismatch")
    assert live_server.blobs.stat(key_of(new["file"])) is None


def test_a_type_that_cannot_be_detected_is_believed_and_served_as_a_download(live_server: LiveServer) -> None:
    page = b"<!doctype html><script>alert(1)</script>"
    file = upload_file(live_server, page, name="page.html", media_type="text/html")
    answer = live_server.client("client").get(file["url"])
    assert (answer.content, answer.headers["content-type"]) == (page, "application/octet-stream")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "../../etc/passwd"}, "invalid_file"), ({"name": "a/b"}, "invalid_file"),
        ({"name": "n" * 129}, "invalid_file"), ({"name": "a\0b"}, "invalid_text"), ({"bytes": -1}, "out_of_range"),
        ({"bytes": 2**60}, "out_of_range"), ({"sha256": "x"}, "invalid_file"), ({"media_type": "x"}, "invalid_file"),
        ({"user": ""}, "invalid_user"), ({"bytes": "9"}, "invalid_body"), ({"tenant": "other"}, "invalid_body"),
    ],
)  # fmt: skip
def test_what_could_not_be_a_file_is_refused_and_nothing_is_kept(
    live_server: LiveServer, fields: dict[str, Any], said: str
) -> None:
    before = database_contents(live_server)
    assert code(live_server.client("client").post("/v1/files", json=upload_body(**fields))) == (422, said)
    assert database_contents(live_server) == before


@pytest.mark.parametrize("name", [".htaccess", "C:x", "ünïcode 絵.png", "a b.png", "con"])
def test_no_name_leads_anywhere(live_server: LiveServer, name: str) -> None:
    file = upload_file(live_server, name=name)
    assert file["name"] == name
    assert live_server.blobs.stat(key_of(file)) is not None
    shown = live_server.client("client").get(file["url"]).headers["content-disposition"]
    assert shown.isascii()


def test_a_user_waits_with_so_many_files_and_no_more(live_server: LiveServer) -> None:
    client = live_server.client("client")
    answers = [client.post("/v1/files", json=upload_body(user="hoarder")) for _ in range(101)]
    assert [answer.status_code for answer in answers] == [201] * 100 + [429]
    assert (answers[-1].json()["code"], answers[-1].headers["retry-after"]) == ("too_many_uploads", "5")
    assert client.post("/v1/files", json=upload_body(user="another")).status_code == 201


# -- whose


def test_a_file_of_another_tenant_or_user_is_not_there(live_server: LiveServer) -> None:
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


def test_a_users_files_are_listed_page_by_page_newest_first(live_server: LiveServer) -> None:
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


def test_a_users_token_lists_that_users_files_only(live_server: LiveServer) -> None:
    upload_file(live_server, user="bob")
    mine = upload_file(live_server)
    found = live_server.client("user").get("/v1/files", params={"user": "bob"}).raise_for_status().json()["files"]
    assert mine["id"] in {file["id"] for file in found}
    assert {file["user"] for file in found} == {"ann"}


# -- used by jobs


def input_with_files(*names: str) -> dict[str, Any]:
    return {"prompt": "x", "pictures": [{"$file": name} for name in names]}


def test_a_job_uses_files_that_its_user_brought_or_that_the_users_jobs_made(live_server: LiveServer) -> None:
    # R165
    file = upload_file(live_server)
    live_server.engine.execute(
        commands.PutWorkflow(definition=WorkflowDefinition(name="once", stages=[StageSpec(name="d", kind="once")]))
    )
    live_server.submit(workflow="once", input=input_with_files(file["id"]))
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w", kinds=("once",)))
    lease = leased.lease
    live_server.blobs.put(object_keys.output_key(TENANT, lease.job_id, lease.task_id, lease.attempt, 1), PICTURE)
    made = OutputFile(1, "b.png", "image/png", len(PICTURE), hashlib.sha256(PICTURE).hexdigest())
    live_server.engine.execute(commands.Complete(lease=lease, files=(made,)))
    [output] = live_server.client("client").get(f"/v1/jobs/{lease.job_id}/outputs").json()["outputs"]
    assert (output["files"][0]["job_id"], output["files"][0]["status"]) == (lease.job_id, "ready")
    job = live_server.submit(input=input_with_files(file["id"], output["files"][0]["id"]))
    assert job["status"] == "queued"
    live_server.client("client").post(f"/v1/jobs/{job['id']}/cancel", json={"grace_seconds": 0}).raise_for_status()


def deleted(live_server: LiveServer) -> str:
    file = upload_file(live_server)
    live_server.client("client").delete(file["url"]).raise_for_status()
    return str(file["id"])


Strange = Callable[[LiveServer], str]
STRANGE: dict[str, tuple[Strange, tuple[int, str]]] = {
    "another user's": (lambda live_server: str(upload_file(live_server, user="bob")["id"]), (404, "file_not_found")),
    "another tenant's": (
        lambda live_server: str(upload_file(live_server, role="other client")["id"]),
        (404, "file_not_found"),
    ),
    "unknown": (lambda _: NOBODY, (404, "file_not_found")),
    "no id": (lambda _: "'; DROP TABLE file; --", (404, "file_not_found")),
    "deleted": (deleted, (404, "file_not_found")),
    "unfinished": (lambda live_server: str(create_upload(live_server)["file"]["id"]), (409, "file_not_finished")),
}


@pytest.mark.parametrize("whose", STRANGE)
def test_a_job_uses_no_file_that_is_not_its_users_own_and_there(live_server: LiveServer, whose: str) -> None:
    # R169
    make, said = STRANGE[whose]
    live_server.engine.execute(commands.PutWorkflow(definition=OPEN))
    client = live_server.client("client")
    name, mine = make(live_server), upload_file(live_server)["id"]
    job = live_server.submit(workflow="open", stages=[{"name": "s", "kind": "never"}])
    before = database_contents(live_server)
    body = {"workflow": "sketch", "user": "ann", "input": input_with_files(mine, name)}
    assert code(client.post("/v1/jobs", json=body)) == said
    stage = {"name": "t", "kind": "never", "inputs": [input_with_files(mine), input_with_files(name)]}
    assert code(client.post("/v1/jobs", json={"workflow": "open", "user": "ann", "stages": [stage]})) == said
    assert (
        code(
            client.post(
                f"/v1/jobs/{job['id']}/stages/1/tasks",
                json={"inputs": [input_with_files(mine), input_with_files(name)]},
            )
        )
        == said
    )
    assert code(client.post(f"/v1/jobs/{job['id']}/stages", json={"stage": stage})) == said
    assert database_contents(live_server) == before
    bulk = client.post("/v1/jobs/bulk", json={"jobs": [body, {**body, "input": input_with_files(mine)}]}).json()[
        "results"
    ]
    assert [one["status"] for one in bulk] == [said[0], 201]
    assert bulk[0]["problem"]["code"] == said[1]
    for ended in (job["id"], bulk[1]["job_id"]):
        client.post(f"/v1/jobs/{ended}/cancel", json={"grace_seconds": 0}).raise_for_status()


# -- deleting


def test_a_deleted_file_is_gone_with_its_bytes_and_an_event_says_so(live_server: LiveServer) -> None:
    file = upload_file(live_server)
    client = live_server.client("client")
    assert client.delete(file["url"]).json() == {"files": 1, "bytes": len(PICTURE), "pending": False}
    assert live_server.blobs.stat(key_of(file)) is None
    assert code(client.get(file["url"])) == (410, "file_gone")
    assert client.get(file["url"] + "/info").json()["status"] == "deleted"
    assert code(live_server.client("other client").get(file["url"])) == (404, "file_not_found")
    assert code(client.delete(file["url"])) == code(finish(live_server, file["id"])) == (404, "file_not_found")


def test_a_file_that_an_open_job_needs_is_not_deleted(live_server: LiveServer) -> None:
    file = upload_file(live_server)
    job = live_server.submit(input=input_with_files(file["id"]))
    client = live_server.client("client")
    assert code(client.delete(file["url"])) == (409, "file_in_use")
    client.post(f"/v1/jobs/{job['id']}/cancel", json={"grace_seconds": 0}).raise_for_status()
    assert client.delete(file["url"]).json()["files"] == 1


def test_deleting_what_was_never_put_frees_nothing(live_server: LiveServer) -> None:
    file = create_upload(live_server)["file"]
    assert live_server.client("client").delete(file["url"]).json() == {"files": 0, "bytes": 0, "pending": False}


def working(live_server: LiveServer) -> commands.Lease:
    live_server.engine.execute(
        commands.PutWorkflow(definition=WorkflowDefinition(name="gone", stages=[StageSpec(name="d", kind="gone")]))
    )
    live_server.submit(workflow="gone")
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w", kinds=("gone",)))
    lease: commands.Lease = leased.lease
    for no in (1, 2):
        live_server.blobs.put(object_keys.output_key(TENANT, lease.job_id, lease.task_id, lease.attempt, no), PICTURE)
    live_server.blobs.put(object_keys.preview_key(TENANT, lease.job_id, lease.task_id, lease.attempt), b"small")
    return lease


def test_a_deleted_job_says_what_it_freed_and_a_late_put_is_collected(live_server: LiveServer) -> None:
    # R365, R367, O5
    lease, client = working(live_server), live_server.client("client")
    neighbour = upload_file(live_server)
    freed = client.delete(f"/v1/jobs/{lease.job_id}")
    assert (freed.status_code, freed.json()) == (200, {"files": 3, "bytes": 2 * len(PICTURE) + 5, "pending": False})
    assert client.delete(f"/v1/jobs/{lease.job_id}").json() == {"files": 0, "bytes": 0, "pending": False}
    prefix = object_keys.job_prefix(TENANT, lease.job_id)
    late = object_keys.output_key(TENANT, lease.job_id, lease.task_id, lease.attempt, 1)
    live_server.blobs.put(late, PICTURE)
    assert [one.key for one in live_server.blobs.list(prefix, "", 9)] == [late]
    orphans = OrphanCollector(live_server.engine.reads, live_server.blobs, 0)
    while orphans.run_once(live_server.engine.reads.now() + 1_000_000):
        pass
    assert live_server.blobs.list(prefix, "", 9) == []
    assert client.get(neighbour["url"]).content == PICTURE


class FailingBlobs(LocalBlobs):
    """A folder that cannot be cleaned."""

    def delete_prefix(self, prefix: str) -> DeleteSummary:
        raise StorageUnavailableError(f"Not now: {len(prefix)}.")


def test_a_storage_that_is_away_does_not_keep_a_job_from_being_deleted(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R364 to R366
    faults: list[Exception] = []
    lease, state = working(live_server), live_server.callsheet.state
    monkeypatch.setattr(state, "report_error", lambda _id, error: faults.append(error))
    with monkeypatch.context() as away:
        away.setattr(state.file_deletion, "_blobs", FailingBlobs(live_server.blobs.path("t").parent))
        answer = live_server.client("client").delete(f"/v1/jobs/{lease.job_id}")
    assert (answer.status_code, answer.json()) == (200, {"files": 0, "bytes": 0, "pending": True})
    assert [type(fault) for fault in faults] == [StorageUnavailableError]
    assert live_server.client("client").get(f"/v1/jobs/{lease.job_id}").status_code == 404
    assert live_server.client("client").delete(f"/v1/jobs/{lease.job_id}").json()["files"] == 3
