"""`scan_rows_max`: counts stop there and say so, and a page of a filtered list ends there with a cursor."""

from collections.abc import Iterator
from typing import Any

import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.settings import HttpSettings
from tests.http.prometheus_samples import sample_key, scrape
from tests.http.server_on_each_database import DATABASES, start_server
from tests.support.processes.live_server import TENANT, LiveServer

SCANNED = 4


@pytest.fixture(scope="module", params=DATABASES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with a small limit, and 12 jobs of one user: every sixth has another workflow and a label."""
    http = HttpSettings(scan_rows_max=SCANNED)
    with start_server(request, tmp_path_factory.mktemp("scans"), http) as started:
        started.engine.execute(commands.TopUp(tenant=TENANT, user="ann", amount=1_000, idempotency_key="more"))
        for name in ("common", "rare"):
            definition = WorkflowDefinition(name=name, stages=[StageSpec(name="draw", kind="never")])
            started.engine.execute(commands.PutWorkflow(definition=definition))
        for n in range(12):
            labels = {"campaign": "spring"} if n % 6 == 0 else {}
            started.submit(workflow="rare" if n % 6 == 0 else "common", labels=labels)
        yield started


def read_pages(server: LiveServer, role: str = "client", **query: Any) -> list[list[str]]:
    """Return the ids of the jobs of all pages."""
    pages: list[list[str]] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = server.client(role).get("/v1/jobs", params={**query, "cursor": cursor}).raise_for_status().json()
        pages.append([job["id"] for job in answer["jobs"]])
        cursor = answer["next"]
    return pages


def all_jobs(server: LiveServer) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = server.client("client").get("/v1/jobs", params={"limit": 100}).json()["jobs"]
    return jobs


@pytest.mark.parametrize("filters", [
    {"workflow": "rare"}, {"label": "campaign=spring"}, {"user": "ann", "workflow": "rare"},
    {"status": "queued", "label": "campaign=spring"}, {"status": "queued", "workflow": "rare", "user": "ann"},
], ids=" and ".join)  # fmt: skip
def test_all_pages_of_a_filtered_list_together_are_complete(server: LiveServer, filters: dict[str, str]) -> None:
    pages = read_pages(server, **filters)
    expected = [job["id"] for job in all_jobs(server) if job["workflow"] == "rare"]
    assert [job for page in pages for job in page] == expected
    assert len(expected) == 2


def test_a_page_that_found_nothing_has_a_cursor_for_the_rest(server: LiveServer) -> None:
    pages = read_pages(server, workflow="rare", limit=1)
    assert [] in pages
    assert read_pages(server, workflow="none", limit=1) == [[], [], [], []]


def test_a_filtered_list_ends_at_since(server: LiveServer) -> None:
    newest = all_jobs(server)[1]["created_at"]
    assert read_pages(server, workflow="none", since=newest, limit=1) == [[]]


def test_a_list_without_such_a_filter_has_full_pages(server: LiveServer) -> None:
    jobs = all_jobs(server)
    until = jobs[2]["created_at"]
    assert [len(page) for page in read_pages(server, limit=5)] == [5, 5, 2]
    assert [len(page) for page in read_pages(server, limit=6, status="queued")] == [6, 6]
    assert [len(page) for page in read_pages(server, limit=6, user="ann")] == [6, 6]
    assert read_pages(server, until=until, since=jobs[8]["created_at"], limit=5) == [
        [job["id"] for job in jobs[3:8]], [jobs[8]["id"]],
    ]  # fmt: skip


def test_the_position_of_a_job_is_counted_up_to_the_limit(server: LiveServer) -> None:
    jobs = [job["id"] for job in all_jobs(server) if job["workflow"] == "common"]
    client = server.client("client")
    first, exact, last = (client.get(f"/v1/jobs/{jobs[-1 - n]}/why").json() for n in (0, SCANNED, 9))
    assert (first["position"], first["position_is_capped"]) == (1, False)
    assert (exact["position"], exact["position_is_capped"]) == (SCANNED + 1, False)
    assert (last["position"], last["position_is_capped"]) == (SCANNED + 1, True)
    (queued,) = [found for found in last["constraints"] if found["code"] == "queued"]
    assert (queued["tasks_ahead"], queued["tasks_ahead_is_capped"]) == (SCANNED, True)
    assert queued["message"] == "It is queued after more than 4 other tasks."


def test_operators_see_which_counts_are_capped(server: LiveServer) -> None:
    ops = server.client("operator").get("/v1/admin/ops").json()
    assert (ops["active_jobs"], ops["active_jobs_is_capped"]) == ({"queued": SCANNED}, {"queued": True})
    queues = {queue["workflow"]: (queue["waiting"], queue["waiting_is_capped"]) for queue in ops["queues"]}
    assert (queues["common"], queues["rare"]) == ((SCANNED, True), (2, False))
    found = scrape(server)
    assert found[sample_key("jobs_active", status="queued")] == SCANNED
    assert found[sample_key("jobs_active_is_capped", status="queued")] == 1
    assert found[sample_key("tasks_waiting_is_capped", kind="never", workflow="rare")] == 0
    (signals,) = server.client("operator").get("/v1/admin/scale", params={"kind": "never"}).json()["kinds"]
    assert (signals["depth"], signals["depth_is_capped"], signals["scale_down_safe"]) == (SCANNED + 2, True, False)
    assert found[sample_key("queue_depth_is_capped", kind="never")] == 1


def test_a_list_continues_after_many_deleted_jobs(server: LiveServer) -> None:
    jobs = [server.submit("other client")["id"] for _ in range(2 * SCANNED + 1)]
    client = server.client("other client")
    for job in jobs:
        client.post(f"/v1/jobs/{job}/cancel").raise_for_status()
    for job in jobs[1:]:
        client.delete(f"/v1/jobs/{job}").raise_for_status()
    pages = read_pages(server, "other client", limit=1)
    assert [job for page in pages for job in page] == jobs[:1]
    assert [] in pages
