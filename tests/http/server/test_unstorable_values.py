"""Values that no database can store are refused as invalid input, without effect on other requests."""

import asyncio
from typing import Any

import httpx
import pytest

from callsheet.core.model import commands
from callsheet.core.model.errors import BadInput
from callsheet.store.connection import StoreError
from tests.support.processes.live_server import LiveServer

HUGE = 10**25
NUL = "\0"
QUERIES = [
    "/v1/jobs?user=%00", "/v1/jobs?status=%00", "/v1/jobs?workflow=a%00", "/v1/jobs?label=a%3D%00",
    "/v1/workflows?cursor=%00", "/v1/admin/keys?cursor=%00", "/v1/admin/tenants?cursor=%00",
    "/v1/admin/audit?cursor=%00",
    "/v1/events?job=%00", "/v1/events?type=%00",
    f"/v1/jobs/{{job}}/events?cursor={HUGE}", "/v1/jobs/{job}/events?cursor=9223372036854775808",
    f"/v1/jobs/{{job}}/events?cursor=-{HUGE}", f"/v1/wallets/ann/ledger?cursor={HUGE}",
    f"/v1/wallets/ann/ledger?cursor=-{HUGE}", f"/v1/jobs?limit={HUGE}", f"/v1/events?limit=-{HUGE}",
    "/v1/jobs/{job}?wait_seconds=nan", "/v1/jobs/{job}?wait_seconds=inf", "/v1/jobs/{job}?wait_seconds=-1",
    "/v1/jobs/{job}?wait_seconds=1e999",
    "/v1/jobs?since=99999-01-01T00:00:00Z", "/v1/jobs?since=1e9", "/v1/jobs?since=%00",
]  # fmt: skip
PATHS = [
    "/v1/jobs/%00", "/v1/jobs/a%00b/events", "/v1/wallets/%00", "/v1/wallets/%00/ledger", "/v1/workflows/%00",
    "/v1/admin/tenants/%00",
    "/v1/files/%00", "/v1/jobs/{job}/tasks/%00/attempts", "/v1/jobs/{job}/tasks/%00/preview", "/v1/jobs/%ff",
    "/v1/jobs/%ed%a0%80", "/v1/jobs/%", "/v1/jobs/%zz", "/v1/jobs/..%2f..%2fetc%2fpasswd", f"/v1/jobs/{'x' * 2_000}",
]  # fmt: skip
STAGE = {"name": "draw", "kind": "draw"}
BODIES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/jobs", {"priority": HUGE}),
    ("POST", "/v1/jobs", {"priority": -HUGE}),
    ("POST", "/v1/jobs", {"deadline_seconds": HUGE}),
    ("POST", "/v1/jobs", {"start_in_seconds": HUGE}),
    ("POST", "/v1/jobs", {"user": NUL}),
    ("POST", "/v1/jobs", {"workflow": NUL}),
    ("POST", "/v1/jobs", {"stages": [STAGE | {"provider": NUL}]}),
    ("POST", "/v1/jobs", {"stages": [STAGE | {"kind": NUL}]}),
    ("POST", "/v1/jobs", {"stages": [STAGE | {"tasks": HUGE}]}),
    ("POST", "/v1/quotes", {"workflow": "sketch", "user": NUL}),
    ("POST", "/v1/quotes", {"workflow": NUL, "user": "ann"}),
    ("POST", "/v1/tokens", {"user": NUL}),
    ("POST", "/v1/tokens", {"user": "ann", "expires_in_seconds": HUGE}),
    ("POST", "/v1/wallets/ann/topup", {"amount": HUGE}),
    ("POST", "/v1/wallets/ann/topup", {"amount": 1, "idempotency_key": NUL}),
    ("POST", "/v1/wallets/ann/adjust", {"amount": -HUGE, "reason": "x"}),
    ("POST", "/v1/wallets/ann/adjust", {"amount": 1, "reason": NUL}),
    ("PUT", "/v1/admin/tenants/odd", {"weight": HUGE}),
    ("PUT", "/v1/admin/tenants/odd", {"active_jobs_max": HUGE}),
    ("PUT", "/v1/admin/tenants/odd", {"storage_bytes_max": HUGE}),
    ("POST", "/v1/admin/keys", {"name": "x", "role": "client", "tenant": NUL}),
    ("POST", "/v1/admin/keys", {"name": NUL, "role": "client", "tenant": "default"}),
    ("POST", "/v1/admin/keys", {"name": "x", "role": "client", "tenant": "default", "expires_in_seconds": HUGE}),
    ("PUT", "/v1/workflows/odd", {"definition": {"stages": [STAGE | {"provider": NUL}]}}),
    ("PUT", "/v1/workflows/odd", {"definition": {"stages": [STAGE | {"provider": "not a name"}]}}),
    ("PUT", "/v1/workflows/odd", {"definition": {"stages": [STAGE], "price": HUGE}}),
    ("PUT", "/v1/workflows/odd", {"definition": {"stages": [STAGE], "running_max": HUGE}}),
    ("PATCH", "/v1/jobs/{job}", {"priority": HUGE}),
    ("POST", "/v1/jobs/{job}/cancel", {"grace_seconds": HUGE}),
    ("POST", "/v1/jobs/{job}/cancel", {"reason": NUL}),
    ("POST", "/v1/jobs/{job}/stages/1/approve", {"approver": NUL}),
    ("POST", "/v1/jobs/{job}/stages", {"stage": STAGE | {"provider": NUL}}),
]
FREE_JSON: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/jobs", {"input": {"prompt": NUL}}),
    ("POST", "/v1/jobs", {"input": {"a": [{NUL: 1}]}}),
    ("POST", "/v1/jobs", {"metadata": {"a": NUL}}),
    ("POST", "/v1/jobs", {"metadata": {NUL: 1}}),
    ("POST", "/v1/jobs", {"labels": {"a": NUL}}),
    ("POST", "/v1/jobs", {"trace": {"traceparent": NUL}}),
    ("POST", "/v1/jobs", {"stages": [STAGE | {"inputs": [{"a": NUL}]}]}),
    ("POST", "/v1/quotes", {"workflow": "sketch", "user": "ann", "input": {"a": NUL}}),
    ("PATCH", "/v1/jobs/{job}", {"metadata": {"a": NUL}}),
    ("PATCH", "/v1/jobs/{job}", {"labels": {NUL: "a"}}),
    ("POST", "/v1/jobs/{job}/stages", {"stage": STAGE | {"inputs": [{"a": NUL}]}}),
    ("POST", "/v1/jobs/{job}/stages/1/tasks", {"inputs": [{"a": NUL}]}),
    ("PUT", "/v1/workflows/odd", {"definition": {"stages": [STAGE], "input_schema": {"title": NUL}}}),
    ("PUT", "/v1/workflows/odd", {"definition": {"stages": [STAGE | {"inputs": [{NUL: 1}]}]}}),
    ("POST", "/v1/worker/register", {"worker": "w9", "kinds": ["draw"], "capabilities": {"gpu": {"name": NUL}}}),
    ("POST", "/v1/worker/register", {"worker": "w9", "kinds": ["draw"], "labels": {"zone": NUL}}),
]


