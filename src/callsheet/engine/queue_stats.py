"""Statistics of a queue: how long its entries waited, and how many were refused, by class of work."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

from callsheet.core.policy.admission import WorkClass

WAIT_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class WaitHistogram:
    """Waits by bucket; the last bucket counts longer ones."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(WAIT_BUCKETS_SECONDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float, entries: int = 1) -> None:
        self.counts[bisect_left(WAIT_BUCKETS_SECONDS, seconds)] += entries
        self.seconds += seconds * entries

    def merge(self, other: "WaitHistogram") -> None:
        self.counts = [own + others for own, others in zip(self.counts, other.counts, strict=True)]
        self.seconds += other.seconds


class QueueStats:
    """Waits and refusals of one queue. The lock of the queue protects them."""

    def __init__(self) -> None:
        self.waits: dict[WorkClass, WaitHistogram] = {}
        self.refused: Counter[WorkClass] = Counter()

    def record_wait(self, work_class: WorkClass, seconds: float, entries: int = 1) -> None:
        waits = self.waits.get(work_class)
        if waits is None:
            waits = self.waits[work_class] = WaitHistogram()
        waits.add(seconds, entries)


def merge_waits(many: Iterable[QueueStats]) -> Mapping[WorkClass, WaitHistogram]:
    """Return the waits of several queues together."""
    merged: dict[WorkClass, WaitHistogram] = {}
    for stats in many:
        for work_class, waits in list(stats.waits.items()):
            merged.setdefault(work_class, WaitHistogram()).merge(waits)
    return merged


def merge_refused(many: Iterable[QueueStats]) -> Counter[WorkClass]:
    """Return the refusals of several queues together."""
    return sum((stats.refused.copy() for stats in many), Counter())
