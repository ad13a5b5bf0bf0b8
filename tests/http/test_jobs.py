"""Submitting, looking, listing and moving jobs over HTTP."""

from concurrent.futures import ThreadPoolExecutor

from tests.support.served import Served


def test_a_submit_is_answered_with_the_job_and_its_address(served: Served) -> None:
    # R27, R34
    client = served.client("client")
    answer = client.post("/v1/jobs", json={"workflow": "sketch", "user": "ann", "input": {"prompt": "dunes"}})
    assert (answer.status_code, answer.json()["status"], answer.json()["price"]) == (201, "queued", 3)
    assert client.get(answer.headers["location"]).json() == answer.json()


def test_the_same_key_is_answered_with_the_same_job_and_a_replay_header(served: Served) -> None:
    # R84, R86
    client = served.client("client")
    body = {"workflow": "sketch", "user": "ann", "input": {"prompt": "dunes"}}
    first = client.post("/v1/jobs", json=body, headers={"idempotency-key": "replay-1"})
    again = client.post("/v1/jobs", json=body | {"idempotency_key": "replay-1"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.headers["idempotent-replay"] == "true"
    assert again.json()["id"] == first.json()["id"]
    other = client.post("/v1/jobs", json=body | {"idempotency_key": "replay-1", "priority": 7})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


def test_a_user_at_the_cap_is_told_when_to_ask_again(served: Served) -> None:
    # R171
    served.client("operator").put("/v1/admin/tenants/other", json={"active_jobs_max": 1}).raise_for_status()
    served.submit("other client")
    body = {"workflow": "sketch", "user": "ann", "input": {"prompt": "one too many"}}
    refused = served.client("other client").post("/v1/jobs", json=body)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_active_jobs")
    assert int(refused.headers["retry-after"]) > 0
    answers = served.client().get("/openapi.json").json()["paths"]["/v1/jobs"]["post"]["responses"]
    assert answers["429"] == {"$ref": "#/components/responses/429-too_many_active_jobs"}
    shared = served.client().get("/openapi.json").json()["components"]["responses"]
    assert "Retry-After" in shared["429-too_many_active_jobs"]["headers"]


def test_reads_that_share_a_trip_show_each_caller_only_what_is_its_own(served: Served) -> None:
    mine, gone = served.submit()["id"], served.submit()["id"]
    served.client("client").delete(f"/v1/jobs/{gone}").raise_for_status()
    clients = [served.client(role) for role in ("client", "other client", "viewer", "other viewer")]

    def look(n: int) -> tuple[int, int]:
        client = clients[n % 4]
        return client.get(f"/v1/jobs/{mine}").status_code, client.get(f"/v1/jobs/{gone}").status_code

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(look, range(40)))
    assert answers == [(200, 404), (404, 404)] * 20
