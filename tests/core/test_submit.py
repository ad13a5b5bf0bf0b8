"""Accepting a job: validate, idempotency, gates and cap, price; then everything or nothing."""

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
OFF = replace(DRAW, name="off", enabled=False)
OPEN = WorkflowDefinition(name="open", inline=True)


def _submit(**more: Any) -> c.Submit:
    return c.Submit(**{"tenant": "acme", "user": "ann", "workflow": "draw", **more})


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


_ring: list[Any] = []
_ring.append(_ring)

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("a tenant that is no name", {"tenant": "a b"}, "tenant_not_found"),
    ("a tenant with a slash", {"tenant": "a/b"}, "tenant_not_found"),
    ("no tenant", {"tenant": ""}, "tenant_not_found"),
    ("an unknown tenant", {"tenant": "nobody"}, "tenant_not_found"),
    ("no user", {"user": ""}, "invalid_user"),
    ("a user of 256 characters", {"user": "x" * 256}, "invalid_user"),
    ("a user with a line break", {"user": "a\nb"}, "invalid_user"),
    ("a user with half a character", {"user": "\ud800"}, "invalid_user"),
    ("an empty key", {"idempotency_key": ""}, "invalid_idempotency_key"),
    ("a key of 256 characters", {"idempotency_key": "x" * 256}, "invalid_idempotency_key"),
    ("a key with a control character", {"idempotency_key": "a\0b"}, "invalid_idempotency_key"),
    ("an unknown workflow", {"workflow": "nothing"}, "workflow_not_found"),
    ("a workflow switched off", {"workflow": "off"}, "workflow_disabled"),
    ("stages for a workflow with its own", {"stages": []}, "stages_not_allowed"),
    ("a negative priority", {"priority": -1}, "out_of_range"),
    ("a priority over the top", {"priority": 101}, "out_of_range"),
    ("a huge priority", {"priority": 2**70}, "out_of_range"),
    ("a priority that is no number", {"priority": True}, "out_of_range"),
    ("no time at all", {"deadline_seconds": 0}, "out_of_range"),
    ("a deadline beyond the limit", {"deadline_seconds": 30 * 86_400 + 1}, "out_of_range"),
    ("a start in the past", {"start_in_seconds": -1}, "out_of_range"),
    ("a start in two years", {"start_in_seconds": 2 * 366 * 86_400}, "out_of_range"),
    ("a start at no time", {"start_in_seconds": float("nan")}, "out_of_range"),
    ("a start at the end of time", {"start_in_seconds": float("inf")}, "out_of_range"),
    ("input over the limit", {"input": "x" * 256 * 1024}, "input_too_large"),
    ("input over the limit in bytes", {"input": "ü" * 128 * 1024}, "input_too_large"),
    ("input nested too deep", {"input": _deep(65)}, "input_too_deep"),
    ("input nested without end", {"input": _deep(100_000)}, "input_too_deep"),
    ("input that holds itself", {"input": _ring}, "input_too_deep"),
    ("input that is not a number", {"input": {"a": [float("nan")]}}, "invalid_input"),
    ("input without end", {"input": float("-inf")}, "invalid_input"),
    ("input that is no text", {"input": {"a": "\ud800"}}, "invalid_input"),
    ("input that is no JSON", {"input": {"a": object()}}, "invalid_input"),
    ("input with keys that are no text", {"input": {(1, 2): 3}}, "invalid_input"),
    ("input against the schema", {"workflow": "strict", "input": {"prompt": 7}}, "invalid_input"),
    ("no input against the schema", {"workflow": "strict"}, "invalid_input"),
    ("too many labels", {"labels": {str(n): "" for n in range(33)}}, "too_many_labels"),
    ("a label without a name", {"labels": {"": "x"}}, "invalid_label"),
    ("a label of 201 characters", {"labels": {"a": "x" * 201}}, "invalid_label"),
    ("a label that is no text", {"labels": {"a": "\ud800"}}, "invalid_labels"),
    ("too much metadata", {"metadata": {"a": "x" * 17_000}}, "metadata_too_large"),
    ("metadata that is not a number", {"metadata": {"a": float("nan")}}, "invalid_metadata"),
    ("too much trace", {"trace": {"a": "x" * 17_000}}, "trace_too_large"),
    ("too many stages", {"workflow": "open", "stages": [StageSpec(name="a", kind="k")] * 65}, "too_many_stages"),
    ("a stage that is no name", {"workflow": "open", "stages": [StageSpec(name="", kind="k")]}, "invalid_stage"),
    ("too many tasks", {"workflow": "open", "stages": [StageSpec(name="a", kind="k", tasks=1_001)]}, "out_of_range"),
    (
        "a stage with too much metadata",
        {"workflow": "open", "stages": [StageSpec(name="a", kind="k", metadata={"a": "x" * 17_000})]},
        "metadata_too_large",
    ),
    (
        "a task with too much input",
        {"workflow": "open", "stages": [StageSpec(name="a", kind="k", inputs=["x" * 300_000])]},
        "input_too_large",
    ),
]


