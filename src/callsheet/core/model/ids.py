"""Ids: time-ordered UUIDs (version 7), and ids that are derived from a parent's id.

The ids of a job's initial stages and tasks are derived from the job's id, so that a command that is retried after a
lost connection creates the same rows and finds its own work.
"""

from typing import Protocol

_RANDOM_BITS = 62
_RANDOM_MASK = (1 << _RANDOM_BITS) - 1
_MULTIPLIER = 0x2545F4914F6CDD1D & _RANDOM_MASK | 1
TASK_NUMBERS_PER_STAGE = 1 << 24


class Ids(Protocol):
    """A source of new ids; seeded in the simulation."""

    def new(self) -> str:
        """Return a new unique id."""
        ...


def uuid7(milliseconds: int, random_74: int) -> str:
    """Lay out an RFC 9562 version 7 UUID from a time and 74 random bits."""
    value = (milliseconds & 0xFFFFFFFFFFFF) << 80
    value |= 0x7000 << 64 | (random_74 >> _RANDOM_BITS & 0xFFF) << 64
    value |= 1 << 63 | (random_74 & _RANDOM_MASK)
    return _format_uuid(value)


def child_id(parent: str, number: int) -> str:
    """Derive the id of a parent's numbered child: the same time, other random bits, deterministic."""
    low = int(parent[19:23] + parent[24:], 16)
    shifted = (low + number) * _MULTIPLIER & _RANDOM_MASK  # a plain sum could collide for grandchildren
    text = f"{low & ~_RANDOM_MASK | shifted:016x}"
    return f"{parent[:19]}{text[:4]}-{text[4:]}"


def stage_id(job_id: str, stage_no: int) -> str:
    """Return the id of an initial stage of a job."""
    return child_id(job_id, stage_no * TASK_NUMBERS_PER_STAGE)


def task_id(job_id: str, stage_no: int, task_no: int) -> str:
    """Return the id of an initial task of a job's stage."""
    return child_id(job_id, stage_no * TASK_NUMBERS_PER_STAGE + task_no)


def _format_uuid(value: int) -> str:
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
