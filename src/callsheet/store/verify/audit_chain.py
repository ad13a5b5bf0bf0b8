"""Rule A3, which is code because SQLite has no SHA-256: reads the audit log in order and recomputes its chains."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from callsheet.core.model.audit_chain import ChainFault, find_chain_fault
from callsheet.core.model.rows import Audit, AuditHead
from callsheet.store.connection import Connection

_SEQ_MIN = -(2**63)
_COLUMNS = len(Audit.__struct_fields__)
ChainLine = tuple[Audit, AuditHead | None]
"""A line, and the head of its chain."""


def find_chain_faults(connection: Connection, page_rows: int, on_page: Callable[[], None]) -> Iterator[ChainFault]:
    """Yield what is wrong first in each chain."""
    lines = _read_lines(connection, page_rows, on_page)
    for (tenant, head), chain in groupby(lines, key=lambda line: (line[0].tenant, line[1])):
        if fault := find_chain_fault((line for line, _ in chain), head, tenant):
            yield fault


def _read_lines(connection: Connection, page_rows: int, on_page: Callable[[], None]) -> Iterator[ChainLine]:
    tenant, seq, line_id = "", _SEQ_MIN, ""
    while rows := connection.fetch("audit_chain_after", tenant=tenant, seq=seq, id=line_id, count=page_rows):
        page = [_chain_line(row) for row in rows]
        yield from page
        last, _ = page[-1]
        tenant, seq, line_id = last.tenant, last.seq, last.id
        on_page()


def _chain_line(row: Sequence[Any]) -> ChainLine:
    line = Audit(*row[:_COLUMNS])
    seq, digest = row[_COLUMNS:]
    return line, None if seq is None else AuditHead(line.tenant, seq, digest)
