"""Gates: callables that may refuse a job before it is accepted. They run outside the lane, so they may be slow."""

from collections.abc import Callable, Sequence

from callsheet.core.model.commands import Submit, Verdict

Gate = Callable[[Submit], Verdict | None]
"""A check such as entitlement, quota or moderation; None accepts the job."""


def first_verdict(gates: Sequence[Gate], command: Submit, *, record_blocked: bool) -> Verdict | None:
    """Return the first refusal; it is stored as a blocked job only if `record_blocked` is set."""
    for gate in gates:
        verdict = gate(command)
        if verdict is not None:
            return Verdict(verdict.code, verdict.message, block=verdict.block and record_blocked)
    return None
