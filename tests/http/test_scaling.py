"""Scale signals over HTTP: as JSON and as gauges, of the whole house, with nobody's name in them."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from callsheet.client import models
from callsheet.client.scaling import Scale
from callsheet.config import HttpSettings
from callsheet.core import commands
from callsheet.core.recipe import Recipe, StageSpec
from callsheet.core.scaling import Aim, Observed, signals
from callsheet.http import scaling
from callsheet.http.metrics import Metrics, Moment
from tests.http.test_metrics import of, read, scraped
from tests.support.served import OTHER, TENANT, Served
from tests.support.waiting import wait_until

_windows = count(1_000)


def scale(served: Served, **query: Any) -> dict[str, Any]:
    """Ask for the signals; a window of its own, so that nothing that was kept is told again."""
    given = {"window_seconds": next(_windows)} | query
    found: dict[str, Any] = served.client("operator").get("/v1/admin/scale", params=given).raise_for_status().json()
    return found


def of_kind(served: Served, kind: str, **query: Any) -> dict[str, Any]:
    (found,) = scale(served, kind=kind, **query)["kinds"]
    return dict(found)


def offered(served: Served, kind: str, tasks: int = 1) -> str:
    """Submit a job whose tasks are of a kind of this test's own."""
    recipe = Recipe(name=kind, stages=[StageSpec(name="make", kind=kind, tasks=tasks)])
    served.engine.execute(commands.PutWorkflow(recipe=recipe))
    return str(served.submit(workflow=kind)["id"])


def claimed(served: Served, kind: str, worker: str = "w1") -> commands.Lease:
    (leased,) = served.engine.execute(commands.Claim(worker_id=worker, kinds=(kind,)))
    lease: commands.Lease = leased.lease
    return lease


def test_a_kind_is_told_from_its_first_task_to_its_last(served: Served) -> None:
    # R160
    offered(served, "weave", tasks=3)
    found = of_kind(served, "weave")
    assert (found["depth"], found["ready"], found["running"], found["workers"]) == (3, 3, 0, 0)
    assert (found["try_seconds_p50"], found["estimated_wait_seconds"], found["basis"]) == (None, None, "none")
    assert (found["recommended_workers"], found["scale_down_safe"]) == (1, False)
    assert 0 <= found["oldest_wait_seconds"] < 600
    assert found["arrivals_per_second"] > 0
    leases = [claimed(served, "weave", worker) for worker in ("w1", "w2", "w3")]
    found = of_kind(served, "weave")
    assert (found["depth"], found["running"], found["workers"], found["busy_workers"]) == (0, 3, 3, 3)
    assert (found["recommended_workers"], found["oldest_wait_seconds"]) == (3, None)
    for lease in leases:
        served.engine.execute(commands.Complete(lease=lease))
    found = of_kind(served, "weave")
    assert (found["running"], found["recommended_workers"], found["scale_down_safe"]) == (0, 0, True)
    assert (found["samples"], found["basis"], found["reason"]) == (3, "window", "Nothing waits and nothing runs.")
    assert found["try_seconds_p50"] <= found["try_seconds_p95"]
    assert found["completions_per_second"] > 0


def test_all_kinds_are_told_by_name_with_what_was_asked_for(served: Served) -> None:
    offered(served, "alpha")
    served.engine.execute(commands.Register(worker_id="g9", kinds=("idle-kind",), token_hash="h9", concurrency=4))
    found = scale(served, target_wait_seconds=30)
    kinds = [one["kind"] for one in found["kinds"]]
    assert kinds == sorted(kinds)
    assert {"alpha", "idle-kind"} <= set(kinds)
    assert (found["target_wait_seconds"], found["now"][-1]) == (30, "Z")
    (idle,) = [one for one in found["kinds"] if one["kind"] == "idle-kind"]
    assert (idle["workers"], idle["capacity"], idle["free"], idle["depth"]) == (1, 4, 4, 0)
    assert idle["estimated_wait_seconds"] == 0


def test_a_kind_that_nobody_knows_has_zeros_so_that_a_scaler_has_a_number(served: Served) -> None:
    found = of_kind(served, "never-seen")
    assert (found["depth"], found["workers"], found["recommended_workers"]) == (0, 0, 0)
    assert of_kind(served, "never-seen", workers_min=2)["recommended_workers"] == 2


