"""Polls providers for the outcome of calls that are due, until every call has ended. Never submits."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from callsheet.core.model.commands import ClaimCall, ClaimedCall, Outcome, ReportOutcome
from callsheet.core.model.errors import BadInput
from callsheet.engine.loops.loop_protocol import PAGE, CommandExecutor, due_pages


class Provider(Protocol):
    """A provider's API, as far as the collector uses it."""

    def collect(self, call_id: str, ref: str | None) -> Outcome:
        """Return the outcome of a call. Without a reference, look the call up by its id."""
        ...

    def cancel(self, call_id: str, ref: str | None) -> None:
        """Ask the provider to stop a call; best effort."""
        ...


class Collector:
    """Collects the outcome of every provider call that is due."""

    def __init__(self, engine: CommandExecutor, providers: Mapping[str, Provider], page: int = PAGE) -> None:
        self._engine = engine
        self._providers = providers
        self._page = page

    def run_once(self, now: int) -> int:
        collected = 0
        errors: list[Exception] = []
        for rows in due_pages(self._engine.reads, "due_calls", now, self._page):
            for _, call_id, job_id in rows:
                try:
                    collected += self._collect(call_id, job_id)
                except Exception as error:  # noqa: BLE001 - raised after the remaining calls were collected
                    errors.append(error)
        if errors:
            raise errors[0]
        return collected

    def _collect(self, call_id: str, job_id: str) -> int:
        call: ClaimedCall = self._engine.execute(ClaimCall(call_id=call_id, job_id=job_id))
        if not call.due:
            if call.cancel:
                self._cancel_at_provider(call)
            return 0
        outcome = self._collect_outcome(call)
        try:
            self._engine.execute(ReportOutcome(call_id=call_id, job_id=job_id, outcome=outcome))
        except BadInput as refusal:  # a malformed outcome stays malformed: fail the call instead of polling again
            rejected_outcome = Outcome("failed", code=refusal.code, message=refusal.message, retryable=False)
            self._engine.execute(ReportOutcome(call_id=call_id, job_id=job_id, outcome=rejected_outcome))
        return 1

    def _cancel_at_provider(self, call: ClaimedCall) -> None:
        provider = self._providers.get(call.provider)
        with suppress(Exception):
            if provider is not None:
                provider.cancel(call.call_id, call.ref)

    def _collect_outcome(self, call: ClaimedCall) -> Outcome:
        provider = self._providers.get(call.provider)
        if provider is None:
            return Outcome("pending")
        try:
            if call.cancel:
                self._cancel_at_provider(call)
            return provider.collect(call.call_id, call.ref)
        except Exception:  # noqa: BLE001 - the call is polled again until its deadline
            return Outcome("pending")
