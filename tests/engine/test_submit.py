"""Submitting: what is accepted and what is refused, in which order, and that a refusal leaves nothing behind."""

from typing import Any

import pytest

from callsheet.core.commands import PutTenant, PutWorkflow
from callsheet.core.recipe import Recipe
from tests.support.studio import Studio, stage


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"workflow": "nothing"}, "workflow_not_found"),
    ({"tenant": "nobody"}, "tenant_not_found"),
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
    ({"input": {"a": "\ud800"}}, "invalid_input"),
    ({"input": {"a": object()}}, "invalid_input"),
    ({"input": "x" * 256 * 1024}, "input_too_large"),
    ({"stages": [stage()]}, "inline_stages"),
    ({"workflow": "poster", "input": {"prompt": 7}}, "invalid_input"),
    ({"workflow": "poster", "input": {}}, "invalid_input"),
    ({"workflow": "poster"}, "invalid_input"),
    ({"workflow": "retired"}, "workflow_disabled"),
    ({"workflow": "dear"}, "insufficient_credits"),
]


@pytest.fixture
def stocked(studio: Studio) -> Studio:
    """Besides sketch: a poster with an input schema, a retired workflow, and one that nobody can pay."""
    prompt = {"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}}
    studio.workflow("poster", input_schema=prompt)
    studio.workflow("retired", enabled=False)
    studio.workflow("dear", price=101)
    return studio


def test_a_wrong_request_is_refused_by_name_and_leaves_no_trace(stocked: Studio) -> None:
    # R206, R24, R31, R32, R47, R167, H5
    before = stocked.snapshot()
    refusals = [stocked.refused(stocked.submission(**fields)).code for fields, _ in WRONG]
    assert refusals == [code for _, code in WRONG]
    assert stocked.snapshot() == before


def test_an_accepted_job_is_queued_and_paid_in_the_same_step(studio: Studio) -> None:
    # R1, R3, R30, R38, R94, R176, R383
    made = studio.submit(input={"prompt": "a cat"}, labels={"set": "one"}, metadata={"n": [1]}, trace={"id": "t"})
    assert (made.status, made.price, made.run, made.replay) == ("queued", 5, 1, False)
    job = studio.job(made.job_id)
    assert (job.workflow, job.user_id, job.priority) == ("sketch", "ada", 50)
    assert (job.labels, job.metadata, job.trace) == ('{"set":"one"}', '{"n":[1]}', '{"id":"t"}')
    assert studio.ledger(made.job_id) == [("reserve", -5, 0)]
    assert (studio.wallet().balance, studio.wallet().held) == (95, 5)
    assert studio.events(made.job_id) == ["job.created"]
    assert [run.status for run in studio.runs(made.job_id)] == ["open"]


def test_a_worker_gets_the_input_as_it_was_given(studio: Studio) -> None:
    # R39, R134
    studio.ask(input={"prompt": 'say "hi"\n\\ 猫', "threads": "2", "unknown": None})
    (leased,) = studio.claim()
    assert leased.input == '{"prompt":"say \\"hi\\"\\n\\\\ 猫","threads":"2","unknown":null}'
    assert (leased.tenant, leased.workflow, leased.kind, leased.stage, leased.stage_no, leased.task_no) == (
        "acme", "sketch", "draw", "draw", 1, 1,
    )  # fmt: skip


def test_a_schema_error_names_the_field(stocked: Studio) -> None:
    # R31, R167
    refusal = stocked.refused(stocked.submission("poster", input={"prompt": 7}))
    assert refusal.message.startswith("prompt: ")


def test_a_request_that_nobody_can_pay_says_what_is_missing(stocked: Studio) -> None:
    # R32, R33, R35, R177, C9: one credit is missing
    refusal = stocked.refused(stocked.submission("dear"))
    assert refusal.details == {"required": 101, "balance": 100}


def test_a_suspended_tenant_gets_no_new_jobs_and_keeps_the_old(studio: Studio) -> None:
    # R81, C10
    job = studio.ask(idempotency_key="before")
    studio.tenant(status="suspended")
    assert studio.refused(studio.submission()).code == "tenant_suspended"
    assert studio.submit(idempotency_key="before").job_id == job
    assert studio.complete(studio.take()).job_status == "completed"


def test_checks_have_one_order(open_studio: Any) -> None:
    # C10: validate, idempotency, gates and suspension, cap, price
    studio: Studio = open_studio()
    studio.workflow("dear", price=101)
    studio.tenant(active_jobs_max=1)
    known = studio.submit(idempotency_key="k")
    wrong: dict[str, Any] = {"priority": 101, "idempotency_key": "k"}
    assert studio.refused(studio.submission(**wrong)).code == "out_of_range"
    studio.tenant(active_jobs_max=1, status="suspended")
    assert studio.submit(idempotency_key="k").job_id == known.job_id
    assert studio.refused(studio.submission("dear")).code == "tenant_suspended"
    studio.tenant(status="active")
    assert studio.refused(studio.submission("dear")).code == "too_many_active_jobs"
    studio.finish(known.job_id)
    assert studio.refused(studio.submission("dear")).code == "insufficient_credits"


def test_a_job_for_later_is_paid_now_and_handed_out_at_its_hour(studio: Studio) -> None:
    # R3, R10, R28: no worker takes it before, and its way is among its events
    job = studio.ask(start_in_seconds=60, deadline_seconds=100)
    assert (studio.status(job), studio.balance()) == ("pending", 95)
    assert studio.advance(59.9) == 0
    assert studio.claim() == []
    assert studio.advance(0.1) == 1
    assert studio.status(job) == "queued"
    assert studio.events(job) == ["job.created", "job.released"]
    assert studio.advance(99.9) == 0, "the deadline counts from the start"
    assert studio.take().job_id == job


def test_a_scheduled_job_can_be_canceled_before_its_hour(studio: Studio) -> None:
    # R13
    job = studio.ask(start_in_seconds=60)
    assert studio.cancel(job).status == "canceled"
    assert studio.advance(61) == 0
    assert (studio.status(job), studio.balance(), studio.claim()) == ("canceled", 100, [])


def test_a_job_may_bring_its_own_stages_if_its_workflow_lets_it(studio: Studio) -> None:
    # R377
    studio.workflow("free", stages=[], inline=True)
    job = studio.ask("free", stages=[stage("plan"), stage("cut", tasks=2)])
    assert [(s.no, s.name, s.status, s.tasks_total) for s in studio.stages(job)] == [
        (1, "plan", "pending", 1),
        (2, "cut", "created", 2),
    ]


def test_each_task_may_have_its_own_input(studio: Studio) -> None:
    # R393
    studio.workflow("set", stages=[stage("draw", inputs=[{"n": 1}, None, {"n": 3}])])
    studio.ask("set", input={"n": 0})
    assert [leased.input for leased in studio.claim("draw", count=9)] == ['{"n":1}', '{"n":0}', '{"n":3}']


def test_a_workflow_that_could_not_work_is_not_stored(studio: Studio) -> None:
    # R168
    before = studio.snapshot()
    recipes: list[dict[str, Any]] = [
        {"stages": []},
        {"stages": [stage()], "price": -1},
        {"stages": [stage()], "input_schema": {"type": "nonsense"}},
        {"stages": [stage(tasks=1_001)]},
        {"stages": [stage("no spaces")]},
        {"stages": [stage()] * 65},
    ]
    refusals = [studio.refused(PutWorkflow(recipe=Recipe(name="bad", **recipe))).code for recipe in recipes]
    assert refusals == [
        "invalid_workflow", "out_of_range", "invalid_workflow", "out_of_range", "invalid_stage", "too_many_stages",
    ]  # fmt: skip
    assert studio.snapshot() == before


def test_storing_an_equal_recipe_makes_no_new_version(studio: Studio) -> None:
    # R178
    before = studio.snapshot()
    studio.workflow()
    assert studio.snapshot() == before
    studio.workflow(price=6)
    assert studio.submit().price == 6


def test_a_tenant_is_checked_too(studio: Studio) -> None:
    assert studio.refused(PutTenant(tenant="acme", weight=0)).code == "out_of_range"
    assert studio.refused(PutTenant(tenant="a/b")).code == "invalid_tenant"
