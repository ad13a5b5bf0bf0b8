"""What the edge knows of the fleet: who waits, who was heard of, who is checked before it is let in."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import httpx
import msgspec

from callsheet import protocol
from callsheet.config import HttpSettings
from callsheet.core import commands
from callsheet.engine.engine import Engine
from callsheet.engine.room import Room
from callsheet.http.problem import Problem
from callsheet.http.strikes import Pace

_SEEN_MAX = 500
"""Workers in one command: they are written together, and locked together."""


class Verdict(msgspec.Struct, frozen=True):
    """What the address that knows our machines says about one."""

    allowed: bool


class Fleet:
    """Workers, as this server sees them."""

    def __init__(self, engine: Engine, settings: HttpSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.room = Room(engine, engine.settings.poll_seconds)
        self.pace = Pace(settings.beats_per_second_max)
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._heard: set[str] = set()
        self._written_at = clock()
        self._writing: asyncio.Future[None] | None = None

    async def claim(self, command: commands.Claim, wait_seconds: float) -> list[commands.Leased]:
        """Claim, and wait for work if there is none; a server that stops lets everybody go."""
        if self.room.ended:
            raise Problem(503, "stopping", "This server stops: come back in a moment.", {"retry-after": "1"})
        return await self.room.claim(command, wait_seconds)

    def heard(self, worker_id: str) -> None:
        """Note that a worker was heard of; all of them are written down together, every now and then."""
        self._heard.add(worker_id)
        now = self._clock()
        if now - self._written_at < self._settings.worker_seen_seconds:
            return
        self._written_at = now
        names, self._heard = sorted(self._heard), set()
        self._writing = asyncio.ensure_future(self._write(names))

    async def _write(self, names: list[str]) -> None:
        many = [commands.Seen(workers=tuple(names[at : at + _SEEN_MAX])) for at in range(0, len(names), _SEEN_MAX)]
        if any(isinstance(answer, Exception) for answer in await self._engine.aexecute_many(many)):
            self._heard.update(names)  # the database is away: they are written down the next time

    async def verify(self, asked: protocol.Register, address: str) -> None:
        """Ask whether a machine is ours: a definite no refuses it; no answer lets it in if the settings say so."""
        url = self._settings.worker_verify_url
        if not url:
            return
        question = {
            "worker": asked.worker, "labels": asked.labels, "capabilities": asked.capabilities, "address": address,
        }  # fmt: skip
        verdict: Verdict | None = None
        with suppress(httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError):
            async with httpx.AsyncClient(timeout=self._settings.worker_verify_seconds, trust_env=False) as client:
                answer = await client.post(url, json=question)
                if answer.is_success:
                    verdict = msgspec.json.decode(answer.content, type=Verdict)
        if verdict is None and not self._settings.worker_verify_open:
            raise Problem(
                503, "worker_not_verified", "Whether this machine is ours cannot be found out now: try again.",
                {"retry-after": "5"},
            )  # fmt: skip
        if verdict is not None and not verdict.allowed:
            raise Problem(403, "worker_not_ours", "This machine is not one of ours.")
