"""The audit chain: each line's digest covers the line and the digest before it.

So a line that was edited, deleted, inserted or moved no longer fits its neighbours, and a chain that lost its last
lines no longer ends where its head says. A person who also recomputes all later digests and the head leaves no trace
here. A digest that an operator has copied to another system shows such a change.
"""

import hashlib
from collections.abc import Iterator
from itertools import islice
from typing import Literal, NamedTuple

from msgspec.structs import replace

from callsheet.core.model.rows import Audit, AuditHead

_MOVED_WITHIN_MAX = 1_000
"""How many lines after a bad one are searched for the line that belongs in its place."""

Problem = Literal["edited", "missing", "reordered", "inserted", "head"]


class ChainFault(NamedTuple):
    """The first line of a chain that is wrong."""

    tenant: str
    seq: int
    problem: Problem


def append_to_chain(head: AuditHead, line: Audit) -> tuple[AuditHead, Audit]:
    """Return the new head of a chain, and the line with its number and digest."""
    line = replace(line, seq=head.seq + 1)
    line = replace(line, digest=line_digest(head.digest, line))
    return AuditHead(line.tenant, line.seq, line.digest), line


def line_digest(previous: str, line: Audit) -> str:
    """Return the SHA-256 of the previous digest and all other columns of a line, in hex.

    Each value is encoded as its length in bytes, a colon and its text; null is a minus sign. The first line of a chain
    has an empty previous digest. Stored chains depend on this encoding: never change it.
    """
    values = (
        previous, line.tenant, line.seq, line.id, line.at, line.actor, line.action, line.subject, line.data,
    )  # fmt: skip
    return hashlib.sha256(b"".join(map(_encode, values))).hexdigest()


def find_chain_fault(lines: Iterator[Audit], end: AuditHead | None, tenant: str) -> ChainFault | None:
    """Return what is wrong first in a chain, given its lines in order and its head."""
    if end is None:
        return ChainFault(tenant, 0, "head")
    last = AuditHead(tenant)
    for line in lines:
        seq = last.seq + 1
        if line.seq > end.seq or line.seq < seq:
            return ChainFault(tenant, line.seq, "inserted")
        if line.seq > seq:
            return ChainFault(tenant, seq, "missing")
        if line.digest != line_digest(last.digest, line):
            return ChainFault(tenant, seq, _name_mismatch(last, line, lines))
        last = AuditHead(tenant, seq, line.digest)
    if last.seq < end.seq:
        return ChainFault(tenant, last.seq + 1, "missing")
    return None if last == end else ChainFault(tenant, end.seq, "head")


def _name_mismatch(last: AuditHead, line: Audit, later_lines: Iterator[Audit]) -> Problem:
    """Return `reordered` if one of the next lines belongs in the place of this line, else `edited`."""
    for later in islice(later_lines, _MOVED_WITHIN_MAX):
        if line_digest(last.digest, replace(later, seq=line.seq)) in {later.digest, line.digest}:
            return "reordered"
    return "edited"


def _encode(value: str | int | None) -> bytes:
    if value is None:
        return b"-"
    text = str(value).encode()
    return b"%d:%s" % (len(text), text)
