"""The heart of a worker: one thread that prolongs all leases in hand, and tells the house how far the work is."""

import threading
import time
from collections.abc import Callable, Sequence

from callsheet.core.errors import Refusal
from callsheet.protocol import Beaten
from callsheet.worker.errors import Dismissed
from callsheet.worker.facts import Tell, Trouble
from callsheet.worker.hand import Hand
from callsheet.worker.link import Link

_IDLE_SECONDS = 3_600.0


class Heart:
    """Beats for every task in hand, in as few calls as there can be."""

    def __init__(self, link: Link, drain: Callable[[], None], dismissed: Callable[[], None], tell: Tell) -> None:
        self._link = link
        self._drain = drain
        self._dismissed = dismissed
        self._tell = tell
        self._hands: set[Hand] = set()
        self._urgent: set[Hand] = set()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="callsheet-heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join()

    def take(self, hand: Hand) -> None:
        """Beat for one more task."""
        with self._wake:
            self._hands.add(hand)
            self._wake.notify_all()

    def drop(self, hand: Hand) -> None:
        """Beat for a task no longer."""
        with self._wake:
            self._hands.discard(hand)

    def news(self) -> None:
        """Look again: a handler said something."""
        with self._wake:
            self._wake.notify_all()

    def say(self, hand: Hand) -> bool:
        """Beat for a task at once, and return whether that was answered."""
        heard = hand.heard_count
        with self._wake:
            self._urgent.add(hand)
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._stopping or hand not in self._urgent)
        return hand.heard_count > heard

    def _work(self) -> None:
        while True:
            with self._wake:
                rest = self._rest()
                if rest > 0 and not self._stopping:
                    self._wake.wait(rest)
                if self._stopping:
                    return
                now, urgent = time.monotonic(), frozenset(self._urgent)
                due = {hand for hand in self._hands if hand.stop is None and hand.due_at() <= now}
            if due or urgent:
                self._beat([*(due | urgent)])
            with self._wake:
                self._urgent -= urgent
                self._wake.notify_all()

    def _beat(self, hands: Sequence[Hand]) -> None:
        sent_at = time.monotonic()
        for hand, answer in zip(hands, self._answers(hands), strict=True):
            self._hear(hand, answer, sent_at)

    def _rest(self) -> float:
        """Return how long nobody is due; one that was told to stop is not asked about again."""
        now = time.monotonic()
        if self._urgent:
            return 0.0
        return min((hand.due_at() - now for hand in self._hands if hand.stop is None), default=_IDLE_SECONDS)

    def _answers(self, hands: Sequence[Hand]) -> Sequence[Beaten | Exception]:
        """Return an answer for each: without one, what happened instead, and the hand sends again."""
        try:
            told = self._link.heartbeat([hand.beat() for hand in hands], min(hand.within_seconds for hand in hands))
        except Dismissed as error:
            self._dismissed()
            return [error] * len(hands)
        except Refusal as error:
            if len(hands) == 1:
                return [error]
            return [answer for hand in hands for answer in self._answers([hand])]  # one of them spoils it for all
        except Exception as error:  # noqa: BLE001 - no answer for any of them: sent again until their leases run out
            return [error] * len(hands)
        if told.drain:
            self._drain()
        return told.beats

    def _hear(self, hand: Hand, answer: Beaten | Exception, sent_at: float) -> None:
        hand.heard(answer, sent_at)
        refused = answer.refused if isinstance(answer, Beaten) else answer if isinstance(answer, Refusal) else None
        if refused is not None and hand.stop is None:
            self._tell(Trouble("A heartbeat was refused", Refusal(refused.code, refused.message)))
