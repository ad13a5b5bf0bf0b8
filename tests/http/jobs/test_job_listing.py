"""Lists of jobs: filters, pages without gaps or duplicates, and signed cursors."""

from typing import Any

import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.http.job_requests import UNKNOWN_ID
from tests.support.processes.live_server import TENANT, LiveServer


def top_up(live_server: LiveServer, user: str) -> str:
    """Give a user some credits."""
    live_server.engine.execute(commands.TopUp(tenant=TENANT, user=user, amount=1_000, idempotency_key="start"))
    return user


def list_jobs(live_server: LiveServer, role: str = "client", **query: Any) -> list[str]:
    answer = live_server.client(role).get("/v1/jobs", params=query).raise_for_status()
    return [job["id"] for job in answer.json()["jobs"]]


def test_jobs_are_listed_newest_first_page_by_page(live_server: LiveServer) -> None:
    user = top_up(live_server, "pages")
    made = [live_server.submit(user=user)["id"] for _ in range(7)]
    client, cursor, seen, pages = live_server.client("client"), "", [], 0
    while True:
        page = client.get("/v1/jobs", params={"user": user, "limit": 3, "cursor": cursor}).raise_for_status().json()
        seen += [job["id"] for job in page["jobs"]]
        pages += 1
        cursor = page["next"]
        if cursor is None:
            break
    assert (seen, pages) == (made[::-1], 3)


def test_the_last_page_has_no_next_cursor(live_server: LiveServer) -> None:
    user = top_up(live_server, "even")
    for _ in range(2):
        live_server.submit(user=user)
    page = live_server.client("client").get("/v1/jobs", params={"user": user, "limit": 2}).json()
    assert (len(page["jobs"]), page["next"]) == (2, None)


def test_a_job_submitted_between_two_pages_does_not_shift_them(live_server: LiveServer) -> None:
    user = top_up(live_server, "between")
    first = [live_server.submit(user=user)["id"] for _ in range(3)]
    page = live_server.client("client").get("/v1/jobs", params={"user": user, "limit": 2}).json()
    live_server.submit(user=user)
    rest = list_jobs(live_server, user=user, limit=2, cursor=page["next"])
    assert [job["id"] for job in page["jobs"]] + rest == first[::-1]


def test_filters_select_jobs_and_can_be_combined(live_server: LiveServer) -> None:
    user = top_up(live_server, "filters")
    live_server.engine.execute(
        commands.PutWorkflow(
            definition=WorkflowDefinition(name="other-sketch", stages=[StageSpec(name="draw", kind="filtered")])
        )
    )
    plain = live_server.submit(user=user)
    other = live_server.submit(user=user, workflow="other-sketch")
    later = live_server.submit(user=user, start_in_seconds=3_600)
    assert list_jobs(live_server, user=user, workflow="other-sketch") == [other["id"]]
    assert list_jobs(live_server, user=user, status="pending") == [later["id"]]
    assert list_jobs(live_server, user=user, status="queued") == [other["id"], plain["id"]]
    assert list_jobs(live_server, user=user, status="queued", workflow="sketch") == [plain["id"]]
    assert list_jobs(live_server, user="unknown user") == []


def test_since_is_inclusive_and_until_is_exclusive(live_server: LiveServer) -> None:
    user = top_up(live_server, "times")
    job = live_server.submit(user=user)["id"]
    (listed,) = live_server.client("client").get("/v1/jobs", params={"user": user}).json()["jobs"]
    assert list_jobs(live_server, user=user, since=listed["created_at"]) == [job]
    assert list_jobs(live_server, user=user, since="2020-01-01T00:00:00Z", until="2999-01-01T00:00:00+02:00") == [job]
    assert list_jobs(live_server, user=user, until=listed["created_at"]) == []
    assert list_jobs(live_server, user=user, until="2020-01-01T00:00:00Z") == []
    assert list_jobs(live_server, user=user, since="2999-01-01T00:00:00Z") == []


LABELS = [
    {"film": "x"}, {"film": "X"}, {"Film": "x"}, {"film": "xy"}, {"afilm": "x"}, {"film": "%"}, {"film": "a_b"},
    {"film": "aXb"}, {'say "so"': 'back\\slash, "quoted"'}, {"k": ":", "z": "1"}, {"ünï": "東京"},
    {"note": '"film":"x"'}, {"$.film": "x"}, {"film": "a=b"}, {"film": "new\nline"}, {"film": ""}, {"0": "zero"},
]  # fmt: skip


