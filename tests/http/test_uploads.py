"""Files that people bring, over HTTP: announced, put, looked at, used by jobs, listed, deleted."""

import hashlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from callsheet.blobs import keys
from callsheet.blobs.base import Freed, Grant, KeysEnded, Stat, StorageAway
from callsheet.blobs.local import LocalBlobs
from callsheet.core import commands
from callsheet.core.commands import Made
from callsheet.core.recipe import Recipe, StageSpec
from callsheet.engine import Engine
from callsheet.engine.filekeeping import Orphans
from tests.support.contents import contents
from tests.support.served import OTHER, TENANT, Served

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 300
OPEN = Recipe(name="open", inline=True)
NOBODY = "00000000-0000-7000-8000-000000000000"


def announced(body: bytes = PICTURE, **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(body).hexdigest()
    return {"user": "ann", "name": "a.png", "media_type": "image/png", "bytes": len(body), "sha256": digest} | more


def announce(served: Served, body: bytes = PICTURE, role: str = "client", **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = served.client(role).post("/v1/files", json=announced(body, **more)).raise_for_status().json()
    return made


def put(served: Served, upload: dict[str, Any], body: bytes = PICTURE) -> httpx.Response:
    """Send bytes as the answer says, without a key."""
    return served.client(None).request(upload["method"], upload["url"], headers=upload["headers"], content=body)


def finish(served: Served, file_id: str, role: str = "client") -> httpx.Response:
    return served.client(role).post(f"/v1/files/{file_id}/finish")


def bring(served: Served, body: bytes = PICTURE, role: str = "client", **more: Any) -> dict[str, Any]:
    new = announce(served, body, role, **more)
    put(served, new["upload"], body).raise_for_status()
    done: dict[str, Any] = finish(served, new["file"]["id"], role).raise_for_status().json()
    return done


def key_of(file: dict[str, Any], tenant: str = TENANT) -> str:
    return keys.uploaded(tenant, file["id"])


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, str(answer.json()["code"])


class Unsigned(LocalBlobs):
    """A storage whose keys have ended."""

    def grant_put(self, key: str, **claim: Any) -> Grant:
        raise KeysEnded(f"nobody lends for {len(key) + len(claim)}")


class Overtaken(LocalBlobs):
    """A storage that shows what lay there before; while it is looked at, another server finishes the file."""

    engine: Engine

    def vouched(self, key: str) -> Stat | None:
        tenant, _, file_id = key.split("/")
        self.engine.execute(commands.FinishUpload(tenant=tenant, file_id=file_id))
        return Stat(1, None)


# -- bringing


def test_a_file_is_announced_put_finished_and_fetched(served: Served) -> None:
    # R162, R163
    client = served.client("client")
    answer = client.post("/v1/files", json=announced())
    file, upload = answer.json()["file"], answer.json()["upload"]
    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/files/{file['id']}/info")
    assert (file["status"], file["user"], file["job_id"], upload["method"]) == ("awaited", "ann", None, "PUT")
    assert 0 < upload["expires_in_seconds"] <= 900
    assert code(client.get(file["url"])) == (409, "file_not_finished")
    assert put(served, upload).status_code == 204
    done = finish(served, file["id"])
    assert (done.status_code, done.json()["status"], done.json()["keep_until"]) == (200, "ready", None)
    assert finish(served, file["id"]).json() == done.json() == client.get(f"/v1/files/{file['id']}/info").json()
    got = client.get(file["url"], headers={"range": "bytes=1-3"})
    assert (got.status_code, got.content, got.headers["content-type"]) == (206, b"PNG", "image/png")
    assert client.get(file["url"]).content == PICTURE


def test_a_file_that_nobody_could_put_does_not_count_among_those_that_wait(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, client = served.callsheet.house, served.client("client")
    with monkeypatch.context() as away:
        away.setattr(house, "blobs", Unsigned(served.blobs.path("t").parent))
        for _ in range(served.engine.settings.limits.uploads_awaited_max):
            answer = client.post("/v1/files", json=announced(user="unlucky"))
            assert code(answer) == (503, "storage_unavailable")
    assert client.post("/v1/files", json=announced(user="unlucky")).status_code == 201


def test_a_look_that_is_overtaken_takes_nothing_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    new = announce(served)
    put(served, new["upload"]).raise_for_status()
    slow = Overtaken(served.blobs.path("t").parent)
    slow.engine = served.engine
    with monkeypatch.context() as overtaken:
        overtaken.setattr(served.callsheet.house, "blobs", slow)
        answer = finish(served, new["file"]["id"])
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    assert served.client("client").get(new["file"]["url"]).content == PICTURE


def test_announcing_again_makes_another_file(served: Served) -> None:
    first, second = announce(served), announce(served)
    assert first["file"]["id"] != second["file"]["id"]
    assert first["upload"]["url"] != second["upload"]["url"]


def test_a_file_that_was_not_put_is_not_finished(served: Served) -> None:
    new = announce(served)
    assert code(finish(served, new["file"]["id"])) == (422, "file_not_put")
    put(served, new["upload"]).raise_for_status()
    assert finish(served, new["file"]["id"]).status_code == 200


@pytest.mark.parametrize(
    ("wrong", "said"), [(PICTURE + b"!", "size_mismatch"), (PICTURE[:-1] + b"!", "digest_mismatch")]
)
def test_other_bytes_than_were_announced_are_removed_and_the_right_ones_can_follow(
    served: Served, wrong: bytes, said: str
) -> None:
    """The store refuses them by itself; here somebody got them in all the same."""
    new = announce(served)
    served.blobs.put(key_of(new["file"]), wrong)
    assert code(finish(served, new["file"]["id"])) == (422, said)
    assert served.blobs.stat(key_of(new["file"])) is None
    put(served, new["upload"]).raise_for_status()
    assert finish(served, new["file"]["id"]).json()["status"] == "ready"


@pytest.mark.parametrize(
    ("said", "body"),
    [("image/png", b"<script>alert(1)</script>"), ("video/mp4", PICTURE), ("text/plain", PICTURE), ("audio/wav", b"")],
)
def test_bytes_of_another_type_than_was_said_are_refused_and_removed(served: Served, said: str, body: bytes) -> None:
    new = announce(served, body, media_type=said)
    put(served, new["upload"], body).raise_for_status()
    assert code(finish(served, new["file"]["id"])) == (422, "type_mismatch")
    assert served.blobs.stat(key_of(new["file"])) is None


def test_a_type_that_cannot_be_told_is_believed_and_handed_out_as_a_download(served: Served) -> None:
    page = b"<!doctype html><script>alert(1)</script>"
    file = bring(served, page, name="page.html", media_type="text/html")
    answer = served.client("client").get(file["url"])
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
    served: Served, fields: dict[str, Any], said: str
) -> None:
    before = contents(served)
    assert code(served.client("client").post("/v1/files", json=announced(**fields))) == (422, said)
    assert contents(served) == before


@pytest.mark.parametrize("name", [".htaccess", "C:x", "ünïcode 絵.png", "a b.png", "con"])
def test_no_name_leads_anywhere(served: Served, name: str) -> None:
    file = bring(served, name=name)
    assert file["name"] == name
    assert served.blobs.stat(key_of(file)) is not None
    shown = served.client("client").get(file["url"]).headers["content-disposition"]
    assert shown.isascii()


def test_a_user_waits_with_so_many_files_and_no_more(served: Served) -> None:
    client = served.client("client")
    answers = [client.post("/v1/files", json=announced(user="hoarder")) for _ in range(101)]
    assert [answer.status_code for answer in answers] == [201] * 100 + [429]
    assert (answers[-1].json()["code"], answers[-1].headers["retry-after"]) == ("too_many_uploads", "5")
    assert client.post("/v1/files", json=announced(user="another")).status_code == 201


# -- whose


def test_a_file_of_another_tenant_or_user_is_not_there(served: Served) -> None:
    # R159
    theirs, bobs, mine = bring(served, role="other client"), bring(served, user="bob"), bring(served)
    before = contents(served)
    client, user = served.client("client"), served.client("user")
    for path in ("", "/info"):
        assert code(client.get(theirs["url"] + path)) == (404, "file_not_found")
        assert code(user.get(theirs["url"] + path)) == code(user.get(bobs["url"] + path)) == (404, "file_not_found")
        assert user.get(mine["url"] + path).status_code == client.get(bobs["url"] + path).status_code == 200
    assert code(finish(served, theirs["id"])) == code(client.delete(theirs["url"])) == (404, "file_not_found")
    assert contents(served) == before
    assert served.blobs.stat(key_of(theirs, OTHER)) is not None


def test_a_users_files_are_listed_page_by_page_newest_first(served: Served) -> None:
    client = served.client("client")
    files = [announce(served, user="lister")["file"]["id"] for _ in range(3)]
    files += [bring(served, user="lister")["id"] for _ in range(2)]
    bring(served, user="lister", role="other client")
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


def test_a_users_token_lists_that_users_files_only(served: Served) -> None:
    bring(served, user="bob")
    mine = bring(served)
    found = served.client("user").get("/v1/files", params={"user": "bob"}).raise_for_status().json()["files"]
    assert mine["id"] in {file["id"] for file in found}
    assert {file["user"] for file in found} == {"ann"}


# -- used by jobs


def uses(*names: str) -> dict[str, Any]:
    return {"prompt": "x", "pictures": [{"$file": name} for name in names]}


def test_a_job_uses_files_that_its_user_brought_or_that_the_users_jobs_made(served: Served) -> None:
    # R165
    file = bring(served)
    served.engine.execute(commands.PutWorkflow(recipe=Recipe(name="once", stages=[StageSpec(name="d", kind="once")])))
    served.submit(workflow="once", input=uses(file["id"]))
    (leased,) = served.engine.execute(commands.Claim(worker_id="w", kinds=("once",)))
    lease = leased.lease
    served.blobs.put(keys.made(TENANT, lease.job_id, lease.task_id, lease.attempt, 1), PICTURE)
    made = Made(1, "b.png", "image/png", len(PICTURE), hashlib.sha256(PICTURE).hexdigest())
    served.engine.execute(commands.Complete(lease=lease, files=(made,)))
    [output] = served.client("client").get(f"/v1/jobs/{lease.job_id}/outputs").json()["outputs"]
    assert (output["files"][0]["job_id"], output["files"][0]["status"]) == (lease.job_id, "ready")
    job = served.submit(input=uses(file["id"], output["files"][0]["id"]))
    assert job["status"] == "queued"
    served.client("client").post(f"/v1/jobs/{job['id']}/cancel", json={"grace_seconds": 0}).raise_for_status()


def dropped(served: Served) -> str:
    file = bring(served)
    served.client("client").delete(file["url"]).raise_for_status()
    return str(file["id"])


Strange = Callable[[Served], str]
STRANGE: dict[str, tuple[Strange, tuple[int, str]]] = {
    "another user's": (lambda served: str(bring(served, user="bob")["id"]), (404, "file_not_found")),
    "another tenant's": (lambda served: str(bring(served, role="other client")["id"]), (404, "file_not_found")),
    "unknown": (lambda _: NOBODY, (404, "file_not_found")),
    "no id": (lambda _: "'; DROP TABLE file; --", (404, "file_not_found")),
    "dropped": (dropped, (404, "file_not_found")),
    "unfinished": (lambda served: str(announce(served)["file"]["id"]), (409, "file_not_finished")),
}


@pytest.mark.parametrize("whose", STRANGE)
def test_a_job_uses_no_file_that_is_not_its_users_own_and_there(served: Served, whose: str) -> None:
    # R169
    make, said = STRANGE[whose]
    served.engine.execute(commands.PutWorkflow(recipe=OPEN))
    client = served.client("client")
    name, mine = make(served), bring(served)["id"]
    job = served.submit(workflow="open", stages=[{"name": "s", "kind": "never"}])
    before = contents(served)
    body = {"workflow": "sketch", "user": "ann", "input": uses(mine, name)}
    assert code(client.post("/v1/jobs", json=body)) == said
    stage = {"name": "t", "kind": "never", "inputs": [uses(mine), uses(name)]}
    assert code(client.post("/v1/jobs", json={"workflow": "open", "user": "ann", "stages": [stage]})) == said
    assert code(client.post(f"/v1/jobs/{job['id']}/stages/1/tasks", json={"inputs": [uses(mine), uses(name)]})) == said
    assert code(client.post(f"/v1/jobs/{job['id']}/stages", json={"stage": stage})) == said
    assert contents(served) == before
    bulk = client.post("/v1/jobs/bulk", json={"jobs": [body, {**body, "input": uses(mine)}]}).json()["results"]
    assert [one["status"] for one in bulk] == [said[0], 201]
    assert bulk[0]["problem"]["code"] == said[1]
    for ended in (job["id"], bulk[1]["job_id"]):
        client.post(f"/v1/jobs/{ended}/cancel", json={"grace_seconds": 0}).raise_for_status()


# -- deleting


def test_a_deleted_file_is_gone_with_its_bytes_and_its_owner_is_told(served: Served) -> None:
    file = bring(served)
    client = served.client("client")
    assert client.delete(file["url"]).json() == {"files": 1, "bytes": len(PICTURE), "pending": False}
    assert served.blobs.stat(key_of(file)) is None
    assert code(client.get(file["url"])) == (410, "file_gone")
    assert client.get(file["url"] + "/info").json()["status"] == "dropped"
    assert code(served.client("other client").get(file["url"])) == (404, "file_not_found")
    assert code(client.delete(file["url"])) == code(finish(served, file["id"])) == (404, "file_not_found")


def test_a_file_that_an_open_job_needs_is_not_deleted(served: Served) -> None:
    file = bring(served)
    job = served.submit(input=uses(file["id"]))
    client = served.client("client")
    assert code(client.delete(file["url"])) == (409, "file_in_use")
    client.post(f"/v1/jobs/{job['id']}/cancel", json={"grace_seconds": 0}).raise_for_status()
    assert client.delete(file["url"]).json()["files"] == 1


def test_deleting_what_was_never_put_frees_nothing(served: Served) -> None:
    file = announce(served)["file"]
    assert served.client("client").delete(file["url"]).json() == {"files": 0, "bytes": 0, "pending": False}


def working(served: Served) -> commands.Lease:
    served.engine.execute(commands.PutWorkflow(recipe=Recipe(name="gone", stages=[StageSpec(name="d", kind="gone")])))
    served.submit(workflow="gone")
    (leased,) = served.engine.execute(commands.Claim(worker_id="w", kinds=("gone",)))
    lease: commands.Lease = leased.lease
    for no in (1, 2):
        served.blobs.put(keys.made(TENANT, lease.job_id, lease.task_id, lease.attempt, no), PICTURE)
    served.blobs.put(keys.preview(TENANT, lease.job_id, lease.task_id, lease.attempt), b"small")
    return lease


def test_a_deleted_job_says_what_it_freed_and_a_late_put_is_collected(served: Served) -> None:
    # R365, R367, O5
    lease, client = working(served), served.client("client")
    neighbour = bring(served)
    freed = client.delete(f"/v1/jobs/{lease.job_id}")
    assert (freed.status_code, freed.json()) == (200, {"files": 3, "bytes": 2 * len(PICTURE) + 5, "pending": False})
    assert client.delete(f"/v1/jobs/{lease.job_id}").json() == {"files": 0, "bytes": 0, "pending": False}
    prefix = keys.job_prefix(TENANT, lease.job_id)
    late = keys.made(TENANT, lease.job_id, lease.task_id, lease.attempt, 1)
    served.blobs.put(late, PICTURE)
    assert [one.key for one in served.blobs.list(prefix, "", 9)] == [late]
    orphans = Orphans(served.engine.read, served.blobs, 0)
    while orphans.run_once(served.engine.read.now() + 1_000_000):
        pass
    assert served.blobs.list(prefix, "", 9) == []
    assert client.get(neighbour["url"]).content == PICTURE


class Away(LocalBlobs):
    """A folder that cannot be cleaned."""

    def delete_prefix(self, prefix: str) -> Freed:
        raise StorageAway(f"Not now: {len(prefix)}.")


def test_a_storage_that_is_away_does_not_keep_a_job_from_being_deleted(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R364 to R366
    faults: list[Exception] = []
    lease, house = working(served), served.callsheet.house
    monkeypatch.setattr(house, "fault", lambda _id, error: faults.append(error))
    with monkeypatch.context() as away:
        away.setattr(house, "blobs", Away(served.blobs.path("t").parent))
        answer = served.client("client").delete(f"/v1/jobs/{lease.job_id}")
    assert (answer.status_code, answer.json()) == (200, {"files": 0, "bytes": 0, "pending": True})
    assert [type(fault) for fault in faults] == [StorageAway]
    assert served.client("client").get(f"/v1/jobs/{lease.job_id}").status_code == 404
    assert served.client("client").delete(f"/v1/jobs/{lease.job_id}").json()["files"] == 3
