"""Permissions: every route with every role, invalid keys, and data of other tenants and users."""

import http.client
import json
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import httpx
import pytest

from callsheet.blobs import object_keys
from callsheet.core.model import commands
from callsheet.core.model.commands import OutputFile
from callsheet.http.auth.authenticator import Caller
from callsheet.http.openapi.document_builder import problems_of
from callsheet.http.openapi.native_document import document
from callsheet.http.routes.table import ROUTES
from callsheet.http.server.route import ROLES, Route
from tests.http.job_requests import UNKNOWN_ID
from tests.support.databases.database_contents import database_contents
from tests.support.processes.live_server import OTHER_TENANT, TENANT, LiveServer
from tests.support.wait import wait_until

LETTERS = dict(zip("OACVWMU", ROLES, strict=True))
LETTERS_OF = {role: letter for letter, role in LETTERS.items()}
OPERATORS, ADMINS, WRITERS, READERS, WATCHERS, ALL, PUBLIC = "O", "OA", "OAC", "OACV", "OACVU", "OACVWMU", ""
FLEET, MACHINES = "W", "M"
TABLE = {
    "submit_job": WRITERS, "submit_jobs": WRITERS, "list_jobs": WATCHERS, "get_job": WATCHERS, "update_job": WRITERS,
    "delete_job": WRITERS, "cancel_job": WRITERS, "pause_job": WRITERS, "resume_job": WRITERS, "retry_job": WRITERS,
    "list_runs": WATCHERS, "list_stages": WATCHERS, "list_tasks": WATCHERS, "list_attempts": READERS,
    "get_preview": WATCHERS, "list_outputs": WATCHERS, "get_input": WATCHERS, "get_file": WATCHERS,
    "get_file_info": WATCHERS,
    "list_files": WATCHERS, "create_upload": WRITERS, "finish_upload": WRITERS, "delete_file": WRITERS,
    "put_blob": PUBLIC, "get_blob": PUBLIC, "approve_stage": WRITERS,
    "add_tasks": WRITERS, "add_stage": WRITERS, "get_why": WATCHERS, "job_events": WATCHERS, "tenant_events": READERS,
    "create_quote": WRITERS, "get_wallet": WATCHERS, "get_ledger": WATCHERS, "top_up": ADMINS, "adjust_balance": ADMINS,
    "refund_job": ADMINS,
    "list_workflows": WATCHERS, "get_workflow": WATCHERS, "put_workflow": OPERATORS, "get_me": ALL,
    "create_token": WRITERS,
    "list_tenants": OPERATORS, "get_tenant": OPERATORS, "put_tenant": OPERATORS,
    "list_keys": ADMINS, "create_key": ADMINS, "revoke_key": ADMINS,
    # R213: the worker protocol
    "register_worker": FLEET, "claim_tasks": MACHINES, "heartbeat": MACHINES, "grant_files": MACHINES,
    "list_previous_outputs": MACHINES, "record_submission": MACHINES, "complete_task": MACHINES, "fail_task": MACHINES,
    "requeue_task": MACHINES, "deregister_worker": MACHINES, "get_worker": OPERATORS, "update_worker": OPERATORS,
    "revoke_worker": OPERATORS, "rotate_worker": OPERATORS,
    "list_audit": ADMINS, "get_ops": OPERATORS, "list_workers": OPERATORS, "metrics": OPERATORS,
    "get_scale_signals": OPERATORS, "home": PUBLIC,
    "healthz": PUBLIC, "readyz": PUBLIC, "openapi": PUBLIC, "reference": PUBLIC, "reference_css": PUBLIC,
    "reference_js": PUBLIC,
}  # fmt: skip
"""The roles of every route, repeated on purpose: changing a permission needs a change here too."""

UNKNOWN_IDS = {
    "job_id": UNKNOWN_ID, "task_id": UNKNOWN_ID, "file_id": UNKNOWN_ID, "key_id": UNKNOWN_ID, "stage_no": "1",
    "tenant": "example", "user": "ann", "workflow": "example", "signed": "x", "worker": "unknown",
}  # fmt: skip
DOCUMENT = document()
KEYED = [route for route in ROUTES if TABLE.get(route.name)]
UNKNOWN_FIELDS = ("status", "price", "tenant_id", "attempt", "finished_at")


@cache
def client_of(live_server: LiveServer, role: str | None = None) -> httpx.Client:
    """Return one client per role; creating one costs more than a request."""
    return live_server.client(role)


def operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][route.path][route.method.lower()]
    return found


