"""Finds out whether bytes are exactly one request, at a fraction of the cost of parsing it.

Under overload, a server has to refuse several times as many requests as it can handle. Anything unusual is left to the
parser, so that a refused request never ends elsewhere than the parser, or a proxy in front of it, would say.
"""

import re
from typing import NamedTuple

_REQUEST_LINE = re.compile(rb"([A-Z]+) (/[!-~]*) HTTP/1\.1\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,9})\r\n")
_CLOSE = b"\r\nconnection: close\r\n"
_LEFT_TO_PARSER = (b"transfer-encoding", b"expect", b"upgrade", b"origin", b"x-request-id", b"\0")
"""The framing or the response may depend on these headers."""


class WholeRequest(NamedTuple):
    """What a refusal needs to know about a request."""

    method: str
    url: bytes
    keep_alive: bool


def find_whole_request(data: bytes) -> WholeRequest | None:
    """Return the request if the bytes are one whole request, and nothing about it is unusual."""
    line, head_end = _REQUEST_LINE.match(data), data.find(b"\r\n\r\n")
    if line is None or head_end < 0:
        return None
    headers = data[line.end() - 2 : head_end + 2].lower()
    if any(name in headers for name in _LEFT_TO_PARSER):
        return None
    length = _LENGTH.search(headers)
    if headers.count(b"content-length") != (length is not None):
        return None
    if len(data) != head_end + 4 + (int(length[1]) if length else 0):
        return None
    return WholeRequest(line[1].decode(), line[2], keep_alive=_CLOSE not in headers)
