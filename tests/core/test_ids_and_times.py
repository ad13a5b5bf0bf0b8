"""Names and times: UUIDs of version 7, children that follow from their parents, instants in RFC 3339."""

import re
import uuid
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callsheet.core.model.clock import rfc3339, seconds
from callsheet.core.model.ids import child_id, stage_id, task_id, uuid7

JOB_ID = uuid7(1_700_000_000_000, 0x2AA_5555_5555_5555_5555)


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1))
def test_an_id_is_a_uuid_of_version_7_with_its_time_in_front(milliseconds: int, bits: int) -> None:
    made = uuid.UUID(uuid7(milliseconds, bits))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == milliseconds
    assert made.int >> 64 & 0xFFF == bits >> 62
    assert made.int & (1 << 62) - 1 == bits & (1 << 62) - 1


def test_ids_sort_by_their_time() -> None:
    ids = [uuid7(ms, (2**74 - 1) // (ms + 1)) for ms in range(0, 10_000, 37)]
    assert ids == sorted(ids)


def test_children_of_a_job_never_share_a_name() -> None:
    """64 stages of 1,000 tasks, and the calls of their first tries: a call is a task's child, and no task's twin."""
    names = {JOB_ID}
    calls = set()
    for stage in range(1, 65):
        names.add(stage_id(JOB_ID, stage))
        for task in range(1, 1_001):
            name = task_id(JOB_ID, stage, task)
            names.add(name)
            if task <= 20:
                calls |= {child_id(name, attempt) for attempt in range(1, 21)}
    assert len(names) == 1 + 64 + 64_000
    assert len(calls) == 64 * 20 * 20
    assert not names & calls


def test_a_child_is_the_same_every_time_and_a_sound_id_of_the_same_moment() -> None:
    one, two = task_id(JOB_ID, 3, 9), task_id(JOB_ID, 3, 9)
    assert one == two != task_id(JOB_ID, 9, 3)
    made = uuid.UUID(one)
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == 1_700_000_000_000


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (999, "1970-01-01T00:00:00.000Z"),
        (1_000, "1970-01-01T00:00:00.001Z"),
        (1_710_498_605_123_456, "2024-03-15T10:30:05.123Z"),
        (4_102_444_799_999_999, "2099-12-31T23:59:59.999Z"),
    ],
)
def test_an_instant_is_printed_in_utc_with_milliseconds(at: int, text: str) -> None:
    """R93, R102, C17."""
    assert rfc3339(at) == text


@given(st.integers(0, 4_102_444_800_000_000))
def test_every_instant_reads_back(at: int) -> None:
    text = rfc3339(at)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    read = datetime.fromisoformat(text)
    assert read.tzinfo == UTC
    assert round(read.timestamp() * 1_000) == at // 1_000


def test_durations_are_whole_microseconds() -> None:
    assert (seconds(1), seconds(0.25), seconds(0)) == (1_000_000, 250_000, 0)
