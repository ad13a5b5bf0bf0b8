"""Credits: a run reserves once, is consumed or refunded once, and the ledger adds up after every command."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from callsheet.core.decisions.money import settle
from callsheet.core.model import commands as c
from callsheet.core.model.errors import Refusal
from callsheet.core.model.rows import Job, LedgerEntry, Run, Wallet
from callsheet.core.model.workflow_definition import RefundPolicy, StageSpec, WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.working_set import WorkingSet
from tests.core.rule_harness import DRAW, CoreHarness


def _top_up(amount: int, key: str = "", user: str = "ann") -> c.TopUp:
    return c.TopUp(tenant="acme", user=user, amount=amount, idempotency_key=key)


def _adjust(amount: int, reason: str = "goodwill", key: str = "") -> c.Adjust:
    return c.Adjust(tenant="acme", user="ann", amount=amount, reason=reason, idempotency_key=key)


# How a run ends, the refund policy in percent, and the expected entry for a price of 10: kind, refunded, consumed.
SETTLEMENTS = [
    ("completed", RefundPolicy(), ("consume", 0, 10)),  # R246
    ("failed", RefundPolicy(), ("refund", 10, 0)),  # R7, R62, R255
    ("failed", RefundPolicy(failed=30), ("consume", 3, 7)),
    ("failed", RefundPolicy(failed=0), ("consume", 0, 10)),
    ("expired", RefundPolicy(), ("refund", 10, 0)),  # R65
    ("expired", RefundPolicy(expired=50), ("consume", 5, 5)),
    ("canceled", RefundPolicy(), ("refund", 10, 0)),  # R66, C8
    ("canceled", RefundPolicy(canceled=0, canceled_running=50), ("consume", 0, 10)),
    ("canceled_running", RefundPolicy(), ("refund", 10, 0)),
    ("canceled_running", RefundPolicy(canceled=0, canceled_running=50), ("consume", 5, 5)),
    ("canceled_running", RefundPolicy(canceled_running=99), ("consume", 9, 1)),
]


def _end(harness: CoreHarness, job_id: str, ending: str) -> None:
    if ending == "canceled":
        harness.do(c.Cancel(tenant="acme", job_id=job_id))
        return
    lease = harness.lease()
    if ending == "completed":
        harness.do(c.Complete(lease=lease))
    elif ending == "failed":
        harness.do(c.Fail(lease=lease, retryable=False))
    elif ending == "canceled_running":
        harness.do(c.Cancel(tenant="acme", job_id=job_id, grace_seconds=0))
    else:
        harness.advance(DRAW.deadline_seconds)
        harness.tick()


@pytest.mark.parametrize(("ending", "refunds", "entry"), SETTLEMENTS)
def test_an_ended_run_is_settled_once_by_the_refund_policy(
    ending: str, refunds: RefundPolicy, entry: tuple[str, int, int]
) -> None:
    """R269, R270, R274, R275, M5-M9."""
    harness = CoreHarness(replace(DRAW, refunds=refunds))
    job_id = harness.submit()
    assert (harness.wallet().balance, harness.wallet().reserved) == (990, 10)
    _end(harness, job_id, ending)
    assert harness.ledger(job_id) == [("reserve", -10, 0), entry]
    run = harness.get(Run, (job_id, 1))
    assert (run.consumed, run.refunded) == (entry[2], entry[1])
    assert (harness.wallet().balance, harness.wallet().reserved) == (990 + entry[1], 0)


@pytest.mark.parametrize(
    ("price", "delivered", "consumed"),
    [(10, [100, 100], 10), (10, [50, 50], 5), (10, [100, 1], 6), (7, [33, 33], 3), (1, [1, 1], 1), (0, [50, 50], 0)],
)
def test_a_partial_delivery_consumes_its_share_rounded_up(price: int, delivered: list[int], consumed: int) -> None:
    """M7: the same entry refunds the rest."""
    stages = [StageSpec(name="one", kind="draw", tasks=2)]
    harness = CoreHarness(WorkflowDefinition(name="duo", price=price, stages=stages))
    job_id = harness.submit("duo")
    for leased, percent in zip(harness.claim(2), delivered, strict=True):
        harness.do(c.Complete(lease=leased.lease, delivered=percent))
    assert harness.ledger(job_id)[1:] == ([("consume", price - consumed, consumed)] if price else [])
    assert harness.wallet().balance == 1_000 - consumed


@pytest.mark.parametrize("delivered", [0, -1, 101, True, 50.5])
def test_a_delivery_outside_1_to_100_percent_is_refused(delivered: int) -> None:
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    assert harness.expect_refusal(c.Complete(lease=lease, delivered=delivered)).code == "out_of_range"
    harness.do(c.RecordIntent(lease=lease, provider="p"))
    harness.do(c.HandOff(lease=lease, ref="r"))
    callback = c.Callback(provider="p", webhook_id="1", ref="r", outcome=c.Outcome("completed", delivered=delivered))
    assert harness.expect_refusal(callback).code == "out_of_range"


def test_a_free_job_adds_no_ledger_entry() -> None:
    harness = CoreHarness(replace(DRAW, price=0), initial_credits=0)
    job_id, lease = harness.started()
    harness.do(c.Complete(lease=lease))
    assert (harness.ledger(job_id), harness.wallet().entries) == ([], 0)


def test_a_later_price_change_does_not_affect_a_submitted_job() -> None:
    """R43, R178."""
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    harness.do(c.PutWorkflow(definition=replace(DRAW, price=700, refunds=RefundPolicy(canceled=0))))
    harness.do(c.Cancel(tenant="acme", job_id=job_id))
    assert harness.ledger(job_id) == [("reserve", -10, 0), ("refund", 10, 0)]


def test_a_batch_of_submits_never_spends_more_than_the_balance() -> None:
    """R32, R34, R35, R272, H5."""
    harness = CoreHarness(DRAW, initial_credits=35)
    submit = c.Submit(tenant="acme", user="ann", workflow="draw")
    results = harness.batch(*[submit] * 6)
    assert [isinstance(r, c.SubmitResult) for r in results] == [True] * 3 + [False] * 3
    refusal = results[-1]
    assert (refusal.code, refusal.details) == ("insufficient_credits", {"required": 10, "balance": 5})
    assert len(list(harness.all(Job))) == 3
    assert (harness.wallet().balance, harness.wallet().reserved) == (5, 30)


def test_requeues_and_automatic_retries_add_no_ledger_entry() -> None:
    """R77, R261."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Requeue(lease=lease, reason="spot"))
    harness.do(c.Fail(lease=harness.lease(), retryable=True))
    assert harness.ledger(job_id) == [("reserve", -10, 0)]


