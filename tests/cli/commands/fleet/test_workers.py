"""`callsheet workers`: list, show, drain, assign, revoke, approve and rotate-token."""

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.cli.conftest import Run
from tests.support.processes.live_server import LiveServer


def test_workers_are_listed_with_their_kinds_and_leases(live_server: LiveServer, run: Run) -> None:
    live_server.register("gpu-7", "paint", concurrency=2)
    live_server.engine.execute(commands.Claim(worker_id="inside", kinds=("draw",)))
    listed = run("workers", role="operator").out
    assert listed == run("workers", "list", role="operator").out
    (line,) = [line for line in listed.splitlines() if line.startswith("gpu-7")]
    assert line.split()[:6] == ["gpu-7", "approved", "paint", "0", "of", "2"]
    found = {worker["worker"]: worker for worker in run("workers", "--json", role="operator").json["workers"]}
    assert found["gpu-7"]["offered_kinds"] == ["paint"]


def test_labels_and_capabilities_are_printed_without_control_characters(live_server: LiveServer, run: Run) -> None:
    capabilities = {"gpu": "H100", "vram_gb": 80, "models": ["flux", "sdxl"], "odd": "a\x1b[2Jb"}
    live_server.register("gpu-6", "paint", labels={"zone": "a"}, capabilities=capabilities)
    text = 'gpu=H100, models=["flux","sdxl"], odd="a\\u001b[2Jb", vram_gb=80'
    printed = run("workers", "show", "gpu-6", role="operator").out
    assert f"Labels: zone=a.\nCapabilities: {text}.\n" in printed
    listed = run("workers", role="operator").out
    (line,) = [line for line in listed.splitlines() if line.startswith("gpu-6")]
    assert line.rstrip().endswith("zone=a  " + text[:59] + "…")
    assert "\x1b" not in printed + listed
    (found,) = [one for one in run("workers", "--json", role="operator").json["workers"] if one["worker"] == "gpu-6"]
    assert (found["labels"], found["capabilities"]) == ({"zone": "a"}, capabilities)


def test_a_list_counts_the_leases_of_a_worker_and_show_prints_all_of_them(live_server: LiveServer, run: Run) -> None:
    live_server.engine.execute(commands.PutWorkflow(definition=_painting("paint-10")))
    jobs = {live_server.submit(workflow="painting")["id"] for _ in range(12)}
    live_server.register("gpu-10", "paint-10", concurrency=20)
    live_server.client("gpu-10").post("/v1/worker/claim", json={"count": 20}).raise_for_status()
    listed = run("workers", role="operator").out
    (line,) = [line for line in listed.splitlines() if line.startswith("gpu-10")]
    assert line.split()[3:6] == ["12", "of", "20"]
    (found,) = [one for one in run("workers", "--json", role="operator").json["workers"] if one["worker"] == "gpu-10"]
    assert (found["leases_total"], len(found["leases"])) == (12, 10)
    printed = run("workers", "show", "gpu-10", role="operator").out
    assert {job for job in jobs if job in printed} == jobs


def test_a_worker_is_drained_assigned_revoked_and_approved_again(live_server: LiveServer, run: Run) -> None:
    live_server.register("gpu-8", "paint", "sing")
    assert "draining" in run("workers", "drain", "gpu-8", role="operator").out
    assert "draining" not in run("workers", "drain", "gpu-8", "--undo", role="operator").out
    assert run("workers", "assign", "gpu-8", "sing", role="operator").out == "gpu-8 is approved and may run sing.\n"
    assert run("workers", "assign", "gpu-8", "--json", role="operator").json["kinds"] == ["paint", "sing"]
    assert run("workers", "revoke", "gpu-8", role="operator").out == "gpu-8 is revoked.\n"
    assert run("workers", "approve", "gpu-8", role="operator").out == "gpu-8 is offline.\n"
    assert "gpu-8" not in run("workers", role="operator").out
    assert "gpu-8" in run("workers", "list", "--all", role="operator").out


def test_show_prints_a_workers_tasks_and_rotate_token_replaces_its_token(live_server: LiveServer, run: Run) -> None:
    live_server.engine.execute(commands.PutWorkflow(definition=_painting()))
    job = live_server.submit(workflow="painting")
    live_server.register("gpu-9", "paint-9")
    live_server.client("gpu-9").post("/v1/worker/claim", json={}).raise_for_status()
    assert job["id"] in run("workers", "show", "gpu-9", role="operator").out
    rotated = run("workers", "rotate-token", "gpu-9", "--json", role="operator").json
    assert live_server.client("gpu-9").post("/v1/worker/claim", json={}).status_code == 401
    live_server.keys["gpu-9"] = rotated["token"]
    assert live_server.client("gpu-9").post("/v1/worker/heartbeat", json={"heartbeats": []}).status_code == 200


def test_an_unknown_worker_is_named_in_the_error(run: Run) -> None:
    refused = run("workers", "revoke", "absent", role="operator")
    assert (refused.code, refused.err) == (1, "callsheet: There is no worker 'absent'.\n")


def _painting(kind: str = "paint-9") -> WorkflowDefinition:
    return WorkflowDefinition(name="painting", price=0, stages=[StageSpec(name="paint", kind=kind)])
