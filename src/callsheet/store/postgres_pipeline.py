"""One connection to PostgreSQL by libpq, in pipeline mode: statements go out together, answers come back in order.

A trip to the server costs more than most statements, so callers hand over everything they can say at once. Parameters
travel as text: a list becomes an array literal, which is JSON but for its brackets.
"""

import itertools
import re
import select
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict

from callsheet.core.model.plural import pluralize
from callsheet.store.connection import ConnectionLost, DiskFull, StoreError, TransactionConflict, UniqueConflict

BoundStatement = tuple[str, Sequence[Any]]
"""A statement and its parameters."""
Rows = Sequence[Sequence[Any]]

_CONTROL_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*\\[bfnrtu]")
"""Where JSON's escapes and those of an array literal differ: control characters."""
_UNIQUE_VIOLATION = "23505"
"""Somebody else wrote the same key first."""
_CONFLICT_STATES = {"40001", "40P01", "55P03", "57014"}
"""Somebody else holds the lock, changed what was read, or held it for longer than a statement may take."""
_DISK_FULL = "53100"
_CONNECTION_STATES = ("08", "57P", "53", "25P03")
_BINARY = pq.Format.BINARY
_SUCCESS = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY}
_CONNECT_SECONDS = 10
"""How long a connection may take to be made, unless its URL says."""
_encode = msgspec.json.Encoder().encode


def array_literal(values: Iterable[Any]) -> bytes:
    """Return numbers, texts and None as the literal of a PostgreSQL array."""
    values = tuple(values)
    encoded = _encode(values)
    if b"\\" in encoded and _CONTROL_ESCAPE.search(encoded):
        encoded = b" %s " % b",".join(_quote(value) for value in values)
    return b"{%s}" % encoded[1:-1]


def _quote(value: Any) -> bytes:
    if not isinstance(value, str):
        return _encode(value)
    return b'"%s"' % value.encode().replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def _encode_parameter(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, int):
        return b"%d" % value
    return array_literal(value)


