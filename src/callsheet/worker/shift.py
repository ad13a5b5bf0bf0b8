"""A worker at work: claims as many tasks as it has free hands, runs each in a thread, and goes when it is told to."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from msgspec import Struct

from callsheet.core.errors import LeaseLost, Refusal
from callsheet.protocol import Claim, Claimed, Registered, Requeue, Work
from callsheet.worker.cache import Cache
from callsheet.worker.errors import Barred, Dismissed, Lost, Unreachable
from callsheet.worker.facts import Arrived, Began, Ended, Left, Ready, Tell, Trouble, Waiting, guarded, to_stderr
from callsheet.worker.hand import Hand
from callsheet.worker.heart import Heart
from callsheet.worker.link import Link
from callsheet.worker.patience import pauses
from callsheet.worker.protection import Guard, Protection
from callsheet.worker.scratch import Scratch
from callsheet.worker.trying import Handler, Try

_WAIT_SECONDS = 25.0
_LEAVE_SECONDS = 2.0
"""How long a handler that was told to leave may take to do so before the shift ends without it."""
_DISMISSALS_MAX, _DISMISSALS_SECONDS = 3, 600.0
_NOT_APPROVED = "worker_not_approved"
_APPROVAL_SECONDS = 5.0
_READY_SECONDS = 2.0


class Kit(Struct, frozen=True):
    """What a worker has besides its handlers and its link."""

    scratch: Scratch | None = None
    cache: Cache | None = None
    protection: Protection | None = None
    tell: Tell = to_stderr


class Going(Struct, frozen=True):
    """Why a worker goes away: `cause` in a word (`shutdown`, `spot`), `reason` for a person."""

    cause: str = "shutdown"
    reason: str = "the worker goes away"
    grace_seconds: float = 0.0


class Shift:
    """One run of a worker, from its arrival to its end. It may end by itself: drained, or not let in."""

    def __init__(
        self, handlers: Mapping[str, Handler], link: Link, concurrency: int, kit: Kit,
        ready: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._handlers = handlers
        self._ready = ready
        self._link = link
        self._concurrency = concurrency
        self._cache = kit.cache
        self._tell = guarded(kit.tell)
        self._scratch = kit.scratch or Scratch()
        self._guard = Guard(kit.protection, self._tell) if kit.protection else None
        self._heart = Heart(link, self.drain, self._dismiss, self._tell)
        self._hands: set[Hand] = set()
        self._changed = threading.Condition()
        self._going: Going | None = None
        self._draining = self._dismissed = self._came = False
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._beat_seconds = self._wait_seconds = _WAIT_SECONDS
        self._dismissals: deque[float] = deque(maxlen=_DISMISSALS_MAX)
        self._said: str | None = None
        self.failure: str | None = None
        """Why the house did not let the worker in, if it ended for that."""
        self._thread = threading.Thread(target=self._live, name="callsheet-shift", daemon=True)

    def start(self) -> None:
        self._scratch.open()
        self._heart.start()
        if self._guard:
            self._guard.start()
        self._thread.start()

    def stop(self, grace_seconds: float = 0.0, cause: str = "shutdown", reason: str = "the worker goes away") -> None:
        """Take no more work; give back, without using up a try, what does not end within the grace."""
        self.leave(Going(cause, reason, grace_seconds))
        self._over.wait()

    def leave(self, going: Going) -> None:
        """Begin to stop, and do not wait for it."""
        with self._changed:
            self._going = self._going or going
            self._stopping.set()
            self._changed.notify_all()
        self._link.stop()

    def drain(self) -> None:
        """Take no more work, and go when what is in hand has ended."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
        self._link.stop()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the shift."""
        return self._over.wait(seconds)

    @property
    def busy(self) -> int:
        """How many tasks are in hand."""
        return len(self._hands)

    @property
    def draining(self) -> bool:
        """Whether the worker takes no more work."""
        return self._closing()

    # -- from arrival to end

    def _live(self) -> None:
        try:
            self._arrive()
            while not self._closing():
                self._take()
            with self._changed:  # drained: what is in hand may end
                self._changed.wait_for(lambda: self._going or not self._hands)
        except Barred as error:
            self.failure = str(error)
        finally:
            try:
                self._depart(self._going or Going(reason="drained"))
            finally:
                self._over.set()

    def _closing(self) -> bool:
        return self._draining or self._going is not None

    def _arrive(self) -> None:
        """Register until the house answers."""
        for pause in pauses():
            if self._closing():
                return
            try:
                came = self._link.register(tuple(self._handlers), self._concurrency)
            except Unreachable as error:
                self._waiting(f"The house cannot be reached: {error}")
                self._stopping.wait(max(pause, error.after_seconds))
            else:
                self._welcomed(came)
                return

    def _welcomed(self, came: Registered) -> None:
        self._came, self._dismissed, self._said = True, False, None
        self._beat_seconds = came.beat_seconds
        self._wait_seconds = min(_WAIT_SECONDS, came.wait_seconds_max)
        self._tell(Arrived(came.worker, came.kinds, came.approved))

    def _depart(self, going: Going) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._hands, going.grace_seconds)
            left = [hand for hand in self._hands if hand.leave()]
        for hand in left:
            self._give_back(hand.work, going)
        with self._changed:
            self._changed.wait_for(lambda: not self._hands, _LEAVE_SECONDS)
        self._heart.stop()
        if self._came and self.failure is None:
            self._deregister(going)
        if self._guard:
            self._guard.stop()
        self._link.close()
        self._scratch.close()
        self._tell(Left(self.failure or going.reason))

    def _deregister(self, going: Going) -> None:
        try:
            self._link.deregister(going.reason)
        except (Refusal, Unreachable, Dismissed) as error:  # the house notices by itself, later
            self._tell(Trouble("Saying goodbye failed", error))

    # -- taking work

    def _take(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing() or self._dismissed or len(self._hands) < self._concurrency)
            count = self._concurrency - len(self._hands)
        if self._closing():
            return
        if self._dismissed:
            self._come_again()
            return
        if self._ready is not None and not self._prepared(self._ready):
            return
        claimed = self._claimed(count)
        for work in claimed.tasks:
            self._begin(work)
        if claimed.drain:
            self.drain()

    def _prepared(self, ready: Callable[[], None]) -> bool:
        """Look whether what the handlers need is there; once it was, it is not looked for again."""
        try:
            ready()
        except Unreachable as error:
            if str(error) != self._said:
                self._said = str(error)
                self._tell(Trouble("No work is taken yet", error))
            self._stopping.wait(_READY_SECONDS)
            self._be_heard()
            return False
        self._ready = None
        if self._said is not None:
            self._said = None
            self._tell(Ready())
        return True

    def _be_heard(self) -> None:
        """Say to the house that the worker is there, though it asks for no work, and hear what it says."""
        try:
            if self._link.heartbeat([], _READY_SECONDS).drain:
                self.drain()
        except Dismissed:
            self._dismiss()
        except (Refusal, Unreachable):
            return  # what it says about work can wait

    def _claimed(self, count: int) -> Claimed:
        """Claim until there is an answer; a house that is away for a while is outlived."""
        nothing = Claimed([], drain=False)
        for pause in pauses():
            if self._closing():
                break
            try:
                claimed = self._link.claim(self._asked(count))
            except Dismissed:
                self._dismiss()
                break
            except Unreachable as error:
                self._waiting(f"The house cannot be reached: {error}")
                self._stopping.wait(max(pause, error.after_seconds))
            except Refusal as error:
                self._waiting(error.message)
                self._stopping.wait(_APPROVAL_SECONDS if error.code == _NOT_APPROVED else max(pause, 1.0))
            else:
                self._said = None
                return claimed
        return nothing

    def _asked(self, count: int) -> Claim:
        """Ask for work, and say what is in hand: an answer that was lost is found out so."""
        with self._changed:
            holds = [hand.work.lease.task_id for hand in self._hands]
        return Claim(count=count, kinds=list(self._handlers), wait_seconds=self._wait_seconds, holds=holds)

    def _begin(self, work: Work) -> None:
        if self._going is not None:
            self._give_back(work, self._going)
            return
        hand = Hand(work, self._beat_seconds)
        with self._changed:
            self._hands.add(hand)
            if self._guard:
                self._guard.busy(on=True)
        self._heart.take(hand)
        self._tell(Began(work))
        name = f"callsheet-{work.kind}-{work.lease.task_id[-6:]}"
        threading.Thread(target=self._work, args=(hand,), name=name, daemon=True).start()

    def _work(self, hand: Hand) -> None:
        began, work = time.monotonic(), hand.work
        try:
            how = Try(hand, self._link, self._heart, self._tell).run(
                self._handlers[work.kind], self._scratch, self._cache
            )
            self._tell(Ended(work, how, time.monotonic() - began))
        finally:
            self._heart.drop(hand)
            self._link.forget(work)
            with self._changed:
                self._hands.discard(hand)
                if self._guard and not self._hands:
                    self._guard.busy(on=False)
                self._changed.notify_all()

    def _give_back(self, work: Work, going: Going) -> None:
        try:
            self._link.requeue(Requeue(lease=work.lease, reason=going.reason, cause=going.cause))
        except LeaseLost:
            return  # it ended in the meantime, or is another's
        except (Refusal, Unreachable, Dismissed) as error:  # whoever goes away gives back the rest
            self._tell(Trouble("Giving a task back failed", error))

    # -- what the house does with a worker

    def _dismiss(self) -> None:
        """Stop all that is in hand: under a token that is good no longer, it is another's."""
        with self._changed:
            self._dismissed = True
            hands = list(self._hands)
            self._changed.notify_all()
        for hand in hands:
            hand.end(Lost)

    def _come_again(self) -> None:
        """Register anew, unless that happens again and again: then somebody else does the same."""
        now = time.monotonic()
        self._dismissals.append(now)
        if len(self._dismissals) == _DISMISSALS_MAX and now - self._dismissals[0] < _DISMISSALS_SECONDS:
            raise Barred(
                "The house took this worker's token back again and again. Does another worker run under the same name?"
            )
        self._waiting("The house does not know this worker's token any longer: it registers anew.")
        self._arrive()

    def _waiting(self, why: str) -> None:
        """Say once why there is no work."""
        if why != self._said:
            self._said = why
            self._tell(Waiting(why))