def body_of(route: Route) -> dict[str, Any] | None:
    """Return the example body of the OpenAPI document."""
    if "requestBody" not in operation(route):
        return None
    example: dict[str, Any] = operation(route)["requestBody"]["content"]["application/json"]["example"]
    return example | ({"tenant": TENANT} if "tenant" in example else {})


def call(client: httpx.Client, route: Route, known_ids: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    """Call a route with its example body, and with unknown ids unless `known_ids` has others."""
    body = body_of(route)
    if body is not None:
        more.setdefault("json", body)
    return client.request(route.method, route.path.format_map(UNKNOWN_IDS | (known_ids or {})), **more)


def ids(routes: Sequence[Route]) -> Any:
    return pytest.mark.parametrize("route", routes, ids=[f"{route.method} {route.path}" for route in routes])


# -- the table


@pytest.mark.parametrize("tenant", ["unknown", "not a name", "t" * 300])
def test_requests_for_an_unknown_tenant_are_answered_as_documented(live_server: LiveServer, tenant: str) -> None:
    client = live_server.client("operator", {"callsheet-tenant": tenant})
    for route in (route for route in KEYED if "operator" in route.roles):
        answer = call(client, route)
        where = f"{route.method} {route.path}: {answer.status_code} {answer.text[:200]}"
        if answer.status_code >= 400:
            assert answer.json()["code"] in problems_of(route)[answer.status_code], where


def test_the_table_names_every_route_with_its_roles() -> None:
    written = {name: {LETTERS[letter] for letter in letters} for name, letters in TABLE.items()}
    assert written == {route.name: set(route.roles) for route in ROUTES}


def test_every_route_is_documented_with_its_roles() -> None:
    described = {
        (method.upper(), path): operation["x-roles"]
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    }
    assert described == {(r.method, r.path): [role for role in ROLES if role in r.roles] for r in ROUTES}
    assert all(route.summary and not route.summary.endswith(".") for route in ROUTES)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_can_call_the_routes_of_the_table_and_no_others(live_server: LiveServer, role: str) -> None:
    # R68
    if role == "machine":
        live_server.register("example")  # it deregisters on the way
    client = live_server.client("example") if role == "machine" else client_of(live_server, role)
    for route in KEYED:
        answer = call(client, route)
        allowed = role in {LETTERS[letter] for letter in TABLE[route.name]}
        where = f"{role} {route.method} {route.path}: {answer.status_code} {answer.text[:200]}"
        assert (answer.status_code in {401, 403, 405}) is not allowed, where
        assert str(answer.status_code) in operation(route)["responses"], where
        assert answer.status_code < 500, where
        if not allowed:
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), where


def test_public_routes_need_no_key(live_server: LiveServer) -> None:
    client = client_of(live_server)
    for route in ROUTES:
        if not route.roles:
            signed = "{signed}" in route.path  # the URL itself is the permission, and this one is not signed
            assert call(client, route).status_code == (403 if signed else route.status), route.path


def test_a_refused_role_changes_nothing(live_server: LiveServer) -> None:
    before = database_contents(live_server)
    for role in ("viewer", "worker", "user"):
        client = client_of(live_server, role)
        for route in KEYED:
            if route.method != "GET" and LETTERS_OF[role] not in TABLE[route.name]:
                assert call(client, route).status_code == 403
    assert database_contents(live_server) == before


def test_the_contents_of_the_database_show_a_change(live_server: LiveServer) -> None:
    before = database_contents(live_server)
    live_server.submit()
    after = database_contents(live_server)
    assert {name for name in before if before[name] != after[name]} >= {"job", "task", "event", "wallet"}


# -- missing and invalid keys


@pytest.fixture(scope="module")
def bad_keys(live_server: LiveServer) -> dict[str, dict[str, str]]:
    """Headers without a valid key."""
    operator = client_of(live_server, "operator")
    made = [
        operator.post("/v1/admin/keys", json={"name": name, "role": "admin", "tenant": TENANT} | more).json()
        for name, more in (("revoked", {}), ("expired", {"expires_in_seconds": 1}))
    ]
    operator.delete(f"/v1/admin/keys/{made[0]['key']['id']}").raise_for_status()
    late = {"authorization": f"Bearer {made[1]['secret']}"}
    wait_until(lambda: client_of(live_server).get("/v1/me", headers=late).status_code == 401)
    token = live_server.callsheet.state.authenticator.create_user_token(Caller("client", TENANT, "key"), "ann", -10)
    return {
        "none": {},
        "empty": {"authorization": "Bearer"},
        "garbage": {"authorization": "Bearer cs_garbage"},
        "other scheme": {"authorization": f"Basic {live_server.keys['admin']}"},
        "bare": {"authorization": live_server.keys["admin"]},
        "10 KB": {"authorization": f"Bearer {'cs_' + 'x' * 10_240}"},
        "revoked": {"authorization": f"Bearer {made[0]['secret']}"},
        "expired": late,
        "forged token": {"authorization": f"Bearer cst_{live_server.keys['user'][8:]}"},
        "expired token": {"authorization": f"Bearer {token}"},
    }


