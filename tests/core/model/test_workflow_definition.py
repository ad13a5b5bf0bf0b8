"""Workflow definitions: invalid fields are refused by name, and retries follow their backoff."""

import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.clock import SECOND
from callsheet.core.model.errors import BadInput
from callsheet.core.model.rows import Workflow
from callsheet.core.model.workflow_definition import (
    Backoff,
    RefundPolicy,
    RetryPolicy,
    StageSpec,
    WorkflowDefinition,
    check_definition,
    parse_definition,
)
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.working_set import encode
from tests.core.rule_harness import DRAW, CoreHarness

LIMITS = Limits()
STAGE = StageSpec(name="s", kind="k")

OUT_OF_RANGE: list[tuple[str, Any]] = [
    ("price", -1),
    ("price", LIMITS.price_max + 1),
    ("price", 1.5),
    ("price", True),
    ("priority", -1),
    ("priority", 101),
    ("lease_seconds", 0),
    ("lease_seconds", 86_401),
    ("deadline_seconds", 0),
    ("deadline_seconds", 30 * 86_400 + 1),
    ("provider_deadline_seconds", 0),
    ("collect_seconds", 0),
    ("cancel_grace_seconds", -1),
    ("running_max", -1),
    ("retry.attempts_max", RetryPolicy(attempts_max=0)),
    ("retry.attempts_max", RetryPolicy(attempts_max=101)),
    ("retry.requeues_max", RetryPolicy(requeues_max=-1)),
    ("retry.requeues_max", RetryPolicy(requeues_max=101)),
    ("retry.backoff.base_seconds", RetryPolicy(backoff=Backoff(base_seconds=-1))),
    ("retry.backoff.base_seconds", RetryPolicy(backoff=Backoff(base_seconds=float("nan")))),
    ("retry.backoff.factor", RetryPolicy(backoff=Backoff(factor=0.5))),
    ("retry.backoff.factor", RetryPolicy(backoff=Backoff(factor=float("inf")))),
    ("retry.backoff.max_seconds", RetryPolicy(backoff=Backoff(max_seconds=-1))),
    ("retry.backoff.jitter", RetryPolicy(backoff=Backoff(jitter=1.5))),
    ("refunds.failed", RefundPolicy(failed=101)),
    ("refunds.expired", RefundPolicy(expired=-1)),
    ("refunds.canceled", RefundPolicy(canceled=101)),
    ("refunds.canceled_running", RefundPolicy(canceled_running=-5)),
]


@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE)
def test_a_field_outside_its_limits_is_refused_by_name(field: str, value: Any) -> None:
    definition = replace(DRAW, **{field.split(".", maxsplit=1)[0]: value})
    with pytest.raises(BadInput) as caught:
        check_definition(definition, LIMITS)
    assert caught.value.code == "out_of_range"
    assert f"draw.{field} " in caught.value.message


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"name": ""}, "invalid_workflow"),
        ({"name": "a/b"}, "invalid_workflow"),
        ({"name": "-a"}, "invalid_workflow"),
        ({"name": "a\n"}, "invalid_workflow"),
        ({"name": "x" * 129}, "invalid_workflow"),
        ({"stages": []}, "invalid_workflow"),
        ({"rate_max": "often"}, "invalid_rate"),
        ({"stages": [STAGE, replace(STAGE, kind="other")]}, "invalid_stage"),
        ({"stages": [STAGE] * 65}, "too_many_stages"),
        ({"stages": [replace(STAGE, name="")]}, "invalid_stage"),
        ({"stages": [replace(STAGE, name="a b")]}, "invalid_stage"),
        ({"stages": [replace(STAGE, kind="")]}, "invalid_kind"),
        ({"stages": [replace(STAGE, kind="a/b")]}, "invalid_kind"),
        ({"stages": [replace(STAGE, tasks=-1)]}, "out_of_range"),
        ({"stages": [replace(STAGE, tasks=1_001)]}, "out_of_range"),
        ({"stages": [replace(STAGE, inputs=[1] * 1_001)]}, "out_of_range"),
        ({"input_schema": {"type": "no-such-type"}}, "invalid_workflow"),
        ({"input_schema": {"$ref": "#/nowhere"}}, "invalid_workflow"),
    ],
)
def test_an_invalid_definition_is_refused(changes: dict[str, Any], code: str) -> None:
    definition = replace(DRAW, **changes)
    assert CoreHarness().expect_refusal(c.PutWorkflow(definition=definition)).code == code


def test_the_largest_definition_within_the_limits_is_accepted() -> None:
    stages = [StageSpec(name=f"s{n}", kind="k", tasks=1_000) for n in range(64)]
    definition = WorkflowDefinition(
        name="x" * 128, stages=stages, price=LIMITS.price_max, retry=RetryPolicy(attempts_max=100)
    )
    assert CoreHarness().do(c.PutWorkflow(definition=definition)).version == 1


def test_a_stored_definition_is_read_back_unchanged() -> None:
    definition = replace(
        DRAW, input_schema={"type": "object"}, retry=RetryPolicy(on="any"), refunds=RefundPolicy(failed=3)
    )
    assert parse_definition(encode(definition)) == definition


@pytest.mark.parametrize("part", ["", "retry", "backoff", "refunds", "stages"])
def test_an_unknown_field_is_refused(part: str) -> None:
    spec = msgspec.json.decode(encode(DRAW))
    parts = {
        "": spec, "retry": spec["retry"], "backoff": spec["retry"]["backoff"], "refunds": spec["refunds"],
        "stages": spec["stages"][0],
    }  # fmt: skip
    parts[part]["prise"] = 1
    with pytest.raises(msgspec.ValidationError, match="prise"):
        parse_definition(encode(spec))


