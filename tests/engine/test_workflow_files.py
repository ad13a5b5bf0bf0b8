"""Files that workflows name: there when a workflow is put, and there for as long as anybody is handed them."""

from functools import partial
from pathlib import Path

from callsheet.config import Settings
from callsheet.core.commands import Delete, DropFiles, PutWorkflow, Retry
from callsheet.core.errors import Refusal
from callsheet.core.limits import Limits
from callsheet.core.recipe import Recipe
from callsheet.engine.filekeeping import Keeper
from tests.engine.conftest import OpenStudio
from tests.engine.test_files import PICTURE, files, hand_in
from tests.support.racing import amiss, at_once, refusals, servers
from tests.support.storage import Folder, announce, bring
from tests.support.studio import TENANT, Studio, stage

KEPT = Settings(limits=Limits(upload_keep_seconds=2_000), patience_seconds=5)
ROUNDS = 15


def styled(key: str, owner: str | None = TENANT) -> PutWorkflow:
    """Return a workflow whose stage takes a file of the workflow's own."""
    own = stage(inputs=[{"style": {"$file": key}}])
    return PutWorkflow(recipe=Recipe(name="styled", stages=[own]), owner=owner)


def drop(key: str) -> DropFiles:
    return DropFiles(tenant=TENANT, file_ids=(key,))


def test_a_named_file_outlives_its_time_and_is_deleted_once_nothing_names_it(
    open_studio: OpenStudio, tmp_path: Path
) -> None:
    studio = open_studio(KEPT)
    folder = Folder(tmp_path / "files", studio.clock)
    keeper = Keeper(studio.engine, folder)
    style = bring(studio, folder)
    studio.do(styled(style.id))
    refused = studio.refused(drop(style.id))
    assert (refused.code, "the workflow 'styled'" in refused.message) == ("file_in_use", True)
    studio.advance(2_000)
    assert (keeper.run_once(studio.clock.now()), len(folder.all())) == (0, 1)
    studio.workflow("styled")
    studio.advance(3_600)
    assert (keeper.run_once(studio.clock.now()), folder.all()) == (1, set())
    assert amiss(studio) == []


def test_jobs_of_an_older_version_keep_their_files(studio: Studio, tmp_path: Path) -> None:
    style = bring(studio, Folder(tmp_path / "files", studio.clock))
    studio.do(styled(style.id))
    job = studio.ask("styled")
    studio.workflow("styled")
    assert "'styled'" in studio.refused(drop(style.id)).message
    studio.fail(studio.take())
    assert studio.retry(job).status == "queued"
    studio.fail(studio.take())
    assert studio.do(drop(style.id)).bytes == style.bytes
    assert studio.refused(Retry(tenant=TENANT, job_id=job, actor="admin")).code == "file_not_found"


def test_a_job_whose_file_a_workflow_names_is_not_deleted(studio: Studio) -> None:
    job = studio.ask()
    hand_in(studio, studio.take(), PICTURE)
    [made] = files(studio, job)
    studio.do(styled(made.id))
    delete = Delete(tenant=TENANT, job_id=job)
    assert "the workflow 'styled'" in studio.refused(delete).message
    studio.workflow("styled")
    studio.do(delete)
    assert studio.refused(styled(made.id)).code == "invalid_workflow"


def test_what_is_not_there_or_not_ones_own_is_not_named(studio: Studio, tmp_path: Path) -> None:
    style = bring(studio, Folder(tmp_path / "files", studio.clock))
    for put in (styled("nowhere"), styled("a\0b"), styled(announce(studio).id), styled(style.id, "other")):
        assert studio.refused(put).code == "invalid_workflow"
    assert len(studio.read.fetch("current_workflows", ids=["styled"])) == 0
    assert studio.do(styled(style.id, None)).version == 1
    assert studio.do(styled(style.id, "other")).version == 1, "an equal one changes nothing, and names nothing new"


def test_of_a_workflow_and_a_deletion_at_once_one_wins(place: str, tmp_path: Path) -> None:
    with servers(place, 2) as (one, two):
        one.tenant()
        folder = Folder(tmp_path / "files", one.clock)
        for n in range(ROUNDS):
            style = bring(one, folder)
            first, second = (one, two) if n % 2 else (two, one)
            put, dropped = at_once(partial(first.do, styled(style.id)), partial(second.do, drop(style.id)))
            codes = refusals([put, dropped])
            assert codes == (["invalid_workflow"] if isinstance(put, Refusal) else ["file_in_use"])
            assert amiss(one) == []
