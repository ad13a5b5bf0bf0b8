"""The PostgreSQL pipeline: statements are answered in order, any text is a value, and an error ends its group only."""

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
def postgres_url(postgres: Cluster) -> Iterator[str]:
    url = postgres.create_database()
    yield url
    postgres.drop(url)


def connect(postgres_url: str, answer_seconds: float = 30, *, use_prepared: bool = True) -> PipelineConnection:
    return PipelineConnection(postgres_url, name="test", use_prepared=use_prepared, answer_seconds=answer_seconds)


@pytest.fixture(params=[True, False], ids=["prepared", "transaction_pooling"])
def connection(postgres_url: str, request: Any) -> Iterator[PipelineConnection]:
    with closing(connect(postgres_url, use_prepared=request.param)) as connection:
        yield connection


@pytest.mark.parametrize("values", [TEXTS, TEXTS[:3], []], ids=["all", "some", "none"])
def test_texts_are_returned_unchanged(connection: PipelineConnection, values: list[str | None]) -> None:
    # so no text of a user becomes part of a statement
    rows = connection.execute([("SELECT v FROM unnest($1::text[]) WITH ORDINALITY u(v, n) ORDER BY n", [values])])[0]
    assert [row[0] for row in rows] == values


@pytest.mark.parametrize("value", TEXTS)
def test_a_single_text_is_returned_unchanged(connection: PipelineConnection, value: str | None) -> None:
    assert connection.execute([("SELECT $1::text", [value])])[0][0][0] == value


def test_numbers_are_returned_unchanged(connection: PipelineConnection) -> None:
    rows = connection.execute([("SELECT v FROM unnest($1::bigint[]) WITH ORDINALITY u(v, n) ORDER BY n", [NUMBERS])])[0]
    assert [row[0] for row in rows] == NUMBERS


def test_an_array_literal_is_json_in_braces() -> None:
    assert array_literal(["a", None, 'b"']) == b'{"a",null,"b\\""}'
    assert array_literal(["a\n", 1, None]) == b'{"a\n",1,null}'


def test_answers_have_the_order_of_their_statements(connection: PipelineConnection) -> None:
    statements = [("SELECT $1::bigint", [n]) for n in range(500)]
    assert [rows[0][0] for rows in connection.execute(statements)] == list(range(500))


def test_large_statements_and_answers_do_not_block_each_other(connection: PipelineConnection) -> None:
    long = "x" * 1_000_000
    assert connection.execute([("SELECT $1::text", [long])] * 20) == [[(long,)]] * 20


def test_after_an_error_the_rest_of_the_group_is_skipped_and_the_next_group_runs(
    connection: PipelineConnection,
) -> None:
    with pytest.raises(StoreError, match="division by zero"):
        connection.execute([
            ("CREATE TEMP TABLE fact (n int)", ()), ("SELECT 1 / $1::int", [0]), ("SELECT $1::text || 'never'", ["x"]),
        ])  # fmt: skip
    assert connection.execute([("SELECT to_regclass('fact')::text", ())])[0][0][0] is None
    assert connection.execute([("SELECT $1::text || 'never'", ["x"])])[0][0][0] == "xnever"
    assert connection.idle


def test_a_failed_hint_does_not_affect_statements(connection: PipelineConnection) -> None:
    for n in range(3):
        assert connection.execute([("SELECT $1::int", [n])], hints=[("SELECT 1 / 0", ())])[0][0][0] == n
    assert connection.execute([("SELECT 7", ())])[0][0][0] == 7


def test_a_unique_violation_is_a_transaction_conflict(connection: PipelineConnection) -> None:
    connection.execute([("CREATE TEMP TABLE one (n int PRIMARY KEY)", ()), ("INSERT INTO one VALUES (1)", ())])
    with pytest.raises(TransactionConflict):
        connection.execute([("INSERT INTO one VALUES (1)", ())])


def test_a_connection_without_an_answer_is_lost(postgres_url: str) -> None:
    with (
        closing(connect(postgres_url, 0.05)) as connection,
        pytest.raises(ConnectionLost, match=r"did not answer within 0\.05 seconds"),
    ):
        connection.execute([("SELECT pg_sleep(60)", ())])


def test_a_connection_that_the_server_closes_is_lost(postgres_url: str) -> None:
    with closing(connect(postgres_url)) as connection, closing(connect(postgres_url)) as other:
        pid = connection.execute([("SELECT pg_backend_pid()", ())])[0][0][0]
        other.execute([("SELECT pg_terminate_backend($1::int)", [pid])])
        with pytest.raises(ConnectionLost):
            connection.execute([("SELECT 1", ())])
        assert connection.lost


def test_a_listener_receives_notifications(postgres_url: str) -> None:
    received: list[str] = []
    with closing(connect(postgres_url)) as listener, closing(connect(postgres_url)) as sender:
        listener.execute([("LISTEN channel", ())])
        sender.execute([("SELECT 1", ())], hints=[("SELECT pg_notify($1, $2)", ["channel", "draw film"])])

        def has_received() -> bool:
            listener.wait_for_notifications(0.01, received.append)
            return bool(received)

        wait_until(has_received)
    assert received == ["draw film"]
