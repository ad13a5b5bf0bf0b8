"""A connection to PostgreSQL in libpq's pipeline mode: statements are sent together, results arrive in order.

A round trip takes longer than most statements, so callers pass as many statements as they can at once. Parameters are
sent as text. A list is sent as an array literal, which is JSON with other brackets.
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
from callsheet.store.connection import (
    DAMAGED,
    DISK_ERROR,
    DISK_FULL,
    MISSING_RIGHTS,
    READ_ONLY,
    ConnectionLost,
    DatabaseUnusable,
    StoreError,
    TransactionConflict,
    UniqueConflict,
)

BoundStatement = tuple[str, Sequence[Any]]
"""A statement and its parameters."""
Rows = Sequence[Sequence[Any]]

_CONTROL_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*\\[bfnrtu]")
"""Escapes of control characters, which JSON and array literals write differently."""
_UNIQUE_VIOLATION = "23505"
"""SQLSTATE of unique_violation: another transaction has inserted the same key."""
_CONFLICT_STATES = {"40001", "40P01", "55P03", "57014"}
"""SQLSTATEs of serialization failure, deadlock, unavailable lock and statement timeout."""
_UNUSABLE_REASONS = {
    "25006": READ_ONLY, "42501": MISSING_RIGHTS, "53100": DISK_FULL, "58030": DISK_ERROR, "58P01": DISK_ERROR,
    "XX001": DAMAGED, "XX002": DAMAGED,
}  # fmt: skip
"""SQLSTATEs of a read-only transaction (a standby, or a setting), missing rights, a full disk, an input or output
error, a missing file, and damaged data or indexes.
"""
_CONNECTION_STATES = ("08", "57P", "53", "25P03")
_BINARY = pq.Format.BINARY
_SUCCESS = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY}
_CONNECT_SECONDS = 10
"""Timeout for connecting, unless the URL sets one."""
_encode = msgspec.json.Encoder().encode


def array_literal(values: Iterable[Any]) -> bytes:
    """Return numbers, strings and None as the literal of a PostgreSQL array."""
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
    """One connection. Not thread-safe."""

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
        self._expected: list[str | None] = []
        """The results to expect for the current group: the text of a statement that is prepared, or None for rows.

        A group is the statements up to a pipeline sync.
        """
        self._unread_groups = 0
        """Groups that were sent and whose results were not read, because they are hints."""

    @property
    def server_version(self) -> int:
        return self._libpq.server_version

    @property
    def idle(self) -> bool:
        """Whether no transaction is open, according to the server's last message."""
        return self._libpq.transaction_status == pq.TransactionStatus.IDLE

    @property
    def lost(self) -> bool:
        """Whether the connection is broken."""
        return self._libpq.status != pq.ConnStatus.OK

    def execute(self, statements: Sequence[BoundStatement], hints: Sequence[BoundStatement] = ()) -> list[Rows]:
        """Send statements together and return their rows. After an error, the remaining statements are not run.

        Hints are sent after the statements, in their own group. Their results are discarded.
        """
        try:
            self._send(statements)
            self._libpq.pipeline_sync()
            expected, self._expected = self._expected, []
            if hints:
                self._send(hints)
                self._libpq.pipeline_sync()
                self._expected.clear()
            results = self._read_results(self._unread_groups)
            self._unread_groups = 1 if hints else 0
        except psycopg.Error as error:
            raise _connection_lost(error) from error
        return self._collect_rows(expected, results)[-len(statements) :]

    def send_ahead(self, statements: Sequence[BoundStatement]) -> None:
        """Send the first statements of the next group now, so that the server starts on them; do not wait."""
        try:
            self._send(statements)
            self._libpq.send_flush_request()
            self._libpq.flush()
        except psycopg.Error as error:
            raise _connection_lost(error) from error

    def wait_for_notifications(self, seconds: float, callback: Callable[[str], None]) -> None:
        """Wait for notifications, and call `callback` with the payload of each."""
        try:
            if self._socket.poll(seconds * 1_000):
                self._libpq.consume_input()
            while notification := self._libpq.notifies():
                callback(notification.extra.decode())
        except psycopg.Error as error:
            raise _connection_lost(error) from error
        if self.lost:
            raise ConnectionLost("PostgreSQL closed the connection.")

    def close(self) -> None:
        self._connection.close()

    def _send(self, statements: Sequence[BoundStatement]) -> None:
        libpq, expected = self._libpq, self._expected
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
                    expected.append(text)
                libpq.send_query_prepared(name, values, result_format=_BINARY)
            expected.append(None)

    def _read_results(self, unread_groups: int) -> list[pq.abc.PGresult]:
        """Read the results of one group, after those of `unread_groups` earlier groups, which are discarded."""
        libpq, results = self._libpq, list[pq.abc.PGresult]()
        end = time.monotonic() + self._answer_seconds
        while True:
            sending = libpq.flush()
            self._socket.modify(libpq.socket, select.POLLIN | select.POLLOUT if sending else select.POLLIN)
            if not self._socket.poll(max(0.0, end - time.monotonic()) * 1_000):
                self.close()
                raise ConnectionLost(f"PostgreSQL did not answer within {pluralize(self._answer_seconds, 'second')}.")
            if (unread_groups := self._read_available(results, unread_groups)) < 0:
                return results

    def _read_available(self, results: list[pq.abc.PGresult], unread_groups: int) -> int:
        """Read what has arrived; return how many earlier groups are still unread, or -1 at the end of this group."""
        libpq = self._libpq
        libpq.consume_input()
        if self.lost:
            raise ConnectionLost("PostgreSQL closed the connection.")
        last_was_none = False
        while not libpq.is_busy():
            result = libpq.get_result()
            if result is None:
                if last_was_none or self.lost:  # libpq returns one None between two results, and only None at the end
                    break
                last_was_none = True
                continue
            last_was_none = False
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                unread_groups -= 1
                if unread_groups < 0:
                    break
            elif unread_groups == 0:
                results.append(result)
        return unread_groups

    def _collect_rows(self, expected: Sequence[str | None], results: Sequence[pq.abc.PGresult]) -> list[Rows]:
        found: list[Rows] = []
        for text, result in zip(expected, results, strict=True):
            if result.status not in _SUCCESS:
                self._forget_prepared(expected[len(found) :])
                raise _map_error(result)
            if text is None:
                found.append(self._decode_rows(result))
        return found

    def _decode_rows(self, result: pq.abc.PGresult) -> Rows:
        if not result.ntuples:
            return ()
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _forget_prepared(self, expected: Sequence[str | None]) -> None:
        """Forget statements whose preparation may have failed, so that they are prepared again."""
        for text in expected:
            if text is not None:
                self._prepared.pop(text, None)


def _connection_lost(error: psycopg.Error) -> ConnectionLost:
    return ConnectionLost(" ".join(str(error).split()))


def _map_error(result: pq.abc.PGresult) -> StoreError:
    message = result.get_error_message()
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    if state == _UNIQUE_VIOLATION:
        return UniqueConflict(message)
    if state in _CONFLICT_STATES:
        return TransactionConflict(message)
    if reason := _UNUSABLE_REASONS.get(state):
        return DatabaseUnusable(reason)
    if state.startswith(_CONNECTION_STATES):
        return ConnectionLost(message)
    return StoreError(message)