def test_the_bounds_and_the_places_of_a_machine_may_be_asked_for(served: Served) -> None:
    offered(served, "knit", tasks=40)
    for _ in range(2):
        served.engine.execute(commands.Complete(lease=claimed(served, "knit")))
    assert of_kind(served, "knit", workers_min=3)["recommended_workers"] == 3
    with_leases = [claimed(served, "knit", f"k{n}") for n in range(4)]
    assert of_kind(served, "knit", workers_max=2)["recommended_workers"] == 4, "the busy stay"
    assert of_kind(served, "knit", concurrency=2)["recommended_workers"] == 4
    assert len(with_leases) == 4


@pytest.mark.parametrize(
    "query",
    [
        "window_seconds=0", "window_seconds=86401", "target_wait_seconds=0", "target_wait_seconds=nan",
        "workers_min=-1", "workers_min=5&workers_max=4", "workers_max=0", "concurrency=0",
    ],
)  # fmt: skip
def test_a_number_outside_its_limits_is_refused(served: Served, query: str) -> None:
    answer = served.client("operator").get(f"/v1/admin/scale?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "out_of_range"), answer.text


def test_the_answer_is_kept_for_a_moment_and_then_made_anew(served: Served) -> None:
    window = next(_windows)
    before = scale(served, window_seconds=window)
    offered(served, "lace", tasks=2)
    assert scale(served, window_seconds=window)["now"] >= before["now"]
    wait_until(lambda: scale(served, window_seconds=window)["now"] > before["now"])
    assert of_kind(served, "lace", window_seconds=window)["depth"] == 2


def test_nobodys_name_is_in_the_signals(served: Served) -> None:
    job = offered(served, "felt")
    claimed(served, "felt", "machine-of-somebody")
    operator = served.client("operator")
    text = operator.get(f"/v1/admin/scale?window_seconds={next(_windows)}").text + operator.get("/metrics").text
    assert "felt" in text
    for name in (job, "machine-of-somebody", '"ann"', f'"{TENANT}"', f'"{OTHER}"'):
        assert name not in text


def test_a_scrape_has_the_same_as_gauges(served: Served) -> None:
    offered(served, "sew", tasks=3)
    served.engine.execute(commands.Complete(lease=claimed(served, "sew")))
    claimed(served, "sew")
    wait_until(lambda: scraped(served).get(of("queue_running", kind="sew")) == 1)
    found, told = scraped(served), of_kind(served, "sew")
    assert found[of("queue_depth", kind="sew")] == 1
    assert (found[of("queue_workers", kind="sew")], found[of("queue_capacity", kind="sew")]) == (1, 1)
    assert found[of("queue_recommended_workers", kind="sew")] == told["recommended_workers"] == 1
    assert found[of("queue_oldest_wait_seconds", kind="sew")] <= told["oldest_wait_seconds"]
    for quantile, name in (("0.5", "try_seconds_p50"), ("0.95", "try_seconds_p95")):
        assert found[of("queue_try_seconds", kind="sew", quantile=quantile)] == told[name]
    assert found[of("queue_spot_interruptions", kind="sew")] == 0


def test_a_server_aims_at_what_its_settings_say(tmp_path: Path) -> None:
    http = HttpSettings(scale_wait_seconds=5, scale_window_seconds=77)
    with Served(tmp_path / "callsheet.db", tmp_path, http) as served:
        found = served.client("operator").get("/v1/admin/scale").json()
        assert (found["window_seconds"], found["target_wait_seconds"]) == (77, 5)


# -- without a house


def test_what_is_not_known_is_absent_from_a_scrape_and_never_zero() -> None:
    blank = signals(Observed(kind="gpu", ready=1, startable=1), Aim(wait_seconds=60))
    found = read(Metrics().text(Moment(0, [], [], [], [blank])).decode())
    assert found[of("queue_depth", kind="gpu")] == 1
    absent = {"callsheet_queue_try_seconds", "callsheet_queue_estimated_wait_seconds"}
    assert not absent & {name for name, _ in found}


def test_a_flood_of_kinds_does_not_flood_the_answer() -> None:
    kinds = [Observed(kind=f"kind-{n:04}", ready=n) for n in range(1_500)]
    shown = scaling.busiest(kinds)
    assert (len(shown), shown[0].kind, shown[-1].kind) == (1_000, "kind-0500", "kind-1499")


def test_the_client_reads_what_the_server_sends() -> None:
    assert Scale.__struct_fields__ == scaling.Scale.__struct_fields__
    assert not hasattr(models, "Scale")
