"""Quotes: a signed price for one request that is valid until it expires."""

import time
from typing import Any

import pytest

from callsheet.core.model import commands
from callsheet.core.model.comfyui_graph import ComfySpec, Target
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.queries.signed_quotes import QuoteClaims, _digest
from tests.support.processes.live_server import OTHER_TENANT, TENANT, LiveServer

INPUT = {"prompt": "dunes", "seed": 7}


def nested(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(levels):
        inner = {"a": inner}
    return inner


def priced_workflow(live_server: LiveServer, name: str, price: int) -> str:
    """Store a workflow with this price."""
    definition = WorkflowDefinition(name=name, price=price, stages=[StageSpec(name="draw", kind=name)])
    live_server.engine.execute(commands.PutWorkflow(definition=definition))
    return name


def quote(
    live_server: LiveServer, workflow: str, user: str = "ann", job_input: Any = INPUT, role: str = "client"
) -> dict[str, Any]:
    body = {"workflow": workflow, "user": user, "input": job_input}
    made: dict[str, Any] = live_server.client(role).post("/v1/quotes", json=body).raise_for_status().json()
    return made


def submit_job(live_server: LiveServer, role: str = "client", **body: Any) -> Any:
    return live_server.client(role).post("/v1/jobs", json={"user": "ann", "input": INPUT} | body)


def sign_quote(live_server: LiveServer, workflow: str, **fields: Any) -> str:
    """Sign the claims of a quote with the key of the server."""
    fact: dict[str, Any] = {"tenant": TENANT, "user": "ann", "workflow": workflow, "digest": _digest(INPUT), "price": 1,
            "expires_at": int(time.time()) + 60} | fields  # fmt: skip
    return live_server.callsheet.state.signer.sign("quote", QuoteClaims(**fact))


def test_a_quote_has_the_price_and_whether_the_wallet_covers_it(live_server: LiveServer) -> None:
    name = priced_workflow(live_server, "quoted", 40)
    found = quote(live_server, name)
    assert (found["workflow"], found["price"], found["affordable"]) == (name, 40, True)
    assert found["expires_at"] is not None
    poor = quote(live_server, name, "new user")
    assert (poor["balance"], poor["affordable"]) == (0, False)


def test_a_quoted_price_stays_valid_after_the_price_of_the_workflow_rises(live_server: LiveServer) -> None:
    name = priced_workflow(live_server, "dearer", 4)
    token = quote(live_server, name)["quote"]
    priced_workflow(live_server, name, 90)
    assert submit_job(live_server, workflow=name, quote=token).json()["price"] == 4
    assert submit_job(live_server, workflow=name).json()["price"] == 90
    assert quote(live_server, name)["price"] == 90


def test_a_submit_reserves_the_quoted_price(live_server: LiveServer) -> None:
    name = priced_workflow(live_server, "reserved", 6)
    live_server.engine.execute(commands.TopUp(tenant=TENANT, user="rae", amount=10, idempotency_key="start"))
    token = quote(live_server, name, "rae")["quote"]
    priced_workflow(live_server, name, 11)
    answer = submit_job(live_server, workflow=name, user="rae", quote=token)
    wallet = live_server.client("client").get("/v1/wallets/rae").json()
    assert (answer.status_code, wallet["balance"], wallet["reserved"]) == (201, 4, 6)


def test_the_order_of_the_fields_of_an_input_does_not_matter(live_server: LiveServer) -> None:
    name = priced_workflow(live_server, "ordered", 2)
    token = quote(live_server, name, job_input={"a": 1, "b": [1, {"x": 1, "y": 2}]})["quote"]
    other = {"b": [1, {"y": 2, "x": 1}], "a": 1}
    assert submit_job(live_server, workflow=name, input=other, quote=token).status_code == 201


@pytest.mark.parametrize(
    "change",
    [{"input": {"prompt": "dunes", "seed": 8}}, {"input": None}, {"user": "bob"}, {"workflow": "sketch"}],
    ids=str,
)
def test_a_quote_for_another_request_is_refused(live_server: LiveServer, change: dict[str, Any]) -> None:
    name = priced_workflow(live_server, "strict", 3)
    answer = submit_job(live_server, **({"workflow": name, "quote": quote(live_server, name)["quote"]} | change))
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_quote")


def test_a_quote_of_another_tenant_is_refused(live_server: LiveServer) -> None:
    token = quote(live_server, "sketch", role="other client")["quote"]
    answer = submit_job(live_server, workflow="sketch", quote=token)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_quote")


def test_a_forged_quote_is_refused(live_server: LiveServer) -> None:
    name = priced_workflow(live_server, "forged", 50)
    token = quote(live_server, name)["quote"]
    cursor = live_server.callsheet.state.signer.sign("jobs", [TENANT, "x"])
    middle = token[:30] + ("A" if token[30] != "A" else "B") + token[31:]
    for text in ("", "x", "%%%", "é", token[:-3], token + "A", middle, cursor, live_server.keys["user"]):
        answer = submit_job(live_server, workflow=name, quote=text)
        assert (text, answer.status_code, answer.json()["code"]) == (text, 422, "invalid_quote")
    signed = submit_job(live_server, workflow=name, quote=sign_quote(live_server, name))
    assert signed.json()["price"] == 1, "the signed price is used"
    foreign = submit_job(live_server, workflow=name, quote=sign_quote(live_server, name, tenant=OTHER_TENANT))
    assert foreign.status_code == 422


def test_an_expired_quote_is_refused(live_server: LiveServer) -> None:
    name = priced_workflow(live_server, "expired", 5)
    answer = submit_job(
        live_server, workflow=name, quote=sign_quote(live_server, name, expires_at=int(time.time()) - 2)
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "quote_expired")


def test_a_quoted_submit_with_a_key_is_replayed(live_server: LiveServer) -> None:
    name = priced_workflow(live_server, "replayed", 5)
    body = {"workflow": name, "quote": quote(live_server, name)["quote"], "idempotency_key": "quoted"}
    first = submit_job(live_server, **body)
    priced_workflow(live_server, name, 70)
    again = submit_job(live_server, **body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert (again.json()["id"], again.json()["price"]) == (first.json()["id"], 5)
    bare = submit_job(live_server, workflow=name, idempotency_key="quoted")
    assert (bare.status_code, bare.json()["price"]) == (200, 5)


def test_a_repeated_submit_after_its_quote_expired_returns_the_same_job(live_server: LiveServer) -> None:
    """A client that lost the response may retry late; its job was accepted in time."""
    name = priced_workflow(live_server, "late", 5)
    first = submit_job(live_server, workflow=name, quote=quote(live_server, name)["quote"], idempotency_key="late")
    old = sign_quote(live_server, name, price=5, expires_at=int(time.time()) - 2)
    again = submit_job(live_server, workflow=name, quote=old, idempotency_key="late")
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    for other in ({"idempotency_key": "other"}, {"idempotency_key": "nul\0"}, {}):
        answer = submit_job(live_server, workflow=name, quote=old, **other)
        assert (answer.status_code, answer.json()["code"]) == (422, "quote_expired")


def test_each_job_of_a_bulk_has_its_own_quote(live_server: LiveServer) -> None:
    name = priced_workflow(live_server, "bulk", 8)
    token = quote(live_server, name)["quote"]
    priced_workflow(live_server, name, 9)
    one = {"workflow": name, "user": "ann", "input": INPUT}
    jobs = [one | {"quote": token}, one, one | {"quote": "forged"}]
    results = live_server.client("client").post("/v1/jobs/bulk", json={"jobs": jobs}).json()["results"]
    assert [result["status"] for result in results] == [201, 201, 422]
    prices = [
        live_server.client("client").get(f"/v1/jobs/{result['job_id']}").json()["price"] for result in results[:2]
    ]
    assert (prices, results[2]["problem"]["code"]) == ([8, 9], "invalid_quote")


def test_a_quote_for_an_unknown_workflow_is_refused(live_server: LiveServer) -> None:
    answer = live_server.client("client").post("/v1/quotes", json={"workflow": "no-such", "user": "ann"})
    assert (answer.status_code, answer.json()["code"]) == (404, "workflow_not_found")


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("worker", 403), ("user", 403), ("admin", 200)])
def test_a_quote_needs_the_role_of_a_submit(live_server: LiveServer, role: str, status: int) -> None:
    answer = live_server.client(role).post("/v1/quotes", json={"workflow": "sketch", "user": "ann", "input": {}})
    assert answer.status_code == status


