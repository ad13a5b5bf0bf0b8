"""Storage that stays tidy: what was kept long enough goes, orphans go within their bound, what is needed never does."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callsheet.blobs import keys
from callsheet.blobs.base import StorageAway
from callsheet.config import Settings
from callsheet.core.clock import SECOND
from callsheet.core.commands import Complete, DropFiles, FinishUpload
from callsheet.core.limits import Limits
from callsheet.core.rows import Audit, File
from callsheet.engine.filekeeping import Keeper, Orphans, Tally, check_files
from tests.engine.conftest import OpenStudio
from tests.support.faulty import faulty_engine, once
from tests.support.storage import BODY, GRACE, PICTURE, Folder, announce, announcing, bring, key_of, whole_pass
from tests.support.studio import TENANT, Studio

KEPT = Settings(limits=Limits(upload_seconds_max=500, upload_keep_seconds=2_000), patience_seconds=5)


@pytest.fixture
def folder(studio: Studio, tmp_path: Path) -> Folder:
    return Folder(tmp_path / "files", studio.clock)


@pytest.fixture
def orphans(studio: Studio, folder: Folder) -> Orphans:
    return Orphans(studio.read, folder, GRACE, page=3)


def row(studio: Studio, file: File) -> File:
    return File(*studio.read.fetch("files_read", ids=[file.id])[0])


def audit(studio: Studio) -> list[Audit]:
    """Return what the house says of files that it dropped."""
    lines = [Audit(*found) for found in studio.read.fetch("audit_of", tenant=TENANT, all=0, before="~", count=50)]
    return [line for line in lines if (line.actor, line.action) == ("retention", "files.drop")]


# -- retention


def test_what_was_kept_long_enough_goes_with_its_bytes_and_a_line_in_the_audit_log(
    open_studio: OpenStudio, tmp_path: Path
) -> None:
    studio = open_studio(KEPT)
    folder = Folder(tmp_path / "files", studio.clock)
    keeper = Keeper(studio.engine, folder, page=2)
    studio.workflow("brief", keep_seconds=2_000)
    job = studio.ask("brief")
    lease = studio.take()
    folder.put(key_of(lease))
    studio.do(Complete(lease=lease, files=(PICTURE,)))
    files = [bring(studio, folder) for _ in range(4)]
    [made] = [File(*found) for found in studio.read.fetch("files_of", id=job)]
    studio.advance(1_999)
    assert (keeper.run_once(studio.clock.now()), len(folder.all())) == (0, 5)
    studio.advance(1)
    assert (keeper.run_once(studio.clock.now()), folder.all()) == (5, set())
    assert {row(studio, file).status for file in (*files, made)} == {"dropped"}
    assert keeper.run_once(studio.clock.now()) == 0
    dropped = [msgspec.json.decode(line.data or "") for line in audit(studio)]
    assert (sum(one["files"] for one in dropped), sum(one["bytes"] for one in dropped)) == (5, 5 * len(BODY))


def test_without_a_word_about_it_files_are_kept_for_ever(studio: Studio, folder: Folder) -> None:
    file = bring(studio, folder)
    studio.advance(10 * 366 * 86_400)
    assert Keeper(studio.engine, folder).run_once(studio.clock.now()) == 0
    assert folder.all() == {keys.of(file)}


def test_an_upload_whose_bytes_never_came_or_were_never_finished_goes(studio: Studio, folder: Folder) -> None:
    never, unfinished = announce(studio), announce(studio)
    folder.put(keys.of(unfinished))
    keeper = Keeper(studio.engine, folder)
    studio.advance(Limits().upload_seconds_max - 1)
    assert keeper.run_once(studio.clock.now()) == 0
    studio.advance(1)
    assert (keeper.run_once(studio.clock.now()), folder.all()) == (2, set())
    assert studio.refused(FinishUpload(tenant=TENANT, file_id=never.id)).code == "file_not_found"


def test_a_file_that_an_open_job_needs_outlives_its_time(open_studio: OpenStudio, tmp_path: Path) -> None:
    studio = open_studio(KEPT)
    folder = Folder(tmp_path / "files", studio.clock)
    keeper = Keeper(studio.engine, folder)
    file = bring(studio, folder)
    studio.ask(input={"picture": {"$file": file.id}})
    lease = studio.take(lease_seconds=50_000)
    studio.advance(2_000)
    assert (keeper.run_once(studio.clock.now()), len(folder.all())) == (0, 1)
    studio.complete(lease)
    studio.advance(3_600)
    assert (keeper.run_once(studio.clock.now()), folder.all()) == (1, set())


def test_a_storage_that_is_away_loses_nothing_that_the_collector_does_not_find(
    open_studio: OpenStudio, tmp_path: Path
) -> None:
    """The rows are committed before the bytes go: as after a crash in between."""
    studio = open_studio(KEPT)
    folder = Folder(tmp_path / "files", studio.clock)
    for _ in range(3):
        bring(studio, folder)
    studio.advance(2_000)
    folder.away = True
    with pytest.raises(StorageAway):
        Keeper(studio.engine, folder, page=1).run_once(studio.clock.now())
    folder.away = False
    assert (Keeper(studio.engine, folder).run_once(studio.clock.now()), len(folder.all())) == (0, 3)
    whole_pass(Orphans(studio.read, folder, GRACE), studio.clock.now())
    assert folder.all() == set()


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_cut_commit_leaves_is_done_once_and_its_bytes_are_found(
    open_studio: OpenStudio, tmp_path: Path, when: Any
) -> None:
    studio = open_studio(KEPT)
    folder = Folder(tmp_path / "files", studio.clock)
    with faulty_engine(studio.database, once(when)) as engine:
        file = engine.execute(announcing())
    assert [row(studio, file).id, row(studio, file).status] == [file.id, "awaited"]
    folder.put(keys.of(file))
    studio.do(FinishUpload(tenant=TENANT, file_id=file.id))
    studio.advance(2_000)
    with faulty_engine(studio.database, once(when)) as engine:
        Keeper(engine, folder).run_once(studio.clock.now())
    assert row(studio, file).status == "dropped"
    assert [line.data for line in audit(studio)] == [f'{{"bytes":{len(BODY)},"files":1}}']
    whole_pass(Orphans(studio.read, folder, GRACE), studio.clock.now())
    assert folder.all() == set()


# -- orphans


def test_what_a_running_lease_has_put_is_never_taken_however_old_it_is(
    studio: Studio, folder: Folder, orphans: Orphans
) -> None:
    studio.ask()
    lease = studio.take(lease_seconds=50 * GRACE)
    folder.put(key_of(lease))
    folder.put(key_of(lease, None))
    studio.advance(40 * GRACE)
    whole_pass(orphans, studio.clock.now())
    assert folder.all() == {key_of(lease), key_of(lease, None)}
    studio.do(Complete(lease=lease, files=(PICTURE,)))
    whole_pass(orphans, studio.clock.now())
    assert folder.all() == {key_of(lease)}, "the preview goes with its try"


def test_a_late_put_of_a_fenced_worker_goes_and_the_result_stays(
    studio: Studio, folder: Folder, orphans: Orphans
) -> None:
    # R236
    studio.ask()
    stale = studio.take(lease_seconds=1)
    studio.advance(2)
    studio.advance(60)
    fresh = studio.take(worker="w2")
    for lease in (stale, fresh):
        folder.put(key_of(lease))
    folder.put(key_of(fresh, 2))
    studio.do(Complete(lease=fresh, files=(PICTURE,)))
    studio.advance(GRACE - 1)
    whole_pass(orphans, studio.clock.now())
    assert len(folder.all()) == 3
    studio.advance(1)
    whole_pass(orphans, studio.clock.now())
    assert folder.all() == {key_of(fresh)}, "neither the stale try's nor what the result does not name"


def test_what_is_put_after_a_deletion_goes(studio: Studio, folder: Folder, orphans: Orphans) -> None:
    # R367
    upload = bring(studio, folder)
    job = studio.ask()
    lease = studio.take()
    studio.delete(job)
    studio.do(DropFiles(tenant=TENANT, file_ids=(upload.id,)))
    folder.delete_prefix(keys.job_prefix(TENANT, job))
    folder.delete([keys.of(upload)])
    folder.put(key_of(lease))
    folder.put(keys.of(upload))
    studio.advance(GRACE)
    whole_pass(orphans, studio.clock.now())
    assert folder.all() == set()


def test_objects_of_no_row_go_unless_they_are_older_than_the_database(
    studio: Studio, folder: Folder, orphans: Orphans
) -> None:
    nobody = "00000000-0000-7000-8000-000000000000"
    now = [keys.uploaded(TENANT, nobody), keys.made(TENANT, nobody, nobody, 1, 1)]
    before = [keys.uploaded("t2", nobody), keys.preview("t2", nobody, nobody, 1)]
    for key in (*now, *before):
        folder.put(key)
    old = studio.clock.now() - SECOND
    for key in before:
        os.utime(folder.path(key), ns=(old * 1_000,) * 2)
    folder.put("not/ours")
    studio.advance(GRACE)
    assert orphans.look(studio.clock.now()).after is not None
    looked = Orphans(studio.read, folder, GRACE).look(studio.clock.now())
    assert looked.tally == Tally(objects=5, unknown=2, foreign=1, orphans=2, bytes=2 * len(BODY))
    whole_pass(orphans, studio.clock.now())
    assert folder.all() == {*before, "not/ours"}


def test_a_pass_goes_page_by_page_and_then_begins_again(studio: Studio, folder: Folder, orphans: Orphans) -> None:
    files = [bring(studio, folder) for _ in range(7)]
    assert whole_pass(orphans, studio.clock.now()) == 3
    late = announce(studio)
    folder.put(keys.of(late))
    studio.do(DropFiles(tenant=TENANT, file_ids=(late.id,)))
    studio.advance(GRACE)
    assert whole_pass(orphans, studio.clock.now()) == 3
    assert folder.all() == {keys.of(file) for file in files}


# -- proof


def test_a_ready_file_whose_bytes_are_gone_or_others_is_a_violation(studio: Studio, folder: Folder) -> None:
    files = [bring(studio, folder) for _ in range(5)]
    announce(studio)
    assert check_files(studio.read, folder, page=2) == []
    folder.delete([keys.of(files[0])])
    folder.put(keys.of(files[1]), BODY + b"!", over=True)
    folder.put(keys.of(files[2]), BODY[:-1] + b"!", over=True)
    [violation] = check_files(studio.read, folder, page=2)
    assert (violation.name, violation.count) == ("O8", 3)
    assert {(one["file"], one["bytes_there"]) for one in violation.rows} == {
        (files[0].id, None), (files[1].id, len(BODY) + 1), (files[2].id, len(BODY)),
    }  # fmt: skip
    assert check_files(studio.read, folder, newest=2, page=1) == []
    assert check_files(studio.read, folder, newest=3)[0].count == 1
