"""Submitting, looking, listing and moving jobs over HTTP."""

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
