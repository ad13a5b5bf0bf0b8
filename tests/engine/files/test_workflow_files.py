"""Files that workflows name: there when a workflow is put, and there for as long as anybody is handed them."""

from functools import partial
from pathlib import Path

from callsheet.config import Settings
from callsheet.core.model.commands import Delete, DeleteFiles, PutWorkflow, Retry
from callsheet.core.model.errors import Refusal
from callsheet.core.model.workflow_definition import WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from callsheet.engine.loops.file_retention import FileRetention
from tests.engine.files.test_files import PICTURE, complete, files
from tests.support.doubles.virtual_time_blobs import VirtualTimeBlobs, create_upload, upload_file
from tests.support.engine.concurrency import find_violations, refusals, run_concurrently, servers
from tests.support.engine.engine_harness import TENANT, EngineHarness, OpenHarness, stage

KEPT = Settings(limits=Limits(upload_retention_seconds=2_000), database_retry_seconds=5)
ROUNDS = 15


def put_styled_workflow(key: str, owner: str | None = TENANT) -> PutWorkflow:
    """Return a workflow whose stage takes a file of the workflow's own."""
    own = stage(inputs=[{"style": {"$file": key}}])
    return PutWorkflow(definition=WorkflowDefinition(name="styled", stages=[own]), owner=owner)


def delete_file(key: str) -> DeleteFiles:
    return DeleteFiles(tenant=TENANT, file_ids=(key,))


def test_a_named_file_outlives_its_time_and_is_deleted_once_nothing_names_it(
    open_harness: OpenHarness, tmp_path: Path
) -> None:
    harness = open_harness(KEPT)
    folder = VirtualTimeBlobs(tmp_path / "files", harness.clock)
    keeper = FileRetention(harness.engine, folder)
    style = upload_file(harness, folder)
    harness.do(put_styled_workflow(style.id))
    refused = harness.expect_refusal(delete_file(style.id))
    assert (refused.code, "the workflow 'styled'" in refused.message) == ("file_in_use", True)
    harness.advance(2_000)
    assert (keeper.run_once(harness.clock.now()), len(folder.all())) == (0, 1)
    harness.workflow("styled")
    harness.advance(3_600)
    assert (keeper.run_once(harness.clock.now()), folder.all()) == (1, set())
    assert find_violations(harness) == []


def test_jobs_of_an_older_version_keep_their_files(harness: EngineHarness, tmp_path: Path) -> None:
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


def test_a_job_whose_file_a_workflow_names_is_not_deleted(harness: EngineHarness) -> None:
    job = harness.submit_job()
    complete(harness, harness.claim_one(), PICTURE)
    [made] = files(harness, job)
    harness.do(put_styled_workflow(made.id))
    delete = Delete(tenant=TENANT, job_id=job)
    assert "the workflow 'styled'" in harness.expect_refusal(delete).message
    harness.workflow("styled")
    harness.do(delete)
    assert harness.expect_refusal(put_styled_workflow(made.id)).code == "invalid_workflow"


def test_what_is_not_there_or_not_ones_own_is_not_named(harness: EngineHarness, tmp_path: Path) -> None:
    style = upload_file(harness, VirtualTimeBlobs(tmp_path / "files", harness.clock))
    for put in (
        put_styled_workflow("nowhere"),
        put_styled_workflow("a\0b"),
        put_styled_workflow(create_upload(harness).id),
        put_styled_workflow(style.id, "other"),
    ):
        assert harness.expect_refusal(put).code == "invalid_workflow"
    assert len(harness.reads.fetch("current_workflows", ids=["styled"])) == 0
    assert harness.do(put_styled_workflow(style.id, None)).version == 1
    assert harness.do(put_styled_workflow(style.id, "other")).version == 1, (
        "an equal one changes nothing, and names nothing new"
    )


def test_of_a_workflow_and_a_deletion_at_once_one_wins(database_url: str, tmp_path: Path) -> None:
    with servers(database_url, 2) as (one, two):
        one.tenant()
        folder = VirtualTimeBlobs(tmp_path / "files", one.clock)
        for n in range(ROUNDS):
            style = upload_file(one, folder)
            first, second = (one, two) if n % 2 else (two, one)
            put, deleted = run_concurrently(
                partial(first.do, put_styled_workflow(style.id)), partial(second.do, delete_file(style.id))
            )
            codes = refusals([put, deleted])
            assert codes == (["invalid_workflow"] if isinstance(put, Refusal) else ["file_in_use"])
            assert find_violations(one) == []
