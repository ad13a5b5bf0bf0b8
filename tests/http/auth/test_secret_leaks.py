"""No response, log line or stored row contains a secret: a scenario plants canaries and searches for them."""

import hashlib
import io
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import httpx
import pytest

from callsheet.blobs import object_keys
from callsheet.core.model import commands
from callsheet.core.model.commands import Outcome, OutputFile
from callsheet.engine.loops.sink_delivery import Relay
from callsheet.http.routes.table import ROUTES
from callsheet.telemetry.event_log import JsonLogWriter
from tests.support.databases.database_contents import dump_tables
from tests.support.processes.live_server import TENANT, LiveServer

REF = "canary-ref-7f3a9c"
PROMPT = "canary prompt about a lighthouse"
SIGNED = "https://bucket.example/canary-object?X-Amz-Signature=canary-signature-55"
WRONG = f"Traceback: {SIGNED} Bearer canary-bearer-token-1 /srv/canary/folder/model.bin password=canary-password"
ROLES = ("operator", "admin", "client", "viewer", "worker", "machine", "user")


class RecordedAnswer(NamedTuple):
    """One response: where it came from, and all of its headers and body."""

    where: str
    text: str


def leaks(answers: Iterable[RecordedAnswer], canaries: dict[str, str]) -> list[str]:
    """Return each canary and where it was found; only the route for a job's input may return the prompt."""
    found = [f"{name} in {one.where}" for one in answers for name, canary in canaries.items() if canary in one.text]
    return [one for one in found if not (one.startswith("prompt in GET /v1/jobs/") and one.endswith("/input 200"))]


def record_answer(answer: httpx.Response) -> RecordedAnswer:
    request = answer.request
    headers = "\n".join(f"{name}: {value}" for name, value in answer.headers.items())
    return RecordedAnswer(f"{request.method} {request.url.path} {answer.status_code}", f"{headers}\n{answer.text}")


class LeakScenario:
    """Jobs that complete, fail, are retried and go to a provider, and every response that was recorded meanwhile."""

    def __init__(self, live_server: LiveServer) -> None:
        self.live_server = live_server
        self.answers: list[RecordedAnswer] = []
        self.canaries = {"signed URL": "canary-signature", "bearer": "canary-bearer", "password": "canary-password"}
        self.canaries |= {"path in an error": "/srv/canary", "provider reference": REF, "prompt": PROMPT}
        self.canaries |= {"folder": str(live_server.callsheet.data), "signing secret": self._signing_secret()}
        for role, secret in live_server.keys.items():
            self.canaries |= {f"{role} key": secret, f"{role} key's hash": hashlib.sha256(secret.encode()).hexdigest()}
        self.ids: dict[str, str] = {"user": "ann", "workflow": "sketch", "tenant": TENANT, "stage_no": "1"}
        self.ids |= {"signed": "x", "worker": "m1"}

    def _signing_secret(self) -> str:
        return (self.live_server.callsheet.data / "secret.key").read_text().strip()

    def run(self) -> None:
        self._completes()
        self._fails_and_is_retried()
        self._goes_to_a_provider()
        self._runs_over_http()
        self._get_every_route()

    def _post(self, path: str, body: Any = None, role: str = "client") -> dict[str, Any]:
        answer = self.live_server.client(role).post(path, json=body)
        self.answers.append(record_answer(answer))
        parsed: dict[str, Any] = answer.json()
        return parsed

    def _submit_and_claim(self) -> commands.Lease:
        body = {
            "workflow": "sketch",
            "user": "ann",
            "input": {"prompt": PROMPT},
            "idempotency_key": f"k{len(self.answers)}",
        }
        self._post("/v1/jobs", body)
        ((leased),) = self.live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
        lease: commands.Lease = leased.lease
        name = f"lease of {lease.job_id}"
        self.canaries |= {name: lease.token, f"{name}, hashed": hashlib.sha256(lease.token.encode()).hexdigest()}
        return lease

    def _completes(self) -> None:
        lease, engine = self._submit_and_claim(), self.live_server.engine
        attempt = (TENANT, lease.job_id, lease.task_id, lease.attempt)
        for key in (object_keys.output_key(*attempt, 1), object_keys.preview_key(*attempt)):
            self.live_server.blobs.put(key, b"\x89PNG")
            self.canaries[f"path of {key}"] = str(self.live_server.blobs.path(key))
            self.canaries[f"key {key}"] = key
        engine.execute(commands.Heartbeat(lease=lease, progress=50, message=WRONG))
        self._get_job_routes(lease)  # while it is leased
        made = OutputFile(1, "a.png", "image/png", 4, "0" * 64)
        engine.execute(commands.Complete(lease=lease, output={"ok": True}, files=(made,)))
        outputs = self.live_server.client("client").get(f"/v1/jobs/{lease.job_id}/outputs").json()["outputs"]
        self.ids |= {"job_id": lease.job_id, "task_id": lease.task_id, "file_id": outputs[0]["files"][0]["id"]}
        self.ids["key_id"] = self.live_server.client("operator").get("/v1/admin/keys").json()["keys"][0]["id"]

    def _fails_and_is_retried(self) -> None:
        lease = self._submit_and_claim()
        self.live_server.engine.execute(commands.Fail(lease=lease, code="oom", message=WRONG))
        self._get_job_routes(lease)
        self._post(f"/v1/jobs/{lease.job_id}/retry", {})
        self._post(f"/v1/jobs/{lease.job_id}/cancel", {"reason": WRONG})
        self._get_job_routes(lease)

    def _goes_to_a_provider(self) -> None:
        lease, engine = self._submit_and_claim(), self.live_server.engine
        call = engine.execute(commands.RecordIntent(lease=lease, provider="acme"))
        engine.execute(commands.HandOff(lease=lease, ref=REF))
        self._get_job_routes(lease)
        failed = Outcome("failed", message=f"{REF}: {WRONG}", retryable=False)
        engine.execute(commands.ReportOutcome(call_id=call.call_id, job_id=lease.job_id, outcome=failed))
        self._get_job_routes(lease)

    def _runs_over_http(self) -> None:
        """Run a task over HTTP with a worker that sends secrets in its texts."""
        self._post("/v1/jobs", {"workflow": "sketch", "user": "ann", "input": {"prompt": PROMPT}})
        machine = self.live_server.client("machine")
        (task,) = machine.post("/v1/worker/claim", json={}).json()["tasks"]
        lease = commands.Lease(**task["lease"])
        self.canaries |= {"a machine's lease": lease.token}
        leased = {"lease": task["lease"]}
        for verb, body in (
            ("heartbeat", {"heartbeats": [{**leased, "progress": 10, "message": WRONG, "log": [WRONG]}]}),
            ("submitted", {**leased, "provider": "acme", "ref": REF}),
            ("fail", {**leased, "code": "oom", "message": f"{REF} {WRONG}"}),
        ):
            answers = record_answer(machine.post(f"/v1/worker/{verb}", json=body))
            self.answers.append(answers)
            assert answers.where.endswith("200"), answers
        self._get_job_routes(lease)

    def _get_job_routes(self, lease: commands.Lease) -> None:
        """Request every route of one job."""
        for route in ROUTES:
            if route.method == "GET" and "{job_id}" in route.path:
                path = route.path.format_map({"job_id": lease.job_id, "task_id": lease.task_id})
                self.answers.append(record_answer(self.live_server.client("client").get(path)))

    def _get_every_route(self) -> None:
        """Request every route in every role, with valid ids and with invalid bodies."""
        for role in ROLES:
            client = self.live_server.client(role)
            for route in ROUTES:
                if route.method == "GET":
                    self.answers.append(record_answer(client.get(route.path.format_map(self.ids))))
        stream = {"accept": "text/event-stream"}
        answer = self.live_server.client("client").get(f"/v1/jobs/{self.ids['job_id']}/events", headers=stream)
        self.answers.append(record_answer(answer))
        for role in ROLES:
            client = self.live_server.client(role)
            for route in ROUTES:
                if route.method != "GET":
                    self.answers.append(
                        record_answer(client.request(route.method, route.path.format_map(self.ids), content=b"{"))
                    )

    def log(self) -> list[RecordedAnswer]:
        """Return the log lines of the scenario."""
        stream = io.StringIO()
        relay = Relay(self.live_server.engine, "searched", "here", JsonLogWriter(stream, lambda: 0).events)
        while relay.run_once(0):
            pass
        return [RecordedAnswer("the log", line) for line in stream.getvalue().splitlines()]


