"""Lists are read to their end from a server with small pages."""

from pathlib import Path

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.settings import HttpSettings
from tests.client.both_clients import ClientFactory
from tests.support.processes.live_server import LiveServer

FIVE_TASKS = WorkflowDefinition(
    name="five-tasks",
    stages=[StageSpec(name="draw", kind="five-tasks", tasks=3), StageSpec(name="mix", kind="five-tasks", tasks=2)],
)


def test_lists_are_read_to_their_end_from_a_server_with_small_pages(
    tmp_path: Path, database_url: str, client_of: ClientFactory
) -> None:
    with LiveServer(database_url, tmp_path, HttpSettings(page_size_max=2)) as live_server:
        client = client_of(live_server.url, live_server.keys["operator"])
        submitted = {client.jobs.submit("sketch", user="ann", input={}).id for _ in range(5)}
        assert {job.id for job in client.jobs.list()} == submitted
        assert len(list(client.jobs.list(limit=3))) == 3
        live_server.engine.execute(commands.PutWorkflow(definition=FIVE_TASKS))
        tasks = list(client.jobs.tasks(client.jobs.submit("five-tasks", user="ann").id))
        assert [task.no for task in tasks] == [1, 2, 3, 1, 2]
        assert len(list(client.wallets.entries("ann"))) == 6
        assert len(list(client.keys.list())) > 2
        raw = live_server.client("client")
        assert len(raw.get("/v1/jobs").raise_for_status().json()["jobs"]) == 2
        assert len(raw.get("/v1/events").raise_for_status().json()["events"]) == 2
        refused = raw.get("/v1/jobs", params={"limit": 3})
        assert (refused.status_code, refused.json()["code"], refused.json()["limit_max"]) == (422, "invalid_query", 2)
