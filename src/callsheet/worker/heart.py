"""The heart of a worker: one thread that prolongs all leases in hand, and tells the house how far the work is."""

import threading
import time

from callsheet.core.commands import Beat
from callsheet.worker.hand import Hand
from callsheet.worker.link import Link

_IDLE_SECONDS = 3_600.0


class Heart:
    """Beats for every task in hand, in as few calls as there can be."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._hands: set[Hand] = set()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="callsheet-heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def take(self, hand: Hand) -> None:
        """Beat for one more task."""
        with self._wake:
            self._hands.add(hand)
            self._wake.notify()

    def drop(self, hand: Hand) -> None:
        """Beat for a task no longer."""
        with self._wake:
            self._hands.discard(hand)

    def news(self) -> None:
        """Look again: a handler said something."""
        with self._wake:
            self._wake.notify()

    def _work(self) -> None:
        while True:
            with self._wake:
                rest = self._rest()
                if rest > 0 and not self._stopping:
                    self._wake.wait(rest)
                if self._stopping:
                    return
                now = time.monotonic()
                due = [hand for hand in self._hands if hand.due_at() <= now and hand.stop is None]
            if due:
                self._beat(due)

    def _rest(self) -> float:
        """Return how long nobody is due; one that was told to stop is not asked about again."""
        now = time.monotonic()
        return min((hand.due_at() - now for hand in self._hands if hand.stop is None), default=_IDLE_SECONDS)

    def _beat(self, due: list[Hand]) -> None:
        sent_at = time.monotonic()
        answers: list[Beat | Exception]
        try:
            answers = self._link.heartbeat([(hand.task, hand.beat()) for hand in due])
        except Exception as error:  # noqa: BLE001 - no answer for any of them: sent again until their leases run out
            answers = [error] * len(due)
        for hand, answer in zip(due, answers, strict=True):
            hand.heard(answer, sent_at)
