"""Submitting a job: the checks in their order, idempotency, and the rows of an accepted job."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.rows import Document, Job
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from tests.core.rule_harness import DRAW, CoreHarness

STRICT = replace(
    DRAW, name="strict",
    input_schema={"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
)  # fmt: skip
DISABLED = replace(DRAW, name="disabled", enabled=False)
INLINE = WorkflowDefinition(name="inline", inline=True)


def _submit(**more: Any) -> c.Submit:
    return c.Submit(**{"tenant": "acme", "user": "ann", "workflow": "draw", **more})


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


_cyclic: list[Any] = []
_cyclic.append(_cyclic)

INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("an invalid tenant name", {"tenant": "a b"}, "tenant_not_found"),
    ("a tenant with a slash", {"tenant": "a/b"}, "tenant_not_found"),
    ("no tenant", {"tenant": ""}, "tenant_not_found"),
    ("an unknown tenant", {"tenant": "missing"}, "tenant_not_found"),
    ("no user", {"user": ""}, "invalid_user"),
    ("a user of 256 characters", {"user": "x" * 256}, "invalid_user"),
    ("a user with a line break", {"user": "a\nb"}, "invalid_user"),
    ("a user with a lone surrogate", {"user": "\ud800"}, "invalid_user"),
    ("an empty key", {"idempotency_key": ""}, "invalid_idempotency_key"),
    ("a key of 256 characters", {"idempotency_key": "x" * 256}, "invalid_idempotency_key"),
    ("a key with a control character", {"idempotency_key": "a\0b"}, "invalid_idempotency_key"),
    ("an unknown workflow", {"workflow": "missing"}, "workflow_not_found"),
    ("a disabled workflow", {"workflow": "disabled"}, "workflow_disabled"),
    ("stages for a workflow with its own", {"stages": []}, "stages_not_allowed"),
    ("a negative priority", {"priority": -1}, "out_of_range"),
    ("a priority over 100", {"priority": 101}, "out_of_range"),
    ("a huge priority", {"priority": 2**70}, "out_of_range"),
    ("a priority that is a boolean", {"priority": True}, "out_of_range"),
    ("a deadline of 0 seconds", {"deadline_seconds": 0}, "out_of_range"),
    ("a deadline beyond the limit", {"deadline_seconds": 30 * 86_400 + 1}, "out_of_range"),
    ("a start in the past", {"start_in_seconds": -1}, "out_of_range"),
    ("a start in two years", {"start_in_seconds": 2 * 366 * 86_400}, "out_of_range"),
    ("a start in NaN seconds", {"start_in_seconds": float("nan")}, "out_of_range"),
    ("a start in infinite seconds", {"start_in_seconds": float("inf")}, "out_of_range"),
    ("input over the limit", {"input": "x" * 256 * 1024}, "input_too_large"),
    ("input over the limit in bytes", {"input": "ü" * 128 * 1024}, "input_too_large"),
    ("input nested too deep", {"input": _deep(65)}, "input_too_deep"),
    ("input nested 100,000 levels deep", {"input": _deep(100_000)}, "input_too_deep"),
    ("input that contains itself", {"input": _cyclic}, "input_too_deep"),
    ("input with NaN", {"input": {"a": [float("nan")]}}, "invalid_input"),
    ("infinite input", {"input": float("-inf")}, "invalid_input"),
    ("input with a lone surrogate", {"input": {"a": "\ud800"}}, "invalid_text"),
    ("input that is not JSON", {"input": {"a": object()}}, "invalid_input"),
    ("input with a key that is not a string", {"input": {(1, 2): 3}}, "invalid_input"),
    ("input that violates the schema", {"workflow": "strict", "input": {"prompt": 7}}, "invalid_input"),
    ("missing input", {"workflow": "strict"}, "invalid_input"),
    ("too many labels", {"labels": {str(n): "" for n in range(33)}}, "too_many_labels"),
    ("a label without a name", {"labels": {"": "x"}}, "invalid_label"),
    ("a label of 201 characters", {"labels": {"a": "x" * 201}}, "invalid_label"),
    ("a label with a lone surrogate", {"labels": {"a": "\ud800"}}, "invalid_text"),
    ("too much metadata", {"metadata": {"a": "x" * 17_000}}, "metadata_too_large"),
    ("metadata with NaN", {"metadata": {"a": float("nan")}}, "invalid_metadata"),
    ("too much trace", {"trace": {"a": "x" * 17_000}}, "trace_too_large"),
    ("too many stages", {"workflow": "inline", "stages": [StageSpec(name="a", kind="k")] * 65}, "too_many_stages"),
    ("a stage without a name", {"workflow": "inline", "stages": [StageSpec(name="", kind="k")]}, "invalid_stage"),
    ("too many tasks", {"workflow": "inline", "stages": [StageSpec(name="a", kind="k", tasks=1_001)]}, "out_of_range"),
    (
        "a stage with too much metadata",
        {"workflow": "inline", "stages": [StageSpec(name="a", kind="k", metadata={"a": "x" * 17_000})]},
        "metadata_too_large",
    ),
    (
        "a task with too much input",
        {"workflow": "inline", "stages": [StageSpec(name="a", kind="k", inputs=["x" * 300_000])]},
        "input_too_large",
    ),
]


@pytest.mark.parametrize(("invalid", "code"), [case[1:] for case in INVALID], ids=[case[0] for case in INVALID])
def test_an_invalid_submit_is_refused_and_changes_nothing(invalid: dict[str, Any], code: str) -> None:
    """R31, R91, R167."""
    harness = CoreHarness(DRAW, STRICT, DISABLED, INLINE)
    assert harness.expect_refusal(_submit(**invalid)).code == code
    if "idempotency_key" not in invalid:
        assert harness.expect_refusal(_submit(**invalid, idempotency_key="k")).code == code
        assert not harness.do(_submit(idempotency_key="k")).replay


@pytest.mark.parametrize(
    "valid",
    [
        {"input": _deep(64)},
        {"input": "x" * (256 * 1024 - 2)},
        {"input": {"big": 2**200}},
        {"user": "ann@example.com/ünïcode"},
        {"idempotency_key": "k" * 255},
        {"priority": 0},
        {"priority": 100},
        {"start_in_seconds": 366 * 86_400},
        {"deadline_seconds": 1},
        {"labels": {str(n): "x" * 200 for n in range(32)}},
    ],
)
def test_values_at_the_limits_are_accepted(valid: dict[str, Any]) -> None:
    harness = CoreHarness(replace(DRAW, price=0))
    assert harness.do(_submit(**valid)).status in {"queued", "pending"}


# Each check in its order, with a request that fails it. A request that fails several checks gets the first refusal.
CHECKS: list[tuple[str, dict[str, Any]]] = [
    ("invalid_user", {"user": ""}),
    ("workflow_not_found", {"workflow": "missing"}),
    ("out_of_range", {"priority": -1}),
    ("invalid_input", {"input": float("nan")}),
    ("idempotency_key_reused", {"idempotency_key": "used"}),
    ("quota", {"verdict": c.Verdict("quota", "The quota is used up.")}),
    ("too_many_active_jobs", {}),
]


@pytest.mark.parametrize("first", range(len(CHECKS)), ids=[code for code, _ in CHECKS])
def test_the_checks_of_a_submit_have_a_fixed_order(first: int) -> None:
    """C10, R30, R89."""
    harness = CoreHarness(DRAW, initial_credits=10, limits=Limits(active_jobs_max=1))
    harness.do(_submit(idempotency_key="used", input="first"))
    assert harness.wallet().balance == 0, "every request also lacks credits"
    invalid: dict[str, Any] = {}
    for _, more in CHECKS[first:]:
        invalid = {**more, **invalid}
    assert harness.expect_refusal(_submit(**invalid)).code == CHECKS[first][0]


def test_a_submit_without_enough_credits_is_refused_with_the_price_and_the_balance() -> None:
    """R32."""
    harness = CoreHarness(DRAW, initial_credits=3)
    refusal = harness.expect_refusal(_submit())
    assert (refusal.code, refusal.details) == ("insufficient_credits", {"required": 10, "balance": 3})


def test_a_submit_for_a_suspended_tenant_is_refused() -> None:
    harness = CoreHarness(DRAW)
    harness.do(c.PutTenant(tenant="acme", status="suspended"))
    assert harness.expect_refusal(_submit()).code == "tenant_suspended"


# -- idempotency keys


def test_a_repeated_key_returns_its_job_without_credits_and_over_the_limit() -> None:
    """R86, R87, R89, R170, H2."""
    harness = CoreHarness(DRAW, initial_credits=10, limits=Limits(active_jobs_max=1))
    first = harness.do(_submit(idempotency_key="k"))
    before = harness.snapshot()
    repeated = harness.do(_submit(idempotency_key="k"))
    assert (repeated.job_id, repeated.replay, first.replay) == (first.job_id, True, False)
    assert harness.snapshot() == before
    assert [task.ready for task in harness.tasks(first.job_id)] == [1]
    harness.do(c.Cancel(tenant="acme", job_id=first.job_id))
    ended = harness.do(_submit(idempotency_key="k"))
    assert (ended.job_id, ended.status) == (first.job_id, "canceled")
    assert (harness.wallet().balance, harness.wallet().reserved) == (10, 0)


def test_fifty_submits_with_one_key_in_one_batch_create_one_job() -> None:
    """R88, S1."""
    harness = CoreHarness(DRAW)
    answers = harness.batch(*[_submit(idempotency_key="k")] * 50)
    assert len({answer.job_id for answer in answers}) == 1
    assert [answer.replay for answer in answers] == [False] + [True] * 49
    assert (len(list(harness.all(Job))), harness.wallet().reserved) == (1, 10)


@pytest.mark.parametrize(
    "other", [{"input": {"n": 2}}, {"priority": 7}, {"labels": {"a": "b"}}, {"workflow": "strict"}, {"input": None}]
)
def test_a_known_key_with_another_body_is_refused(other: dict[str, Any]) -> None:
    """R90, S2, H3."""
    harness = CoreHarness(DRAW, STRICT)
    job_id = harness.do(_submit(idempotency_key="k", input={"prompt": "a"})).job_id
    refusal = harness.expect_refusal(_submit(**{"idempotency_key": "k", "input": {"prompt": "a"}, **other}))
    assert (refusal.code, refusal.details["job_id"]) == ("idempotency_key_reused", job_id)


def test_the_order_of_fields_in_the_input_does_not_matter() -> None:
    harness = CoreHarness(DRAW)
    harness.do(_submit(idempotency_key="k", input={"a": 1, "b": 2}))
    assert harness.do(_submit(idempotency_key="k", input={"b": 2, "a": 1})).replay


def test_an_idempotency_key_belongs_to_one_user_of_one_tenant() -> None:
    """R84, R85, C11: also if a name contains a slash."""
    harness = CoreHarness(replace(DRAW, price=0))
    harness.do(c.PutTenant(tenant="other"))
    jobs = {
        harness.do(_submit(tenant=tenant, user=user, idempotency_key=key)).job_id
        for tenant in ("acme", "other")
        for user, key in (("a", "k"), ("b", "k"), ("a", "b/k"), ("a/b", "k"), ("a/1", "3/k"), ("a", "1/3/k"))
    }
    assert len(jobs) == 12


def test_the_key_of_a_deleted_job_stays_reserved() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit(idempotency_key="k")
    harness.do(c.Delete(tenant="acme", job_id=job_id))
    assert harness.expect_refusal(_submit(idempotency_key="k")).code == "job_deleted"


def test_without_a_key_two_equal_requests_create_two_jobs() -> None:
    """R82."""
    harness = CoreHarness(DRAW)
    assert harness.submit() != harness.submit()


def test_a_repeated_submit_after_a_lost_connection_returns_its_job() -> None:
    """H4, F7."""
    harness = CoreHarness(DRAW)
    command = _submit(id=harness.new_id())
    first = harness.do(command)
    [repeated] = harness.batch(command, retrying=True)
    assert repeated.job_id == first.job_id == command.id
    assert harness.wallet().reserved == 10


# -- the limit of active jobs


def test_the_limit_of_active_jobs_holds_within_a_batch_and_an_ended_job_frees_a_place() -> None:
    """R171, R172, C20, S3."""
    harness = CoreHarness(DRAW, limits=Limits(active_jobs_max=5))
    results = harness.batch(*[_submit()] * 20)
    accepted = [result for result in results if isinstance(result, c.SubmitResult)]
    assert len(accepted) == 5
    refusal = results[-1]
    assert (refusal.code, refusal.details) == ("too_many_active_jobs", {"active": 5, "max": 5})
    harness.do(c.Pause(tenant="acme", job_id=accepted[0].job_id))
    assert harness.expect_refusal(_submit()).code == "too_many_active_jobs", "a paused job is active"
    canceled, submitted, refused = harness.batch(
        c.Cancel(tenant="acme", job_id=accepted[0].job_id), _submit(), _submit()
    )
    assert (canceled.status, submitted.status, refused.code) == ("canceled", "queued", "too_many_active_jobs")


def test_the_limit_of_a_tenant_overrides_the_default_limit() -> None:
    harness = CoreHarness(DRAW, limits=Limits(active_jobs_max=1))
    harness.do(c.PutTenant(tenant="acme", active_jobs_max=3))
    assert [isinstance(r, c.SubmitResult) for r in harness.batch(*[_submit()] * 4)] == [True, True, True, False]


# -- the rows of an accepted job


def test_an_accepted_job_has_its_run_reservation_task_and_input() -> None:
    """R1, R3, R38, R176, R179, C19."""
    harness = CoreHarness(DRAW)
    answer = harness.do(_submit(input={"b": 1, "a": 2}, labels={"x": "y"}))
    job = harness.job(answer.job_id)
    assert (answer.status, answer.price, answer.run) == ("queued", 10, 1)
    assert (job.labels, job.started_at, job.finished_at) == ('{"x":"y"}', None, None)
    assert harness.ledger(job.id) == [("reserve", -10, 0)]
    assert [(stage.no, stage.status) for stage in harness.stages(job.id)] == [(1, "pending")]
    assert [(task.queue, task.ready) for task in harness.tasks(job.id)] == [("draw/draw", 1)]
    assert [(d.owner_id, d.body) for d in harness.all(Document)] == [(job.id, '{"a":2,"b":1}')]
    assert harness.event_types(job.id) == ["job.created"]


def test_a_task_without_an_input_gets_the_input_of_the_job() -> None:
    harness = CoreHarness(INLINE)
    stages = [StageSpec(name="a", kind="draw", inputs=[{"n": 1}, None])]
    harness.submit("inline", stages=stages, input={"all": True})
    assert sorted(leased.input for leased in harness.claim(2)) == ['{"all":true}', '{"n":1}']
