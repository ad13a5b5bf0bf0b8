"""The syntax of rates: `60/minute`, with second, minute, hour or day as period."""

import re
from collections.abc import Mapping

PERIODS: Mapping[str, int] = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
RATE_STARTS_MAX = 1_000_000
RATE_FORMAT_HELP = f"Use a rate such as 60/minute: from 1 to {RATE_STARTS_MAX} per second, minute, hour or day."
_RATE = re.compile(rf"([1-9][0-9]{{0,6}})/({'|'.join(PERIODS)})\Z")


def parse_rate(text: str) -> tuple[int, int] | None:
    """Parse a rate such as `60/minute` into a count and seconds; None if it is invalid."""
    found = _RATE.match(text)
    if found is None or (starts := int(found[1])) > RATE_STARTS_MAX:
        return None
    return starts, PERIODS[found[2]]
