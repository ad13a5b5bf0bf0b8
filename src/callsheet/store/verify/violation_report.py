"""Formats the results of a check, as text and as JSON."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from callsheet.store.verify.rule_check import RuleResult, Violation


def report(violations: Iterable[Violation]) -> str:
    """Format violations as text."""
    lines = [line for violation in violations for line in _report_lines(violation)]
    return "\n".join(lines) if lines else "Every rule holds."


def as_json(violations: Iterable[Violation], results: Sequence[RuleResult] = ()) -> str:
    """Format violations as JSON, with the time and the slices of each rule that was checked."""
    found = list(violations)
    checked = [
        {"name": result.name, "seconds": result.seconds, "slices": result.slices, "count": result.count}
        for result in results
    ]
    return msgspec.json.encode({"sound": not found, "violations": found, "rules": checked}).decode()


def _report_lines(violation: Violation) -> Iterator[str]:
    rows = "1 row" if violation.count == 1 else f"{violation.count} rows"
    yield f"{violation.name} is broken by {rows}: {violation.rule}"
    for row in violation.rows:
        yield "    " + " ".join(f"{name}={value}" for name, value in row.items())
    if violation.count > len(violation.rows):
        yield f"    and {violation.count - len(violation.rows)} more"
