"""Overload: submits at three times the server's capacity, sent on a fixed schedule whether or not it keeps up.

Capacity is measured first, in the same way, with a fixed number of callers that wait for each response. Both are
measured with connections that stay open and with a new connection for each request. Latency counts from the scheduled
time of a request, so that a client that has to wait for the server does not hide the delay.
"""

import json
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from bench.databases import DATABASE_KINDS, Databases
from bench.http.api import run_server
from bench.http.connection_load import request
from bench.table import Row, plain_row, row_against_limit, row_below_target

OVERLOAD = 3
CALLERS = 128
GOODPUT_TARGET = 0.8
LATENCY_SECONDS_MAX = 2.0
HEALTH_SECONDS = 0.1
"""How often the load asks for /healthz."""
END_SECONDS = 20.0
"""How long the client waits for responses after the last request."""
OPEN_CONNECTIONS_MAX, NEW_CONNECTIONS_MAX = 1_000, 8_000
"""The connections that the client has at the same time. A request that finds none free waits, and its time counts."""
_NO_RESPONSE = 0


@dataclass
class LoadResult:
    """The responses to a load."""

    seconds: float
    statuses: Counter[int] = field(default_factory=Counter)
    """Responses by status. 0 counts requests without a response."""
    in_time: int = 0
    """Jobs that were created before the load ended."""
    accepted: list[float] = field(default_factory=list)
    """Latencies of created jobs, in seconds."""
    refused: list[float] = field(default_factory=list)
    """Latencies of responses with a 503, in seconds."""
    health: list[float] = field(default_factory=list)
    """Latencies of /healthz, in seconds."""

    @property
    def goodput(self) -> float:
        return self.in_time / self.seconds


@dataclass
class _Call:
    scheduled_at: float
    payload: bytes
    is_health: bool = False
    received: bytes = b""


class LoadClient:
    """Sends prepared requests over raw sockets, in one thread, with little overhead."""

    def __init__(self, port: int, submit: bytes, *, fresh: bool) -> None:
        self._address = ("127.0.0.1", port)
        self._submit = submit.replace(b"host: localhost", b"host: localhost\r\nconnection: close") if fresh else submit
        self._health = request("GET", "/healthz", "")
        self._fresh = fresh
        self._sockets_max = NEW_CONNECTIONS_MAX if fresh else OPEN_CONNECTIONS_MAX
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._calls: dict[int, _Call] = {}
        self._idle: list[int] = []
        self._waiting: deque[_Call] = deque()
        """Calls that have no socket yet, because the limit is reached."""
        self._result = LoadResult(0)
        self._end = 0.0

    def measure_capacity(self, seconds: float) -> LoadResult:
        """Keep a fixed number of calls in progress."""
        self._begin(seconds)
        while time.perf_counter() < self._end:
            for _ in range(CALLERS - len(self._calls)):
                self._start(_Call(time.perf_counter(), self._submit))
            self._poll(0.01)
        return self._finish()

    def send_on_schedule(self, per_second: float, seconds: float) -> LoadResult:
        """Start calls at a fixed rate."""
        start = self._begin(seconds)
        for due in _schedule(start, per_second, seconds):
            while (left := due.scheduled_at - time.perf_counter()) > 0:
                self._poll(left)
            due.payload = self._health if due.is_health else self._submit
            self._start(due)
            if not len(self._calls) % 32:
                self._poll(0)
        return self._finish()

    def close(self) -> None:
        for opened in self._sockets.values():
            opened.close()
        self._epoll.close()

    def _begin(self, seconds: float) -> float:
        start = time.perf_counter()
        self._result, self._end = LoadResult(seconds), start + seconds
        return start

    def _finish(self) -> LoadResult:
        give_up_at = time.perf_counter() + END_SECONDS
        while (self._calls or self._waiting) and time.perf_counter() < give_up_at:
            self._poll(0.05)
        self._result.statuses[_NO_RESPONSE] += len(self._waiting)
        self._waiting.clear()
        for number in list(self._calls):
            self._drop(number)
        return self._result

    def _start(self, call: _Call) -> None:
        if self._idle and not self._fresh:
            number = self._idle.pop()
            self._calls[number] = call
            with suppress(OSError):  # the poll reports the error
                self._sockets[number].send(call.payload)
        elif len(self._sockets) < self._sockets_max:
            opened = socket.socket()
            opened.settimeout(0)
            opened.connect_ex(self._address)
            number = opened.fileno()
            self._sockets[number], self._calls[number] = opened, call
            try:
                opened.send(call.payload)
                self._epoll.register(number, select.EPOLLIN)
            except OSError:  # not connected yet
                self._epoll.register(number, select.EPOLLIN | select.EPOLLOUT)
        else:
            self._waiting.append(call)

    def _poll(self, timeout: float) -> None:
        for number, events in self._epoll.poll(timeout):
            if number not in self._calls:  # the server closed an idle connection
                self._close(number)
                self._idle = [idle for idle in self._idle if idle != number]
            elif events & select.EPOLLOUT and not events & (select.EPOLLERR | select.EPOLLHUP):
                self._sockets[number].send(self._calls[number].payload)
                self._epoll.modify(number, select.EPOLLIN)
            else:
                self._receive(number)
        while self._waiting and (self._idle or len(self._sockets) < self._sockets_max):
            self._start(self._waiting.popleft())

    def _receive(self, number: int) -> None:
        try:
            data = self._sockets[number].recv(65_536)
        except OSError:
            data = b""
        if not data:
            self._drop(number)
            return
        call = self._calls[number]
        call.received += data
        if not _is_complete(call.received):
            return
        self._record(call, int(call.received[9:12]))
        del self._calls[number]
        if self._fresh or b"connection: close" in call.received:
            self._close(number)
        else:
            self._idle.append(number)

    def _record(self, call: _Call, status: int) -> None:
        now = time.perf_counter()
        took = now - call.scheduled_at
        if call.is_health:
            self._result.health.append(took)
            return
        self._result.statuses[status] += 1
        if status < 300:
            self._result.accepted.append(took)
            self._result.in_time += now <= self._end
        else:
            self._result.refused.append(took)

    def _drop(self, number: int) -> None:
        del self._calls[number]
        self._result.statuses[_NO_RESPONSE] += 1
        self._close(number)

    def _close(self, number: int) -> None:
        self._epoll.unregister(number)
        self._sockets.pop(number).close()


