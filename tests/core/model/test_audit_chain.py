"""The audit chain: any change of a stored line is found, and the first wrong line is named."""

import hashlib
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from callsheet.core.model.audit_chain import append_to_chain, find_chain_fault, line_digest
from callsheet.core.model.rows import Audit, AuditHead

LINE = Audit("01968c2e-7f4a-7c31-9d52-6b1f0a4e8c77", "acme", 17, "k1", "wallet.topup", "änn", '{"amount":9}', 1)
Chain = list[Audit]


def chain_of(count: int) -> tuple[Chain, AuditHead]:
    head, lines = AuditHead("acme"), []
    for n in range(count):
        head, line = append_to_chain(head, replace(LINE, id=f"id-{n}", at=n + 1, subject=f"user-{n}"))
        lines.append(line)
    return lines, head


def find(lines: Chain, head: AuditHead | None) -> tuple[int, str] | None:
    fault = find_chain_fault(iter(sorted(lines, key=lambda line: line.seq)), head, "acme")
    return fault and (fault.seq, fault.problem)


def test_the_encoding_of_a_line_never_changes() -> None:
    """Stored chains and digests that operators have copied depend on it."""
    text = f'0:4:acme1:136:{LINE.id}2:172:k112:wallet.topup4:änn12:{{"amount":9}}'
    first = hashlib.sha256(text.encode()).hexdigest()
    assert line_digest("", LINE) == first == "7d399f94c8dc7d7a7c3b1ee33c5275ec9129167156ec0eef5893ebba92c4151d"
    second = f"64:{first}4:acme1:236:{LINE.id}2:172:k112:wallet.topup4:änn-"
    assert line_digest(first, replace(LINE, seq=2, data=None)) == hashlib.sha256(second.encode()).hexdigest()


@pytest.mark.parametrize("name", [name for name in Audit.__struct_fields__ if name != "digest"])
def test_every_column_is_part_of_the_digest(name: str) -> None:
    value = getattr(LINE, name)
    other = value + 1 if isinstance(value, int) else value + "x"
    assert line_digest("", replace(LINE, **{name: other})) != line_digest("", LINE)
    assert line_digest("a", LINE) != line_digest("b", LINE)


def test_text_that_moves_to_the_next_column_changes_the_digest() -> None:
    one, other = replace(LINE, actor="ab", action="c"), replace(LINE, actor="a", action="bc")
    assert line_digest("", one) != line_digest("", other)
    assert line_digest("", replace(LINE, data=None)) != line_digest("", replace(LINE, data="-"))


def test_an_unchanged_chain_has_no_fault() -> None:
    assert find(*chain_of(5)) is None
    assert find([], AuditHead("acme")) is None


def swap(lines: Chain, one: int, other: int) -> Chain:
    """Exchange the numbers of two lines."""
    return [replace(line, seq={one: other, other: one}.get(line.seq, line.seq)) for line in lines]


def swap_contents(lines: Chain, one: int, other: int) -> Chain:
    """Exchange two lines, which keep the digests of their places."""
    moved = {one: lines[other - 1], other: lines[one - 1]}
    return [replace(moved.get(line.seq, line), seq=line.seq, digest=line.digest) for line in lines]


def insert(lines: Chain, seq: int) -> Chain:
    """Insert a line, and number the later ones again."""
    later = [replace(line, seq=line.seq + 1) for line in lines[seq - 1 :]]
    return [*lines[: seq - 1], replace(LINE, id="new", seq=seq, digest=lines[seq - 1].digest), *later]


def forge(lines: Chain, seq: int) -> Chain:
    """Edit a line and compute its digest and all later ones again."""
    head, forged = AuditHead("acme"), []
    for line in lines:
        head, again = append_to_chain(head, replace(line, subject="eve") if line.seq == seq else line)
        forged.append(again)
    return forged


FAULTS: dict[str, tuple[Callable[[Chain], Chain], tuple[int, str]]] = {
    "an edited line": (lambda c: [replace(x, subject="eve") if x.seq == 3 else x for x in c], (3, "edited")),
    "an edited digest": (lambda c: [replace(x, digest="0" * 64) if x.seq == 3 else x for x in c], (3, "edited")),
    "a line deleted in the middle": (lambda c: [x for x in c if x.seq != 3], (3, "missing")),
    "the first line deleted": (lambda c: c[1:], (1, "missing")),
    "the last lines deleted": (lambda c: c[:-2], (4, "missing")),
    "all lines deleted": (lambda _: [], (1, "missing")),
    "two neighbours exchanged": (lambda c: swap(c, 2, 3), (2, "reordered")),
    "two distant lines exchanged": (lambda c: swap(c, 1, 5), (1, "reordered")),
    "the contents of two lines exchanged": (lambda c: swap_contents(c, 2, 4), (2, "reordered")),
    "a line inserted in the middle": (lambda c: insert(c, 3), (3, "reordered")),
    "a line inserted at the end": (lambda c: [*c, append_to_chain(chain_of(5)[1], LINE)[1]], (6, "inserted")),
    "a line inserted before the first": (lambda c: [*c, replace(LINE, seq=0)], (0, "inserted")),
    "a number used twice": (lambda c: [*c, replace(LINE, seq=3)], (3, "inserted")),
    "later digests computed again": (lambda c: forge(c, 3), (5, "head")),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_wrong_line_is_named_with_its_problem(fault: str) -> None:
    lines, head = chain_of(5)
    change, expected = FAULTS[fault]
    assert find(change(lines), head) == expected


def test_a_changed_or_missing_head_is_a_fault() -> None:
    lines, head = chain_of(5)
    assert find(lines, replace(head, digest="0" * 64)) == (5, "head")
    assert find(lines, replace(head, seq=4, digest=lines[3].digest)) == (5, "inserted")
    assert find(lines, None) == (0, "head")
