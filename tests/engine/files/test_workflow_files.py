"""Files that workflows refer to: they exist when a workflow is stored, and stay while it or its jobs need them."""

from functools import partial
from pathlib import Path

from callsheet.core.model.commands import Delete, DeleteFiles, PutWorkflow, Retry
from callsheet.core.model.errors import Refusal
from callsheet.core.model.workflow_definition import WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from callsheet.engine.loops.file_retention import FileRetention
from callsheet.settings import Settings
from tests.engine.files.test_files import PICTURE, complete, files
from tests.support.doubles.virtual_time_blobs import VirtualTimeBlobs, create_upload, upload_file
from tests.support.engine.concurrency import refusals, run_concurrently, servers
from tests.support.engine.engine_harness import TENANT, EngineHarness, OpenHarness, stage

SHORT_RETENTION = Settings(limits=Limits(upload_retention_seconds=2_000), database_retry_seconds=5)
ROUNDS = 15


def put_styled_workflow(key: str, owner: str | None = TENANT) -> PutWorkflow:
    """Return a command that stores a workflow whose stage refers to a file."""
    own = stage(inputs=[{"style": {"$file": key}}])
    return PutWorkflow(definition=WorkflowDefinition(name="styled", stages=[own]), owner=owner)


def delete_file(key: str) -> DeleteFiles:
    return DeleteFiles(tenant=TENANT, file_ids=(key,))


def test_a_file_of_a_workflow_is_kept_past_its_retention_until_no_workflow_refers_to_it(
    open_harness: OpenHarness, tmp_path: Path
) -> None:
    harness = open_harness(SHORT_RETENTION)
    blobs = VirtualTimeBlobs(tmp_path / "files", harness.clock)
    retention = FileRetention(harness.engine, blobs)
    style = upload_file(harness, blobs)
    harness.do(put_styled_workflow(style.id))
    refused = harness.expect_refusal(delete_file(style.id))
    assert (refused.code, "the workflow 'styled'" in refused.message) == ("file_in_use", True)
    harness.advance(2_000)
    assert (retention.run_once(harness.clock.now()), len(blobs.all())) == (0, 1)
    harness.workflow("styled")
    harness.advance(3_600)
    assert (retention.run_once(harness.clock.now()), blobs.all()) == (1, set())
    assert harness.find_violations() == []


def test_a_job_of_an_older_version_keeps_its_files(harness: EngineHarness, tmp_path: Path) -> None:
    style = upload_file(harness, VirtualTimeBlobs(tmp_path / "files", harness.clock))
    harness.do(put_styled_workflow(style.id))
    job = harness.submit_job("styled")
    harness.workflow("styled")
    assert "'styled'" in harness.expect_refusal(delete_file(style.id)).message
    harness.fail(harness.claim_one())
    assert harness.retry(job).status == "queued"
    harness.fail(harness.claim_one())
    assert harness.do(delete_file(style.id)).bytes == style.bytes
    assert harness.expect_refusal(Retry(tenant=TENANT, job_id=job, actor="admin")).code == "file_not_found"


def test_a_job_whose_file_a_workflow_refers_to_cannot_be_deleted(harness: EngineHarness) -> None:
    job = harness.submit_job()
    complete(harness, harness.claim_one(), PICTURE)
    [output] = files(harness, job)
    harness.do(put_styled_workflow(output.id))
    delete = Delete(tenant=TENANT, job_id=job)
    assert "the workflow 'styled'" in harness.expect_refusal(delete).message
    harness.workflow("styled")
    harness.do(delete)
    assert harness.expect_refusal(put_styled_workflow(output.id)).code == "invalid_workflow"


def test_a_workflow_cannot_refer_to_a_missing_file_or_a_file_of_another_tenant(
    harness: EngineHarness, tmp_path: Path
) -> None:
    style = upload_file(harness, VirtualTimeBlobs(tmp_path / "files", harness.clock))
    for put in (
        put_styled_workflow("unknown"),
        put_styled_workflow("a\x01b"),
        put_styled_workflow(create_upload(harness).id),
        put_styled_workflow(style.id, "other"),
    ):
        assert harness.expect_refusal(put).code == "invalid_workflow"
    assert len(harness.reads.fetch("current_workflows", ids=["styled"])) == 0
    assert harness.do(put_styled_workflow(style.id, None)).version == 1
    assert harness.do(put_styled_workflow(style.id, "other")).version == 1, "an equal definition creates no version"


def test_of_a_concurrent_workflow_and_deletion_one_wins(database_url: str, tmp_path: Path) -> None:
    with servers(database_url, 2) as (one, two):
        one.tenant()
        blobs = VirtualTimeBlobs(tmp_path / "files", one.clock)
        for n in range(ROUNDS):
            style = upload_file(one, blobs)
            first, second = (one, two) if n % 2 else (two, one)
            put, deleted = run_concurrently(
                partial(first.do, put_styled_workflow(style.id)), partial(second.do, delete_file(style.id))
            )
            codes = refusals([put, deleted])
            assert codes == (["invalid_workflow"] if isinstance(put, Refusal) else ["file_in_use"])
            assert one.find_violations() == []
