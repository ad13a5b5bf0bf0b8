"""Requests that nobody would think of, made from the OpenAPI document: every answer must be one that it promises."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from callsheet.blobs import object_keys as blob_keys
from callsheet.config import HttpSettings
from callsheet.core.model import commands
from callsheet.core.model.commands import OutputFile
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.http.openapi.document import document
from callsheet.http.routes.table import ROUTES
from callsheet.http.server.route import FLEET_KEYS, REGISTERED_WORKERS
from tests.support.databases.database_pool import DatabasePool
from tests.support.processes.live_server import OTHER_TENANT, TENANT, LiveServer

EXAMPLES_MAX = 8
TENANTS = (TENANT, OTHER_TENANT)
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip
SCHEMA = schemathesis.openapi.from_dict(copy.deepcopy(document()))  # it writes into what it is given
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)}
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def short_wait_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server on which nobody waits long."""
    data: Path = tmp_path_factory.mktemp("hurried")
    http = HttpSettings(wait_seconds_max=0.01)
    if request.param == "sqlite":
        with LiveServer(data / "callsheet.db", data, http) as made:
            yield made
        return
    database_pool: DatabasePool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    with LiveServer(url, data, http) as made:
        yield made
    database_pool.release(url)


@pytest.fixture(scope="module")
def existing_ids(short_wait_server: LiveServer) -> dict[str, list[str]]:
    """Parts of addresses that lead somewhere: a completed job with a file, one that failed, some that wait."""
    jobs = [short_wait_server.submit()["id"] for _ in range(6)]
    done, failed = short_wait_server.engine.execute(commands.Claim(worker_id="w", kinds=("draw",), count=2))
    lease = done.lease
    attempt_key = ("default", lease.job_id, lease.task_id, lease.attempt)
    for key in (blob_keys.output_key(*attempt_key, 1), blob_keys.preview_key(*attempt_key)):
        short_wait_server.callsheet.state.blobs.put(key, b"\x89PNG")
    made = OutputFile(1, "sketch.png", "image/png", 4, "0" * 64)
    short_wait_server.engine.execute(commands.Complete(lease=lease, output={"ok": True}, files=(made,)))
    short_wait_server.engine.execute(commands.Fail(lease=failed.lease, message="no paint"))
    client = short_wait_server.client("client")
    outputs = client.get(f"/v1/jobs/{lease.job_id}/outputs").raise_for_status().json()["outputs"]
    keys = [
        short_wait_server.client("operator").post(
            "/v1/admin/keys", json={"name": "x", "role": "viewer", "tenant": "other"}
        )
        for _ in range(2)
    ]
    return {
        "job_id": jobs[:4], "DELETE job_id": jobs[4:], "task_id": [done.lease.task_id, failed.lease.task_id],
        "file_id": [outputs[0]["files"][0]["id"]], "stage_no": ["1", "draw"], "user": ["ann"],
        "workflow": ["sketch", "fuzzed"], "tenant": ["fuzzed"], "key_id": [key.json()["key"]["id"] for key in keys],
        "worker": ["m1", "fuzzed"], "signed": ["made-up"],
    }  # fmt: skip


OUT_OF_REACH = WorkflowDefinition(name="out-of-reach", stages=[StageSpec(name="draw", kind="draw")])
"""A workflow that the fuzzer does not replace."""
WHO = {f"{route.method} {route.path}": route.roles for route in ROUTES}


@pytest.fixture
def who(request: pytest.FixtureRequest) -> frozenset[str]:
    """Who may call the route of this test, if it has one."""
    return WHO.get(request.node.callspec.params.get("label"), frozenset())


@pytest.fixture
def session(short_wait_server: LiveServer, who: frozenset[str]) -> Iterator[requests.Session]:
    """Ask as an operator, or as the machine that the route is for."""
    role = "operator"
    if who == FLEET_KEYS:
        role = "worker"
    elif who == REGISTERED_WORKERS:
        role = "fuzzed"
        short_wait_server.register("fuzzed", concurrency=1_000)
    with requests.Session() as made:
        made.headers["Authorization"] = f"Bearer {short_wait_server.keys[role]}"
        yield made


