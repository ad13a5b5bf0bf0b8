"""The wire: what is said together is answered in order, whatever the texts, and a failure is the group's own."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from callsheet.store.connection import ConnectionLost, StoreError, TransactionConflict
from callsheet.store.postgres_pipeline import PipelineConnection, array_literal
from tests.support.databases.postgres import Cluster
from tests.support.wait import wait_until

TEXTS = [
    "plain", "", "null", "NULL", None, "{}", 'say "so"', "back\\slash", "\\n is no line", "a\nline", "tab\t\r\f\b",
    "\x01\x7f", "comma, brace}", "ünï 東京 🎬", '{"a": "b\\n\\"c\\""}', "' quote '", "\\", "\\\\n\n",
]  # fmt: skip
NUMBERS = [0, -1, None, 2**63 - 1, -(2**63)]


@pytest.fixture(scope="module")
def place(postgres: Cluster) -> Iterator[str]:
    url = postgres.create_database()
    yield url
    postgres.drop(url)


def opened(place: str, answer_seconds: float = 30, *, use_prepared: bool = True) -> PipelineConnection:
    return PipelineConnection(place, name="test", use_prepared=use_prepared, answer_seconds=answer_seconds)


@pytest.fixture(params=[True, False], ids=["prepared", "transaction_pooling"])
def wire(place: str, request: Any) -> Iterator[PipelineConnection]:
    with closing(opened(place, use_prepared=request.param)) as made:
        yield made


@pytest.mark.parametrize("values", [TEXTS, TEXTS[:3], []], ids=["all", "some", "none"])
def test_texts_come_back_as_they_were(wire: PipelineConnection, values: list[str | None]) -> None:
    # no text of a user can become part of a statement
    rows = wire.execute([("SELECT v FROM unnest($1::text[]) WITH ORDINALITY u(v, n) ORDER BY n", [values])])[0]
    assert [row[0] for row in rows] == values


@pytest.mark.parametrize("value", TEXTS)
def test_one_text_comes_back_as_it_was(wire: PipelineConnection, value: str | None) -> None:
    assert wire.execute([("SELECT $1::text", [value])])[0][0][0] == value


def test_numbers_come_back_as_they_were(wire: PipelineConnection) -> None:
    rows = wire.execute([("SELECT v FROM unnest($1::bigint[]) WITH ORDINALITY u(v, n) ORDER BY n", [NUMBERS])])[0]
    assert [row[0] for row in rows] == NUMBERS


def test_an_array_is_json_but_for_its_brackets() -> None:
    assert array_literal(["a", None, 'b"']) == b'{"a",null,"b\\""}'
    assert array_literal(["a\n", 1, None]) == b'{"a\n",1,null}'


def test_answers_come_in_the_order_of_what_was_said(wire: PipelineConnection) -> None:
    said = [("SELECT $1::bigint", [n]) for n in range(500)]
    assert [rows[0][0] for rows in wire.execute(said)] == list(range(500))


def test_much_goes_out_and_comes_back_at_once(wire: PipelineConnection) -> None:
    long = "x" * 1_000_000
    assert wire.execute([("SELECT $1::text", [long])] * 20) == [[(long,)]] * 20


def test_after_a_failure_the_rest_is_not_run_and_the_next_group_is(wire: PipelineConnection) -> None:
    with pytest.raises(StoreError, match="division by zero"):
        wire.execute([
            ("CREATE TEMP TABLE fact (n int)", ()), ("SELECT 1 / $1::int", [0]), ("SELECT $1::text || 'never'", ["x"]),
        ])  # fmt: skip
    assert wire.execute([("SELECT to_regclass('fact')::text", ())])[0][0][0] is None
    assert wire.execute([("SELECT $1::text || 'never'", ["x"])])[0][0][0] == "xnever"
    assert wire.idle


def test_a_hint_that_fails_harms_nobody(wire: PipelineConnection) -> None:
    for n in range(3):
        assert wire.execute([("SELECT $1::int", [n])], hints=[("SELECT 1 / 0", ())])[0][0][0] == n
    assert wire.execute([("SELECT 7", ())])[0][0][0] == 7


def test_a_race_for_a_key_is_told_apart_from_a_fault(wire: PipelineConnection) -> None:
    wire.execute([("CREATE TEMP TABLE one (n int PRIMARY KEY)", ()), ("INSERT INTO one VALUES (1)", ())])
    with pytest.raises(TransactionConflict):
        wire.execute([("INSERT INTO one VALUES (1)", ())])


def test_a_server_that_does_not_answer_is_lost(place: str) -> None:
    with (
        closing(opened(place, 0.05)) as wire,
        pytest.raises(ConnectionLost, match=r"did not answer within 0\.05 seconds"),
    ):
        wire.execute([("SELECT pg_sleep(60)", ())])


def test_a_connection_that_the_server_ends_is_lost(place: str) -> None:
    with closing(opened(place)) as wire, closing(opened(place)) as other:
        pid = wire.execute([("SELECT pg_backend_pid()", ())])[0][0][0]
        other.execute([("SELECT pg_terminate_backend($1::int)", [pid])])
        with pytest.raises(ConnectionLost):
            wire.execute([("SELECT 1", ())])
        assert wire.lost


def test_what_is_announced_is_heard(place: str) -> None:
    heard: list[str] = []
    with closing(opened(place)) as ear, closing(opened(place)) as mouth:
        ear.execute([("LISTEN here", ())])
        mouth.execute([("SELECT 1", ())], hints=[("SELECT pg_notify($1, $2)", ["here", "draw film"])])

        def hears() -> bool:
            ear.wait_for_notifications(0.01, heard.append)
            return bool(heard)

        wait_until(hears)
    assert heard == ["draw film"]
