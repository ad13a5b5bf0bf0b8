"""Gates: small callables that may say no before a job is accepted. They run outside the lane, so they may be slow."""

from collections.abc import Callable, Sequence

from callsheet.core.model.commands import Submit, Verdict

Gate = Callable[[Submit], Verdict | None]
"""Entitlement, quota, moderation: look at a request; None lets it pass."""


def first_verdict(gates: Sequence[Gate], command: Submit, *, record_blocked: bool) -> Verdict | None:
    """Return the first objection; it is recorded as a blocked job only if the house keeps such records."""
    for gate in gates:
        verdict = gate(command)
        if verdict is not None:
            return Verdict(verdict.code, verdict.message, block=verdict.block and record_blocked)
    return None
