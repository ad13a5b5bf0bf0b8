"""The embedded link and the HTTP link return the same results and errors."""

import hashlib
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from callsheet.api.worker_protocol import Claim, Complete, Fail, Requeue, TaskPayload
from callsheet.core.model.commands import OutputFile
from callsheet.core.model.errors import BadInput, LeaseLost
from callsheet.core.model.workflow_definition import StageSpec
from tests.worker.worker_harness import RecordingLink, WorkerHarness

BODY = b"hello"
MADE = OutputFile(1, "a.bin", "application/octet-stream", len(BODY), hashlib.sha256(BODY).hexdigest())


@pytest.fixture
def link(harness: WorkerHarness) -> Iterator[RecordingLink]:
    """The link of a registered worker."""
    new_link = harness.link()
    new_link.register(["draw"], 1)
    yield new_link
    new_link.close()


def claim_work(harness: WorkerHarness, link: RecordingLink) -> TaskPayload:
    harness.submit()
    (work,) = link.claim(Claim(count=1, kinds=["draw"])).tasks
    return work


def test_a_repeated_report_gets_the_same_response(harness: WorkerHarness, link: RecordingLink) -> None:
    work = claim_work(harness, link)
    link.upload(work, MADE, BODY, lambda: None)
    report = Complete(lease=work.lease, output={"a": 1}, files=[MADE])
    first, again = link.complete(report), link.complete(report)
    assert (first.status, first.replay) == ("completed", False)
    assert (again.status, again.replay) == ("completed", True)
    with pytest.raises(LeaseLost):
        link.complete(replace(report, output={"a": 2}))


def test_a_file_that_was_not_uploaded_is_rejected(harness: WorkerHarness, link: RecordingLink) -> None:
    work = claim_work(harness, link)
    with pytest.raises(BadInput) as refused:
        link.complete(Complete(lease=work.lease, files=[MADE]))
    assert refused.value.code == "file_not_uploaded"
    assert link.requeue(Requeue(lease=work.lease, reason="nothing was made")).status == "retried"


@pytest.mark.parametrize("over", [1, 2**20, 2**24])
def test_an_output_at_the_size_limit_is_accepted_and_above_it_rejected(
    harness: WorkerHarness, link: RecordingLink, over: int
) -> None:
    """The error code is the same for any size above the limit."""
    work, most = claim_work(harness, link), harness.engine.settings.limits.output_bytes_max - len('""')
    with pytest.raises(BadInput) as refused:
        link.complete(Complete(lease=work.lease, output="x" * (most + over)))
    assert refused.value.code == "output_too_large"
    link.upload(work, MADE, BODY, lambda: None)
    assert link.complete(Complete(lease=work.lease, output="x" * most, files=[MADE])).status == "completed"


def test_large_outputs_of_earlier_stages_are_returned_completely(harness: WorkerHarness, link: RecordingLink) -> None:
    """The link joins the pages of the server."""
    job_id = harness.submit(StageSpec(name="draw", kind="draw", tasks=6), StageSpec(name="cut", kind="draw"))
    for no in range(6):
        (work,) = link.claim(Claim(count=1, kinds=["draw"])).tasks
        link.upload(work, MADE, BODY, lambda: None)
        link.complete(Complete(lease=work.lease, output=f"{no}" * 1_000_000, files=[MADE]))
    (work,) = link.claim(Claim(count=1, kinds=["draw"])).tasks
    previous_outputs = link.previous_outputs(work)
    assert [(one.stage, one.stage_no, one.task_no, one.output[:1]) for one in previous_outputs] == [
        ("draw", 1, no + 1, f"{no}") for no in range(6)
    ]
    assert [[file.name for file in one.files] for one in previous_outputs] == [["a.bin"]] * 6
    assert harness.files(job_id)[5].id == link.input_file(work, previous_outputs[5].files[0].id).id
    link.complete(Complete(lease=work.lease))


def test_a_lease_of_another_worker_raises_lease_lost(harness: WorkerHarness, link: RecordingLink) -> None:
    work = claim_work(harness, link)
    unknown = replace(work, lease=replace(work.lease, task_id="no-such-task"))
    for call in (
        lambda: link.fail(Fail(lease=unknown.lease)), lambda: link.previous_outputs(unknown),
        lambda: link.input_file(unknown, "f"),
        lambda: link.upload(unknown, MADE, BODY, lambda: None),
    ):  # fmt: skip
        with pytest.raises(LeaseLost):
            call()
    assert link.fail(Fail(lease=work.lease, retryable=False)).status == "failed"
