"""Admission: which work a server still accepts while it has more than it can do.

Work is taken in the order of its class. Essential work is never refused: it is bounded by the tasks that workers hold,
and refusing it would waste work that is already done. Everything else is refused before it starts, so a caller that is
refused can retry without harm.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from callsheet.core.model import commands
from callsheet.core.model.commands import Command


class WorkClass(IntEnum):
    """Classes of work, in the order in which waiting work is taken."""

    ESSENTIAL = 0
    """Reports of workers, health checks, actions of administrators, and the server's own work."""
    CLAIM = 1
    """Claims and registrations of workers."""
    WRITE = 2
    """Submits and other changes of clients."""
    READ = 3
    """Reads of clients."""
    STREAM = 4
    """Pages and streams of events."""

    @property
    def label(self) -> str:
        """The name in metrics."""
        return self.name.lower()


class QueueLimits(NamedTuple):
    """The limits of one queue."""

    waiting_max: int
    wait_seconds_max: float
    batch_max: int
    """How many entries are taken from the queue at once."""


class QueueLoad(NamedTuple):
    """What waits in a queue at one moment."""

    waiting: int
    oldest_wait_seconds: float = 0.0


def is_full(load: QueueLoad, limits: QueueLimits) -> bool:
    """Return whether a queue has no space for more work."""
    return load.waiting >= limits.waiting_max


def is_overloaded(load: QueueLoad, limits: QueueLimits) -> bool:
    """Return whether a queue should get no new work: it is full, or work waits too long.

    While all waiting work fits into the next batch, more of it makes none of it wait longer. A long wait then
    comes from a slow database, and not from too many requests.
    """
    too_slow = load.waiting >= limits.batch_max and load.oldest_wait_seconds > limits.wait_seconds_max
    return too_slow or is_full(load, limits)


def class_of(many: Iterable[Command]) -> WorkClass:
    """Return the class of commands that are executed together: the class of the most important one."""
    return min((CLASSES[type(command)] for command in many), default=WorkClass.ESSENTIAL)


CLASSES: dict[type[Command], WorkClass] = {
    **dict.fromkeys((
        commands.Heartbeat, commands.Complete, commands.Fail, commands.Requeue, commands.RecordSubmission,
        commands.AnnounceOutputs,
        commands.RecordIntent, commands.HandOff, commands.ClaimCall, commands.ReportOutcome, commands.Callback,
        commands.FinishUpload, commands.DeleteFiles, commands.Deregister, commands.RecordHeartbeats,
        commands.TickWorker, commands.TickJob, commands.TickTask, commands.AcquireCursor, commands.AdvanceCursor,
        commands.RecordInstallationValue, commands.ReplaceInstallationValue, commands.CheckWrite, commands.PutTenant,
        commands.CreateKey, commands.RevokeKey, commands.UpdateWorker, commands.RevokeWorker, commands.RotateWorker,
    ), WorkClass.ESSENTIAL),
    **dict.fromkeys((commands.Claim, commands.Register), WorkClass.CLAIM),
    **dict.fromkeys((
        commands.Submit, commands.Cancel, commands.Pause, commands.Resume, commands.Approve, commands.RequireApproval,
        commands.Retry, commands.Refund, commands.Delete, commands.Update, commands.AddStage, commands.AddTasks,
        commands.TopUp, commands.Adjust, commands.PutWorkflow, commands.CreateUpload,
    ), WorkClass.WRITE),
}  # fmt: skip