class PipelineConnection:
    """One connection, used from one thread."""

    def __init__(self, url: str, *, name: str, use_prepared: bool, answer_seconds: float) -> None:
        try:
            parameters: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS, **conninfo_to_dict(url)}
            self._connection = psycopg.connect(
                **parameters | {"autocommit": True, "client_encoding": "utf8", "application_name": name}
            )
        except psycopg.Error as error:
            raise _connection_lost(error) from error
        self._libpq = self._connection.pgconn
        self._libpq.nonblocking = 1
        self._libpq.enter_pipeline_mode()
        self._socket = select.poll()
        self._socket.register(self._libpq.socket, select.POLLIN)
        self._transformer = Transformer(self._connection)
        self._use_prepared = use_prepared
        self._answer_seconds = answer_seconds
        self._prepared: dict[str, bytes] = {}
        self._names = itertools.count()
        self._awaiting: list[str | None] = []
        """What the answers of the group to come will be to: a text that is being prepared, or a statement."""
        self._unread_groups = 0
        """How many groups were said whose answers nobody waited for."""
        self._receiving: tuple[list[str | None], list[pq.abc.PGresult]] = ([], [])
        """What was asked without waiting: what the answers will be to, and those that have come."""

    @property
    def socket(self) -> int:
        return self._libpq.socket

    @property
    def server_version(self) -> int:
        return self._libpq.server_version

    @property
    def idle(self) -> bool:
        """Whether no transaction is open, as far as the server has told."""
        return self._libpq.transaction_status == pq.TransactionStatus.IDLE

    @property
    def lost(self) -> bool:
        return self._libpq.status != pq.ConnStatus.OK

    def execute(self, statements: Sequence[BoundStatement], hints: Sequence[BoundStatement] = ()) -> list[Rows]:
        """Say statements together and return their rows; after a failure the rest are not run.

        Hints are said behind them, in a group of their own; whether they succeed is never known.
        """
        try:
            self._send(statements)
            self._libpq.pipeline_sync()
            awaiting, self._awaiting = self._awaiting, []
            if hints:
                self._send(hints)
                self._libpq.pipeline_sync()
                self._awaiting.clear()
            answers = self._read_results(self._unread_groups)
            self._unread_groups = 1 if hints else 0
        except psycopg.Error as error:
            raise _connection_lost(error) from error
        return self._collect_rows(awaiting, answers)[-len(statements) :]

    def ask(self, statements: Sequence[BoundStatement]) -> None:
        """Say statements together and return at once: `answered` has their rows, when the socket has something."""
        try:
            self._send(statements)
            self._libpq.pipeline_sync()
            if self._libpq.flush():
                raise ConnectionLost("The question is too long to be sent at once.")
        except psycopg.Error as error:
            raise _connection_lost(error) from error
        self._receiving, self._awaiting = (self._awaiting, []), []

    def receive(self) -> list[Rows] | None:
        """Take in what has come; return the rows of what was asked, once all of them are there."""
        awaiting, answers = self._receiving
        try:
            if self._read_available(answers, 0) >= 0:
                return None
        except psycopg.Error as error:
            raise _connection_lost(error) from error
        self._receiving = ([], [])
        return self._collect_rows(awaiting, answers)

    def send_ahead(self, statements: Sequence[BoundStatement]) -> None:
        """Send statements ahead of the next group, of which they are part: the server begins, and nobody waits."""
        try:
            self._send(statements)
            self._libpq.send_flush_request()
            self._libpq.flush()
        except psycopg.Error as error:
            raise _connection_lost(error) from error

    def wait_for_notifications(self, seconds: float, callback: Callable[[str], None]) -> None:
        """Wait for notifications, and pass on what they carry."""
        try:
            if self._socket.poll(seconds * 1_000):
                self._libpq.consume_input()
            while notification := self._libpq.notifies():
                callback(notification.extra.decode())
        except psycopg.Error as error:
            raise _connection_lost(error) from error
        if self.lost:
            raise ConnectionLost("the listening connection is closed")

    def close(self) -> None:
        self._connection.close()

    def _send(self, statements: Sequence[BoundStatement]) -> None:
        libpq, awaiting = self._libpq, self._awaiting
        for text, parameters in statements:
            values = [_encode_parameter(value) for value in parameters]
            if not self._use_prepared or not parameters:
                libpq.send_query_params(text.encode(), values, result_format=_BINARY)
            else:
                name = self._prepared.get(text)
                if name is None:
                    name = b"s%d" % next(self._names)
                    libpq.send_prepare(name, text.encode())
                    self._prepared[text] = name
                    awaiting.append(text)
                libpq.send_query_prepared(name, values, result_format=_BINARY)
            awaiting.append(None)

    def _read_results(self, unread_groups: int) -> list[pq.abc.PGresult]:
        """Read up to the end of the group after those that are owed."""
        libpq, answers = self._libpq, list[pq.abc.PGresult]()
        end = time.monotonic() + self._answer_seconds
        while True:
            sending = libpq.flush()
            self._socket.modify(libpq.socket, select.POLLIN | select.POLLOUT if sending else select.POLLIN)
            if not self._socket.poll(max(0.0, end - time.monotonic()) * 1_000):
                self.close()
                raise ConnectionLost(f"PostgreSQL did not answer within {pluralize(self._answer_seconds, 'second')}.")
            if (unread_groups := self._read_available(answers, unread_groups)) < 0:
                return answers

    def _read_available(self, answers: list[pq.abc.PGresult], unread_groups: int) -> int:
        """Take in what has come; return how many groups end before the awaited one, and less than 0 at its end."""
        libpq = self._libpq
        libpq.consume_input()
        if self.lost:
            raise ConnectionLost("PostgreSQL closed the connection.")
        last_was_none = False
        while not libpq.is_busy():
            answer = libpq.get_result()
            if answer is None:
                if last_was_none or self.lost:  # between two answers there is one None; after the last there are many
                    break
                last_was_none = True
                continue
            last_was_none = False
            if answer.status == pq.ExecStatus.PIPELINE_SYNC:
                unread_groups -= 1
                if unread_groups < 0:
                    break
            elif unread_groups == 0:
                answers.append(answer)
        return unread_groups

    def _collect_rows(self, awaiting: Sequence[str | None], answers: Sequence[pq.abc.PGresult]) -> list[Rows]:
        found: list[Rows] = []
        for text, answer in zip(awaiting, answers, strict=True):
            if answer.status not in _SUCCESS:
                self._forget_prepared(awaiting[len(found) :])
                raise _map_error(answer)
            if text is None:
                found.append(self._decode_rows(answer))
        return found

    def _decode_rows(self, answer: pq.abc.PGresult) -> Rows:
        if not answer.ntuples:
            return ()
        self._transformer.set_pgresult(answer)
        return self._transformer.load_rows(0, answer.ntuples, tuple)

    def _forget_prepared(self, awaiting: Sequence[str | None]) -> None:
        """Prepare again what may not have been prepared."""
        for text in awaiting:
            if text is not None:
                self._prepared.pop(text, None)


def _connection_lost(error: psycopg.Error) -> ConnectionLost:
    return ConnectionLost(" ".join(str(error).split()))


def _map_error(answer: pq.abc.PGresult) -> StoreError:
    message = answer.get_error_message()
    state = (answer.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    if state == _UNIQUE_VIOLATION:
        return UniqueConflict(message)
    if state in _CONFLICT_STATES:
        return TransactionConflict(message)
    if state == _DISK_FULL:
        return DiskFull(message)
    if state.startswith(_CONNECTION_STATES):
        return ConnectionLost(message)
    return StoreError(message)
