"""Bugs in calls to providers and in their callbacks."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.decisions import (
    claim,
    job_actions,
    provider_calls,
)
from callsheet.core.model import commands
from callsheet.core.working_set import WorkingSet
from tests.sim.planted.registry import bug, do_nothing, replace_decision


@bug
def an_unanswered_call_is_submitted_again(patch: pytest.MonkeyPatch) -> None:
    for module in (claim, job_actions):
        patch.setattr(module, "mark_call_unanswered", lambda _ws, _task: False)


@bug
def a_repeated_callback_is_applied_again(patch: pytest.MonkeyPatch) -> None:
    def callback(ws: WorkingSet, command: commands.Callback) -> commands.TaskState:
        return provider_calls.callback(ws, replace(command, webhook_id=f"{command.webhook_id}-{command.id}"))

    replace_decision(patch, commands.Callback, callback)


@bug
def the_last_outcome_of_a_call_wins(patch: pytest.MonkeyPatch) -> None:
    real = provider_calls._apply_outcome  # noqa: SLF001 - the place of the bug

    def apply(ws: WorkingSet, call: Any, outcome: commands.Outcome) -> commands.TaskState:
        result = real(ws, call, outcome)
        if result.skipped and outcome.status in {"completed", "failed"}:
            ws.put(replace(call, outcome=outcome.status))
            return replace(result, skipped=None)
        return result

    patch.setattr(provider_calls, "_apply_outcome", apply)


@bug
def a_callback_before_its_reference_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(provider_calls, "_apply_waiting_callbacks", do_nothing)
