"""What must never go out does not: every answer of a small life is searched for planted secrets."""

import hashlib
import io
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import httpx
import pytest

from callsheet.blobs import keys
from callsheet.core import commands
from callsheet.core.commands import Made, Outcome
from callsheet.engine.loops import Relay
from callsheet.http.routes import ROUTES
from callsheet.telemetry.lines import LineWriter
from tests.support.contents import dump
from tests.support.served import TENANT, Served

REF = "canary-ref-7f3a9c"
PROMPT = "canary prompt about a lighthouse"
SIGNED = "https://bucket.example/canary-object?X-Amz-Signature=canary-signature-55"
WRONG = f"Traceback: {SIGNED} Bearer canary-bearer-token-1 /srv/canary/folder/model.bin password=canary-password"
ROLES = ("operator", "admin", "client", "viewer", "worker", "machine", "user")


class Said(NamedTuple):
    """One answer: where it came from, and everything that was in it."""

    where: str
    text: str


def leaks(said: Iterable[Said], canaries: dict[str, str]) -> list[str]:
    """Return what was found where; a prompt is at home in one place, which is its owner's."""
    found = [f"{name} in {one.where}" for one in said for name, canary in canaries.items() if canary in one.text]
    return [one for one in found if not (one.startswith("prompt in GET /v1/jobs/") and one.endswith("/input 200"))]


def heard(answer: httpx.Response) -> Said:
    request = answer.request
    headers = "\n".join(f"{name}: {value}" for name, value in answer.headers.items())
    return Said(f"{request.method} {request.url.path} {answer.status_code}", f"{headers}\n{answer.text}")


