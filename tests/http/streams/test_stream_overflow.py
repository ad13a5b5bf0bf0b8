"""A stream whose buffer ran over, at whatever moment, goes on from the database: nothing is left out."""

import asyncio
from typing import Any

import pytest

from callsheet.config import HttpSettings
from callsheet.core.model.rows import Event
from callsheet.engine.reads.synchronous import PositionedEvent
from callsheet.http.auth.authenticator import Caller, Signer
from callsheet.http.broadcaster import Subscription
from callsheet.queries import events

MOST = 4


class Log:
    """The part of a query context that a tenant's stream reads."""

    def __init__(self) -> None:
        self.settings = HttpSettings(stream_buffer_events_max=MOST, heartbeat_seconds=0.01)
        self.signer = Signer(b"secret")
        self.reads = self
        self.subscription = Subscription(MOST)
        self._placed: list[PositionedEvent] = []

    async def scan(self, _query: str, *, tenant: str, tx: int, position: int, count: int) -> list[tuple[Any, ...]]:
        assert tenant == "acme"
        found = [placed for placed in self._placed if placed.place > (tx, position)][:count]
        return [(p[1], p[0], *(getattr(p.event, name) for name in Event.__struct_fields__)) for p in found]

    def publish(self, numbers: range) -> None:
        for n in numbers:
            event = Event("job", n, "acme", 1, n, "task.progressed", None, None, None, "worker", None)
            self._placed.append(PositionedEvent((1, n, event)))
            self.subscription.push(self._placed[-1])


@pytest.mark.parametrize("burst", [1, MOST, MOST + 1, 3 * MOST])
def test_what_runs_over_between_two_frames_is_read_again(burst: int) -> None:
    # R140: no gap, no duplicate
    async def seen() -> list[int]:
        log = Log()
        log.publish(range(1, 2))
        numbers: list[int] = []
        published, turns = 1, 0
        caller = Caller("client", "acme", "key")
        stream = events.follow_tenant(log, caller, (0, 0), log.subscription, lambda _: True)  # type: ignore[arg-type]
        async for event in stream:
            if event is not None:
                numbers.append(event.seq)
            elif published < 10 * burst:  # the stream waits for its next turn: this is when the buffer may run over
                log.publish(range(published + 1, published + burst + 1))
                published += burst
            turns += 1
            if len(numbers) >= published >= 10 * burst or turns > 100 * burst:
                break
        return numbers

    numbers = asyncio.run(seen())
    assert numbers == list(range(1, 10 * burst + 1 + (burst > 1)))