def test_a_run_is_never_settled_twice() -> None:
    """M5."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Complete(lease=lease))
    ws = WorkingSet(harness.now, harness.limits)
    with pytest.raises(AssertionError, match="already settled"):
        settle(ws, harness.job(job_id), harness.get(Run, (job_id, 1)), "failed", RefundPolicy(), 100)


# -- top-up and adjust


@pytest.mark.parametrize("amount", [0, -1, 10**12 + 1, 1.5, True])
def test_a_top_up_that_is_not_a_positive_whole_number_is_refused(amount: int) -> None:
    assert CoreHarness().expect_refusal(_top_up(amount)).code == "out_of_range"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (_adjust(0), "out_of_range"),
        (_adjust(10**12 + 1), "out_of_range"),
        (_adjust(-(10**12) - 1), "out_of_range"),
        (_adjust(5, reason=" "), "reason_required"),
        (_adjust(-1_001), "insufficient_credits"),
        (_top_up(1, user=""), "invalid_user"),
        (_top_up(1, user="x" * 256), "invalid_user"),
        (_top_up(1, user="a\nb"), "invalid_user"),
        (_top_up(1, key="x" * 256), "invalid_idempotency_key"),
        (_top_up(1, key="a\0b"), "invalid_idempotency_key"),
        (c.TopUp(tenant="a/b", user="ann", amount=1), "invalid_tenant"),
    ],
)
def test_an_invalid_top_up_or_adjustment_is_refused(command: c.Command, code: str) -> None:
    assert CoreHarness().expect_refusal(command).code == code


def test_an_adjustment_that_exceeds_the_balance_names_the_balance() -> None:
    refusal = CoreHarness(initial_credits=5).expect_refusal(_adjust(-9))
    assert refusal.message == "The adjustment deducts 9 credits and the balance is 5: deduct at most the balance."


def test_an_adjustment_adds_or_takes_credits_and_has_a_reason() -> None:
    """R41."""
    harness = CoreHarness()
    harness.do(_adjust(-1_000, reason="charge-back"))
    harness.do(_adjust(3, reason="goodwill"))
    entries = [(e.kind, e.amount, e.balance, e.reason, e.actor) for e in harness.all(LedgerEntry)][1:]
    assert entries == [("adjust", -1_000, 0, "charge-back", "admin"), ("adjust", 3, 3, "goodwill", "admin")]


def test_a_repeated_key_moves_credits_once_and_is_refused_with_another_amount() -> None:
    """R375."""
    harness = CoreHarness()
    first, second = harness.batch(_top_up(5, key="k"), _top_up(5, key="k"))
    assert (first.balance, first.replay) == (1_005, False)
    assert (second.balance, second.replay) == (1_005, True)
    assert harness.expect_refusal(_top_up(6, key="k")).code == "idempotency_key_reused"
    assert harness.do(_top_up(5, key="k", user="bob")).balance == 5, "a key belongs to one user"


def test_a_slash_in_a_key_or_user_name_does_not_mix_up_two_users() -> None:
    """R84."""
    harness = CoreHarness()
    assert not harness.do(_top_up(5, key="b/k", user="a")).replay
    assert not harness.do(_top_up(5, key="k", user="a/b")).replay


def test_reserved_credits_count_towards_the_maximum_balance() -> None:
    """A refund must always fit into the wallet."""
    harness = CoreHarness(DRAW, initial_credits=1_000, limits=Limits(balance_max=1_000))
    job_id = harness.submit()
    assert harness.expect_refusal(_top_up(1)).code == "balance_too_large"
    assert harness.expect_refusal(_adjust(1)).code == "balance_too_large"
    harness.do(c.Cancel(tenant="acme", job_id=job_id))
    assert harness.wallet().balance == 1_000


# -- any sequence of operations

_OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["topup", "adjust", "submit", "complete", "fail", "cancel", "retry", "expire"]),
        st.integers(0, 60),
    ),
    max_size=25,
)


def _operate(harness: CoreHarness, operation: str, number: int, jobs: list[str], leases: dict[str, c.Lease]) -> None:
    job_id = jobs[number % len(jobs)] if jobs else "none"
    lease = leases.get(job_id, c.Lease(job_id, "none", 1, "none"))
    command: c.Command = {
        "topup": _top_up(number),
        "adjust": _adjust(number - 30),
        "submit": c.Submit(tenant="acme", user="ann", workflow="draw"),
        "complete": c.Complete(lease=lease, delivered=number),
        "fail": c.Fail(lease=lease, retryable=False),
        "cancel": c.Cancel(tenant="acme", job_id=job_id, grace_seconds=0),
        "retry": c.Retry(tenant="acme", job_id=job_id),
        "expire": c.TickJob(job_id=job_id),
    }[operation]
    if operation == "expire":
        harness.advance(DRAW.deadline_seconds)
    result = harness.batch(command)[0]
    if isinstance(result, c.SubmitResult):
        jobs.append(result.job_id)
    for leased in harness.claim(number % 3 + 1):
        leases[leased.lease.job_id] = leased.lease
    assert result is None or isinstance(result, Refusal | c.Balance | c.SubmitResult | c.JobState | c.TaskState)


@given(_OPERATIONS, st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_the_ledger_adds_up_after_any_sequence_of_operations(operations: list[tuple[str, int]], percent: int) -> None:
    """R273, R274, M1-M5, M8, M10, M11: the harness checks the invariants after every command."""
    refunds = RefundPolicy(failed=percent, expired=percent, canceled=percent, canceled_running=100 - percent)
    harness = CoreHarness(replace(DRAW, refunds=refunds), initial_credits=25)
    jobs: list[str] = []
    leases: dict[str, c.Lease] = {}
    for operation, number in operations:
        _operate(harness, operation, number, jobs, leases)
    consumed = sum(entry.consumed for entry in harness.all(LedgerEntry))
    added = sum(entry.amount for entry in harness.all(LedgerEntry) if entry.kind in {"topup", "adjust"})
    [wallet] = harness.all(Wallet)
    assert wallet.balance + wallet.reserved + consumed == added
