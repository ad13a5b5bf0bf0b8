"""`callsheet status`."""

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.cli.conftest import Run
from tests.support.processes.live_server import LiveServer


def test_status_prints_the_queues_of_the_server(live_server: LiveServer, run: Run) -> None:
    definition = WorkflowDefinition(name="waiting", price=0, stages=[StageSpec(name="wait", kind="ops-wait")])
    live_server.engine.execute(commands.PutWorkflow(definition=definition))
    live_server.submit(workflow="waiting")
    printed = run("status", role="operator").out
    assert " queued" in printed.splitlines()[0]
    (line,) = [line for line in printed.splitlines() if line.startswith("ops-wait")]
    assert line.split() == ["ops-wait", "waiting", "1", "0"]
    queues = run("status", "--json", role="operator").json["queues"]
    (queue,) = [queue for queue in queues if queue["kind"] == "ops-wait"]
    assert queue == {
        "kind": "ops-wait", "workflow": "waiting", "waiting": 1, "waiting_is_capped": False, "running": 0,
        "running_is_capped": False,
    }  # fmt: skip
    live_server.work("ops-wait")


def test_status_counts_idle_workers_and_says_how_many_are_busy(live_server: LiveServer, run: Run) -> None:
    before = run("status", "--json", role="operator").json
    live_server.register("idle-1")
    live_server.callsheet.state.fleet.embedded_workers.add("embedded-1")
    definition = WorkflowDefinition(name="held", price=0, stages=[StageSpec(name="hold", kind="held")])
    live_server.engine.execute(commands.PutWorkflow(definition=definition))
    live_server.submit(workflow="held")
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="embedded-1", kinds=("held",)))
    after = run("status", "--json", role="operator").json
    workers, busy = before["workers"] + 2, before["busy_workers"] + 1
    assert (after["workers"], after["busy_workers"]) == (workers, busy)
    assert f"Workers: {workers}, {busy} of them busy." in run("status", role="operator").out
    live_server.engine.execute(commands.Complete(lease=leased.lease))