@pytest.mark.parametrize(("wrong", "code"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_input_is_refused_by_name_and_nothing_is_written(wrong: dict[str, Any], code: str) -> None:
    """R31, R91, R167: no debit, no row, and the key is not burnt."""
    harness = CoreHarness(DRAW, STRICT, OFF, OPEN)
    assert harness.expect_refusal(_submit(**wrong)).code == code
    if "idempotency_key" not in wrong:
        assert harness.expect_refusal(_submit(**wrong, idempotency_key="k")).code == code
        assert not harness.do(_submit(idempotency_key="k")).replay


@pytest.mark.parametrize(
    "fine",
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
def test_what_the_limits_allow_is_taken(fine: dict[str, Any]) -> None:
    harness = CoreHarness(replace(DRAW, price=0))
    assert harness.do(_submit(**fine)).status in {"queued", "pending"}


# Each step of C10 with a request that fails there; a request that fails at several is told of the first.
STEPS: list[tuple[str, dict[str, Any]]] = [
    ("invalid_user", {"user": ""}),
    ("workflow_not_found", {"workflow": "nothing"}),
    ("out_of_range", {"priority": -1}),
    ("invalid_input", {"input": float("nan")}),
    ("idempotency_key_reused", {"idempotency_key": "used"}),
    ("quota", {"verdict": c.Verdict("quota", "No more today.")}),
    ("too_many_active_jobs", {}),
]


@pytest.mark.parametrize("first", range(len(STEPS)), ids=[code for code, _ in STEPS])
def test_the_checks_come_in_one_order(first: int) -> None:
    """C10, R30, R89, R172: validate, idempotency, gates, cap, price."""
    harness = CoreHarness(DRAW, initial_credits=10, limits=Limits(active_jobs_max=1))
    harness.do(_submit(idempotency_key="used", input="first"))
    assert harness.wallet().balance == 0, "it could not pay either"
    wrong: dict[str, Any] = {}
    for _, more in STEPS[first:]:
        wrong = {**more, **wrong}
    assert harness.expect_refusal(_submit(**wrong)).code == STEPS[first][0]


def test_missing_credits_are_found_last() -> None:
    """R32, R33: with what it costs and what there is."""
    harness = CoreHarness(DRAW, initial_credits=3)
    refusal = harness.expect_refusal(_submit())
    assert (refusal.code, refusal.details) == ("insufficient_credits", {"required": 10, "balance": 3})


def test_a_suspended_tenant_is_denied() -> None:
    """R81."""
    harness = CoreHarness(DRAW)
    harness.do(c.PutTenant(tenant="acme", status="suspended"))
    assert harness.expect_refusal(_submit()).code == "tenant_suspended"


# -- the same key


def test_the_same_key_gives_the_same_job_without_credits_and_over_the_cap() -> None:
    """R82, R86, R87, R88, R89, R170, H2."""
    harness = CoreHarness(DRAW, initial_credits=10, limits=Limits(active_jobs_max=1))
    first = harness.do(_submit(idempotency_key="k"))
    before = harness.snapshot()
    retrying = harness.do(_submit(idempotency_key="k"))
    assert (retrying.job_id, retrying.replay, first.replay) == (first.job_id, True, False)
    assert harness.snapshot() == before
    harness.do(c.Cancel(tenant="acme", job_id=first.job_id))
    assert harness.do(_submit(idempotency_key="k")).status == "canceled", "an ended job is returned as it is"


def test_fifty_submits_of_one_key_in_one_batch_make_one_job() -> None:
    """R88, S1."""
    harness = CoreHarness(DRAW)
    answers = harness.batch(*[_submit(idempotency_key="k")] * 50)
    assert len({answer.job_id for answer in answers}) == 1
    assert [answer.replay for answer in answers] == [False] + [True] * 49
    assert (len(list(harness.all(Job))), harness.wallet().reserved) == (1, 10)


@pytest.mark.parametrize(
    "other", [{"input": {"n": 2}}, {"priority": 7}, {"labels": {"a": "b"}}, {"workflow": "strict"}, {"input": None}]
)
def test_the_same_key_with_another_body_is_refused(other: dict[str, Any]) -> None:
    """R90, S2, H3."""
    harness = CoreHarness(DRAW, STRICT)
    job_id = harness.do(_submit(idempotency_key="k", input={"prompt": "a"})).job_id
    refusal = harness.expect_refusal(_submit(**{"idempotency_key": "k", "input": {"prompt": "a"}, **other}))
    assert (refusal.code, refusal.details["job_id"]) == ("idempotency_key_reused", job_id)


def test_key_order_in_the_body_does_not_matter() -> None:
    harness = CoreHarness(DRAW)
    harness.do(_submit(idempotency_key="k", input={"a": 1, "b": 2}))
    assert harness.do(_submit(idempotency_key="k", input={"b": 2, "a": 1})).replay


def test_keys_belong_to_a_user_of_a_tenant() -> None:
    """R84, R85, C11: a slash in a name never makes two of them one."""
    harness = CoreHarness(replace(DRAW, price=0))
    harness.do(c.PutTenant(tenant="other"))
    jobs = {
        harness.do(_submit(tenant=tenant, user=user, idempotency_key=key)).job_id
        for tenant in ("acme", "other")
        for user, key in (("a", "k"), ("b", "k"), ("a", "b/k"), ("a/b", "k"), ("a/1", "3/k"), ("a", "1/3/k"))
    }
    assert len(jobs) == 12


def test_the_key_of_a_deleted_job_stays_taken() -> None:
    """H20: ids stay reserved."""
    harness = CoreHarness(DRAW)
    job_id = harness.submit(idempotency_key="k")
    harness.do(c.Delete(tenant="acme", job_id=job_id))
    assert harness.expect_refusal(_submit(idempotency_key="k")).code == "job_deleted"


def test_without_a_key_two_equal_requests_are_two_jobs() -> None:
    """R82."""
    harness = CoreHarness(DRAW)
    assert harness.submit() != harness.submit()


def test_a_submit_tried_again_after_a_lost_connection_finds_its_own_job() -> None:
    """H4, F7."""
    harness = CoreHarness(DRAW)
    command = _submit(id=harness.new_id())
    first = harness.do(command)
    [retrying] = harness.batch(command, retrying=True)
    assert retrying.job_id == first.job_id == command.id
    assert harness.wallet().reserved == 10


# -- the cap


def test_the_cap_holds_within_a_batch_and_an_end_frees_a_place() -> None:
    """R171, R172, S3."""
    harness = CoreHarness(DRAW, limits=Limits(active_jobs_max=5))
    results = harness.batch(*[_submit()] * 20)
    accepted = [result for result in results if isinstance(result, c.SubmitResult)]
    assert len(accepted) == 5
    refusal = results[-1]
    assert (refusal.code, refusal.details) == ("too_many_active_jobs", {"active": 5, "max": 5})
    harness.do(c.Pause(tenant="acme", job_id=accepted[0].job_id))
    assert harness.expect_refusal(_submit()).code == "too_many_active_jobs", "C20: a paused job is active"
    canceled, submitted, refused = harness.batch(
        c.Cancel(tenant="acme", job_id=accepted[0].job_id), _submit(), _submit()
    )
    assert (canceled.status, submitted.status, refused.code) == ("canceled", "queued", "too_many_active_jobs")


def test_a_tenants_own_cap_goes_before_the_houses() -> None:
    harness = CoreHarness(DRAW, limits=Limits(active_jobs_max=1))
    harness.do(c.PutTenant(tenant="acme", active_jobs_max=3))
    assert [isinstance(r, c.SubmitResult) for r in harness.batch(*[_submit()] * 4)] == [True, True, True, False]


# -- what an accepted job is


def test_an_accepted_job_is_whole() -> None:
    """R1, R3, R38, R104, R176, R179: row, run, money, work and input in one step."""
    harness = CoreHarness(DRAW)
    answer = harness.do(_submit(input={"b": 1, "a": 2}, labels={"x": "y"}))
    job = harness.job(answer.job_id)
    assert (answer.status, answer.price, answer.run) == ("queued", 10, 1)
    assert (job.labels, job.started_at, job.finished_at) == ('{"x":"y"}', None, None)
    assert harness.ledger(job.id) == [("reserve", -10, 0)]
    assert [task.ready for task in harness.tasks(job.id)] == [1]
    assert [(d.owner_id, d.body) for d in harness.all(Document)] == [(job.id, '{"a":2,"b":1}')]
    assert harness.event_types(job.id) == ["job.created"]


def test_each_task_gets_its_own_input_or_the_jobs() -> None:
    harness = CoreHarness(OPEN)
    stages = [StageSpec(name="a", kind="draw", inputs=[{"n": 1}, None])]
    harness.submit("open", stages=stages, input={"all": True})
    assert sorted(leased.input for leased in harness.claim(2)) == ['{"all":true}', '{"n":1}']