@pytest.fixture(scope="module")
def scenario(live_server: LiveServer) -> LeakScenario:
    made = LeakScenario(live_server)
    made.run()
    return made


def test_no_response_contains_a_secret_a_path_a_reference_or_a_prompt(scenario: LeakScenario) -> None:
    # R310, R334, R341, R343, R345, R346, R350, R351, R356, R373
    assert leaks(scenario.answers, scenario.canaries) == []


def test_no_log_line_contains_a_secret_a_path_a_reference_or_a_prompt(scenario: LeakScenario) -> None:
    # R99
    log = scenario.log()
    assert {"job.created", "task.progressed", "job.failed"} <= {json.loads(answers.text)["event"] for answers in log}
    assert leaks(log, scenario.canaries) == []


def test_stored_rows_contain_keys_and_tokens_only_as_hashes(scenario: LeakScenario) -> None:
    # A1
    secret = {name: canary for name, canary in scenario.canaries.items() if not _may_be_stored(name)}
    assert len(secret) > 15
    stored = [
        RecordedAnswer(table, line) for table, lines in dump_tables(scenario.live_server).items() for line in lines
    ]
    assert leaks(stored, secret) == []
    hashes = {name: canary for name, canary in scenario.canaries.items() if name.endswith(("hash", "hashed"))}
    assert leaks(stored, hashes), "the search finds the hashes in the same rows"


def _may_be_stored(name: str) -> bool:
    return name in {"provider reference", "prompt", "folder"} or name.endswith(("hash", "hashed"))


def test_the_scenario_covers_every_route_and_kind_of_response(scenario: LeakScenario) -> None:
    texts = "\n".join(one.text for one in scenario.answers)
    for sign in (
        "job.completed",
        "job.failed",
        "task.progressed",
        "[secret]",
        "[path]",
        "text/event-stream",
        "image/png",
    ):
        assert sign in texts, sign
    good = {one.where.split(" ")[1] for one in scenario.answers if one.where.endswith(("200", "303"))}
    named = {
        route.path.format_map(scenario.ids)
        for route in ROUTES
        if route.method == "GET" and "{signed}" not in route.path
    }
    assert named <= good


def test_the_search_finds_every_canary(scenario: LeakScenario) -> None:
    for name, canary in scenario.canaries.items():
        planted = [*scenario.answers, RecordedAnswer("GET /planted 200", f'{{"message":"see {canary}"}}')]
        assert leaks(planted, scenario.canaries)[-1].endswith("in GET /planted 200"), name
    assert len(scenario.canaries) > 25
