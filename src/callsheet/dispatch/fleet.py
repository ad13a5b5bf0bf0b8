"""The workers of this server: registration checks, waiting claims, and when each was last seen."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import httpx
import msgspec

from callsheet.api import worker_protocol
from callsheet.core.model import commands
from callsheet.core.model.errors import Denied, TemporarilyUnavailable
from callsheet.core.model.rows import Worker
from callsheet.dispatch.heartbeat_rate_limit import HeartbeatLimiter
from callsheet.dispatch.waiting_claims import WaitingClaims
from callsheet.engine.engine import Engine
from callsheet.settings import HttpSettings

RegisteredWorker = Worker
"""The row of the worker that a token belongs to, at most a second old."""
_SEEN_MAX = 500
"""Maximum number of workers in one command, which locks all of them."""


class VerifyResponse(msgspec.Struct, frozen=True):
    """The response of `worker_verify_url` about a worker."""

    allowed: bool


class Fleet:
    """The workers that call this server."""

    def __init__(self, engine: Engine, settings: HttpSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.waiting_claims = WaitingClaims(engine, engine.settings.poll_seconds)
        self.heartbeat_limiter = HeartbeatLimiter(settings.heartbeats_per_second_max)
        self.embedded_workers: set[str] = set()
        """The workers inside this process. They do not register."""
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._seen_workers: set[str] = set()
        self._written_at = clock()
        self._writing: asyncio.Future[None] | None = None

    async def claim(self, command: commands.Claim, wait_seconds: float) -> list[commands.LeasedTask]:
        """Claim tasks, and wait for some if there are none."""
        if self.waiting_claims.ended:
            raise TemporarilyUnavailable(
                "stopping", "This server is shutting down. Retry after a second.", retry_after_seconds=1
            )
        return await self.waiting_claims.claim(command, wait_seconds)

    def mark_seen(self, worker_id: str) -> None:
        """Record that a worker sent a request. The times of all workers are written together, at an interval."""
        self._seen_workers.add(worker_id)
        now = self._clock()
        if now - self._written_at < self._settings.worker_last_seen_interval_seconds:
            return
        self._written_at = now
        names, self._seen_workers = sorted(self._seen_workers), set()
        self._writing = asyncio.ensure_future(self._record_seen(names))

    async def _record_seen(self, names: list[str]) -> None:
        many = [
            commands.RecordHeartbeats(workers=tuple(names[at : at + _SEEN_MAX]))
            for at in range(0, len(names), _SEEN_MAX)
        ]
        if any(isinstance(result, Exception) for result in await self._engine.aexecute_many(many)):
            self._seen_workers.update(names)  # the database is unavailable: write them next time

    async def verify_worker(self, registration: worker_protocol.Register, client_address: str) -> None:
        """Ask `worker_verify_url` whether a worker may register.

        Without an answer, `worker_verify_fail_open` decides.
        """
        url = self._settings.worker_verify_url
        if not url:
            return
        payload = {
            "worker": registration.worker, "labels": registration.labels, "capabilities": registration.capabilities,
            "address": client_address,
        }  # fmt: skip
        response: VerifyResponse | None = None
        with suppress(httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError):
            async with httpx.AsyncClient(
                timeout=self._settings.worker_verify_timeout_seconds, trust_env=False
            ) as client:
                http_response = await client.post(url, json=payload)
                if http_response.is_success:
                    response = msgspec.json.decode(http_response.content, type=VerifyResponse)
        if response is None and not self._settings.worker_verify_fail_open:
            raise TemporarilyUnavailable(
                "worker_verification_unavailable",
                "The worker verification service does not answer. Register again after Retry-After seconds.",
                retry_after_seconds=5,
            )
        if response is not None and not response.allowed:
            raise Denied("worker_rejected", "The worker verification service rejected this worker.")