def test_without_a_valid_key_every_route_answers_401(
    live_server: LiveServer, bad_keys: dict[str, dict[str, str]]
) -> None:
    # R81
    before = database_contents(live_server)
    client = client_of(live_server)
    for name, headers in bad_keys.items():
        for route in KEYED:
            answer = call(client, route, headers=headers)
            where = f"{name}: {route.method} {route.path}"
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), where
            assert answer.json()["code"] == ("missing_key" if name == "none" else "invalid_key"), where
    assert database_contents(live_server) == before


def test_an_empty_bearer_token_is_refused(live_server: LiveServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(live_server.url.rpartition(":")[2]))
    for value in ("Bearer ", "Bearer  ", " "):
        connection.request("GET", "/v1/me", headers={"Authorization": value})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert b"_key" in answer.read()
    connection.close()


def test_a_key_in_the_query_string_is_refused(live_server: LiveServer) -> None:
    client = client_of(live_server)
    for name in ("key", "api_key", "token", "access_token", "authorization"):
        for route in KEYED:
            answer = call(client, route, params={name: live_server.keys["operator"]})
            assert answer.status_code == 401, f"{name}: {route.method} {route.path}"


# -- methods and bodies


@ids(ROUTES)
def test_an_unsupported_method_is_refused_with_the_allowed_ones(live_server: LiveServer, route: Route) -> None:
    path = route.path.format_map(UNKNOWN_IDS)
    listed = {one.method for one in ROUTES if one.path == route.path}
    listed |= {"HEAD"} if "GET" in listed else set()
    client = client_of(live_server, "operator")
    for method in {"HEAD", "PUT", "TRACE", "OPTIONS", "PROPFIND"} - listed:
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, ", ".join(sorted(listed))), method


def test_a_head_request_is_a_get_without_its_body(live_server: LiveServer) -> None:
    answer = client_of(live_server, "viewer").head("/v1/jobs")
    assert (answer.status_code, answer.content) == (200, b"")


@ids([route for route in ROUTES if route.request is not None])
def test_a_body_with_an_unknown_field_is_refused(live_server: LiveServer, route: Route) -> None:
    before = database_contents(live_server)
    client = client_of(live_server, LETTERS[TABLE[route.name][0]])
    mine = set(route.request.__struct_fields__) if route.request else set()
    for field in (*(name for name in UNKNOWN_FIELDS if name not in mine), "surprise"):
        answer = call(client, route, json=(body_of(route) or {}) | {field: 1})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_body"), field
        assert field in answer.json()["message"]
    assert database_contents(live_server) == before