def test_a_label_filter_finds_exactly_the_jobs_with_that_label(live_server: LiveServer) -> None:
    user = top_up(live_server, "labels")
    made = {number: live_server.submit(user=user, labels=labels)["id"] for number, labels in enumerate(LABELS)}
    live_server.submit(user=user)
    for number, labels in enumerate(LABELS):
        name, value = next(iter(labels.items()))
        assert (labels, list_jobs(live_server, user=user, label=f"{name}={value}")) == (labels, [made[number]])
    assert list_jobs(live_server, user=user, label=":=,") == []
    assert list_jobs(live_server, user=user, label="z=1") == [made[9]]
    assert list_jobs(live_server, user=user, label="film=none") == []


def test_a_label_with_a_nul_character_is_refused(live_server: LiveServer) -> None:
    for labels in ({"film": "\0"}, {"\0": "x"}):
        body = {"workflow": "sketch", "user": "ann", "labels": labels}
        answer = live_server.client("client").post("/v1/jobs", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_text")
    assert list_jobs(live_server, label="film=x y z") == []


def test_a_label_filter_works_for_all_users_of_a_tenant(live_server: LiveServer) -> None:
    job = live_server.submit(labels={"reel": "seven"})["id"]
    assert list_jobs(live_server, label="reel=seven") == [job]
    assert list_jobs(live_server, "other client", label="reel=seven") == []


BAD = [
    {"limit": 0}, {"limit": 201}, {"limit": -1}, {"limit": "many"}, {"label": "film"}, {"label": "=x"},
    {"since": "yesterday"}, {"until": "2026-13-01"}, {"colour": "red"}, {"limit": 10**30},
]  # fmt: skip


@pytest.mark.parametrize("query", BAD, ids=str)
def test_an_invalid_filter_is_refused(live_server: LiveServer, query: dict[str, Any]) -> None:
    answer = live_server.client("client").get("/v1/jobs", params=query)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_query")


def test_a_forged_cursor_or_one_of_another_tenant_or_list_is_refused(live_server: LiveServer) -> None:
    user = top_up(live_server, "cursors")
    for _ in range(2):
        live_server.submit(user=user)
    cursor = live_server.client("client").get("/v1/jobs", params={"user": user, "limit": 1}).json()["next"]
    feed = live_server.client("client").get("/v1/events", params={"limit": 1}).json()["next"]
    flipped = cursor[:-2] + ("AA" if cursor[-2:] != "AA" else "BB")
    ours = live_server.callsheet.state.signer
    forged = ["x", "%", "é", cursor[:-4], flipped, feed, UNKNOWN_ID, ours.sign("feed", [TENANT, UNKNOWN_ID])]
    for text in forged:
        answer = live_server.client("client").get("/v1/jobs", params={"user": user, "cursor": text})
        assert (text, answer.status_code, answer.json().get("code")) == (text, 422, "invalid_cursor")
    foreign = live_server.client("other client").get("/v1/jobs", params={"cursor": cursor})
    assert (foreign.status_code, foreign.json()["code"]) == (422, "invalid_cursor")
    assert len(list_jobs(live_server, user=user, cursor=cursor)) == 1


def test_jobs_of_another_tenant_are_not_listed(live_server: LiveServer) -> None:
    mine, theirs = live_server.submit()["id"], live_server.submit("other client")["id"]
    assert mine not in list_jobs(live_server, "other client", limit=200)
    assert theirs not in list_jobs(live_server, "client", limit=200)
    assert theirs not in list_jobs(live_server, "client", user="ann", limit=200)


def test_a_user_token_lists_the_jobs_of_its_user_only(live_server: LiveServer) -> None:
    own = live_server.submit()["id"]
    other = live_server.submit(user=top_up(live_server, "sam"))["id"]
    for query in ({}, {"user": "sam"}, {"user": "ann"}):
        found = list_jobs(live_server, "user", limit=200, **query)
        assert own in found
        assert other not in found


def test_a_deleted_job_is_not_listed(live_server: LiveServer) -> None:
    user = top_up(live_server, "deleted")
    job = live_server.submit(user=user, labels={"film": "deleted"})["id"]
    live_server.client("client").delete(f"/v1/jobs/{job}").raise_for_status()
    assert list_jobs(live_server, user=user) == []
    assert list_jobs(live_server, label="film=deleted") == []


def test_an_unknown_status_is_refused(live_server: LiveServer) -> None:
    answer = live_server.client("client").get("/v1/jobs?status=weird")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_query")
    assert "completed" in answer.json()["message"]
