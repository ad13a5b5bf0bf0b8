"""Submitting: what is accepted, what is refused and in which order; a refusal stores nothing."""

from typing import Any

import pytest

from callsheet.core.model.commands import PutTenant, PutWorkflow
from callsheet.core.model.workflow_definition import WorkflowDefinition
from tests.support.engine.engine_harness import EngineHarness, stage


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


INVALID_SUBMITS: list[tuple[dict[str, Any], str]] = [
    ({"workflow": "nothing"}, "workflow_not_found"),
    ({"tenant": "unknown"}, "tenant_not_found"),
    ({"tenant": "no spaces"}, "tenant_not_found"),
    ({"tenant": "x" * 129}, "tenant_not_found"),
    ({"user": ""}, "invalid_user"),
    ({"user": "a\0b"}, "invalid_text"),
    ({"user": "a\nb"}, "invalid_user"),
    ({"user": "u" * 256}, "invalid_user"),
    ({"idempotency_key": ""}, "invalid_idempotency_key"),
    ({"idempotency_key": "k" * 256}, "invalid_idempotency_key"),
    ({"priority": 101}, "out_of_range"),
    ({"priority": -1}, "out_of_range"),
    ({"deadline_seconds": 0}, "out_of_range"),
    ({"deadline_seconds": 30 * 86_400 + 1}, "out_of_range"),
    ({"start_in_seconds": -1}, "out_of_range"),
    ({"start_in_seconds": float("nan")}, "out_of_range"),
    ({"start_in_seconds": float("inf")}, "out_of_range"),
    ({"labels": {"": "x"}}, "invalid_label"),
    ({"labels": {"x": "y" * 201}}, "invalid_label"),
    ({"labels": {str(n): "x" for n in range(33)}}, "too_many_labels"),
    ({"metadata": {"x": "y" * 16_384}}, "metadata_too_large"),
    ({"input": nested(65)}, "input_too_deep"),
    ({"input": {"a": float("nan")}}, "invalid_input"),
    ({"input": {"a": "\ud800"}}, "invalid_text"),
    ({"input": {"a": {"b\0": 1}}}, "invalid_text"),
    ({"input": {"a": object()}}, "invalid_input"),
    ({"input": "x" * 256 * 1024}, "input_too_large"),
    ({"stages": [stage()]}, "stages_not_allowed"),
    ({"workflow": "poster", "input": {"prompt": 7}}, "invalid_input"),
    ({"workflow": "poster", "input": {}}, "invalid_input"),
    ({"workflow": "poster"}, "invalid_input"),
    ({"workflow": "retired"}, "workflow_disabled"),
    ({"workflow": "expensive"}, "insufficient_credits"),
]


