"""Administration over HTTP: tenants, API keys, user tokens, the audit log and operations."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from callsheet.core.model import commands
from callsheet.core.model.audit_chain import line_digest
from callsheet.core.model.rows import Audit
from callsheet.http.auth.authenticator import TOKEN_PREFIX, Caller, UserToken
from tests.support.processes.live_server import OTHER_TENANT, TENANT, LiveServer
from tests.support.wait import wait_until


def create_key(live_server: LiveServer, creator: str = "admin", **body: Any) -> httpx.Response:
    return live_server.client(creator).post("/v1/admin/keys", json={"name": "made here", "role": "client"} | body)


def client_with_secret(live_server: LiveServer, secret: str) -> httpx.Client:
    live_server.keys["under test"] = secret
    return live_server.client("under test")


def audit_entries(live_server: LiveServer, role: str = "operator", action: str = "") -> list[dict[str, Any]]:
    found = live_server.client(role).get("/v1/admin/audit", params={"limit": 200}).raise_for_status().json()["entries"]
    return [entry for entry in found if action in {"", entry["action"]}]


# -- tenants


def test_a_tenant_is_created_changed_and_listed(live_server: LiveServer) -> None:
    operator = live_server.client("operator")
    made = operator.put("/v1/admin/tenants/studio", json={"weight": 4}).json()
    assert (made["id"], made["weight"], made["status"], made["active_jobs_max"]) == ("studio", 4, "active", None)
    changed = operator.put("/v1/admin/tenants/studio", json={"active_jobs_max": 2}).json()
    assert (changed["weight"], changed["active_jobs_max"], changed["created_at"]) == (4, 2, made["created_at"])
    names = [tenant["id"] for tenant in operator.get("/v1/admin/tenants").json()["tenants"]]
    assert names == sorted(names)
    assert {"studio", TENANT, OTHER_TENANT} <= set(names)


def test_tenants_are_listed_page_by_page(live_server: LiveServer) -> None:
    operator = live_server.client("operator")
    after: str | None = ""
    seen: list[str] = []
    while after is not None:
        page = operator.get("/v1/admin/tenants", params={"limit": 1, "cursor": after}).json()
        seen += [tenant["id"] for tenant in page["tenants"]]
        after = page["next"]
    assert seen == sorted(seen)
    assert {TENANT, OTHER_TENANT} <= set(seen)


def test_a_suspended_tenant_gets_no_new_jobs(live_server: LiveServer) -> None:
    operator = live_server.client("operator")
    operator.put("/v1/admin/tenants/frozen", json={"status": "suspended"})
    client = client_with_secret(live_server, create_key(live_server, "operator", tenant="frozen").json()["secret"])
    answer = client.post("/v1/jobs", json={"workflow": "sketch", "user": "ann", "input": {}})
    assert (answer.status_code, answer.json()["code"]) == (403, "tenant_suspended")
    assert client.get("/v1/jobs").status_code == 200, "reading is allowed"


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("bad name", {}, "invalid_tenant"), ("x" * 129, {}, "invalid_tenant"), ("good", {"weight": 0}, "out_of_range"),
        ("good", {"weight": 1_001}, "out_of_range"), ("good", {"status": "unknown"}, "invalid_body"),
        ("good", {"colour": "red"}, "invalid_body"), ("good", {"active_jobs_max": -1}, "out_of_range"),
    ],
)  # fmt: skip
def test_an_invalid_tenant_is_refused(live_server: LiveServer, name: str, body: dict[str, Any], code: str) -> None:
    answer = live_server.client("operator").put(f"/v1/admin/tenants/{name}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)


# -- keys


def test_a_new_key_works_at_once_and_its_secret_is_returned_once(live_server: LiveServer) -> None:
    made = create_key(live_server)
    key, secret = made.json()["key"], made.json()["secret"]
    assert (made.status_code, key["role"], key["tenant"]) == (201, "client", TENANT)
    me = client_with_secret(live_server, secret).get("/v1/me").json()
    assert (me["role"], me["tenant"], me["id"]) == ("client", TENANT, key["id"])
    listed = live_server.client("admin").get("/v1/admin/keys").text
    assert key["id"] in listed
    assert secret not in listed


def test_a_revoked_key_is_refused_at_once(live_server: LiveServer) -> None:
    made = create_key(live_server).json()
    client = client_with_secret(live_server, made["secret"])
    assert client.get("/v1/me").status_code == 200
    ended = live_server.client("admin").delete(f"/v1/admin/keys/{made['key']['id']}")
    assert ended.json()["revoked_at"] is not None
    answer = client.get("/v1/me")
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key")
    again = live_server.client("admin").delete(f"/v1/admin/keys/{made['key']['id']}")
    assert (again.status_code, again.json()) == (200, ended.json())


def test_an_expired_key_is_refused(live_server: LiveServer) -> None:
    made = create_key(live_server, expires_in_seconds=1).json()
    client = client_with_secret(live_server, made["secret"])
    assert made["key"]["expires_at"] is not None
    wait_until(lambda: client.get("/v1/me").status_code == 401)


def test_an_admin_creates_keys_for_its_own_tenant_only(live_server: LiveServer) -> None:
    for tenant in (OTHER_TENANT, ""):
        answer = create_key(live_server, tenant=tenant)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert create_key(live_server, tenant=TENANT).json()["key"]["tenant"] == TENANT
    assert create_key(live_server, "operator", tenant=OTHER_TENANT).json()["key"]["tenant"] == OTHER_TENANT


def test_an_operator_creates_another_operator(live_server: LiveServer) -> None:
    made = create_key(live_server, "operator", tenant="", role="admin").json()
    assert client_with_secret(live_server, made["secret"]).get("/v1/admin/ops").status_code == 200
    assert create_key(live_server, "operator", tenant="", role="client").json()["code"] == "tenant_required"


def test_an_admin_neither_sees_nor_revokes_keys_of_another_tenant(live_server: LiveServer) -> None:
    theirs = create_key(live_server, "operator", tenant=OTHER_TENANT).json()["key"]["id"]
    operators = live_server.client("operator").get("/v1/me").json()["id"]
    seen = {key["id"] for key in live_server.client("admin").get("/v1/admin/keys").json()["keys"]}
    assert not {theirs, operators} & seen
    for name in (theirs, operators, "no-such-key"):
        answer = live_server.client("admin").delete(f"/v1/admin/keys/{name}")
        assert (answer.status_code, answer.json()["code"]) == (404, "key_not_found")


def test_a_key_cannot_revoke_itself(live_server: LiveServer) -> None:
    own = live_server.client("admin").get("/v1/me").json()["id"]
    answer = live_server.client("admin").delete(f"/v1/admin/keys/{own}")
    assert (answer.status_code, answer.json()["code"]) == (409, "cannot_revoke_own_key")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"role": "king"}, "invalid_body"), ({"name": ""}, "invalid_key_name"), ({"name": "a\nb"}, "invalid_key_name"),
        ({"expires_in_seconds": 0}, "out_of_range"), ({"expires_in_seconds": 10**12}, "out_of_range"),
        ({"secret": "mine"}, "invalid_body"),
    ],
)  # fmt: skip
def test_an_invalid_key_request_is_refused(live_server: LiveServer, body: dict[str, Any], code: str) -> None:
    answer = create_key(live_server, **body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)


def test_a_key_of_an_unknown_tenant_is_refused(live_server: LiveServer) -> None:
    answer = create_key(live_server, "operator", tenant="nowhere")
    assert (answer.status_code, answer.json()["code"]) == (404, "tenant_not_found")


# -- users' tokens


def test_a_user_token_reads_the_data_of_one_user_only(live_server: LiveServer) -> None:
    made = live_server.client("client").post("/v1/tokens", json={"user": "zoe", "expires_in_seconds": 60})
    assert (made.status_code, made.json()["expires_in_seconds"]) == (201, 60)
    client = client_with_secret(live_server, made.json()["token"])
    me = client.get("/v1/me").json()
    assert (me["role"], me["user"], me["tenant"]) == ("user", "zoe", TENANT)
    assert client.get("/v1/jobs").json()["jobs"] == []
    assert client.post("/v1/jobs", json={"workflow": "sketch", "user": "zoe"}).status_code == 403
    anns = live_server.submit()["id"]
    for path in (f"/v1/jobs/{anns}", f"/v1/jobs/{anns}/events", f"/v1/jobs/{anns}/outputs"):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"user": ""},
        {"user": "  "},
        {"user": "x" * 256},
        {"user": "a", "expires_in_seconds": 0},
        {"user": "a", "expires_in_seconds": 9_999},
    ],
)
def test_an_invalid_token_request_is_refused(live_server: LiveServer, body: dict[str, Any]) -> None:
    answer = live_server.client("client").post("/v1/tokens", json=body)
    assert (answer.status_code, answer.json()["code"] in {"invalid_user", "out_of_range"}) == (422, True)


def test_an_expired_or_changed_token_is_refused(live_server: LiveServer) -> None:
    signer = live_server.callsheet.state.signer
    old = UserToken(TENANT, "ann", int(time.time()) - 2, live_server.client("client").get("/v1/me").json()["id"])
    good = live_server.keys["user"]
    middle = good[:40] + ("A" if good[40] != "A" else "B") + good[41:]
    wrong = (
        TOKEN_PREFIX + signer.sign("user", old), TOKEN_PREFIX + signer.sign("quote", old), middle, good[:-4],
        good.removeprefix(TOKEN_PREFIX), TOKEN_PREFIX, TOKEN_PREFIX + "x",
    )  # fmt: skip
    for token in wrong:
        answer = client_with_secret(live_server, token).get("/v1/me")
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key")
    assert client_with_secret(live_server, good).get("/v1/me").status_code == 200


def test_a_token_is_revoked_with_the_key_that_created_it(live_server: LiveServer) -> None:
    made = create_key(live_server).json()
    body = {"user": "ann", "expires_in_seconds": 600}
    token = (
        client_with_secret(live_server, made["secret"]).post("/v1/tokens", json=body).raise_for_status().json()["token"]
    )
    browser, other = client_with_secret(live_server, token), client_with_secret(live_server, live_server.keys["user"])
    assert browser.get("/v1/me").json()["user"] == "ann"
    live_server.client("admin").delete(f"/v1/admin/keys/{made['key']['id']}").raise_for_status()
    refused = browser.get("/v1/me")
    assert (refused.status_code, refused.json()["code"]) == (401, "invalid_key")
    assert other.get("/v1/me").status_code == 200


def test_a_token_expires_no_later_than_its_key(live_server: LiveServer) -> None:
    made = create_key(live_server, expires_in_seconds=1).json()
    keys = live_server.callsheet.state.authenticator
    caller = Caller("client", TENANT, made["key"]["id"])
    browser = client_with_secret(live_server, keys.create_user_token(caller, "ann", 600))
    assert browser.get("/v1/me").status_code in {200, 401}
    wait_until(lambda: browser.get("/v1/me").status_code == 401)
    unknown = keys.create_user_token(Caller("client", TENANT, "no such key"), "ann", 600)
    assert client_with_secret(live_server, unknown).get("/v1/me").status_code == 401


# -- the audit log


def test_an_admin_action_is_in_the_audit_log_with_its_key(live_server: LiveServer) -> None:
    # R80
    admin = live_server.client("admin")
    by = admin.get("/v1/me").json()["id"]
    admin.post("/v1/wallets/lou/topup", json={"amount": 12, "reason": "bought"}).raise_for_status()
    entry = next(entry for entry in audit_entries(live_server, "admin", "wallet.topup") if entry["subject"] == "lou")
    assert (entry["by"], entry["tenant"], entry["data"]) == (by, TENANT, {"amount": 12, "reason": "bought"})


def test_a_cancel_by_an_admin_is_in_the_audit_log_and_one_by_a_client_is_not(live_server: LiveServer) -> None:
    # R78, R80
    jobs = {role: live_server.submit()["id"] for role in ("admin", "client")}
    for role, job in jobs.items():
        live_server.client(role).post(f"/v1/jobs/{job}/cancel", json={"reason": "No."}).raise_for_status()
    subjects = {entry["subject"] for entry in audit_entries(live_server, "admin", "job.cancel")}
    assert jobs["admin"] in subjects
    assert jobs["client"] not in subjects


def test_an_admin_reads_the_entries_of_its_tenant_and_an_operator_reads_all(live_server: LiveServer) -> None:
    live_server.client("other admin").post("/v1/wallets/mia/topup", json={"amount": 1}).raise_for_status()
    assert {entry["tenant"] for entry in audit_entries(live_server, "admin")} == {TENANT}
    assert {TENANT, OTHER_TENANT} <= {entry["tenant"] for entry in audit_entries(live_server)}
    assert live_server.client("client").get("/v1/admin/audit").status_code == 403


def test_no_secret_is_in_the_audit_log(live_server: LiveServer) -> None:
    secret = create_key(live_server, "operator").json()["secret"]
    text = live_server.client("operator").get("/v1/admin/audit", params={"limit": 200}).text
    for known in (secret, *live_server.keys.values()):
        assert known not in text
        assert known[:20] not in text


def test_an_audit_entry_has_its_number_and_digest_in_the_chain_of_its_tenant(live_server: LiveServer) -> None:
    admin = live_server.client("admin")
    for amount in (1, 2):
        admin.post("/v1/wallets/lou/topup", json={"amount": amount}).raise_for_status()
    newest, before = audit_entries(live_server, "admin")[:2]
    at = (datetime.fromisoformat(newest["at"]) - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
    line = Audit(
        newest["id"], TENANT, at, newest["by"], newest["action"], newest["subject"],
        '{"amount":2,"reason":"top-up"}', before["seq"] + 1,
    )  # fmt: skip
    assert (newest["seq"], newest["digest"]) == (line.seq, line_digest(before["digest"], line))


def test_the_audit_log_is_listed_newest_first_page_by_page(live_server: LiveServer) -> None:
    for n in range(1, 4):
        live_server.client("admin").post("/v1/wallets/ned/topup", json={"amount": n}).raise_for_status()
    everything = [entry["id"] for entry in audit_entries(live_server)]
    client = live_server.client("operator")
    before: str | None = "~"
    seen: list[str] = []
    while before is not None:
        page = client.get("/v1/admin/audit", params={"limit": 7, "cursor": before}).json()
        seen += [entry["id"] for entry in page["entries"]]
        before = page["next"]
    assert seen[: len(everything)] == everything
    assert seen == sorted(set(seen), reverse=True)


# -- operations


def test_operations_show_waiting_and_running_tasks_and_workers(live_server: LiveServer) -> None:
    live_server.engine.execute(commands.TopUp(tenant=TENANT, user="ops", amount=100, idempotency_key="x"))
    before = {
        (q["kind"], q["workflow"]): q for q in live_server.client("operator").get("/v1/admin/ops").json()["queues"]
    }
    waiting = before.get(("draw", "sketch"), {"waiting": 0})["waiting"]
    live_server.submit(user="ops", priority=99)
    live_server.submit(user="ops", priority=99)
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="ops-worker", kinds=("draw",)))
    ops = live_server.client("operator").get("/v1/admin/ops").json()
    queue = next(q for q in ops["queues"] if (q["kind"], q["workflow"]) == ("draw", "sketch"))
    assert (queue["waiting"], queue["running"] >= 1, ops["workers"] >= 1) == (waiting + 1, True, True)
    assert ops["active_jobs"]["running"] >= 1
    workers = {w["worker"]: w for w in live_server.client("operator").get("/v1/admin/workers").json()["workers"]}
    assert [lease["kind"] for lease in workers["ops-worker"]["leases"]] == ["draw"]
    live_server.engine.execute(commands.Complete(lease=leased.lease))
    assert "ops-worker" not in live_server.client("operator").get("/v1/admin/workers").text


@pytest.mark.parametrize("path", ["/v1/admin/ops", "/v1/admin/tenants", "/v1/admin/workers"])
@pytest.mark.parametrize("role", ["admin", "client", "viewer", "worker", "user"])
def test_only_operators_see_the_whole_server(live_server: LiveServer, path: str, role: str) -> None:
    assert live_server.client(role).get(path).status_code == 403


def test_a_change_of_a_tenants_weight_keeps_its_status_and_its_limit(live_server: LiveServer) -> None:
    operator = live_server.client("operator")
    operator.put("/v1/admin/tenants/halted", json={"status": "suspended", "active_jobs_max": 3})
    after = operator.put("/v1/admin/tenants/halted", json={"weight": 2}).json()
    assert (after["weight"], after["status"], after["active_jobs_max"]) == (2, "suspended", 3)


def test_a_suspended_tenant_can_read_and_cannot_change_anything(live_server: LiveServer) -> None:
    # R81
    operator = live_server.client("operator")
    operator.put("/v1/admin/tenants/stopped", json={})
    made = operator.post("/v1/admin/keys", json={"name": "a", "role": "admin", "tenant": "stopped"}).json()
    theirs = live_server.client(None, {"authorization": f"Bearer {made['secret']}"})
    assert theirs.post("/v1/wallets/zoe/topup", json={"amount": 5}).status_code == 200
    operator.put("/v1/admin/tenants/stopped", json={"status": "suspended"})
    refused = theirs.post("/v1/wallets/zoe/topup", json={"amount": 5})
    assert (refused.status_code, refused.json()["code"]) == (403, "tenant_suspended")
    assert theirs.post("/v1/admin/keys", json={"name": "b", "role": "client"}).status_code == 403
    assert theirs.get("/v1/wallets/zoe").json()["balance"] == 5
    operator.put("/v1/admin/tenants/stopped", json={"status": "active"})
    assert theirs.post("/v1/wallets/zoe/topup", json={"amount": 5}).status_code == 200
