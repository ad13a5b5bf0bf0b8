"""Names of things: time-ordered UUIDs (version 7), and children whose names follow from their parent's.

A job's first stages and tasks take their ids from the job's own id, so that a command which is tried again
after a lost connection makes the same rows and finds its own work.
"""

from typing import Protocol

_RANDOM_BITS = 62
_RANDOM_MASK = (1 << _RANDOM_BITS) - 1
_MULTIPLIER = 0x2545F4914F6CDD1D & _RANDOM_MASK | 1
TASK_NUMBERS_PER_STAGE = 1 << 24


class Ids(Protocol):
    """A source of new ids; seeded in the simulation."""

    def new(self) -> str:
        """Return an id that nobody else has."""
        ...


def uuid7(milliseconds: int, random_74: int) -> str:
    """Lay out an RFC 9562 version 7 UUID from a time and 74 random bits."""
    value = (milliseconds & 0xFFFFFFFFFFFF) << 80
    value |= 0x7000 << 64 | (random_74 >> _RANDOM_BITS & 0xFFF) << 64
    value |= 1 << 63 | (random_74 & _RANDOM_MASK)
    return _format_uuid(value)


def child_id(parent: str, number: int) -> str:
    """Return the id of a parent's numbered child: same moment, other random bits, the same every time."""
    low = int(parent[19:23] + parent[24:], 16)
    shifted = (low + number) * _MULTIPLIER & _RANDOM_MASK  # a grandchild is never another child's: not a plain sum
    text = f"{low & ~_RANDOM_MASK | shifted:016x}"
    return f"{parent[:19]}{text[:4]}-{text[4:]}"


def stage_id(job_id: str, stage_no: int) -> str:
    """Return the id of a job's first-hand stage."""
    return child_id(job_id, stage_no * TASK_NUMBERS_PER_STAGE)


def task_id(job_id: str, stage_no: int, task_no: int) -> str:
    """Return the id of a first-hand task of a job's stage."""
    return child_id(job_id, stage_no * TASK_NUMBERS_PER_STAGE + task_no)


def _format_uuid(value: int) -> str:
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
