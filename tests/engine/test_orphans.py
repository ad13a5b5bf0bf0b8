"""Random histories of files: an orphan goes within its bound, and what a row names never does."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callsheet.blobs import keys
from callsheet.core.commands import Complete, DropFiles, FinishUpload, Lease
from callsheet.core.errors import Refusal
from callsheet.core.orphans import fate_of_output
from callsheet.core.rows import File
from callsheet.engine import filekeeping
from callsheet.engine.filekeeping import Keeper, Orphans, check_files
from tests.support.storage import GRACE, PICTURE, Folder, announce, key_of
from tests.support.studio import TENANT, Studio, stage


@pytest.fixture
def folder(studio: Studio, tmp_path: Path) -> Folder:
    return Folder(tmp_path / "files", studio.clock)


class Life:
    """A random history of files; the bytes of every key are remembered."""

    def __init__(self, studio: Studio, folder: Folder, seed: int) -> None:
        self.studio = studio
        self.folder = folder
        self.random = random.Random(seed)
        self.keeper = Keeper(studio.engine, folder, page=3)
        self.orphans = Orphans(studio.read, folder, GRACE, page=4)
        self.awaited: list[File] = []
        self.files: list[str] = []
        self.leases: list[Lease] = []
        self.jobs: list[str] = []
        self.late: list[str] = []
        """Keys that somebody may still put, whatever has become of them."""

    def live(self, steps: int) -> None:
        acts: list[Callable[[], None]] = [
            self.announce, self.put, self.finish, self.submit, self.claim, self.draw, self.draw, self.complete,
            self.complete, self.lose, self.delete_job, self.delete_file, self.put_late, self.keep, self.sweep,
            self.wait,
        ]  # fmt: skip
        for _ in range(steps):
            with suppress(Refusal, IndexError):  # too late for it, or nothing to do it with
                self.random.choice(acts)()
        self.check()

    def announce(self) -> None:
        self.awaited.append(announce(self.studio))
        self.late.append(keys.of(self.awaited[-1]))

    def put(self) -> None:
        self.folder.put(keys.of(self.random.choice(self.awaited)))

    def finish(self) -> None:
        file = self.random.choice(self.awaited)
        if keys.of(file) in self.folder.all():
            self.studio.do(FinishUpload(tenant=TENANT, file_id=file.id))
            self.files.append(file.id)

    def submit(self) -> None:
        used = self.random.sample(self.files, min(len(self.files), self.random.randrange(3)))
        self.jobs.append(self.studio.ask("film", input=[{"$file": key} for key in used]))

    def claim(self) -> None:
        self.leases += [
            one.lease for one in self.studio.claim(count=2, lease_seconds=self.random.choice([50, 5 * GRACE]))
        ]

    def draw(self) -> None:
        lease = self.random.choice(self.leases)
        for no in self.random.sample([None, 1, 2], 2):
            self.folder.put(key_of(lease, no), over=no is None)
            self.late.append(key_of(lease, no))

    def complete(self) -> None:
        lease = self._taken()
        there = [no for no in (1, 2) if {key_of(lease, n) for n in range(1, no + 1)} <= self.folder.all()]
        made = tuple(msgspec.structs.replace(PICTURE, no=no) for no in there)
        self.studio.do(Complete(lease=lease, files=made))
        self.files += [found[0] for found in self.studio.read.fetch("files_of", id=lease.job_id)]

    def lose(self) -> None:
        lease = self._taken()
        self.random.choice([lambda: self.studio.fail(lease, retryable=True), lambda: self.studio.requeue(lease)])()

    def _taken(self) -> Lease:
        lease = self.random.choice(self.leases)
        self.leases.remove(lease)
        return lease

    def delete_job(self) -> None:
        job = self.random.choice(self.jobs)
        self.studio.delete(job)
        if self.random.random() < 0.5:  # else: a crash between the commit and the bytes
            self.folder.delete_prefix(keys.job_prefix(TENANT, job))

    def delete_file(self) -> None:
        dropped = self.studio.do(DropFiles(tenant=TENANT, file_ids=(self.random.choice(self.files),)))
        if self.random.random() < 0.5:
            self.folder.delete([keys.of(file) for file in dropped.files])

    def put_late(self) -> None:
        key = self.random.choice(self.late)
        self.folder.put(key, over=key.endswith("preview"))

    def keep(self) -> None:
        self.keeper.run_once(self.studio.clock.now())

    def wait(self) -> None:
        self.studio.advance(self.random.choice([1, 5, 10, 40, GRACE]))

    def sweep(self, pages: int = 1) -> None:
        """Let the collector look; what rows needed before is there after."""
        before = self.needed()
        for _ in range(pages):
            self.orphans.run_once(self.studio.clock.now())
        assert before <= self.folder.all()
        self.check()

    def check(self) -> None:
        """An object that a ready file names is there."""
        assert check_files(self.studio.read, self.folder) == []

    def needed(self) -> set[str]:
        """Return the keys that rows need, asked of the rows in another way than the collector does."""
        connection = self.studio.database.connect(reading=True)
        try:
            rows = connection.run("SELECT id, tenant, job_id, task_id, attempt, no FROM file WHERE status <> 'dropped'")
            tries = connection.run("SELECT job_id, task_id, no FROM attempt WHERE ended_at IS NULL")
        finally:
            connection.close()
        files = {keys.made(tenant, *place) if place[0] else keys.uploaded(tenant, one) for one, tenant, *place in rows}
        begun = tuple(f"{TENANT}/jobs/{job}/{task}/{no}/" for job, task, no in tries)
        return {key for key in self.folder.all() if key in files or key.startswith(begun)}


def proved(studio: Studio, folder: Folder, seed: int) -> Life:
    """Let a history happen, wait for as long as an orphan may lie, and look at what is left."""
    studio.workflow("film", price=0, keep_seconds=3 * GRACE, stages=[stage("draw", tasks=2), stage("then", "draw")])
    life = Life(studio, folder, seed)
    life.live(250)
    studio.advance(GRACE)
    life.sweep(2 * len(folder.all()))
    assert folder.all() == life.needed()
    return life


@pytest.mark.parametrize("seed", range(3))
def test_an_orphan_goes_within_its_bound_and_what_a_row_names_never_does(
    studio: Studio, folder: Folder, seed: int
) -> None:
    # H27, O1, O5
    life = proved(studio, folder, seed)
    assert 0 < len(folder.all()) < len(set(life.late))


@pytest.mark.parametrize("forgets", ["leases", "results", "uploads", "to collect"])
def test_a_collector_that_forgets_something_is_found_out(
    studio: Studio, folder: Folder, monkeypatch: pytest.MonkeyPatch, forgets: str
) -> None:
    def wrong(tenant: str, job_id: str, no: int | None, made_by: Any, age: Any) -> Any:
        forgotten: dict[str, Any] = {"open": False} if forgets == "leases" else {"files": {}}
        return fate_of_output(tenant, job_id, no, made_by and made_by._replace(**forgotten), age)

    if forgets == "to collect":
        monkeypatch.setattr(Orphans, "run_once", lambda _self, _now: 0)
    elif forgets == "uploads":
        monkeypatch.setattr(filekeeping, "fate_of_upload", lambda *_: "orphan")
    else:
        monkeypatch.setattr(filekeeping, "fate_of_output", wrong)
    with pytest.raises(AssertionError):  # noqa: PT012 - one of them
        for seed in range(3):
            proved(studio, folder, seed)