@pytest.fixture(scope="module")
def job(live_server: LiveServer) -> str:
    return str(live_server.submit()["id"])


@pytest.fixture(scope="module")
def operator(live_server: LiveServer) -> httpx.Client:
    return live_server.client("operator")


@pytest.mark.parametrize("path", QUERIES)
def test_a_query_with_an_unstorable_value_answers_422(operator: httpx.Client, job: str, path: str) -> None:
    answer = operator.get(path.format(job=job))
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_query")


@pytest.mark.parametrize("path", PATHS)
def test_a_path_with_an_unstorable_value_answers_404(operator: httpx.Client, job: str, path: str) -> None:
    answer = operator.get(path.format(job=job))
    assert answer.status_code == 404
    assert answer.json()["code"].endswith("_not_found")


@pytest.mark.parametrize(("method", "path", "body"), BODIES)
def test_a_body_with_an_unstorable_value_answers_422(
    operator: httpx.Client, job: str, method: str, path: str, body: dict[str, Any]
) -> None:
    if path == "/v1/jobs":
        body = {"workflow": "sketch", "user": "ann", "input": {}} | body
    answer = operator.request(method, path.format(job=job), json=body)
    assert answer.status_code == 422, answer.text


@pytest.mark.parametrize(("method", "path", "body"), FREE_JSON)
def test_free_form_json_with_a_nul_character_is_refused(
    live_server: LiveServer, job: str, method: str, path: str, body: dict[str, Any]
) -> None:
    if path == "/v1/jobs":
        body = {"workflow": "sketch", "user": "ann", "input": {}} | body
    role = "worker" if "/worker/" in path else "operator"
    answer = live_server.client(role).request(method, path.format(job=job), json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_text"), answer.text


def test_an_output_with_a_nul_character_is_refused(live_server: LiveServer) -> None:
    live_server.submit()
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
    with pytest.raises(BadInput) as refused:
        live_server.engine.execute(commands.Complete(lease=leased.lease, output={"a": {NUL: 1}}))
    assert refused.value.code == "invalid_text"
    live_server.engine.execute(commands.Complete(lease=leased.lease, output={"a": "\\u0000"}))


def test_other_free_form_json_is_stored_unchanged(live_server: LiveServer) -> None:
    notes = {"not a nul": "\\u0000", "huge": HUGE, "control": "\x01\x7f\x85\u202e", "half": "\U0001f3ac"}
    made = live_server.submit(input={"prompt": "\x01", "n": HUGE}, metadata=notes)
    assert made["metadata"] == notes


def test_an_invalid_job_of_a_bulk_submit_does_not_affect_the_others(operator: httpx.Client) -> None:
    good = {"workflow": "sketch", "user": "ann", "input": {}}
    jobs = [good, good | {"priority": HUGE}, good | {"user": NUL}, good | {"stages": [STAGE | {"provider": NUL}]}, good]
    results = operator.post("/v1/jobs/bulk", json={"jobs": jobs}).json()["results"]
    assert [result["status"] for result in results] == [201, 422, 422, 422, 201]


def test_a_failing_read_does_not_affect_the_other_reads_of_its_batch(live_server: LiveServer) -> None:
    """The shared reading thread survives and answers the other reads."""
    reads = live_server.engine.reads

    async def read_together() -> list[Any]:
        valid = [reads.lookup("wallet_of", id=f"default/{name}") for name in ("ann", "bob")]
        broken = reads.lookup("ledger_before", id="x", before=HUGE, count=1)
        return list(await asyncio.gather(valid[0], broken, valid[1], return_exceptions=True))

    first, failed, second = asyncio.run(read_together())
    assert isinstance(failed, OverflowError | StoreError)
    assert (len(first), len(second)) == (1, 0)
    assert live_server.client("viewer").get("/v1/wallets/ann").status_code == 200


def test_a_command_from_code_is_validated_like_one_over_http(live_server: LiveServer) -> None:
    answers = live_server.engine.execute_many([
        commands.TopUp(tenant="default", user="ann", amount=1, idempotency_key="odd"),
        commands.TopUp(tenant="default", user="ann", amount=2**63, idempotency_key="odder"),
    ])  # fmt: skip
    assert [getattr(answer, "code", "done") for answer in answers] == ["done", "out_of_range"]
