"""Orphans: which stored objects are needed, too young to delete, unknown or orphaned."""

from itertools import product

import pytest
from msgspec.structs import replace

from callsheet.core.model.rows import File
from callsheet.core.policy.orphan_files import AttemptFiles, ObjectAge, classify_output, classify_upload

NOW, GRACE, DATABASE_CREATED = 1_000, 100, 500
AGES = {"young": NOW - GRACE + 1, "old": NOW - GRACE, "older than the database": DATABASE_CREATED - 1}


def object_age(modified_at: int) -> ObjectAge:
    return ObjectAge(modified_at, NOW, DATABASE_CREATED, GRACE)


@pytest.mark.parametrize("at", AGES)
@pytest.mark.parametrize("status", ["uploading", "ready", "deleted", None])
def test_an_upload_is_an_orphan_if_its_row_is_deleted_or_missing(status: str | None, at: str) -> None:
    row = File("f", "acme", "ann", None, None, 0, 0, "a", "image/png", 1, "a" * 64, 1, status) if status else None
    without_row = "orphan" if at != "young" else "young"
    unknown_row = "unknown" if at == "older than the database" else without_row
    expected = {"deleted": without_row, None: unknown_row}.get(status, "needed")
    assert classify_upload("acme", row, object_age(AGES[at])) == expected


def test_an_object_whose_key_does_not_match_its_row_is_an_orphan() -> None:
    output = File("f", "acme", "ann", "j", "t", 1, 1, "a", "image/png", 1, "a" * 64, 1)
    for tenant, row in (("acme", output), ("other", replace(output, job_id=None, task_id=None))):
        assert classify_upload(tenant, row, object_age(AGES["old"])) == "orphan"
    assert (
        classify_output("acme", "j2", 1, AttemptFiles("acme", "j", open=True, files={}), object_age(AGES["old"]))
        == "orphan"
    )
    assert (
        classify_output("other", "j", 1, AttemptFiles("acme", "j", open=True, files={}), object_age(AGES["old"]))
        == "orphan"
    )


def test_an_output_is_an_orphan_if_its_attempt_has_ended_without_it() -> None:
    for (name, at), is_open, no, files in product(
        AGES.items(), [True, False], [None, 1, 2], [{}, {1: "ready"}, {1: "deleted"}]
    ):
        found = classify_output("acme", "j", no, AttemptFiles("acme", "j", is_open, files), object_age(at))
        if is_open or (no == 1 and files == {1: "ready"}):
            assert found == "needed"
        else:
            assert found == ("young" if name == "young" else "orphan")
    assert classify_output("acme", "j", 1, None, object_age(AGES["old"])) == "orphan"
    assert classify_output("acme", "j", 1, None, object_age(AGES["older than the database"])) == "unknown"
