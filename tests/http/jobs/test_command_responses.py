"""A command about a job returns the decided row without reading it again, and a later read returns the same."""

from typing import Any

import pytest

from tests.support.processes.live_server import LiveServer

STEPS: list[tuple[str, str, dict[str, Any]]] = [
    ("pause", "/pause", {}),
    ("resume", "/resume", {}),
    ("cancel", "/cancel", {"reason": "changed my mind"}),
]


def submit(live_server: LiveServer, **more: Any) -> Any:
    body = {"workflow": "sketch", "user": "ann", "input": {"prompt": "a kite"}, **more}
    return live_server.client("client").post("/v1/jobs", json=body)


def test_a_command_returns_what_a_later_read_returns(live_server: LiveServer) -> None:
    # R119
    client = live_server.client("client")
    answers = [submit(live_server, labels={"a": "1"})]
    path = f"/v1/jobs/{answers[0].json()['id']}"
    read = client.get(path)
    assert (answers[0].status_code, answers[0].json(), answers[0].headers["etag"]) == (
        201, read.json(), read.headers["etag"],
    )  # fmt: skip
    for _, route, body in STEPS:
        answer, read = client.post(path + route, json=body), client.get(path)
        assert (answer.status_code, answer.json(), answer.headers["etag"]) == (200, read.json(), read.headers["etag"])
    answer, read = client.patch(path, json={"labels": {"b": "2"}}), client.get(path)
    assert (answer.json(), answer.headers["etag"]) == (read.json(), read.headers["etag"])


def test_a_replayed_submit_returns_the_current_job(live_server: LiveServer) -> None:
    client = live_server.client("client")
    first = submit(live_server, idempotency_key="replayed-after-cancel").json()
    client.post(f"/v1/jobs/{first['id']}/cancel", json={}).raise_for_status()
    again = submit(live_server, idempotency_key="replayed-after-cancel")
    assert (again.status_code, again.json()["status"]) == (200, "canceled")
    assert again.json() == client.get(f"/v1/jobs/{first['id']}").json()


def test_no_row_is_read_to_answer_a_command(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(query: str, key: str) -> None:
        raise AssertionError(f"{query} was read for {key}")

    submit(live_server).raise_for_status()  # caches the key and the duration estimate
    monkeypatch.setattr(live_server.engine.reads, "lookup_row", fail)
    job = submit(live_server)
    assert job.status_code == 201
    for _, route, body in STEPS:
        assert live_server.client("client").post(f"/v1/jobs/{job.json()['id']}{route}", json=body).status_code == 200
    assert live_server.client("client").get(f"/v1/jobs/{job.json()['id']}").status_code == 500
