"""Scale signals of the whole server, as JSON and as Prometheus gauges, without ids."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.autoscale import KindObservation, ScalingTarget, compute_signals
from callsheet.http.metrics import Metrics, MetricsSnapshot
from callsheet.queries.fleet import scaling
from callsheet.settings import HttpSettings
from tests.http.job_requests import claim_lease
from tests.http.prometheus_samples import parse, sample_key, scrape
from tests.support.processes.live_server import OTHER_TENANT, TENANT, LiveServer
from tests.support.wait import wait_until

_windows = count(1_000)


def scale(live_server: LiveServer, **query: Any) -> dict[str, Any]:
    """Get the signals with a new window, so that no cached response is returned."""
    params = {"window_seconds": next(_windows)} | query
    found: dict[str, Any] = (
        live_server.client("operator").get("/v1/admin/scale", params=params).raise_for_status().json()
    )
    return found


def signals_of(live_server: LiveServer, kind: str, **query: Any) -> dict[str, Any]:
    (found,) = scale(live_server, kind=kind, **query)["kinds"]
    return dict(found)


def submit_tasks(live_server: LiveServer, kind: str, tasks: int = 1) -> str:
    """Submit a job whose tasks have their own kind."""
    definition = WorkflowDefinition(name=kind, stages=[StageSpec(name="make", kind=kind, tasks=tasks)])
    live_server.engine.execute(commands.PutWorkflow(definition=definition))
    return str(live_server.submit(workflow=kind)["id"])


def test_a_kind_has_signals_from_its_first_task_to_its_last(live_server: LiveServer) -> None:
    submit_tasks(live_server, "weave", tasks=3)
    found = signals_of(live_server, "weave")
    assert (found["depth"], found["ready"], found["running"], found["workers"]) == (3, 3, 0, 0)
    assert (found["attempt_seconds_p50"], found["estimated_wait_seconds"], found["basis"]) == (None, None, "none")
    assert (found["recommended_workers"], found["scale_down_safe"]) == (1, False)
    assert 0 <= found["oldest_wait_seconds"] < 600
    assert found["arrivals_per_second"] > 0
    leases = [claim_lease(live_server, "weave", worker) for worker in ("w1", "w2", "w3")]
    found = signals_of(live_server, "weave")
    assert (found["depth"], found["running"], found["workers"], found["busy_workers"]) == (0, 3, 3, 3)
    assert (found["recommended_workers"], found["oldest_wait_seconds"]) == (3, None)
    for lease in leases:
        live_server.engine.execute(commands.Complete(lease=lease))
    found = signals_of(live_server, "weave")
    assert (found["running"], found["recommended_workers"], found["scale_down_safe"]) == (0, 0, True)
    assert (found["samples"], found["basis"], found["reason"]) == (3, "window", "Nothing waits and nothing runs.")
    assert found["attempt_seconds_p50"] <= found["attempt_seconds_p95"]
    assert found["completions_per_second"] > 0


def test_all_kinds_are_listed_by_name(live_server: LiveServer) -> None:
    submit_tasks(live_server, "alpha")
    live_server.engine.execute(commands.Register(worker_id="g9", kinds=("idle-kind",), token_hash="h9", concurrency=4))
    found = scale(live_server, target_wait_seconds=30)
    kinds = [one["kind"] for one in found["kinds"]]
    assert kinds == sorted(kinds)
    assert {"alpha", "idle-kind"} <= set(kinds)
    assert (found["target_wait_seconds"], found["measured_at"][-1]) == (30, "Z")
    (idle,) = [one for one in found["kinds"] if one["kind"] == "idle-kind"]
    assert (idle["workers"], idle["capacity"], idle["free"], idle["depth"]) == (1, 4, 4, 0)
    assert idle["estimated_wait_seconds"] == 0


def test_an_unknown_kind_has_zeros_so_that_an_autoscaler_gets_a_number(live_server: LiveServer) -> None:
    found = signals_of(live_server, "never-seen")
    assert (found["depth"], found["workers"], found["recommended_workers"]) == (0, 0, 0)
    assert signals_of(live_server, "never-seen", workers_min=2)["recommended_workers"] == 2


def test_the_recommendation_follows_the_bounds_and_the_concurrency_of_the_query(live_server: LiveServer) -> None:
    submit_tasks(live_server, "knit", tasks=40)
    for _ in range(2):
        live_server.engine.execute(commands.Complete(lease=claim_lease(live_server, "knit")))
    assert signals_of(live_server, "knit", workers_min=3)["recommended_workers"] == 3
    leases = [claim_lease(live_server, "knit", f"k{n}") for n in range(4)]
    assert signals_of(live_server, "knit", workers_max=2)["recommended_workers"] == 4, "busy workers are kept"
    assert signals_of(live_server, "knit", concurrency=2)["recommended_workers"] == 4
    assert len(leases) == 4


@pytest.mark.parametrize(
    "query",
    [
        "window_seconds=0", "window_seconds=86401", "target_wait_seconds=0", "target_wait_seconds=nan",
        "workers_min=-1", "workers_min=5&workers_max=4", "workers_max=0", "concurrency=0",
    ],
)  # fmt: skip
def test_a_query_outside_its_limits_is_refused(live_server: LiveServer, query: str) -> None:
    answer = live_server.client("operator").get(f"/v1/admin/scale?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "out_of_range"), answer.text


def test_the_response_is_cached_briefly_and_then_computed_again(live_server: LiveServer) -> None:
    window = next(_windows)
    before = scale(live_server, window_seconds=window)
    submit_tasks(live_server, "lace", tasks=2)
    assert scale(live_server, window_seconds=window)["measured_at"] >= before["measured_at"]
    wait_until(lambda: scale(live_server, window_seconds=window)["measured_at"] > before["measured_at"])
    assert signals_of(live_server, "lace", window_seconds=window)["depth"] == 2


def test_the_signals_contain_no_ids_and_no_names(live_server: LiveServer) -> None:
    job = submit_tasks(live_server, "felt")
    claim_lease(live_server, "felt", "canary-worker")
    operator = live_server.client("operator")
    text = operator.get(f"/v1/admin/scale?window_seconds={next(_windows)}").text + operator.get("/metrics").text
    assert "felt" in text
    for name in (job, "canary-worker", '"ann"', f'"{TENANT}"', f'"{OTHER_TENANT}"'):
        assert name not in text


def test_the_gauges_of_a_scrape_equal_the_signals(live_server: LiveServer) -> None:
    submit_tasks(live_server, "sew", tasks=3)
    live_server.engine.execute(commands.Complete(lease=claim_lease(live_server, "sew")))
    claim_lease(live_server, "sew")
    wait_until(lambda: scrape(live_server).get(sample_key("queue_running", kind="sew")) == 1)
    found, signals = scrape(live_server), signals_of(live_server, "sew")
    assert found[sample_key("queue_depth", kind="sew")] == 1
    assert (found[sample_key("queue_workers", kind="sew")], found[sample_key("queue_capacity", kind="sew")]) == (1, 1)
    assert found[sample_key("queue_recommended_workers", kind="sew")] == signals["recommended_workers"] == 1
    assert found[sample_key("queue_oldest_wait_seconds", kind="sew")] <= signals["oldest_wait_seconds"]
    for quantile, name in (("0.5", "attempt_seconds_p50"), ("0.95", "attempt_seconds_p95")):
        assert found[sample_key("queue_attempt_seconds", kind="sew", quantile=quantile)] == signals[name]
    assert found[sample_key("queue_spot_interruptions", kind="sew")] == 0


def test_the_settings_give_the_default_window_and_target(tmp_path: Path) -> None:
    http = HttpSettings(scale_target_wait_seconds=5, scale_window_seconds=77)
    with LiveServer(tmp_path / "callsheet.db", tmp_path, http) as live_server:
        found = live_server.client("operator").get("/v1/admin/scale").json()
        assert (found["window_seconds"], found["target_wait_seconds"]) == (77, 5)


# -- without a server


def test_unknown_values_are_absent_from_a_scrape() -> None:
    blank = compute_signals(KindObservation(kind="gpu", ready=1, startable=1), ScalingTarget(wait_seconds=60))
    found = parse(Metrics().text(MetricsSnapshot(0, signals=[blank])).decode())
    assert found[sample_key("queue_depth", kind="gpu")] == 1
    absent = {"callsheet_queue_attempt_seconds", "callsheet_queue_estimated_wait_seconds"}
    assert not absent & {name for name, _ in found}


def test_a_response_has_at_most_a_thousand_kinds() -> None:
    kinds = [KindObservation(kind=f"kind-{n:04}", ready=n) for n in range(1_500)]
    listed = scaling.busiest(kinds)
    assert (len(listed), listed[0].kind, listed[-1].kind) == (1_000, "kind-0500", "kind-1499")
