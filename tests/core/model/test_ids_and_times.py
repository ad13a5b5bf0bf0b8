"""Ids and times: UUIDs of version 7, ids derived from a parent id, and times in RFC 3339."""

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
def test_an_id_is_a_uuid_of_version_7_that_begins_with_its_time(milliseconds: int, bits: int) -> None:
    parsed = uuid.UUID(uuid7(milliseconds, bits))
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == milliseconds
    assert parsed.int >> 64 & 0xFFF == bits >> 62
    assert parsed.int & (1 << 62) - 1 == bits & (1 << 62) - 1


def test_ids_sort_by_time() -> None:
    ids = [uuid7(ms, (2**74 - 1) // (ms + 1)) for ms in range(0, 10_000, 37)]
    assert ids == sorted(ids)


def test_no_two_stages_tasks_or_calls_of_a_job_have_the_same_id() -> None:
    """64 stages of 1,000 tasks, and 20 calls of some of these tasks."""
    ids = {JOB_ID}
    calls = set()
    for stage in range(1, 65):
        ids.add(stage_id(JOB_ID, stage))
        for task in range(1, 1_001):
            id_of_task = task_id(JOB_ID, stage, task)
            ids.add(id_of_task)
            if task <= 20:
                calls |= {child_id(id_of_task, attempt) for attempt in range(1, 21)}
    assert len(ids) == 1 + 64 + 64_000
    assert len(calls) == 64 * 20 * 20
    assert not ids & calls


def test_the_id_of_a_task_is_derived_from_its_job_and_has_the_same_time() -> None:
    first, second = task_id(JOB_ID, 3, 9), task_id(JOB_ID, 3, 9)
    assert first == second != task_id(JOB_ID, 9, 3)
    parsed = uuid.UUID(first)
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == 1_700_000_000_000


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
def test_a_time_is_printed_in_utc_with_milliseconds(at: int, text: str) -> None:
    """R102, C17."""
    assert rfc3339(at) == text


@given(st.integers(0, 4_102_444_800_000_000))
def test_a_printed_time_can_be_parsed(at: int) -> None:
    text = rfc3339(at)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    parsed = datetime.fromisoformat(text)
    assert parsed.tzinfo == UTC
    assert round(parsed.timestamp() * 1_000) == at // 1_000


def test_durations_are_whole_microseconds() -> None:
    assert (seconds(1), seconds(0.25), seconds(0)) == (1_000_000, 250_000, 0)
