"""Object keys are built from our ids and parsed back to them; every other text is no key."""

import pytest

from callsheet.blobs import object_keys
from callsheet.blobs.object_keys import OutputKey, UploadKey
from callsheet.core.model.rows import File

FILE = File("file-1", "acme", "ann", "job-1", "task-1", 2, 3, "../../etc/passwd", "image/png", 4, "0" * 64, 1)


def test_a_key_contains_the_tenant_the_job_and_the_attempt() -> None:
    # R235, R236
    made, preview = (
        object_keys.output_key("acme", "job-1", "task-1", 2, 3),
        object_keys.preview_key("acme", "job-1", "task-1", 2),
    )
    assert (made, preview) == ("acme/jobs/job-1/task-1/2/3", "acme/jobs/job-1/task-1/2/preview")
    assert object_keys.parse_key(made) == OutputKey("acme", "job-1", "task-1", 2, 3)
    assert object_keys.parse_key(preview) == OutputKey("acme", "job-1", "task-1", 2, None)
    assert object_keys.parse_key(object_keys.upload_key("acme", "file-1")) == UploadKey("acme", "file-1")
    assert all(key.startswith(object_keys.job_prefix("acme", "job-1")) for key in (made, preview))
    assert object_keys.output_key("acme", "job-1", "task-1", 3, 3) != made, "another attempt"


def test_the_key_of_a_file_depends_on_its_ids_and_not_on_its_name() -> None:
    # R152
    uploaded = File("file-1", "acme", "ann", None, None, 0, 0, FILE.name, "image/png", 4, "0" * 64, 1)
    assert object_keys.file_key(FILE) == "acme/jobs/job-1/task-1/2/3"
    assert object_keys.file_key(uploaded) == "acme/uploads/file-1"
    of_another_job = File("file-2", "acme", "ann", "job-2", "task-2", 2, 3, FILE.name, "image/png", 4, "0" * 64, 1)
    assert object_keys.file_key(of_another_job) == "acme/jobs/job-2/task-2/2/3"


@pytest.mark.parametrize(
    "text",
    ["", "acme", "acme/uploads", "acme/uploads/a/b", "acme/other/a", "acme/jobs/j/t/x/1", "acme/jobs/j/t/01/1",
     "acme/jobs/j/t/1/second", "acme/jobs/j/t/1", "acme/jobs/../t/1/1", ".probe/x", "acme/uploads/.x"],
)  # fmt: skip
def test_a_text_that_is_no_key_of_ours_is_not_parsed(text: str) -> None:
    assert object_keys.parse_key(text) is None


@pytest.mark.parametrize("part", ["", "..", "a/b", "a\0", "é", "x" * 129, ".a", "a\n"])
def test_a_part_that_is_no_id_is_refused(part: str) -> None:
    for make in (
        lambda: object_keys.upload_key(part, "f"), lambda: object_keys.upload_key("t", part),
        lambda: object_keys.job_prefix("t", part),
        lambda: object_keys.output_key("t", part, "k", 1, 1), lambda: object_keys.preview_key("t", "j", part, 1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="must consist of ids"):
            make()