def measure(databases: Databases, *, quick: bool) -> list[Row]:
    seconds = 3.0 if quick else 6.0
    rows: list[Row] = []
    for kind in DATABASE_KINDS:
        for fresh in (False, True):
            dsn = databases.create(kind)
            with run_server(dsn) as server:
                body = json.dumps({"workflow": "sketch", "user": "ann", "input": {"prompt": "a lighthouse"}}).encode()
                client = LoadClient(server.port, request("POST", "/v1/jobs", server.key, body), fresh=fresh)
                client.measure_capacity(1.0)
                capacity = client.measure_capacity(seconds)
                result = client.send_on_schedule(capacity.goodput * OVERLOAD, seconds)
                client.close()
            databases.drop(dsn)
            rows.extend(_rows(kind, capacity, result, fresh=fresh))
    return rows


def _rows(kind: str, capacity: LoadResult, result: LoadResult, *, fresh: bool) -> list[Row]:
    name = f"{kind} HTTP: submits at {OVERLOAD} times capacity, {'new' if fresh else 'open'} connections"
    print(f"{name}: {dict(result.statuses)}", flush=True)
    return [
        row_against_limit(f"{name}, accepted", result.goodput, "req/s", capacity.goodput, GOODPUT_TARGET),
        row_below_target(f"{name}, p99 of accepted", _p99(result.accepted), "s", LATENCY_SECONDS_MAX),
        plain_row(f"{name}, p99 of refused", _p99(result.refused), "s"),
        plain_row(f"{name}, p99 of /healthz", _p99(result.health), "s"),
        plain_row(f"{name}, without a response", result.statuses[_NO_RESPONSE], "requests"),
    ]


def _schedule(start: float, per_second: float, seconds: float) -> Iterator[_Call]:
    """Yield submits at a fixed rate, and requests for /healthz in between."""
    health_at = start
    for n in range(int(per_second * seconds)):
        due = start + n / per_second
        if due >= health_at:
            yield _Call(health_at, b"", is_health=True)
            health_at += HEALTH_SECONDS
        yield _Call(due, b"")


def _is_complete(response: bytes) -> bool:
    head = response.find(b"\r\n\r\n")
    if head < 0:
        return False
    length_at = response.find(b"content-length: ", 0, head)
    return len(response) >= head + 4 + int(response[length_at + 16 : response.find(b"\r", length_at)])


def _p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100] if values else 0.0
