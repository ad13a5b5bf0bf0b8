"""What a client knows already or wants of an answer only: tags of states, and ranges of bytes (RFC 9110)."""

import re

from callsheet.core.model.plural import pluralize
from callsheet.http.server.problems import Problem

_TAG = re.compile(r'(?:^|,)[ \t]*(?:W/)?("[^"]*")')
_RANGE = re.compile(r"bytes=[ \t]*([0-9]{0,99})-([0-9]{0,99})[ \t]*", re.IGNORECASE)


def etag_matches(header: str | None, tag: str) -> bool:
    """Whether an If-None-Match names a tag: alone, in a list, as a weak one, or by `*`."""
    if header is None or header == tag:
        return header is not None
    return header.strip() == "*" or tag in _TAG.findall(header)


def parse_range(header: str, size: int) -> range | None:
    """Return the bytes that a Range asks for; None is all of them, also for what we do not read: several ranges."""
    found = _RANGE.fullmatch(header)
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        wanted = range(max(size - int(last), 0), size)
        if int(last) and not size:  # the last bytes of nothing are all there is, and no range can say so
            return None
    elif last and int(last) < int(first):
        return None
    else:
        wanted = range(int(first), min(int(last) + 1, size) if last else size)
    if not wanted:
        raise Problem(
            416, "range_not_satisfiable", f"This has {pluralize(size, 'byte')}, and none of them is in this range.",
            {"content-range": f"bytes */{size}"},
        )  # fmt: skip
    return wanted
