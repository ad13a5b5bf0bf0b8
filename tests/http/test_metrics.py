"""Metrics: what waits and runs at the moment of the scrape, in Prometheus' format, with nobody's name in it."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from callsheet.core import commands
from callsheet.core.recipe import Recipe, StageSpec
from callsheet.http.metrics import Metrics, Moment
from tests.support.served import OTHER, TENANT, Served

Sample = tuple[str, tuple[tuple[str, str], ...]]


def read(text: str) -> dict[Sample, float]:
    """Return every sample by its name and labels."""
    families = text_string_to_metric_families(text)
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def scraped(served: Served) -> dict[Sample, float]:
    return read(served.client("operator").get("/metrics").raise_for_status().text)


def of(name: str, **labels: str) -> Sample:
    return f"callsheet_{name}", tuple(sorted(labels.items()))


def test_a_scrape_tells_what_waits_runs_and_works_now(served: Served) -> None:
    stages = [StageSpec(name="draw", kind="measured", tasks=3)]
    served.engine.execute(commands.PutWorkflow(recipe=Recipe(name="measured", stages=stages)))
    before = scraped(served).get(of("jobs_active", status="queued"), 0)
    job = served.submit(workflow="measured")["id"]
    queue = {"kind": "measured", "workflow": "measured"}
    found = scraped(served)
    assert (found[of("tasks_waiting", **queue)], found[of("tasks_running", **queue)]) == (3, 0)
    assert found[of("jobs_active", status="queued")] == before + 1
    assert of("workers", kind="measured") not in found
    leased = [
        lease
        for worker in ("w1", "w2")
        for lease in served.engine.execute(commands.Claim(worker_id=worker, kinds=("measured",)))
    ]
    found = scraped(served)
    assert (found[of("tasks_waiting", **queue)], found[of("tasks_running", **queue)]) == (1, 2)
    assert (found[of("workers", kind="measured")], found[of("jobs_active", status="queued")]) == (2, before)
    served.engine.execute(commands.Cancel(tenant=TENANT, job_id=job, grace_seconds=0))
    found = scraped(served)
    assert (found[of("tasks_waiting", **queue)], found[of("tasks_running", **queue)]) == (0, 0)
    assert of("workers", kind="measured") not in found
    assert len(leased) == 2


def test_every_status_of_a_living_job_is_there_even_at_zero(served: Served) -> None:
    found = scraped(served)
    assert {of("jobs_active", status=status) for status in ("pending", "queued", "running", "paused")} <= set(found)
    assert found[of("database_up")] == 1


def test_an_open_stream_is_counted(served: Served) -> None:
    job = served.submit()["id"]
    before = scraped(served)[of("streams")]
    headers = {"accept": "text/event-stream"}
    with served.client("client").stream("GET", f"/v1/jobs/{job}/events", headers=headers) as stream:
        lines = stream.iter_lines()
        assert next(lines)
        assert scraped(served)[of("streams")] == before + 1


def test_requests_are_counted_by_route_and_never_by_address(served: Served) -> None:
    job = served.submit()["id"]
    served.client("client").get(f"/v1/jobs/{job}")
    served.client("client").get("/no/such/place")
    found = scraped(served)
    assert found[of("http_requests_total", route="/v1/jobs/{job_id}", method="GET", status="200")] >= 1
    assert found[of("http_requests_total", route="unknown", method="unknown", status="404")] >= 1


@pytest.mark.parametrize("path", ["/metrics", "/v1/admin/ops", "/v1/admin/scale"])
def test_nobodys_name_is_in_what_operations_show(served: Served, path: str) -> None:
    """R356, R369: counts, waits and how tries ended; no tenant, user, job or worker."""
    job, theirs = served.submit()["id"], served.submit("other client")["id"]
    (leased,) = served.engine.execute(commands.Claim(worker_id="canary-worker", kinds=("draw",)))
    text = served.client("operator").get(path).text
    served.engine.execute(commands.Fail(lease=leased.lease, retryable=False))
    assert "running" in text
    for name in (job, theirs, leased.lease.task_id, "canary-worker", '"ann"', f'"{TENANT}"', f'"{OTHER}"'):
        assert name not in text


def test_nobodys_name_is_in_a_scrape(served: Served) -> None:
    job = served.submit()["id"]
    theirs = served.submit("other client")["id"]
    served.client("client").get(f"/v1/wallets/ann?nonsense={job}")
    text = served.client("operator").get("/metrics").text
    for name in (job, theirs, "ann", f'"{TENANT}"', f'"{OTHER}"'):
        assert name not in text
    assert not {"tenant", "user", "job", "worker"} & {label for _, labels in read(text) for label, _ in labels}


@pytest.mark.parametrize("role", ["admin", "client", "viewer", "worker", "user"])
def test_only_the_operator_sees_the_whole_house(served: Served, role: str) -> None:
    assert served.client(role).get("/metrics").status_code == 403


def test_work_at_providers_is_counted_and_what_nobody_collects_is_told(served: Served) -> None:
    """R321, R369."""
    stages = [StageSpec(name="render", kind="rendered", provider="acme")]
    recipe = Recipe(name="rendered", stages=stages, collect_seconds=600)
    served.engine.execute(commands.PutWorkflow(recipe=recipe))
    before = scraped(served)[of("calls")]
    served.submit(workflow="rendered")
    (leased,) = served.engine.execute(commands.Claim(worker_id="w1", kinds=("rendered",)))
    served.engine.execute(commands.Intend(lease=leased.lease, provider="acme"))
    served.engine.execute(commands.Hand(lease=leased.lease, ref="r1"))
    found, ops = scraped(served), served.client("operator").get("/v1/admin/ops").json()
    assert (found[of("calls")], found[of("calls_overdue")]) == (before + 1, 0)
    assert (ops["calls"], ops["calls_overdue"]) == (before + 1, 0)
    later = read(Metrics().text(Moment(0, calls=(3, 2))).decode())
    assert (later[of("calls")], later[of("calls_overdue")]) == (3, 2)


# -- without a house


def test_without_the_database_a_process_still_tells_of_itself() -> None:
    found = read(Metrics().text(Moment(7)).decode())
    assert (found[of("streams")], found[of("database_up")]) == (7, 0)
    assert not [name for name, _ in found if name.startswith(("callsheet_tasks", "callsheet_jobs"))]


def test_queues_of_one_kind_and_workflow_are_added_up() -> None:
    depths = [("draw", "sketch", 1, 2), ("draw", "sketch", 10, 20), ("cut", "sketch", 0, 0)]
    found = read(Metrics().text(Moment(0, depths, [], [])).decode())
    assert found[of("tasks_waiting", kind="draw", workflow="sketch")] == 11
    assert found[of("tasks_running", kind="draw", workflow="sketch")] == 22
    assert found[of("tasks_waiting", kind="cut", workflow="sketch")] == 0


def test_a_flood_of_queues_does_not_flood_the_scrape() -> None:
    depths = [(f"kind-{n}", "open", n, 0) for n in range(3_000)]
    found = read(Metrics().text(Moment(0, depths, [], [])).decode())
    shown = [value for (name, _), value in found.items() if name == "callsheet_tasks_waiting"]
    assert (len(shown), max(shown), min(shown)) == (1_000, 2_999, 2_000)


def test_a_database_that_does_not_answer_does_not_break_the_scrape(tmp_path: Path) -> None:
    with Served(tmp_path / "callsheet.db", tmp_path) as served:
        served.engine.scans.stop()
        found = scraped(served)
        assert (found[of("database_up")], of("jobs_active", status="queued") in found) == (0, False)
