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