class Life:
    """Jobs that complete, fail, are tried again and go to a provider; everything that was answered meanwhile."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.said: list[Said] = []
        self.canaries = {"signed address": "canary-signature", "bearer": "canary-bearer", "password": "canary-password"}
        self.canaries |= {"path in an error": "/srv/canary", "provider reference": REF, "prompt": PROMPT}
        self.canaries |= {"folder": str(served.callsheet.data), "signing secret": self._signing_secret()}
        for role, secret in served.keys.items():
            self.canaries |= {f"{role} key": secret, f"{role} key's hash": hashlib.sha256(secret.encode()).hexdigest()}
        self.ids: dict[str, str] = {"user": "ann", "workflow": "sketch", "tenant": TENANT, "stage_no": "1"}
        self.ids |= {"signed": "x", "worker": "m1"}

    def _signing_secret(self) -> str:
        return (self.served.callsheet.data / "secret.key").read_text().strip()

    def live(self) -> None:
        self._completes()
        self._fails_and_is_tried_again()
        self._goes_to_a_provider()
        self._goes_to_a_machine()
        self._is_looked_at()

    def _post(self, path: str, body: Any = None, role: str = "client") -> dict[str, Any]:
        answer = self.served.client(role).post(path, json=body)
        self.said.append(heard(answer))
        given: dict[str, Any] = answer.json()
        return given

    def _claimed(self) -> commands.Lease:
        body = {
            "workflow": "sketch",
            "user": "ann",
            "input": {"prompt": PROMPT},
            "idempotency_key": f"k{len(self.said)}",
        }
        self._post("/v1/jobs", body)
        ((leased),) = self.served.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
        lease: commands.Lease = leased.lease
        name = f"lease of {lease.job_id}"
        self.canaries |= {name: lease.token, f"{name}, hashed": hashlib.sha256(lease.token.encode()).hexdigest()}
        return lease

    def _completes(self) -> None:
        lease, engine = self._claimed(), self.served.engine
        try_ = (TENANT, lease.job_id, lease.task_id, lease.attempt)
        for key in (keys.made(*try_, 1), keys.preview(*try_)):
            self.served.blobs.put(key, b"\x89PNG")
            self.canaries[f"path of {key}"] = str(self.served.blobs.path(key))
            self.canaries[f"key {key}"] = key
        engine.execute(commands.Heartbeat(lease=lease, progress=50, message=WRONG))
        self._look(lease)  # while it is held
        made = Made(1, "a.png", "image/png", 4, "0" * 64)
        engine.execute(commands.Complete(lease=lease, output={"ok": True}, files=(made,)))
        outputs = self.served.client("client").get(f"/v1/jobs/{lease.job_id}/outputs").json()["outputs"]
        self.ids |= {"job_id": lease.job_id, "task_id": lease.task_id, "file_id": outputs[0]["files"][0]["id"]}
        self.ids["key_id"] = self.served.client("operator").get("/v1/admin/keys").json()["keys"][0]["id"]

    def _fails_and_is_tried_again(self) -> None:
        lease = self._claimed()
        self.served.engine.execute(commands.Fail(lease=lease, code="oom", message=WRONG))
        self._look(lease)
        self._post(f"/v1/jobs/{lease.job_id}/retry", {})
        self._post(f"/v1/jobs/{lease.job_id}/cancel", {"reason": WRONG})
        self._look(lease)

    def _goes_to_a_provider(self) -> None:
        lease, engine = self._claimed(), self.served.engine
        call = engine.execute(commands.Intend(lease=lease, provider="acme"))
        engine.execute(commands.Hand(lease=lease, ref=REF))
        self._look(lease)
        failed = Outcome("failed", message=f"{REF}: {WRONG}", retryable=False)
        engine.execute(commands.Collected(call_id=call.call_id, job_id=lease.job_id, outcome=failed))
        self._look(lease)

    def _goes_to_a_machine(self) -> None:
        """Work over HTTP: what a worker says may be anything; what it is told is its own."""
        self._post("/v1/jobs", {"workflow": "sketch", "user": "ann", "input": {"prompt": PROMPT}})
        machine = self.served.client("machine")
        (task,) = machine.post("/v1/worker/claim", json={}).json()["tasks"]
        lease = commands.Lease(**task["lease"])
        self.canaries |= {"a machine's lease": lease.token}
        held = {"lease": task["lease"]}
        for verb, body in (
            ("heartbeat", {"beats": [{**held, "progress": 10, "message": WRONG, "log": [WRONG]}]}),
            ("submitted", {**held, "provider": "acme", "ref": REF}),
            ("fail", {**held, "code": "oom", "message": f"{REF} {WRONG}"}),
        ):
            said = heard(machine.post(f"/v1/worker/{verb}", json=body))
            self.said.append(said)
            assert said.where.endswith("200"), said
        self._look(lease)

    def _look(self, lease: commands.Lease) -> None:
        """Ask for everything about one job."""
        for route in ROUTES:
            if route.method == "GET" and "{job_id}" in route.path:
                path = route.path.format_map({"job_id": lease.job_id, "task_id": lease.task_id})
                self.said.append(heard(self.served.client("client").get(path)))

    def _is_looked_at(self) -> None:
        """Ask for everything that there is, as everybody; and for what there is not."""
        for role in ROLES:
            client = self.served.client(role)
            for route in ROUTES:
                if route.method == "GET":
                    self.said.append(heard(client.get(route.path.format_map(self.ids))))
        stream = {"accept": "text/event-stream"}
        answer = self.served.client("client").get(f"/v1/jobs/{self.ids['job_id']}/events", headers=stream)
        self.said.append(heard(answer))
        for role in ROLES:
            client = self.served.client(role)
            for route in ROUTES:
                if route.method != "GET":
                    self.said.append(heard(client.request(route.method, route.path.format_map(self.ids), content=b"{")))

    def log(self) -> list[Said]:
        """Return the lines that a server would have written about all that."""
        stream = io.StringIO()
        relay = Relay(self.served.engine, "searched", "here", LineWriter(stream, lambda: 0).events)
        while relay.run_once(0):
            pass
        return [Said("the log", line) for line in stream.getvalue().splitlines()]


@pytest.fixture(scope="module")
def life(served: Served) -> Life:
    made = Life(served)
    made.live()
    return made


def test_no_answer_has_a_secret_a_path_a_reference_or_somebody_elses_text(life: Life) -> None:
    # R99, R310, R320, R373; and of what R356 is about: R334, R341, R343, R345, R346, R350, R351
    assert leaks(life.said, life.canaries) == []


def test_no_line_of_the_log_has_any_of_that(life: Life) -> None:
    log = life.log()
    assert {"job.created", "task.progressed", "job.failed"} <= {json.loads(said.text)["event"] for said in log}
    assert leaks(log, life.canaries) == []


def test_what_is_stored_has_no_key_or_token_that_opens_anything(life: Life) -> None:
    # A1
    secret = {name: canary for name, canary in life.canaries.items() if not _may_be_stored(name)}
    assert len(secret) > 15
    stored = [Said(table, line) for table, lines in dump(life.served).items() for line in lines]
    assert leaks(stored, secret) == []
    hashes = {name: canary for name, canary in life.canaries.items() if name.endswith(("hash", "hashed"))}
    assert leaks(stored, hashes), "it is looked for where it would be"


def _may_be_stored(name: str) -> bool:
    return name in {"provider reference", "prompt", "folder"} or name.endswith(("hash", "hashed"))


def test_the_life_was_looked_at_from_all_sides(life: Life) -> None:
    texts = "\n".join(one.text for one in life.said)
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
    good = {one.where.split(" ")[1] for one in life.said if one.where.endswith(("200", "303"))}
    named = {
        route.path.format_map(life.ids) for route in ROUTES if route.method == "GET" and "{signed}" not in route.path
    }
    assert named <= good


def test_whatever_is_planted_is_found(life: Life) -> None:
    for name, canary in life.canaries.items():
        planted = [*life.said, Said("GET /planted 200", f'{{"message":"see {canary}"}}')]
        assert leaks(planted, life.canaries)[-1].endswith("in GET /planted 200"), name
    assert len(life.canaries) > 25
