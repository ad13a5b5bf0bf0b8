"""Conditional and range requests: If-None-Match and Range (RFC 9110)."""

import re

from callsheet.core.model.plural import pluralize
from callsheet.http.server.problems import Problem

_ETAG = re.compile(r'(?:^|,)[ \t]*(?:W/)?("[^"]*")')
_RANGE = re.compile(r"bytes=[ \t]*([0-9]{0,99})-([0-9]{0,99})[ \t]*", re.IGNORECASE)


def etag_matches(header: str | None, etag: str) -> bool:
    """Return whether an If-None-Match header contains an ETag: alone, in a list, as a weak tag, or as `*`."""
    if header is None or header == etag:
        return header is not None
    return header.strip() == "*" or etag in _ETAG.findall(header)


def parse_range(header: str, size: int) -> range | None:
    """Return the byte range of a Range header. None means the whole file; so do several ranges and invalid headers."""
    match = _RANGE.fullmatch(header)
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        requested = range(max(size - int(last), 0), size)
        if int(last) and not size:  # the last bytes of an empty file: Content-Range cannot express an empty range
            return None
    elif last and int(last) < int(first):
        return None
    else:
        requested = range(int(first), min(int(last) + 1, size) if last else size)
    if not requested:
        raise Problem(
            416,
            "range_not_satisfiable",
            f"The range is outside the file, which has {pluralize(size, 'byte')}. Request a range within it.",
            {"content-range": f"bytes */{size}"},
        )
    return requested