@ids([route for route in KEYED if "requestBody" in operation(route)])
def test_a_body_that_repeats_a_field_is_refused(live_server: LiveServer, route: Route) -> None:
    before = database_contents(live_server)
    client = client_of(live_server, LETTERS[TABLE[route.name][0]])
    body = body_of(route) or {}
    name = next(iter(body))
    repeated = json.dumps(body)[:-1] + ", " + json.dumps({name: body[name]})[1:]
    answer = call(client, route, content=repeated, json=None, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_json")
    assert f"The key {name!r} is repeated" in answer.json()["message"]
    assert database_contents(live_server) == before


# -- other tenants and other users


class FinishedJob(NamedTuple):
    """Ids of one finished job."""

    job_id: str
    task_id: str
    file_id: str
    key_id: str

    def values(self) -> dict[str, str]:
        return self._asdict()


def finish_job(live_server: LiveServer, tenant: str, user: str) -> FinishedJob:
    """Complete a job of a user with a file."""
    engine = live_server.engine
    engine.execute(commands.TopUp(tenant=tenant, user=user, amount=10, idempotency_key="finished-job"))
    live_server.submit("client" if tenant == TENANT else f"{tenant} client", user=user)
    leased = engine.execute(commands.Claim(worker_id="w", kinds=("draw",), count=50))
    mine = next(one for one in leased if one.tenant == tenant)
    lease = mine.lease
    attempt_key = (tenant, lease.job_id, lease.task_id, lease.attempt)
    for key in (object_keys.output_key(*attempt_key, 1), object_keys.preview_key(*attempt_key)):
        live_server.callsheet.state.blobs.put(key, b"\x89PNG")
    made = OutputFile(1, "sketch.png", "image/png", 4, "0" * 64)
    engine.execute(commands.Complete(lease=lease, files=(made,)))
    outputs = client_of(live_server, f"{tenant} client" if tenant != TENANT else "client").get(
        f"/v1/jobs/{lease.job_id}/outputs"
    )
    (output,) = outputs.raise_for_status().json()["outputs"]
    body = {"name": "example", "role": "viewer", "tenant": tenant}
    key = client_of(live_server, "operator").post("/v1/admin/keys", json=body).raise_for_status().json()
    return FinishedJob(lease.job_id, lease.task_id, output["files"][0]["id"], key["key"]["id"])


@pytest.fixture(scope="module")
def foreign(live_server: LiveServer) -> FinishedJob:
    return finish_job(live_server, OTHER_TENANT, "ann")


@pytest.fixture(scope="module")
def own(live_server: LiveServer) -> FinishedJob:
    return finish_job(live_server, TENANT, "ann")


IN_TENANT = [route for route in KEYED if any(f"{{{name}}}" in route.path for name in FinishedJob._fields)]


@ids(IN_TENANT)
def test_data_of_another_tenant_is_answered_like_unknown_ids(
    live_server: LiveServer, foreign: FinishedJob, route: Route
) -> None:
    # R159
    before = database_contents(live_server)
    for role in ("admin", "client", "viewer", "user"):
        if LETTERS_OF[role] not in TABLE[route.name]:
            continue
        client = client_of(live_server, role)
        foreign_answer, unknown_answer = call(client, route, foreign.values()), call(client, route)
        assert (foreign_answer.status_code, unknown_answer.status_code) == (404, 404), role
        assert _without_ids(foreign_answer, foreign) == _without_ids(unknown_answer, foreign)
        assert set(foreign_answer.headers) == set(unknown_answer.headers)
    assert database_contents(live_server) == before


def _without_ids(answer: httpx.Response, foreign: FinishedJob) -> str:
    """Return the text of a response without its request id and the ids of the request."""
    text = answer.text.replace(answer.headers["x-request-id"], "…")
    for value in (*foreign, UNKNOWN_ID):
        text = text.replace(value, "…")
    return text


def test_a_task_of_another_job_is_not_found(live_server: LiveServer, foreign: FinishedJob, own: FinishedJob) -> None:
    client = client_of(live_server, "client")
    for part in ("attempts", "preview"):
        assert client.get(f"/v1/jobs/{own.job_id}/tasks/{own.task_id}/{part}").status_code == 200
        assert client.get(f"/v1/jobs/{own.job_id}/tasks/{foreign.task_id}/{part}").status_code == 404


def test_lists_contain_nothing_of_another_tenant(
    live_server: LiveServer, foreign: FinishedJob, own: FinishedJob
) -> None:
    texts = [
        client_of(live_server, role).get(path).raise_for_status().text
        for role in ("admin", "client")
        for path in ("/v1/jobs", "/v1/events", "/v1/jobs?user=ann", "/v1/wallets/ann/ledger")
    ]
    texts += [client_of(live_server, "admin").get(f"/v1/admin/{path}").text for path in ("keys", "audit", "workers")]
    assert [value for value in foreign for text in texts if value in text] == []
    assert any(own.job_id in text for text in texts)


def test_a_user_token_reads_the_jobs_files_and_wallet_of_its_user_only(
    live_server: LiveServer, own: FinishedJob
) -> None:
    # R159
    bob = finish_job(live_server, TENANT, "bob")
    user = client_of(live_server, "user")
    for finished, status in ((own, 200), (bob, 404)):
        for path in (
            f"/v1/jobs/{finished.job_id}", f"/v1/jobs/{finished.job_id}/outputs", f"/v1/jobs/{finished.job_id}/events",
            f"/v1/jobs/{finished.job_id}/tasks", f"/v1/jobs/{finished.job_id}/tasks/{finished.task_id}/preview",
            f"/v1/files/{finished.file_id}",
        ):  # fmt: skip
            assert user.get(path).status_code == status, path
    assert {job["user"] for job in user.get("/v1/jobs?limit=200&user=bob").json()["jobs"]} == {"ann"}
    assert user.get("/v1/wallets/ann").status_code == 200
    for path in ("/v1/wallets/bob", "/v1/wallets/bob/ledger"):
        assert (user.get(path).status_code, user.get(path).json()["code"]) == (403, "forbidden")
