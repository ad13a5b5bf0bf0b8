"""Random histories of files: an orphan goes within its bound, and what a row names never does."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callsheet.blobs import object_keys
from callsheet.core.model.commands import Complete, DeleteFiles, FinishUpload, Lease
from callsheet.core.model.errors import Refusal
from callsheet.core.model.rows import File
from callsheet.core.policy.orphan_files import classify_output
from callsheet.engine.loops import orphan_files
from callsheet.engine.loops.file_retention import FileRetention
from callsheet.engine.loops.orphan_files import OrphanCollector
from callsheet.engine.stored_files_check import verify_files
from tests.support.doubles.virtual_time_blobs import GRACE_SECONDS, PICTURE, VirtualTimeBlobs, create_upload, key_of
from tests.support.engine.engine_harness import TENANT, EngineHarness, stage


@pytest.fixture
def folder(harness: EngineHarness, tmp_path: Path) -> VirtualTimeBlobs:
    return VirtualTimeBlobs(tmp_path / "files", harness.clock)


class RandomFileHistory:
    """A random history of files; the bytes of every key are remembered."""

    def __init__(self, harness: EngineHarness, folder: VirtualTimeBlobs, seed: int) -> None:
        self.harness = harness
        self.folder = folder
        self.random = random.Random(seed)
        self.keeper = FileRetention(harness.engine, folder, page=3)
        self.orphans = OrphanCollector(harness.reads, folder, GRACE_SECONDS, page=4)
        self.uploading: list[File] = []
        self.files: list[str] = []
        self.leases: list[Lease] = []
        self.jobs: list[str] = []
        self.late: list[str] = []
        """Keys that somebody may still put, whatever has become of them."""

    def run(self, steps: int) -> None:
        acts: list[Callable[[], None]] = [
            self.create_upload, self.put, self.finish, self.submit, self.claim, self.draw, self.draw, self.complete,
            self.complete, self.lose, self.delete_job, self.delete_file, self.put_late, self.keep, self.sweep,
            self.wait,
        ]  # fmt: skip
        for _ in range(steps):
            with suppress(Refusal, IndexError):  # too late for it, or nothing to do it with
                self.random.choice(acts)()
        self.check()

    def create_upload(self) -> None:
        self.uploading.append(create_upload(self.harness))
        self.late.append(object_keys.file_key(self.uploading[-1]))

    def put(self) -> None:
        self.folder.put(object_keys.file_key(self.random.choice(self.uploading)))

    def finish(self) -> None:
        file = self.random.choice(self.uploading)
        if object_keys.file_key(file) in self.folder.all():
            self.harness.do(FinishUpload(tenant=TENANT, file_id=file.id))
            self.files.append(file.id)

    def submit(self) -> None:
        used = self.random.sample(self.files, min(len(self.files), self.random.randrange(3)))
        self.jobs.append(self.harness.submit_job("film", input=[{"$file": key} for key in used]))

    def claim(self) -> None:
        self.leases += [
            one.lease for one in self.harness.claim(count=2, lease_seconds=self.random.choice([50, 5 * GRACE_SECONDS]))
        ]

    def draw(self) -> None:
        lease = self.random.choice(self.leases)
        for no in self.random.sample([None, 1, 2], 2):
            self.folder.put(key_of(lease, no), overwrite=no is None)
            self.late.append(key_of(lease, no))

    def complete(self) -> None:
        lease = self._take_lease()
        there = [no for no in (1, 2) if {key_of(lease, n) for n in range(1, no + 1)} <= self.folder.all()]
        made = tuple(msgspec.structs.replace(PICTURE, no=no) for no in there)
        self.harness.do(Complete(lease=lease, files=made))
        self.files += [found[0] for found in self.harness.reads.fetch("files_of", id=lease.job_id)]

    def lose(self) -> None:
        lease = self._take_lease()
        self.random.choice([lambda: self.harness.fail(lease, retryable=True), lambda: self.harness.requeue(lease)])()

    def _take_lease(self) -> Lease:
        lease = self.random.choice(self.leases)
        self.leases.remove(lease)
        return lease

    def delete_job(self) -> None:
        job = self.random.choice(self.jobs)
        self.harness.delete(job)
        if self.random.random() < 0.5:  # else: a crash between the commit and the bytes
            self.folder.delete_prefix(object_keys.job_prefix(TENANT, job))

    def delete_file(self) -> None:
        deleted = self.harness.do(DeleteFiles(tenant=TENANT, file_ids=(self.random.choice(self.files),)))
        if self.random.random() < 0.5:
            self.folder.delete([object_keys.file_key(file) for file in deleted.files])

    def put_late(self) -> None:
        key = self.random.choice(self.late)
        self.folder.put(key, overwrite=key.endswith("preview"))

    def keep(self) -> None:
        self.keeper.run_once(self.harness.clock.now())

    def wait(self) -> None:
        self.harness.advance(self.random.choice([1, 5, 10, 40, GRACE_SECONDS]))

    def sweep(self, pages: int = 1) -> None:
        """Let the collector look; what rows needed before is there after."""
        before = self.needed()
        for _ in range(pages):
            self.orphans.run_once(self.harness.clock.now())
        assert before <= self.folder.all()
        self.check()

    def check(self) -> None:
        """An object that a ready file names is there."""
        assert verify_files(self.harness.reads, self.folder) == []

    def needed(self) -> set[str]:
        """Return the keys that rows need, asked of the rows in another way than the collector does."""
        connection = self.harness.database.connect(reading=True)
        try:
            rows = connection.run("SELECT id, tenant, job_id, task_id, attempt, no FROM file WHERE status <> 'deleted'")
            tries = connection.run("SELECT job_id, task_id, no FROM attempt WHERE ended_at IS NULL")
        finally:
            connection.close()
        files = {
            object_keys.output_key(tenant, *database_url) if database_url[0] else object_keys.upload_key(tenant, one)
            for one, tenant, *database_url in rows
        }
        begun = tuple(f"{TENANT}/jobs/{job}/{task}/{no}/" for job, task, no in tries)
        return {key for key in self.folder.all() if key in files or key.startswith(begun)}


def run_and_check(harness: EngineHarness, folder: VirtualTimeBlobs, seed: int) -> RandomFileHistory:
    """Let a history happen, wait for as long as an orphan may lie, and look at what is left."""
    harness.workflow(
        "film", price=0, retention_seconds=3 * GRACE_SECONDS, stages=[stage("draw", tasks=2), stage("then", "draw")]
    )
    history = RandomFileHistory(harness, folder, seed)
    history.run(250)
    harness.advance(GRACE_SECONDS)
    history.sweep(2 * len(folder.all()))
    assert folder.all() == history.needed()
    return history


@pytest.mark.parametrize("seed", range(3))
def test_an_orphan_goes_within_its_bound_and_what_a_row_names_never_does(
    harness: EngineHarness, folder: VirtualTimeBlobs, seed: int
) -> None:
    # H27, O1, O5
    history = run_and_check(harness, folder, seed)
    assert 0 < len(folder.all()) < len(set(history.late))


@pytest.mark.parametrize("forgets", ["leases", "results", "uploads", "to collect"])
def test_a_collector_that_forgets_something_is_found_out(
    harness: EngineHarness, folder: VirtualTimeBlobs, monkeypatch: pytest.MonkeyPatch, forgets: str
) -> None:
    def wrong(tenant: str, job_id: str, no: int | None, made_by: Any, age: Any) -> Any:
        forgotten: dict[str, Any] = {"open": False} if forgets == "leases" else {"files": {}}
        return classify_output(tenant, job_id, no, made_by and made_by._replace(**forgotten), age)

    if forgets == "to collect":
        monkeypatch.setattr(OrphanCollector, "run_once", lambda _self, _now: 0)
    elif forgets == "uploads":
        monkeypatch.setattr(orphan_files, "classify_upload", lambda *_: "orphan")
    else:
        monkeypatch.setattr(orphan_files, "classify_output", wrong)
    with pytest.raises(AssertionError):  # noqa: PT012 - one of them
        for seed in range(3):
            run_and_check(harness, folder, seed)