def test_an_equal_definition_changes_nothing_and_a_different_one_is_the_next_version() -> None:
    harness = CoreHarness(DRAW)
    before = harness.snapshot()
    assert harness.do(c.PutWorkflow(definition=DRAW)).version == 1
    assert harness.snapshot() == before
    assert harness.do(c.PutWorkflow(definition=replace(DRAW, price=11))).version == 2
    assert [(row.version, row.current) for row in harness.all(Workflow)] == [(1, 0), (2, 1)]


def test_the_running_and_rate_limits_are_stored_in_the_workflow_row() -> None:
    harness = CoreHarness(DRAW)
    harness.do(c.PutWorkflow(definition=replace(DRAW, running_max=7, rate_max="3/hour")))
    assert [(row.current, row.running_max, row.rate_max) for row in harness.all(Workflow)] == [
        (0, None, None),
        (1, 7, "3/hour"),
    ]


def test_a_job_can_use_a_definition_from_the_same_batch() -> None:
    harness = CoreHarness()
    job_id = harness.new_id()
    strict = replace(DRAW, input_schema={"type": "object"})
    submit = c.Submit(id=job_id, tenant="acme", user="ann", workflow="draw", input={})
    put = c.PutWorkflow(definition=strict)
    _, _, refused, accepted = harness.batch(
        c.PutWorkflow(definition=DRAW), put, replace(submit, id="", input=[]), submit
    )
    assert refused.code == "invalid_input"
    assert accepted.job_id == job_id
    assert harness.job(job_id).workflow_version == 2


# -- backoff and retry policy


@pytest.mark.parametrize(
    ("attempts_counted", "seconds"), [(0, 2), (1, 2), (2, 4), (3, 8), (4, 16), (8, 256), (9, 300), (100, 300)]
)
def test_the_backoff_doubles_up_to_its_maximum(attempts_counted: int, seconds: float) -> None:
    assert Backoff(jitter=0).wait("task", 1, attempts_counted) == seconds * SECOND


@given(st.text(max_size=40), st.integers(1, 1_000), st.integers(1, 100), st.floats(0, 1))
def test_the_jitter_stays_within_its_bounds_and_is_the_same_every_time(
    task: str, attempt: int, attempts_counted: int, jitter: float
) -> None:
    plain = Backoff(jitter=0).wait(task, attempt, attempts_counted)
    wait = Backoff(jitter=jitter).wait(task, attempt, attempts_counted)
    assert plain * (1 - jitter) - 1 <= wait <= plain * (1 + jitter) + 1
    assert wait == Backoff(jitter=jitter).wait(task, attempt, attempts_counted)


def test_the_jitter_spreads_tasks_over_its_range() -> None:
    waits = [Backoff(jitter=0.5).wait(f"task-{n}", 1, 1) / SECOND for n in range(500)]
    assert min(waits) < 1.1
    assert max(waits) > 2.9
    assert 1.9 < sum(waits) / len(waits) < 2.1


@pytest.mark.parametrize(
    ("policy", "retryable", "retried"),
    [
        ("never", True, False), ("never", None, False), ("never", False, False),
        ("transient", True, True), ("transient", None, False), ("transient", False, False),
        ("any", True, True), ("any", None, True), ("any", False, False),
    ],
)  # fmt: skip
def test_the_retry_policy_and_the_report_of_the_worker_decide_about_a_retry(
    policy: Any, retryable: bool | None, retried: bool
) -> None:
    """R74, R75, R254, R413, C6."""
    assert RetryPolicy(on=policy).allows_retry(retryable=retryable) is retried
    harness = CoreHarness(replace(DRAW, retry=RetryPolicy(on=policy)))
    _, lease = harness.started()
    assert harness.do(c.Fail(lease=lease, retryable=retryable)).status == ("retried" if retried else "failed")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (c.PutTenant(tenant=""), "invalid_tenant"),
        (c.PutTenant(tenant="a/b"), "invalid_tenant"),
        (c.PutTenant(tenant="a", weight=0), "out_of_range"),
        (c.PutTenant(tenant="a", weight=1_001), "out_of_range"),
        (c.PutTenant(tenant="a", active_jobs_max=-1), "out_of_range"),
        (c.PutTenant(tenant="a", status="unknown"), "invalid_status"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_tenant_is_refused(command: c.Command, code: str) -> None:
    assert CoreHarness().expect_refusal(command).code == code


def test_a_changed_tenant_keeps_its_creation_time() -> None:
    harness = CoreHarness()
    harness.advance(100)
    tenant = harness.do(c.PutTenant(tenant="acme", weight=5, status="suspended"))
    assert (tenant.weight, tenant.status, tenant.created_at) == (5, "suspended", harness.now - 100 * SECOND)


def test_a_schema_that_refers_to_a_file_or_a_url_is_refused_without_opening_it(tmp_path: Path) -> None:
    schema_file = tmp_path / "schema.json"
    schema_file.write_text('{"type": "object"}')
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        for uri in (schema_file.as_uri(), f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"):
            with pytest.raises(BadInput, match="may refer only to itself") as refused:
                check_definition(replace(DRAW, input_schema={"$ref": uri}), LIMITS)
            assert refused.value.code == "invalid_workflow"
        with pytest.raises(BlockingIOError):
            server.accept()
