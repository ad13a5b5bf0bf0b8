"""Clients that submit, repeat, cancel and top up under faults, and remember every call that was acknowledged."""

import threading
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Any, TypeVar

from callsheet.client import CallsheetError, Client
from tests.chaos.installation import PRICE, WORKFLOW, Installation
from tests.support.wait import wait_until

Answer = TypeVar("Answer")
USER = "ann"
CLIENTS = 4
WAIT_SECONDS = 300.0
_SERVER_ERROR = 500
_REPEAT_SHARE, _TOP_UP_SHARE = 0.1, 0.1
_CANCELED_OF = 10
_TOP_UP = 10 * PRICE


class Load:
    """Acknowledged calls of several clients. Each call is repeated on any server until it is answered."""

    def __init__(self, installation: Installation, seed: int) -> None:
        self._installation = installation
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(CLIENTS)
        self.jobs: dict[str, str] = {}
        """Ids of submitted jobs, by idempotency key."""
        self.topped_up = 0
        self.acknowledged = 0
        self.problems: list[str] = []
        self._running: list[Future[None]] = [
            self._pool.submit(self._run, no, Random(f"{seed}-{no}")) for no in range(CLIENTS)
        ]

    def wait_for_calls(self, count: int) -> None:
        """Wait until so many more calls are acknowledged."""
        enough = self.acknowledged + count
        wait_until(lambda: self.acknowledged >= enough or any(one.done() for one in self._running), WAIT_SECONDS)

    def stop(self) -> None:
        """Let each client finish its current call, and raise the first error of a client."""
        self._stopping.set()
        self._pool.shutdown()
        for ended in self._running:
            ended.result()

    def call(self, function: Callable[[Client], Answer]) -> Answer:
        """Call a function with clients of random servers until one answers. Refusals are raised."""
        while True:
            try:
                with self._installation.client() as client:
                    answer = function(client)
            except CallsheetError as error:
                if 0 < error.status < _SERVER_ERROR:
                    raise
            else:
                with self._lock:
                    self.acknowledged += 1
                return answer

    def _run(self, no: int, random: Random) -> None:
        self._top_up(f"start-{no}")
        count = 0
        while not self._stopping.is_set():
            count += 1
            key = f"client {no}, call {count}"
            if random.random() < _TOP_UP_SHARE:
                self._top_up(key)
            job_id = self._submit(key)
            if job_id is None:
                self._top_up(f"{key}, broke")
                continue
            self.jobs[key] = job_id
            if random.random() < _REPEAT_SHARE:
                repeated = random.choice(list(self.jobs))
                if self._submit(repeated) != self.jobs[repeated]:
                    self.problems.append(f"{repeated!r} created two jobs")
            if _is_canceled(key):
                self._cancel(job_id)

    def _submit(self, key: str) -> str | None:
        """Submit a job; None if the wallet has too few credits."""

        def submit(client: Client) -> Any:
            delay = 2 if _is_canceled(key) else 0
            return client.jobs.submit(
                WORKFLOW, user=USER, input={"text": key}, idempotency_key=key, start_in_seconds=delay
            )

        try:
            return str(self.call(submit).id)
        except CallsheetError as error:
            if error.code == "insufficient_credits":
                return None
            raise

    def _top_up(self, key: str) -> None:
        self.call(lambda client: client.wallets.top_up(USER, _TOP_UP, idempotency_key=key))
        with self._lock:
            self.topped_up += _TOP_UP

    def _cancel(self, job_id: str) -> None:
        try:
            self.call(lambda client: client.jobs.cancel(job_id))
        except CallsheetError as error:
            if error.code != "illegal_transition":  # it has ended
                raise


def _is_canceled(key: str) -> bool:
    """Return whether the job of a key starts later and is canceled, mostly before that."""
    return zlib.crc32(key.encode()) % _CANCELED_OF == 0
