"""A simulation that finds nothing proves nothing: every planted bug is found, and by no fault of its own."""

from functools import cache

import pytest

from tests.sim.planted import BUGS, Bug
from tests.sim.simulation import simulate

SEEDS_MAX = 60
FIRST_SEEDS = {
    "a_task_is_requeued_without_limit": 4,
    "a_lost_lease_is_left_as_it_is": 8,
    "the_next_stage_never_opens": 10,
    "a_late_result_revives_a_canceled_job": 29,
    "an_unknown_call_is_made_again": 31,
    "a_callback_counts_each_time_it_comes": 4,
    "the_last_answer_of_a_provider_wins": 4,
    "a_callback_before_its_reference_is_dropped": 42,
    "a_retried_command_does_not_look_for_its_own_work": 16,
    "the_answer_does_not_wait_for_the_commit": 4,
    "the_sweeper_reads_one_page_only": 29,
    "the_relay_moves_its_cursor_before_it_delivers": 10,
    "a_worker_takes_work_before_it_is_approved": 7,
    "a_revoked_worker_keeps_its_tasks": 16,
    "a_changed_token_takes_the_leases": 35,
    "a_heartbeat_revives_a_deregistered_worker": 9,
    "a_retried_worker_command_is_done_twice": 29,
    "a_retry_does_not_check_its_files": 8,
    "deleting_a_job_deletes_files_that_another_needs": 15,
    "orphans_of_a_running_attempt_are_deleted": 23,
    "rates_are_ignored": 11,
    "a_rate_counts_only_what_still_runs": 11,
}
"""Lives that are known to find what others do not. It only saves time: after them all the others have their turn."""
PATCH_ERRORS = ("AttributeError", "ImportError", "NameError", "TypeError", "still misses")
"""What a plant gives rise to that no longer fits the code it is planted in."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_within_a_few_lives(bug: Bug, monkeypatch):
    seed, findings = _find_failing_seed(bug, monkeypatch)
    assert findings, f"{SEEDS_MAX} lives did not notice that {bug.name.replace('_', ' ')}"
    assert not any(error in findings[0] for error in PATCH_ERRORS), "the plant itself does not work"
    assert _passes_without_bug(seed), "the same life is sound without the bug"


def test_there_are_many_kinds_of_bugs():
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