@pytest.fixture
def with_workflows(harness: EngineHarness) -> EngineHarness:
    """Besides sketch: a poster with an input schema, a disabled workflow, and one that ada cannot pay."""
    prompt = {"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}}
    harness.workflow("poster", input_schema=prompt)
    harness.workflow("retired", enabled=False)
    harness.workflow("expensive", price=101)
    return harness


def test_an_invalid_submit_is_refused_with_its_code_and_stores_nothing(with_workflows: EngineHarness) -> None:
    # R31, R32, R167, H5
    before = with_workflows.snapshot()
    submits = [with_workflows.submission(**fields) for fields, _ in INVALID_SUBMITS]
    refusals = [with_workflows.expect_refusal(submit).code for submit in submits]
    assert refusals == [code for _, code in INVALID_SUBMITS]
    assert with_workflows.snapshot() == before


def test_a_submit_stores_the_job_reserves_its_price_and_queues_it(harness: EngineHarness) -> None:
    # R1, R3, R38, R176, R383
    submitted = harness.submit(input={"prompt": "a cat"}, labels={"set": "one"}, metadata={"n": [1]}, trace={"id": "t"})
    assert (submitted.status, submitted.price, submitted.run, submitted.replay) == ("queued", 5, 1, False)
    job = harness.job(submitted.job_id)
    assert (job.workflow, job.user_id, job.priority) == ("sketch", "ada", 50)
    assert (job.labels, job.metadata, job.trace) == ('{"set":"one"}', '{"n":[1]}', '{"id":"t"}')
    assert harness.ledger(submitted.job_id) == [("reserve", -5, 0)]
    assert (harness.wallet().balance, harness.wallet().reserved) == (95, 5)
    assert harness.events(submitted.job_id) == ["job.created"]
    assert [run.status for run in harness.runs(submitted.job_id)] == ["open"]


def test_a_worker_gets_the_whole_input_unchanged(harness: EngineHarness) -> None:
    # R134
    harness.submit_job(input={"prompt": 'say "hi"\n\\ 猫', "threads": "2", "unknown": None})
    (leased,) = harness.claim()
    assert leased.input == '{"prompt":"say \\"hi\\"\\n\\\\ 猫","threads":"2","unknown":null}'
    assert (leased.tenant, leased.workflow, leased.kind, leased.stage, leased.stage_no, leased.task_no) == (
        "acme", "sketch", "draw", "draw", 1, 1,
    )  # fmt: skip


def test_a_schema_error_names_the_field(with_workflows: EngineHarness) -> None:
    # R31
    refusal = with_workflows.expect_refusal(with_workflows.submission("poster", input={"prompt": 7}))
    assert refusal.message.startswith("prompt: ")


def test_a_refusal_for_missing_credits_has_the_price_and_the_balance(with_workflows: EngineHarness) -> None:
    # R35: one credit is missing
    refusal = with_workflows.expect_refusal(with_workflows.submission("expensive"))
    assert refusal.details == {"required": 101, "balance": 100}


def test_a_suspended_tenant_cannot_submit_but_its_jobs_continue(harness: EngineHarness) -> None:
    # C10
    job = harness.submit_job(idempotency_key="before")
    harness.tenant(status="suspended")
    assert harness.expect_refusal(harness.submission()).code == "tenant_suspended"
    assert harness.submit(idempotency_key="before").job_id == job
    assert harness.complete(harness.claim_one()).job_status == "completed"


def test_the_checks_of_a_submit_have_a_fixed_order(open_harness: Any) -> None:
    # R30, C10: validity, idempotency, suspension, limit of active jobs, balance
    harness: EngineHarness = open_harness()
    harness.workflow("expensive", price=101)
    harness.tenant(active_jobs_max=1)
    known = harness.submit(idempotency_key="k")
    wrong: dict[str, Any] = {"priority": 101, "idempotency_key": "k"}
    assert harness.expect_refusal(harness.submission(**wrong)).code == "out_of_range"
    harness.tenant(active_jobs_max=1, status="suspended")
    assert harness.submit(idempotency_key="k").job_id == known.job_id
    assert harness.expect_refusal(harness.submission("expensive")).code == "tenant_suspended"
    harness.tenant(status="active")
    assert harness.expect_refusal(harness.submission("expensive")).code == "too_many_active_jobs"
    harness.finish(known.job_id)
    assert harness.expect_refusal(harness.submission("expensive")).code == "insufficient_credits"


def test_a_scheduled_job_is_charged_at_submission_and_leased_at_its_scheduled_time(harness: EngineHarness) -> None:
    # R3, R10
    job = harness.submit_job(start_in_seconds=60, deadline_seconds=100)
    assert (harness.status(job), harness.balance()) == ("pending", 95)
    assert harness.advance(59.9) == 0
    assert harness.claim() == []
    assert harness.advance(0.1) == 1
    assert harness.status(job) == "queued"
    assert harness.events(job) == ["job.created", "job.released"]
    assert harness.advance(99.9) == 0, "the deadline counts from the scheduled time"
    assert harness.claim_one().job_id == job


def test_a_scheduled_job_can_be_canceled_before_its_scheduled_time(harness: EngineHarness) -> None:
    # R13
    job = harness.submit_job(start_in_seconds=60)
    assert harness.cancel(job).status == "canceled"
    assert harness.advance(61) == 0
    assert (harness.status(job), harness.balance(), harness.claim()) == ("canceled", 100, [])


def test_a_job_can_have_its_own_stages_if_its_workflow_allows_them(harness: EngineHarness) -> None:
    # R377
    harness.workflow("free", stages=[], inline=True)
    job = harness.submit_job("free", stages=[stage("plan"), stage("cut", tasks=2)])
    assert [(s.no, s.name, s.status, s.tasks_total) for s in harness.stages(job)] == [
        (1, "plan", "pending", 1),
        (2, "cut", "created", 2),
    ]


def test_each_task_can_have_its_own_input(harness: EngineHarness) -> None:
    harness.workflow("set", stages=[stage("draw", inputs=[{"n": 1}, None, {"n": 3}])])
    harness.submit_job("set", input={"n": 0})
    assert [leased.input for leased in harness.claim("draw", count=9)] == ['{"n":1}', '{"n":0}', '{"n":3}']


def test_an_invalid_workflow_is_not_stored(harness: EngineHarness) -> None:
    # R168
    before = harness.snapshot()
    definitions: list[dict[str, Any]] = [
        {"stages": []},
        {"stages": [stage()], "price": -1},
        {"stages": [stage()], "input_schema": {"type": "nonsense"}},
        {"stages": [stage(tasks=1_001)]},
        {"stages": [stage("no spaces")]},
        {"stages": [stage()] * 65},
    ]
    refusals = [
        harness.expect_refusal(PutWorkflow(definition=WorkflowDefinition(name="bad", **definition))).code
        for definition in definitions
    ]
    assert refusals == [
        "invalid_workflow", "out_of_range", "invalid_workflow", "out_of_range", "invalid_stage", "too_many_stages",
    ]  # fmt: skip
    assert harness.snapshot() == before


def test_storing_an_equal_definition_creates_no_new_version(harness: EngineHarness) -> None:
    before = harness.snapshot()
    harness.workflow()
    assert harness.snapshot() == before
    harness.workflow(price=6)
    assert harness.submit().price == 6


def test_an_invalid_tenant_is_refused(harness: EngineHarness) -> None:
    assert harness.expect_refusal(PutTenant(tenant="acme", weight=0)).code == "out_of_range"
    assert harness.expect_refusal(PutTenant(tenant="a/b")).code == "invalid_tenant"
