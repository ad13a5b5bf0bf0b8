"""Requests generated from the OpenAPI document: every response must be one that the document declares."""

import copy
from collections.abc import Callable, Iterator
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
from callsheet.core.model import commands
from callsheet.core.model.commands import OutputFile
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.http.openapi.native_document import document
from callsheet.http.routes.table import ROUTES
from callsheet.http.server.route import FLEET_KEYS, REGISTERED_WORKERS
from callsheet.settings import HttpSettings
from tests.http.server_on_each_database import DATABASES, start_server
from tests.support.processes.live_server import OTHER_TENANT, TENANT, LiveServer

EXAMPLES_MAX = 8
TENANTS = (TENANT, OTHER_TENANT)
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip
SCHEMA = schemathesis.openapi.from_dict(copy.deepcopy(document()))  # schemathesis changes its argument
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)}
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


@pytest.fixture(scope="module", params=DATABASES)
def short_wait_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose long polls end at once."""
    with start_server(request, tmp_path_factory.mktemp("short_wait"), HttpSettings(wait_seconds_max=0.01)) as server:
        yield server


@pytest.fixture(scope="module")
def existing_ids(short_wait_server: LiveServer) -> dict[str, list[str]]:
    """Path parameters that exist: a completed job with a file, a failed one, and some that wait."""
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


UNFUZZED = WorkflowDefinition(name="unfuzzed", stages=[StageSpec(name="draw", kind="draw")])
"""A workflow that the fuzzer does not replace."""
ROLES = {f"{route.method} {route.path}": route.roles for route in ROUTES}


@pytest.fixture
def roles(request: pytest.FixtureRequest) -> frozenset[str]:
    """The roles that may call the route of this test, if it has one."""
    return ROLES.get(request.node.callspec.params.get("label"), frozenset())


@pytest.fixture
def session(short_wait_server: LiveServer, roles: frozenset[str]) -> Iterator[requests.Session]:
    """A session of an operator, or of the fleet or worker that the route is for."""
    role = "operator"
    if roles == FLEET_KEYS:
        role = "worker"
    elif roles == REGISTERED_WORKERS:
        role = "fuzzed"
        short_wait_server.register("fuzzed", concurrency=1_000)
    with requests.Session() as made:
        made.headers["Authorization"] = f"Bearer {short_wait_server.keys[role]}"
        yield made


@pytest.fixture
def lease(short_wait_server: LiveServer, session: requests.Session, roles: frozenset[str]) -> dict[str, Any] | None:
    """A lease of the worker, for routes that report about one."""
    if roles != REGISTERED_WORKERS:
        return None
    short_wait_server.engine.execute(commands.PutWorkflow(definition=UNFUZZED))
    short_wait_server.submit(workflow=UNFUZZED.name)
    tasks = session.post(f"{short_wait_server.url}/v1/worker/claim", json={}).json()["tasks"]
    lease: dict[str, Any] = tasks[0]["lease"]
    return lease


def aim_at_existing(case: Any, choice: int, existing_ids: dict[str, list[str]], lease: dict[str, Any] | None) -> None:
    """Point some requests at existing ids and keep the generated ones in others; deletions get their own ids."""
    if choice and lease is not None and isinstance(case.body, dict):
        for part in (case.body, *(one for one in case.body.get("heartbeats", ()) if isinstance(one, dict))):
            if "lease" in part:
                part["lease"] = lease
    if choice:
        for name in case.path_parameters or {}:
            known = (
                existing_ids[f"{case.method} {name}"] if f"{case.method} {name}" in existing_ids else existing_ids[name]
            )
            case.path_parameters[name] = known[choice % len(known)]
    elif (case.path_parameters or {}).get("tenant") in TENANTS:
        case.path_parameters["tenant"] = "fuzzed"  # a limit on a tenant of other cases would refuse their jobs
    if choice > 2 and isinstance(case.body, dict) and "workflow" in case.body:
        case.body |= {"workflow": "sketch", "user": "ann", "input": {"prompt": "dunes"}}
    if case.headers and choice != 1:
        case.headers.pop("Callsheet-Tenant", None)


@pytest.mark.parametrize("mode", MODES, ids=[mode.value for mode in MODES])
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_response_is_declared_by_the_document(
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


def test_every_route_is_fuzzed() -> None:
    assert set(OPERATIONS) == {f"{route.method} {route.path}" for route in ROUTES}


def missing_response(described: dict[str, Any]) -> None:
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


@pytest.mark.parametrize("plant", [missing_response, missing_code, other_shape, other_media_type])
def test_a_response_that_the_document_does_not_declare_is_detected(
    short_wait_server: LiveServer, session: requests.Session, plant: Callable[[dict[str, Any]], None]
) -> None:
    described = document()
    plant(described)
    operation = schemathesis.openapi.from_dict(described)["/v1/jobs/{job_id}"]["GET"]
    case = operation.Case(path_parameters={"job_id": "nowhere"})
    with pytest.raises(FailureGroup):
        case.call_and_validate(base_url=short_wait_server.url, session=session, checks=CHECKS)
