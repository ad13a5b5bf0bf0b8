"""The house over HTTP: tenants, keys and their end, users' tokens, operations, and an audit log that tells of them."""

import time
from typing import Any

import httpx
import pytest

from callsheet.core.model import commands
from callsheet.http.auth.authenticator import TOKEN_PREFIX, Caller, UserToken
from tests.support.processes.live_server import OTHER_TENANT, TENANT, LiveServer
from tests.support.wait import wait_until


def make(live_server: LiveServer, maker: str = "admin", **body: Any) -> httpx.Response:
    return live_server.client(maker).post("/v1/admin/keys", json={"name": "made here", "role": "client"} | body)


def with_secret(live_server: LiveServer, secret: str) -> httpx.Client:
    live_server.keys["under test"] = secret
    return live_server.client("under test")


def lines(live_server: LiveServer, role: str = "operator", action: str = "") -> list[dict[str, Any]]:
    found = live_server.client(role).get("/v1/admin/audit", params={"limit": 200}).raise_for_status().json()["entries"]
    return [line for line in found if action in {"", line["action"]}]


# -- tenants


def test_a_tenant_is_made_changed_and_listed(live_server: LiveServer) -> None:
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
    client = with_secret(live_server, make(live_server, "operator", tenant="frozen").json()["secret"])
    answer = client.post("/v1/jobs", json={"workflow": "sketch", "user": "ann", "input": {}})
    assert (answer.status_code, answer.json()["code"]) == (403, "tenant_suspended")
    assert client.get("/v1/jobs").status_code == 200, "looking is free"


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("bad name", {}, "invalid_tenant"), ("x" * 129, {}, "invalid_tenant"), ("good", {"weight": 0}, "out_of_range"),
        ("good", {"weight": 1_001}, "out_of_range"), ("good", {"status": "gone"}, "invalid_body"),
        ("good", {"colour": "red"}, "invalid_body"), ("good", {"active_jobs_max": -1}, "out_of_range"),
    ],
)  # fmt: skip
def test_a_tenant_that_makes_no_sense_is_refused(
    live_server: LiveServer, name: str, body: dict[str, Any], code: str
) -> None:
    answer = live_server.client("operator").put(f"/v1/admin/tenants/{name}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)


# -- keys


def test_a_new_key_works_at_once_and_its_secret_is_shown_once(live_server: LiveServer) -> None:
    made = make(live_server)
    key, secret = made.json()["key"], made.json()["secret"]
    assert (made.status_code, key["role"], key["tenant"]) == (201, "client", TENANT)
    me = with_secret(live_server, secret).get("/v1/me").json()
    assert (me["role"], me["tenant"], me["id"]) == ("client", TENANT, key["id"])
    listed = live_server.client("admin").get("/v1/admin/keys").text
    assert key["id"] in listed
    assert secret not in listed


def test_a_revoked_key_stops_at_once_and_for_ever(live_server: LiveServer) -> None:
    made = make(live_server).json()
    client = with_secret(live_server, made["secret"])
    assert client.get("/v1/me").status_code == 200
    ended = live_server.client("admin").delete(f"/v1/admin/keys/{made['key']['id']}")
    assert ended.json()["revoked_at"] is not None
    answer = client.get("/v1/me")
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key")
    again = live_server.client("admin").delete(f"/v1/admin/keys/{made['key']['id']}")
    assert (again.status_code, again.json()) == (200, ended.json())


def test_a_key_that_expired_is_not_known_any_more(live_server: LiveServer) -> None:
    made = make(live_server, expires_in_seconds=1).json()
    client = with_secret(live_server, made["secret"])
    assert made["key"]["expires_at"] is not None
    wait_until(lambda: client.get("/v1/me").status_code == 401)


def test_an_admin_makes_keys_for_its_own_tenant_only(live_server: LiveServer) -> None:
    for tenant in (OTHER_TENANT, ""):
        answer = make(live_server, tenant=tenant)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert make(live_server, tenant=TENANT).json()["key"]["tenant"] == TENANT
    assert make(live_server, "operator", tenant=OTHER_TENANT).json()["key"]["tenant"] == OTHER_TENANT


def test_an_operator_makes_another_operator(live_server: LiveServer) -> None:
    made = make(live_server, "operator", tenant="", role="admin").json()
    assert with_secret(live_server, made["secret"]).get("/v1/admin/ops").status_code == 200
    assert make(live_server, "operator", tenant="", role="client").json()["code"] == "tenant_required"


def test_a_tenants_admin_neither_sees_nor_ends_keys_of_others(live_server: LiveServer) -> None:
    theirs = make(live_server, "operator", tenant=OTHER_TENANT).json()["key"]["id"]
    state = live_server.client("operator").get("/v1/me").json()["id"]
    seen = {key["id"] for key in live_server.client("admin").get("/v1/admin/keys").json()["keys"]}
    assert not {theirs, state} & seen
    for name in (theirs, state, "no-such-key"):
        answer = live_server.client("admin").delete(f"/v1/admin/keys/{name}")
        assert (answer.status_code, answer.json()["code"]) == (404, "key_not_found")


def test_a_key_does_not_end_itself(live_server: LiveServer) -> None:
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
def test_a_key_that_makes_no_sense_is_refused(live_server: LiveServer, body: dict[str, Any], code: str) -> None:
    answer = make(live_server, **body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)


def test_a_key_of_an_unknown_tenant_is_refused(live_server: LiveServer) -> None:
    answer = make(live_server, "operator", tenant="nowhere")
    assert (answer.status_code, answer.json()["code"]) == (404, "tenant_not_found")


# -- users' tokens


def test_a_token_is_one_users_and_reads_only(live_server: LiveServer) -> None:
    made = live_server.client("client").post("/v1/tokens", json={"user": "zoe", "expires_in_seconds": 60})
    assert (made.status_code, made.json()["expires_in_seconds"]) == (201, 60)
    client = with_secret(live_server, made.json()["token"])
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
def test_a_token_that_makes_no_sense_is_refused(live_server: LiveServer, body: dict[str, Any]) -> None:
    answer = live_server.client("client").post("/v1/tokens", json=body)
    assert (answer.status_code, answer.json()["code"] in {"invalid_user", "out_of_range"}) == (422, True)


def test_a_token_that_expired_or_was_tampered_with_opens_nothing(live_server: LiveServer) -> None:
    signed = live_server.callsheet.state.signer
    old = UserToken(TENANT, "ann", int(time.time()) - 2, live_server.client("client").get("/v1/me").json()["id"])
    good = live_server.keys["user"]
    middle = good[:40] + ("A" if good[40] != "A" else "B") + good[41:]
    wrong = (
        TOKEN_PREFIX + signed.sign("user", old), TOKEN_PREFIX + signed.sign("quote", old), middle, good[:-4],
        good.removeprefix(TOKEN_PREFIX), TOKEN_PREFIX, TOKEN_PREFIX + "x",
    )  # fmt: skip
    for token in wrong:
        answer = with_secret(live_server, token).get("/v1/me")
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key")
    assert with_secret(live_server, good).get("/v1/me").status_code == 200


def test_a_token_ends_with_the_key_that_made_it(live_server: LiveServer) -> None:
    made = make(live_server).json()
    body = {"user": "ann", "expires_in_seconds": 600}
    token = with_secret(live_server, made["secret"]).post("/v1/tokens", json=body).raise_for_status().json()["token"]
    browser, other = with_secret(live_server, token), with_secret(live_server, live_server.keys["user"])
    assert browser.get("/v1/me").json()["user"] == "ann"
    live_server.client("admin").delete(f"/v1/admin/keys/{made['key']['id']}").raise_for_status()
    refused = browser.get("/v1/me")
    assert (refused.status_code, refused.json()["code"]) == (401, "invalid_key")
    assert other.get("/v1/me").status_code == 200


def test_a_token_is_no_longer_than_its_key(live_server: LiveServer) -> None:
    made = make(live_server, expires_in_seconds=1).json()
    keys = live_server.callsheet.state.authenticator
    who = Caller("client", TENANT, made["key"]["id"])
    browser = with_secret(live_server, keys.create_user_token(who, "ann", 600))
    assert browser.get("/v1/me").status_code in {200, 401}
    wait_until(lambda: browser.get("/v1/me").status_code == 401)
    unknown = keys.create_user_token(Caller("client", TENANT, "no such key"), "ann", 600)
    assert with_secret(live_server, unknown).get("/v1/me").status_code == 401


# -- the audit log


def test_what_was_done_is_in_the_log_with_who_did_it(live_server: LiveServer) -> None:
    # R80
    admin = live_server.client("admin")
    by = admin.get("/v1/me").json()["id"]
    admin.post("/v1/wallets/lou/topup", json={"amount": 12, "reason": "bought"}).raise_for_status()
    line = next(line for line in lines(live_server, "admin", "wallet.topup") if line["subject"] == "lou")
    assert (line["by"], line["tenant"], line["data"]) == (by, TENANT, {"amount": 12, "reason": "bought"})


def test_an_admins_cancel_is_in_the_log_and_a_clients_is_not(live_server: LiveServer) -> None:
    # R78, R80
    jobs = {role: live_server.submit()["id"] for role in ("admin", "client")}
    for role, job in jobs.items():
        live_server.client(role).post(f"/v1/jobs/{job}/cancel", json={"reason": "No."}).raise_for_status()
    subjects = {line["subject"] for line in lines(live_server, "admin", "job.cancel")}
    assert jobs["admin"] in subjects
    assert jobs["client"] not in subjects


def test_a_tenants_admin_reads_its_own_lines_and_the_operator_all(live_server: LiveServer) -> None:
    live_server.client("other admin").post("/v1/wallets/mia/topup", json={"amount": 1}).raise_for_status()
    assert {line["tenant"] for line in lines(live_server, "admin")} == {TENANT}
    assert {TENANT, OTHER_TENANT} <= {line["tenant"] for line in lines(live_server)}
    assert live_server.client("client").get("/v1/admin/audit").status_code == 403


def test_no_secret_is_in_the_log(live_server: LiveServer) -> None:
    secret = make(live_server, "operator").json()["secret"]
    text = live_server.client("operator").get("/v1/admin/audit", params={"limit": 200}).text
    for known in (secret, *live_server.keys.values()):
        assert known not in text
        assert known[:20] not in text


def test_the_log_is_read_newest_first_and_page_by_page(live_server: LiveServer) -> None:
    for n in range(1, 4):
        live_server.client("admin").post("/v1/wallets/ned/topup", json={"amount": n}).raise_for_status()
    everything = [line["id"] for line in lines(live_server)]
    client = live_server.client("operator")
    before: str | None = "~"
    seen: list[str] = []
    while before is not None:
        page = client.get("/v1/admin/audit", params={"limit": 7, "cursor": before}).json()
        seen += [line["id"] for line in page["entries"]]
        before = page["next"]
    assert seen[: len(everything)] == everything
    assert seen == sorted(set(seen), reverse=True)


# -- operations


def test_operations_show_what_waits_runs_and_works(live_server: LiveServer) -> None:
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


def test_a_change_of_a_tenants_share_leaves_its_suspension_and_its_cap(live_server: LiveServer) -> None:
    operator = live_server.client("operator")
    operator.put("/v1/admin/tenants/halted", json={"status": "suspended", "active_jobs_max": 3})
    after = operator.put("/v1/admin/tenants/halted", json={"weight": 2}).json()
    assert (after["weight"], after["status"], after["active_jobs_max"]) == (2, "suspended", 3)


def test_a_suspended_tenant_may_look_and_change_nothing(live_server: LiveServer) -> None:
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
