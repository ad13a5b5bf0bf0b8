"""The heart of a worker: one thread that prolongs all leases in hand, and tells the house how far the work is.

A house that says "later" is asked later, about all of them, for as long as no lease is in danger.
"""

import threading
import time
from collections.abc import Callable, Sequence

from callsheet.core.errors import Refusal
from callsheet.protocol import Beaten
from callsheet.worker.errors import Dismissed, Unreachable
from callsheet.worker.facts import Tell, Trouble
from callsheet.worker.hand import AGAIN_SECONDS, TELL_SECONDS, Hand
from callsheet.worker.link import Link
from callsheet.worker.patience import spread

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
        self._later_at = float("-inf")
        """Not before this does the house want to be asked again."""
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
        """Beat for a task as soon as the house hears it, and return whether that was answered."""
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
                due = self._due(time.monotonic())
            if due:
                self._beat([*due])
            with self._wake:
                self._urgent -= due
                self._wake.notify_all()

    def _beat(self, hands: Sequence[Hand]) -> None:
        sent_at = time.monotonic()
        for hand, answer in zip(hands, self._answers(hands), strict=True):
            self._hear(hand, answer, sent_at)

    def _rest(self) -> float:
        """Return how long nobody is due."""
        now = time.monotonic()
        return min((self._at(hand) - now for hand in self._waiting()), default=_IDLE_SECONDS)

    def _due(self, now: float) -> set[Hand]:
        """Return the tasks to beat for now. Whoever is due in a moment goes with them: one call is enough for all."""
        at = {hand: self._at(hand) for hand in self._waiting()}
        latest = now + TELL_SECONDS if min(at.values(), default=_IDLE_SECONDS + now) <= now else now
        return {hand for hand in at if at[hand] <= latest}

    def _waiting(self) -> set[Hand]:
        """Return the tasks to beat for; one that was told to stop is not asked about again."""
        return {hand for hand in self._hands if hand.stop is None} | self._urgent

    def _at(self, hand: Hand) -> float:
        """Return when to beat for a task: when it is due, and not before the house said, if its lease lasts so long."""
        due_at = float("-inf") if hand in self._urgent else hand.due_at()
        return max(due_at, min(self._later_at, hand.patient_until))

    def _answers(self, hands: Sequence[Hand]) -> Sequence[Beaten | Exception]:
        """Return an answer for each: without one, what happened instead, and the hand sends again."""
        try:
            told = self._link.heartbeat([hand.beat() for hand in hands], min(hand.within_seconds for hand in hands))
        except Dismissed as error:
            self._dismissed()
            return [error] * len(hands)
        except Unreachable as error:
            self._later_at = time.monotonic() + max(error.after_seconds, spread(AGAIN_SECONDS))
            return [error] * len(hands)
        except Refusal as error:
            return self._apart(hands) if len(hands) > 1 else [error]  # one of them spoils it for all
        except Exception as error:  # noqa: BLE001 - no answer for any of them: sent again until their leases run out
            return [error] * len(hands)
        self._later_at = float("-inf")
        if told.drain:
            self._drain()
        return told.beats

    def _apart(self, hands: Sequence[Hand]) -> Sequence[Beaten | Exception]:
        """Ask for one half, then for the other; if the house is gone or says "later", the other half waits, too."""
        middle = len(hands) // 2
        first = self._answers(hands[:middle])
        if isinstance(first[-1], Unreachable | Dismissed):
            return [*first, *[first[-1]] * (len(hands) - middle)]
        return [*first, *self._answers(hands[middle:])]

    def _hear(self, hand: Hand, answer: Beaten | Exception, sent_at: float) -> None:
        hand.heard(answer, sent_at)
        refused = answer.refused if isinstance(answer, Beaten) else answer if isinstance(answer, Refusal) else None
        if refused is not None and hand.stop is None:
            self._tell(Trouble("A heartbeat was refused", Refusal(refused.code, refused.message)))