@pytest.mark.parametrize(("body", "code"), [
    ({"user": "", "input": {}}, "invalid_user"),
    ({"user": "ann", "input": {"prompt": 7}}, "invalid_input"),
    ({"user": "ann", "input": nested(70)}, "input_too_deep"),
    ({"user": "ann", "input": {"prompt": "x" * 300_000}}, "input_too_large"),
    ({"user": "ann\0", "input": {}}, "invalid_text"),
    ({"user": "ann", "workflow": "filmed", "input": {"steps": "many"}}, "invalid_input"),
])  # fmt: skip
def test_a_quote_fails_if_a_submit_would_fail(live_server: LiveServer, body: dict[str, Any], code: str) -> None:
    """Both return the same error."""
    node = {"3": {"class_type": "SaveImage", "inputs": {"steps": 20}}}
    graph = ComfySpec(graph=node, inputs={"steps": Target(node="3", field="steps")})
    filmed = WorkflowDefinition(name="filmed", stages=[StageSpec(name="film", kind="film", comfyui=graph)])
    live_server.engine.execute(commands.PutWorkflow(definition=filmed))
    client, request = live_server.client("client"), {"workflow": "sketch", **body}
    quoted, submitted = (client.post(path, json=request) for path in ("/v1/quotes", "/v1/jobs"))
    assert (quoted.status_code, quoted.json()["code"]) == (422, code)
    assert (submitted.status_code, submitted.json()["code"]) == (422, code)
    assert submitted.json()["message"] == quoted.json()["message"]
