"""The fleet from the shell."""

from callsheet.core import commands
from callsheet.core.recipe import Recipe, StageSpec
from tests.cli.conftest import Run
from tests.support.served import Served


def test_workers_are_listed_with_what_they_hold(served: Served, run: Run) -> None:
    served.register("gpu-7", "paint", concurrency=2)
    served.engine.execute(commands.Claim(worker_id="inside", kinds=("draw",)))
    shown = run("workers", role="operator").out
    assert shown == run("workers", "list", role="operator").out
    (line,) = [line for line in shown.splitlines() if line.startswith("gpu-7")]
    assert line.split()[:6] == ["gpu-7", "approved", "paint", "0", "of", "2"]
    found = {worker["worker"]: worker for worker in run("workers", "--json", role="operator").json["workers"]}
    assert found["gpu-7"]["offered"] == ["paint"]


def test_a_worker_is_drained_assigned_revoked_and_approved_again(served: Served, run: Run) -> None:
    served.register("gpu-8", "paint", "sing")
    assert "draining" in run("workers", "drain", "gpu-8", role="operator").out
    assert "draining" not in run("workers", "drain", "gpu-8", "--stop", role="operator").out
    assert run("workers", "assign", "gpu-8", "sing", role="operator").out == "gpu-8 is approved and may take sing.\n"
    assert run("workers", "assign", "gpu-8", "--json", role="operator").json["kinds"] == ["paint", "sing"]
    assert run("workers", "revoke", "gpu-8", role="operator").out.startswith("gpu-8 is revoked")
    assert run("workers", "approve", "gpu-8", role="operator").out.startswith("gpu-8 is gone")
    assert "gpu-8" not in run("workers", role="operator").out
    assert "gpu-8" in run("workers", "list", "--gone", role="operator").out


def test_a_workers_tasks_are_shown_and_its_token_can_be_changed(served: Served, run: Run) -> None:
    served.engine.execute(commands.PutWorkflow(recipe=_painting()))
    job = served.submit(workflow="painting")
    served.register("gpu-9", "paint-9")
    served.client("gpu-9").post("/v1/worker/claim", json={}).raise_for_status()
    shown = run("workers", "show", "gpu-9", role="operator").out
    assert job["id"] in shown
    made = run("workers", "rotate", "gpu-9", "--json", role="operator").json
    assert served.client("gpu-9").post("/v1/worker/claim", json={}).status_code == 401
    served.keys["gpu-9"] = made["token"]
    assert served.client("gpu-9").post("/v1/worker/heartbeat", json={"beats": []}).status_code == 200


def test_a_worker_that_nobody_knows_is_named(served: Served, run: Run) -> None:
    _ = served
    ran = run("workers", "revoke", "nobody", role="operator")
    assert (ran.code, ran.err) == (1, "callsheet: There is no worker 'nobody'.\n")


def _painting() -> Recipe:
    return Recipe(name="painting", price=0, stages=[StageSpec(name="paint", kind="paint-9")])
