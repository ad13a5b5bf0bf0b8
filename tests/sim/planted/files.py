"""Bugs in uploads, file references and file retention."""

from typing import Any

import msgspec
import pytest

from callsheet.blobs import object_keys
from callsheet.core import prefetched_facts as facts
from callsheet.core.decisions import cascade, files, job_actions, lease, submit
from callsheet.core.model import commands
from callsheet.core.model.errors import NotFound
from callsheet.core.model.rows import File, Job, JobFile
from callsheet.core.policy.orphan_files import AttemptFiles, ObjectAge, ObjectState, classify_output
from callsheet.core.working_set import WorkingSet
from callsheet.engine.loops import file_retention, orphan_files
from tests.sim.planted.registry import bug, do_nothing, replace_decision


@bug
def a_needed_file_is_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "_needed_by", lambda _ws, _file: False)


@bug
def a_job_uses_a_file_of_another_user(patch: pytest.MonkeyPatch) -> None:
    def link_files(ws: WorkingSet, job: Job, body: str) -> None:
        for key in files.find_references(msgspec.json.decode(body)):
            file = ws.find(File, key)
            if file is None or file.status != "ready":
                raise NotFound("file", key)
            if ws.find(JobFile, (job.id, key)) is None:
                ws.put(JobFile(job.id, key))
            ws.set_fact(facts.NEEDED_BY, key, "")

    patch.setattr(submit, "link_files", link_files)


@bug
def a_retry_does_not_check_its_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_actions, "relink_files", do_nothing)


@bug
def deleting_a_job_deletes_files_of_an_open_job(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_actions, "check_files_unused", do_nothing)


@bug
def blobs_are_deleted_before_their_rows(patch: pytest.MonkeyPatch) -> None:
    def run_once(self: Any, now: int) -> int:
        rows = self._engine.reads.fetch("due_files", now=now, after_at=0, after_id="", count=self._page)
        due = [row[1] for row in rows]
        self._blobs.delete(
            [object_keys.file_key(File(*row)) for row in self._engine.reads.fetch("files_by_id", ids=due)]
        )
        self._engine.execute(commands.DeleteFiles(file_ids=tuple(due)))
        return 0

    patch.setattr(file_retention.FileRetention, "run_once", run_once)


@bug
def orphans_of_a_running_attempt_are_deleted(patch: pytest.MonkeyPatch) -> None:
    def classify(tenant: str, job_id: str, no: int | None, made_by: AttemptFiles | None, age: ObjectAge) -> ObjectState:
        closed = made_by._replace(open=False) if made_by else None
        return classify_output(tenant, job_id, no, closed, age)

    patch.setattr(orphan_files, "classify_output", classify)


@bug
def orphans_are_never_deleted(patch: pytest.MonkeyPatch) -> None:
    def scan_page(_self: Any, _now: int, _after: str = "") -> orphan_files.OrphanPage:
        return orphan_files.OrphanPage([], orphan_files.StorageCounts(), None)

    patch.setattr(orphan_files.OrphanCollector, "scan_page", scan_page)


@bug
def open_uploads_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    def create_upload(ws: WorkingSet, command: commands.CreateUpload) -> File:
        ws.set_fact(facts.PENDING_UPLOAD_COUNT, (command.tenant, command.user), 0)
        return files.create_upload(ws, command)

    replace_decision(patch, commands.CreateUpload, create_upload)


@bug
def a_completion_stores_no_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease, "_store_files", lambda _ws, job, _task, _command: job)


@bug
def a_deleted_file_still_counts_as_stored(patch: pytest.MonkeyPatch) -> None:
    real = files._change_usage  # noqa: SLF001 - the place of the bug

    def change_usage(ws: WorkingSet, tenant: str, *, stored: int = 0, pending: int = 0) -> None:
        real(ws, tenant, stored=max(stored, 0), pending=pending)

    patch.setattr(files, "_change_usage", change_usage)


@bug
def a_canceled_attempt_stays_announced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cascade, "release_outputs", lambda _ws, job, _attempt: job)


@bug
def the_quota_of_a_tenant_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "check_tenant_storage", do_nothing)


@bug
def the_limit_of_announced_bytes_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "check_pending_bytes", do_nothing)


@bug
def the_limit_of_the_outputs_of_a_job_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "check_job_outputs", do_nothing)


@bug
def reported_files_are_discarded(patch: pytest.MonkeyPatch) -> None:
    real = files.release_outputs
    patch.setattr(files, "release_outputs", lambda ws, job, attempt, _reported=(): real(ws, job, attempt))