@pytest.fixture
def lease(short_wait_server: LiveServer, session: requests.Session, who: frozenset[str]) -> dict[str, Any] | None:
    """A task in the machine's hand, for reports about one."""
    if who != REGISTERED_WORKERS:
        return None
    short_wait_server.engine.execute(commands.PutWorkflow(definition=OUT_OF_REACH))
    short_wait_server.submit(workflow=OUT_OF_REACH.name)
    tasks = session.post(f"{short_wait_server.url}/v1/worker/claim", json={}).json()["tasks"]
    held: dict[str, Any] = tasks[0]["lease"]
    return held


def aim_at_existing(case: Any, choice: int, existing_ids: dict[str, list[str]], lease: dict[str, Any] | None) -> None:
    """Make some requests meet what is there; the others keep what was drawn. What is deleted is nobody else's."""
    if choice and lease is not None and isinstance(case.body, dict):
        for holding in (case.body, *(beat for beat in case.body.get("heartbeats", ()) if isinstance(beat, dict))):
            if "lease" in holding:
                holding["lease"] = lease
    if choice:
        for name in case.path_parameters or {}:
            known = (
                existing_ids[f"{case.method} {name}"] if f"{case.method} {name}" in existing_ids else existing_ids[name]
            )
            case.path_parameters[name] = known[choice % len(known)]
    elif (case.path_parameters or {}).get("tenant") in TENANTS:
        case.path_parameters["tenant"] = "fuzzed"  # a cap on one that the others use would refuse their jobs
    if choice > 2 and isinstance(case.body, dict) and "workflow" in case.body:
        case.body |= {"workflow": "sketch", "user": "ann", "input": {"prompt": "dunes"}}
    if case.headers and choice != 1:
        case.headers.pop("Callsheet-Tenant", None)


@pytest.mark.parametrize("mode", MODES, ids=[mode.value for mode in MODES])
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_answer_is_one_that_the_document_promises(
    short_wait_server: LiveServer, session: requests.Session, existing_ids: dict[str, list[str]], lease: dict[str,
    Any] | None, label: str,
    mode: GenerationMode,
) -> None:  # fmt: skip
    operation = OPERATIONS[label]
    seen: list[int] = []

    @seed(20260314)
    @settings(
        max_examples=EXAMPLES_MAX, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode), choice=st.integers(0, 5))
    def check(case: Any, choice: int) -> None:
        aim_at_existing(case, choice, existing_ids, lease)
        answer = case.call_and_validate(base_url=short_wait_server.url, session=session, checks=CHECKS)
        seen.append(answer.status_code)

    try:
        check()
    except Exception as error:
        if type(error).__name__ != "Unsatisfiable":
            raise
    assert seen or mode is GenerationMode.NEGATIVE


def test_no_route_is_left_out() -> None:
    assert set(OPERATIONS) == {f"{route.method} {route.path}" for route in ROUTES}


def missing_answer(described: dict[str, Any]) -> None:
    del described["paths"]["/v1/jobs/{job_id}"]["get"]["responses"]["404"]


def missing_code(described: dict[str, Any]) -> None:
    named = described["components"]["responses"]["404-job_not_found-route_not_found"]
    named["content"]["application/problem+json"]["schema"]["properties"]["code"]["enum"].remove("job_not_found")


def other_shape(described: dict[str, Any]) -> None:
    described["components"]["schemas"]["Problem"]["properties"]["status"]["type"] = "string"


def other_media_type(described: dict[str, Any]) -> None:
    described["paths"]["/v1/jobs/{job_id}"]["get"]["responses"]["404"] = {
        "description": "", "content": {"application/json": {"schema": {}}}
    }  # fmt: skip


@pytest.mark.parametrize("plant", [missing_answer, missing_code, other_shape, other_media_type])
def test_an_answer_that_the_document_does_not_promise_is_found(
    short_wait_server: LiveServer, session: requests.Session, plant: Callable[[dict[str, Any]], None]
) -> None:
    described = document()
    plant(described)
    operation = schemathesis.openapi.from_dict(described)["/v1/jobs/{job_id}"]["GET"]
    case = operation.Case(path_parameters={"job_id": "nowhere"})
    with pytest.raises(FailureGroup):
        case.call_and_validate(base_url=short_wait_server.url, session=session, checks=CHECKS)
