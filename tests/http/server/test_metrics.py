"""Metrics in the format of Prometheus: waiting and running tasks, jobs, workers, streams and requests, without ids."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from callsheet.core.model import commands
from callsheet.core.model.capped_count import CappedCount
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.http.metrics import Metrics, MetricsSnapshot
from callsheet.queries.fleet.load import LeasingWorkers, Load, ProviderCalls, QueueDepth
from tests.http.prometheus_samples import parse, sample_key, scrape
from tests.support.processes.live_server import OTHER_TENANT, TENANT, LiveServer


def test_a_scrape_counts_waiting_and_running_tasks_active_jobs_and_workers(live_server: LiveServer) -> None:
    # R160
    stages = [StageSpec(name="draw", kind="measured", tasks=3)]
    live_server.engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name="measured", stages=stages)))
    before = scrape(live_server).get(sample_key("jobs_active", status="queued"), 0)
    job = live_server.submit(workflow="measured")["id"]
    queue = {"kind": "measured", "workflow": "measured"}
    found = scrape(live_server)
    assert (found[sample_key("tasks_waiting", **queue)], found[sample_key("tasks_running", **queue)]) == (3, 0)
    assert found[sample_key("jobs_active", status="queued")] == before + 1
    assert sample_key("workers_busy", kind="measured") not in found
    leased = [
        lease
        for worker in ("w1", "w2")
        for lease in live_server.engine.execute(commands.Claim(worker_id=worker, kinds=("measured",)))
    ]
    found = scrape(live_server)
    assert (found[sample_key("tasks_waiting", **queue)], found[sample_key("tasks_running", **queue)]) == (1, 2)
    assert (found[sample_key("workers_busy", kind="measured")], found[sample_key("jobs_active", status="queued")]) == (
        2,
        before,
    )
    live_server.engine.execute(commands.Cancel(tenant=TENANT, job_id=job, grace_seconds=0))
    found = scrape(live_server)
    assert (found[sample_key("tasks_waiting", **queue)], found[sample_key("tasks_running", **queue)]) == (0, 0)
    assert sample_key("workers_busy", kind="measured") not in found
    assert len(leased) == 2


def test_every_active_status_has_a_sample_even_at_zero(live_server: LiveServer) -> None:
    found = scrape(live_server)
    assert {sample_key("jobs_active", status=status) for status in ("pending", "queued", "running", "paused")} <= set(
        found
    )
    assert found[sample_key("database_up")] == 1


def test_an_open_stream_is_counted(live_server: LiveServer) -> None:
    job = live_server.submit()["id"]
    before = scrape(live_server)[sample_key("streams")]
    headers = {"accept": "text/event-stream"}
    with live_server.client("client").stream("GET", f"/v1/jobs/{job}/events", headers=headers) as stream:
        lines = stream.iter_lines()
        assert next(lines)
        assert scrape(live_server)[sample_key("streams")] == before + 1


def test_requests_are_counted_by_route_and_never_by_url(live_server: LiveServer) -> None:
    job = live_server.submit()["id"]
    live_server.client("client").get(f"/v1/jobs/{job}")
    live_server.client("client").get("/no/such/place")
    found = scrape(live_server)
    assert found[sample_key("http_requests_total", route="/v1/jobs/{job_id}", method="GET", status="200")] >= 1
    assert found[sample_key("http_requests_total", route="unknown", method="unknown", status="404")] >= 1


@pytest.mark.parametrize("path", ["/metrics", "/v1/admin/ops", "/v1/admin/scale"])
def test_operations_and_metrics_contain_no_ids_and_no_names(live_server: LiveServer, path: str) -> None:
    """R356, R369: no tenant, user, job or worker."""
    job, theirs = live_server.submit()["id"], live_server.submit("other client")["id"]
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="canary-worker", kinds=("draw",)))
    text = live_server.client("operator").get(path).text
    live_server.engine.execute(commands.Fail(lease=leased.lease, retryable=False))
    assert "running" in text
    for name in (job, theirs, leased.lease.task_id, "canary-worker", '"ann"', f'"{TENANT}"', f'"{OTHER_TENANT}"'):
        assert name not in text


def test_metrics_contain_no_ids_and_no_user_names(live_server: LiveServer) -> None:
    job = live_server.submit()["id"]
    theirs = live_server.submit("other client")["id"]
    live_server.client("client").get(f"/v1/wallets/ann?nonsense={job}")
    text = live_server.client("operator").get("/metrics").text
    for name in (job, theirs, "ann", f'"{TENANT}"', f'"{OTHER_TENANT}"'):
        assert name not in text
    assert not {"tenant", "user", "job", "worker"} & {label for _, labels in parse(text) for label, _ in labels}


@pytest.mark.parametrize("role", ["admin", "client", "viewer", "worker", "user"])
def test_only_an_operator_can_read_metrics(live_server: LiveServer, role: str) -> None:
    assert live_server.client(role).get("/metrics").status_code == 403


def test_provider_calls_and_overdue_ones_are_counted(live_server: LiveServer) -> None:
    """R321."""
    stages = [StageSpec(name="render", kind="rendered", provider="acme")]
    definition = WorkflowDefinition(name="rendered", stages=stages, collect_seconds=600)
    live_server.engine.execute(commands.PutWorkflow(definition=definition))
    before = scrape(live_server)[sample_key("provider_calls")]
    live_server.submit(workflow="rendered")
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("rendered",)))
    live_server.engine.execute(commands.RecordIntent(lease=leased.lease, provider="acme"))
    live_server.engine.execute(commands.HandOff(lease=leased.lease, ref="r1"))
    found, ops = scrape(live_server), live_server.client("operator").get("/v1/admin/ops").json()
    assert (found[sample_key("provider_calls")], found[sample_key("provider_calls_overdue")]) == (before + 1, 0)
    assert (ops["provider_calls"], ops["provider_calls_overdue"]) == (before + 1, 0)
    later = parse(Metrics().text(MetricsSnapshot(0, load(calls=(3, 2)))).decode())
    assert (later[sample_key("provider_calls")], later[sample_key("provider_calls_overdue")]) == (3, 2)


def test_every_metric_is_documented(live_server: LiveServer) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text()
    text = live_server.client("operator").get("/metrics").text
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert len(names) > 15
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


# -- without a server


def load(depths: Sequence[tuple[str, str, int, int]] = (), calls: tuple[int, int] = (0, 0)) -> Load:
    queues = [
        QueueDepth(kind, workflow, CappedCount(waiting), CappedCount(running))
        for kind, workflow, waiting, running in depths
    ]
    return Load(queues, {}, LeasingWorkers(), ProviderCalls(*map(CappedCount, calls)))


def test_a_capped_count_has_a_second_metric_that_says_so() -> None:
    capped, exact = CappedCount(10, is_capped=True), CappedCount(3)
    found = parse(
        Metrics().text(MetricsSnapshot(0, Load(
            [QueueDepth("draw", "sketch", capped, exact), QueueDepth("draw", "sketch", exact, exact)],
            {"queued": capped, "running": exact}, LeasingWorkers([("w1", "draw")], is_capped=True),
            ProviderCalls(capped, exact),
        ))).decode()
    )  # fmt: skip
    queue = {"kind": "draw", "workflow": "sketch"}
    assert (found[sample_key("tasks_waiting", **queue)], found[sample_key("tasks_waiting_is_capped", **queue)]) == (
        13,
        1,
    )
    assert found[sample_key("tasks_running_is_capped", **queue)] == 0
    assert found[sample_key("jobs_active_is_capped", status="queued")] == 1
    assert found[sample_key("jobs_active_is_capped", status="running")] == 0
    assert found[sample_key("workers_busy_is_capped", kind="draw")] == 1
    assert found[sample_key("provider_calls_is_capped")] == 1
    assert found[sample_key("provider_calls_overdue_is_capped")] == 0


def test_a_process_without_its_database_still_has_metrics() -> None:
    found = parse(Metrics().text(MetricsSnapshot(7)).decode())
    assert (found[sample_key("streams")], found[sample_key("database_up")]) == (7, 0)
    assert not [name for name, _ in found if name.startswith(("callsheet_tasks", "callsheet_jobs"))]


def test_rows_of_one_kind_and_workflow_are_added_up() -> None:
    depths = [("draw", "sketch", 1, 2), ("draw", "sketch", 10, 20), ("cut", "sketch", 0, 0)]
    found = parse(Metrics().text(MetricsSnapshot(0, load(depths))).decode())
    assert found[sample_key("tasks_waiting", kind="draw", workflow="sketch")] == 11
    assert found[sample_key("tasks_running", kind="draw", workflow="sketch")] == 22
    assert found[sample_key("tasks_waiting", kind="cut", workflow="sketch")] == 0


def test_a_scrape_has_at_most_a_thousand_queues() -> None:
    depths = [(f"kind-{n}", "open", n, 0) for n in range(3_000)]
    found = parse(Metrics().text(MetricsSnapshot(0, load(depths))).decode())
    values = [value for (name, _), value in found.items() if name == "callsheet_tasks_waiting"]
    assert (len(values), max(values), min(values)) == (1_000, 2_999, 2_000)


def test_a_scrape_works_while_the_database_does_not_respond(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "callsheet.db", tmp_path) as live_server:
        live_server.engine.reads._scans.stop()  # noqa: SLF001
        found = scrape(live_server)
        assert (found[sample_key("database_up")], sample_key("jobs_active", status="queued") in found) == (0, False)
