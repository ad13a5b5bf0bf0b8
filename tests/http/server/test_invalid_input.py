"""Invalid requests are refused with an error code and change nothing."""

import gzip
import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.databases.database_contents import database_contents
from tests.support.processes.live_server import LiveServer

DEEP = 100_000
JOB: dict[str, Any] = {"workflow": "sketch", "user": "ann", "input": {"prompt": "a pier"}}
JSON = {"content-type": "application/json"}


def job(**more: Any) -> bytes:
    return json.dumps(JOB | more).encode()


def with_input(text: str) -> bytes:
    return b'{"workflow":"sketch","user":"ann","input":%b}' % text.encode()


BODIES: dict[str, tuple[bytes, int, str]] = {
    "nothing": (b"", 400, "body_required"),
    "a blank": (b" ", 400, "invalid_json"),
    "half of it": (job()[:-3], 400, "invalid_json"),
    "two of them": (job() + job(), 400, "invalid_json"),
    "not JSON": (b"workflow=sketch", 400, "invalid_json"),
    "single quotes": (str(JOB).encode(), 400, "invalid_json"),
    "a wrong type and then not JSON": (b'{"workflow": 1, ', 400, "invalid_json"),
    "a trailing comma": (b'{"workflow":"sketch","user":"ann",}', 400, "invalid_json"),
    "not UTF-8": (b'{"workflow":"sketch","user":"\xff\xfe"}', 400, "invalid_json"),
    "UTF-16": (job().decode().encode("utf-16"), 400, "invalid_json"),
    "half a character": (with_input(r'"\ud800"'), 400, "invalid_json"),
    "brackets without end": (b"[" * DEEP, 400, "invalid_json"),
    "deep brackets in the input": (with_input("[" * DEEP + "]" * DEEP), 400, "invalid_json"),
    "deep braces in the input": (with_input('{"a":' * DEEP + "1" + "}" * DEEP), 400, "invalid_json"),
    "a repeated field": (b'{"workflow":"sketch","user":"ann","user":"bob"}', 400, "invalid_json"),
    "a repeated field in the input": (with_input('{"a":1,"b":[{"c":1,"c":1}]}'), 400, "invalid_json"),
    "a repeated field, once escaped": (with_input(r'{"ab":1,"a\u0062":2}'), 400, "invalid_json"),
    "a repeated field and an escaped colon": (with_input(r'{"a":1,"a":"\u003a"}'), 400, "invalid_json"),
    "a repeated field with a long name": (with_input('{"%s":1,"%s":2}' % (("k" * 9_000,) * 2)), 400, "invalid_json"),
    "a NUL character": (with_input(r'"a\u0000"'), 422, "invalid_text"),
    "a NUL character in the name of a field": (with_input(r'{"a":[{"b\u0000":1}]}'), 422, "invalid_text"),
    "NaN": (with_input("NaN"), 400, "invalid_json"),
    "Infinity": (with_input('{"a":Infinity}'), 400, "invalid_json"),
    "-Infinity": (with_input("[-Infinity]"), 400, "invalid_json"),
    "an array": (b"[]", 422, "invalid_body"),
    "a text": (b'"sketch"', 422, "invalid_body"),
    "null": (b"null", 422, "invalid_body"),
    "no user": (b'{"workflow":"sketch"}', 422, "invalid_body"),
    "deeper than the input may be": (with_input("[" * 100 + "]" * 100), 422, "input_too_deep"),
    "a large input": (job(input={"prompt": "y" * 300_000}), 422, "input_too_large"),
    "10,001 array items": (job(input={"prompt": "x", "n": [0] * 10_001}), 422, "input_too_large"),
    "10,001 array items beyond the size": (job(input=["y" * 30] * 10_001), 422, "input_too_large"),
    "10,001 fields": (job(input={f"f{number}": 0 for number in range(10_001)}), 422, "input_too_large"),
    "a field of 300 characters": (job(input={"prompt": "x", "a": [{"k" * 300: 1}]}), 422, "input_too_large"),
    "1 MB of text": (job(input={"prompt": "y" * 1_000_000}), 422, "input_too_large"),
    "an input of another shape": (job(input={"prompt": 7}), 422, "invalid_input"),
    "a number that is not finite": (with_input('{"n":1e999}'), 400, "invalid_json"),
    "a NUL in the user": (b'{"workflow":"sketch","user":"a\\u0000b"}', 422, "invalid_text"),
    "an empty user": (job(user=""), 422, "invalid_user"),
    "a user with a line break": (job(user="a\nb"), 422, "invalid_user"),
    "a user of 300 characters": (job(user="u" * 300), 422, "invalid_user"),
    "an unknown workflow": (job(workflow="nothing"), 404, "workflow_not_found"),
    "a workflow that is a path": (job(workflow="../../etc/passwd"), 404, "workflow_not_found"),
    "stages where there are some": (job(stages=[{"name": "x", "kind": "y"}]), 422, "stages_not_allowed"),
    "33 labels": (job(labels={f"l{number}": "x" for number in range(33)}), 422, "too_many_labels"),
    "a label of 300 characters": (job(labels={"l" * 300: "x"}), 422, "invalid_label"),
    "a label that is a number": (job(labels={"a": 1}), 422, "invalid_body"),
    "large metadata": (job(metadata={"text": "y" * 20_000}), 422, "metadata_too_large"),
    "a key that is too long": (job(idempotency_key="k" * 256), 400, "invalid_idempotency_key"),
    "an empty key": (job(idempotency_key=""), 400, "invalid_idempotency_key"),
    "a key with a line break": (job(idempotency_key="a\nb"), 400, "invalid_idempotency_key"),
    "a start in the past": (job(start_in_seconds=-1), 422, "out_of_range"),
    "a start after our time": (job(start_in_seconds=1e18), 422, "out_of_range"),
    "no time": (job(deadline_seconds=0), 422, "out_of_range"),
    "a quote that is none": (job(quote="x"), 422, "invalid_quote"),
} | {
    f"a priority of {value!r:.30}": (job(priority=value), 422, code)
    for value, code in (
        (-1, "out_of_range"), (101, "out_of_range"), (2**63, "out_of_range"), (10**40, "out_of_range"),
        (0.5, "invalid_body"), ("high", "invalid_body"), ("1", "invalid_body"), (True, "invalid_body"),
    )
} | {
    f"{field}, which is not the client's": (job(**{field: value}), 422, "invalid_body")
    for field, value in (
        ("status", "completed"), ("price", 0), ("tenant_id", "other"), ("tenant", "other"), ("attempt", 9),
        ("finished_at", "2026-01-01T00:00:00Z"), ("id", "x"), ("__class__", "Job"),
    )
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_an_invalid_body_is_refused_with_its_error_code(live_server: LiveServer, name: str) -> None:
    body, status, code = BODIES[name]
    answer = live_server.client("client").post("/v1/jobs", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert set(answer.json()) >= {"code", "message", "request_id"}
    assert answer.headers["content-type"] == "application/problem+json"


HEADERS: dict[str, tuple[dict[str, str], bytes, int]] = {
    "no type": ({}, job(), 415),
    "text": ({"content-type": "text/plain"}, job(), 415),
    "a form": ({"content-type": "application/x-www-form-urlencoded"}, job(), 415),
    "another charset": ({"content-type": "application/json; charset=utf-7"}, job(), 415),
    "latin-1": ({"content-type": "application/json; charset=iso-8859-1"}, job(), 415),
    "gzip": (JSON | {"content-encoding": "gzip"}, gzip.compress(b"[" + b" " * 2_000_000 + b"]"), 415),
    "an unknown encoding": (JSON | {"content-encoding": "x"}, job(), 415),
    "a body of 2 MiB": (JSON, job(input="y" * 2 * 1024 * 1024), 413),
    "a key of 256": (JSON | {"idempotency-key": "k" * 256}, job(), 400),
    "an empty key": (JSON | {"idempotency-key": ""}, job(), 400),
    "a key with a tab": (JSON | {"idempotency-key": "a\tb"}, job(), 400),
    "two keys": (JSON | {"idempotency-key": "a"}, job(idempotency_key="b"), 422),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_request_with_invalid_headers_is_refused(live_server: LiveServer, name: str) -> None:
    headers, body, status = HEADERS[name]
    answer = live_server.client("client").post("/v1/jobs", content=body, headers=headers)
    assert (answer.status_code, "code" in answer.json()) == (status, True)


@pytest.mark.parametrize("key", ["k-é", "🎬", "plain"])
def test_an_idempotency_key_is_the_same_in_the_header_and_in_the_body(live_server: LiveServer, key: str) -> None:
    client = live_server.client("client")
    plain, named = [(b"content-type", b"application/json")], [(b"idempotency-key", key.encode())]
    ways = ((job(idempotency_key=key), plain), (job(), plain + named), (job(idempotency_key=key), plain + named))
    made = [client.post("/v1/jobs", content=body, headers=headers) for body, headers in ways]
    assert [one.status_code for one in made] == [201, 200, 200]
    assert len({one.json()["id"] for one in made}) == 1


def test_an_idempotency_key_that_is_not_utf_8_is_refused(live_server: LiveServer) -> None:
    headers = [(b"content-type", b"application/json"), (b"idempotency-key", b"k-\xff")]
    answer = live_server.client("client").post("/v1/jobs", content=job(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_idempotency_key")


def test_refused_requests_change_nothing(live_server: LiveServer) -> None:
    client = live_server.client("client")
    before = database_contents(live_server)
    requests = [(JSON, body) for body, _, _ in BODIES.values()] + [
        (headers, body) for headers, body, _ in HEADERS.values()
    ]
    answers = [client.post("/v1/jobs", content=body, headers=headers) for headers, body in requests]
    assert database_contents(live_server) == before
    assert [answer.status_code for answer in answers if answer.is_success] == []
    live_server.submit()
    assert database_contents(live_server) != before


def test_an_input_at_its_limits_is_accepted(live_server: LiveServer) -> None:
    wide = {"prompt": "x", "n": [0] * 10_000, "f": {f"f{number}": 0 for number in range(10_000)}, "k" * 255: [[], {}]}
    assert live_server.submit(input=wide)["status"] == "queued"


@pytest.mark.parametrize("content_type", [
    "application/json", "application/json; charset=utf-8", 'application/JSON;charset="UTF-8"',
])  # fmt: skip
def test_json_may_declare_its_charset_utf_8(live_server: LiveServer, content_type: str) -> None:
    answer = live_server.client("client").post("/v1/jobs", content=job(), headers={"content-type": content_type})
    assert answer.status_code == 201


_LOOKS_LATIN = "\u0440\u0430\u0443\u0440\u0430\u04cf"
LITERAL = [
    "'; DROP TABLE job; --", '" OR ""="', "%", "_", "\\", "Robert'); --", ":name", "?1", "$1", "{job j}", "{{7*7}}",
    "${7*7}", "<script>alert(1)</script>", "__class__", "../../etc/passwd", "\u202egnp.exe", _LOOKS_LATIN, "🎬",
    "é\u0301", "\u200b", "{prompt}", '{"$ref": "#/x"}', "\u2028", "tab\there", "line\nbreak",
]  # fmt: skip


@pytest.mark.parametrize("text", LITERAL)
def test_texts_are_stored_literally(live_server: LiveServer, text: str) -> None:
    client = live_server.client("client")
    body = JOB | {"input": {"prompt": text, text: [text]}, "labels": {"a": text}, "metadata": {text: text}}
    made = client.post("/v1/jobs", json=body)
    assert made.status_code == 201
    got = client.get(f"/v1/jobs/{made.json()['id']}").json()
    assert (got["labels"], got["metadata"]) == ({"a": text}, {text: text})
    (document,) = live_server.engine.reads.documents(made.json()["id"])
    assert json.loads(document.body) == {"prompt": text, text: [text]}


@pytest.mark.parametrize("user", [text for text in LITERAL if text.isprintable() and text.strip()] + ["a/b", "/"])
def test_a_user_name_may_contain_any_printable_character(live_server: LiveServer, user: str) -> None:
    admin = live_server.client("admin")
    path = f"/v1/wallets/{_percent_encode(user)}"
    topped = admin.post(f"{path}/topup", json={"amount": 5, "idempotency_key": "once"})
    assert (topped.status_code, topped.json()["user"], topped.json()["balance"]) == (200, user, 5)
    assert admin.get(path).json()["balance"] == 5
    assert [entry["amount"] for entry in admin.get(f"{path}/ledger").json()["entries"]] == [5]
    made = admin.post("/v1/jobs", json=JOB | {"user": user})
    assert (made.status_code, made.json()["user"]) == (201, user)


@pytest.mark.parametrize("path", [
    "/v1/jobs/x", "/v1/jobs/%2e%2e%2f", "/v1/jobs/..%2f..%2fetc%2fpasswd", "/v1/jobs/%00", "/v1/jobs/a%0ab",
    "/v1/jobs/%ff", "/v1/jobs/%252e", "/v1/jobs/" + "x" * 5_000, "/v1/jobs/00000000-0000-7000-8000-000000000000",
    "/v1/jobs/'%20OR%201=1--", "/v1/files/%2e%2e%2fsecret.key", "/v1/files/..%2f..%2fadmin.key", "/v1/%6aobs/x",
    "/v1/jobs/x%2fcancel", "/v1/jobs/%e2%80%ae", "/v1/workflows/%2e%2e", "//v1//jobs", "/v1/jobs/x/stages/%00/approve",
])  # fmt: skip
def test_an_unknown_path_answers_404(live_server: LiveServer, path: str) -> None:
    answer = live_server.client("client").get(path)
    assert answer.status_code == 404
    assert answer.json()["code"].endswith("_not_found")


def test_a_percent_encoded_letter_is_decoded(live_server: LiveServer) -> None:
    assert live_server.client("client").get("/v1/%6de").json()["role"] == "client"


def test_a_path_of_more_than_8_kb_answers_414(live_server: LiveServer) -> None:
    answer = live_server.client("client").get("/v1/jobs/" + "x" * 8_192)
    assert (answer.status_code, answer.json()["code"]) == (414, "target_too_long")


QUERIES = {
    "/v1/jobs?limit=0": 422, "/v1/jobs?limit=-1": 422, "/v1/jobs?limit=201": 422, "/v1/jobs?limit=1e3": 422,
    "/v1/jobs?limit=99999999999999999999999": 422, "/v1/jobs?limit=x": 422, "/v1/jobs?nothing=1": 422,
    "/v1/jobs?limit=1&limit=2": 422, "/v1/jobs?status=%00": 422, "/v1/jobs?cursor=x": 422, "/v1/jobs?since=soon": 422,
    "/v1/jobs?since=9999-12-31T23:59:59Z": 200, "/v1/jobs?label=a": 422, "/v1/jobs?user=%27%20OR%201=1": 200,
    "/v1/jobs?" + "&".join(f"a{number}=1" for number in range(100)): 422,
    "/v1/events?cursor=x": 422, "/v1/events?limit=0": 422, "/v1/events?job=%27": 200,
    "/v1/wallets/ann/ledger?cursor=-1": 422, "/v1/wallets/ann/ledger?cursor=99999999999999999999": 422,
}  # fmt: skip


@pytest.mark.parametrize("path", QUERIES)
def test_queries_are_validated(live_server: LiveServer, path: str) -> None:
    answer = live_server.client("client").get(path)
    assert answer.status_code == QUERIES[path]
    assert answer.status_code == 200 or "code" in answer.json()


JOB_QUERIES = {
    "?wait_seconds=nan": 422, "?wait_seconds=inf": 422, "?wait_seconds=-1": 422, "?wait_seconds=x": 422,
    "?wait_seconds=1e999": 422, "?x=1": 422,
    "/events?cursor=-1": 422, "/events?cursor=99999999999999999999": 422, "/events?cursor=1.5": 422,
    "/events?limit=0": 422, "/events?cursor=9223372036854775807": 200,
}  # fmt: skip


@pytest.mark.parametrize("end", JOB_QUERIES)
def test_queries_of_a_job_are_validated(live_server: LiveServer, end: str) -> None:
    answer = live_server.client("client").get(f"/v1/jobs/{live_server.submit()['id']}{end}")
    assert answer.status_code == JOB_QUERIES[end]
    assert answer.status_code == 200 or answer.json()["code"] == "invalid_query"


@pytest.mark.parametrize("last", ["-1", "x", "1.5", "9" * 19, "9" * 400, "٣", ""])
def test_an_invalid_last_event_id_answers_422(live_server: LiveServer, last: str) -> None:
    headers = [(b"accept", b"text/event-stream"), (b"last-event-id", last.encode())]
    answer = live_server.client("client").get(f"/v1/jobs/{live_server.submit()['id']}/events", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_cursor")


AMOUNTS = [0, -1, 2**62 + 1, 2**63 - 1, 2**63, -(2**63), 10**40, 1.5, "5", None, True]


def test_an_invalid_amount_is_refused_and_moves_no_credits(live_server: LiveServer) -> None:
    before = database_contents(live_server)
    bodies = [{"amount": amount, "idempotency_key": "bad", "reason": "a test"} for amount in AMOUNTS]
    topups = [live_server.client("admin").post("/v1/wallets/ann/topup", json=body).status_code for body in bodies]
    down = AMOUNTS.index(-1)  # an adjustment may be negative
    adjusts = [
        live_server.client("admin").post("/v1/wallets/ann/adjust", json=body).status_code
        for body in (*bodies[:down], *bodies[down + 1 :])
    ]
    assert database_contents(live_server) == before
    assert set(topups + adjusts) == {422}


@pytest.mark.parametrize(("method", "path", "allowed"), [
    ("PUT", "/v1/jobs", "GET, HEAD, POST"), ("TRACE", "/v1/jobs", "GET, HEAD, POST"), ("DELETE", "/v1/me", "GET, HEAD"),
    ("OPTIONS", "/v1/jobs", "GET, HEAD, POST"), ("HEAD", "/v1/jobs/bulk", "POST"), ("PATCH", "/healthz", "GET, HEAD"),
    ("BREW", "/v1/jobs", None),
])  # fmt: skip
def test_an_unsupported_method_answers_405(
    live_server: LiveServer, method: str, path: str, allowed: str | None
) -> None:
    answer = live_server.client("client").request(method, path)
    assert answer.status_code == (400 if method == "BREW" else 404 if "bulk" in path and method != "HEAD" else 405)
    assert allowed is None or answer.headers["allow"] == allowed


@pytest.mark.parametrize("accept", ["text/xml", "*/*", "image/png;q=0.9", "x", ""])
def test_the_response_is_json_whatever_the_accept_header(live_server: LiveServer, accept: str) -> None:
    answer = live_server.client("client").get("/v1/me", headers={"accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")


def _percent_encode(text: str) -> str:
    return quote(text, safe="")


UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "similar": (JOB | {"imput": 1}, "unknown field `imput`: did you mean `input`?"),
    "in a list": ({"jobs": [JOB, JOB | {"lables": {}}]}, "`lables` - at `$.jobs[1]`: did you mean `labels`?"),
    "nested": (JOB | {"stages": [{"name": "a", "kind": "b", "taks": 1}]}, "`$.stages[0]`: did you mean `tasks`?"),
    "not similar": (JOB | {"zzz": 1}, "unknown field `zzz`: known fields are `workflow`, `user`, `input`, "),
    "long": (JOB | {"k" * 300: 1}, f"unknown field `{'k' * 80}…`: known fields are `workflow`, "),
    "looks like a path": (JOB | {"x` - at `$.stages[0]": 1}, "known fields are "),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_field_is_answered_with_the_closest_or_all_known_fields(live_server: LiveServer, name: str) -> None:
    body, message = UNKNOWN[name]
    path = "/v1/jobs/bulk" if "jobs" in body else "/v1/jobs"
    answer = live_server.client("client").post(path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_body")
    assert message in answer.json()["message"]
    assert "k" * 81 not in answer.text


def test_an_unknown_query_parameter_gets_a_suggestion_and_a_missing_field_is_named(live_server: LiveServer) -> None:
    client = live_server.client("client")
    answer = client.get("/v1/jobs", params={"statsu": "running"}).json()
    assert answer["message"] == "Query: Object contains unknown field `statsu`: did you mean `status`?"
    assert client.post("/v1/jobs", json={"workflow": "x"}).json()["message"] == "Object missing required field `user`."


def test_an_invalid_enum_value_is_answered_with_the_allowed_ones(live_server: LiveServer) -> None:
    answer = live_server.client("operator").post(
        "/v1/admin/keys", json={"name": "x", "role": "boss", "tenant": "default"}
    )
    assert answer.json()["message"] == "`$.role` must be one of `admin`, `client`, `viewer`, `worker`."
    retry = live_server.client("client").post("/v1/jobs/x/retry", json={"retry_as": "another"})
    assert retry.json()["message"] == "`$.retry_as` must be one of `new_job`, `new_run`."


def test_a_missing_permission_names_the_roles_that_have_it(live_server: LiveServer) -> None:
    # R69
    answer = live_server.client("viewer").post("/v1/jobs", json={})
    message = "The role viewer may not call this route. Use a key with the role operator or admin or client."
    assert (answer.status_code, answer.json()["message"]) == (403, message)
