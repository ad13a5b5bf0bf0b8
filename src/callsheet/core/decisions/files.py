"""Files: uploads, references from inputs, deletion.

An input refers to a file with the object `{"$file": "<id>"}`, anywhere in its tree. A file that an open job or a
current workflow needs is not deleted.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

import msgspec
from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.decisions.lease_check import get_leased_task
from callsheet.core.model.clock import SECOND, seconds
from callsheet.core.model.commands import AnnounceOutputs, CreateUpload, DeleteFiles, FinishUpload
from callsheet.core.model.errors import BadInput, Conflict, NotFound
from callsheet.core.model.header_value_patterns import MEDIA_TYPE, SHA256
from callsheet.core.model.ids import child_id
from callsheet.core.model.plural import pluralize
from callsheet.core.model.rows import Attempt, Audit, File, Job, JobFile, StorageUsage, Tenant, WorkflowFile
from callsheet.core.model.workflow_definition import WorkflowDefinition, check_range
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.storage_quota import (
    PREVIEW,
    DiscardedOutputs,
    announced_sizes,
    check_job_outputs,
    check_pending_bytes,
    check_tenant_storage,
)
from callsheet.core.working_set import WorkingSet, encode

REFERENCE_KEY = "$file"
_REFERENCE_JSON = f'"{REFERENCE_KEY}"'
_RECHECK_SECONDS = 3_600
"""Delay before an expired file that is still needed is checked again."""
_COUNTED_AS = {"uploading": "pending", "ready": "stored"}
"""How the bytes of a file count towards the usage of its tenant, by status."""


# -- references


def find_references(value: Any, most: int | None = None) -> Iterator[str]:
    """Yield the ids of the files that a value refers to, breadth first, in at most about `most` items."""
    layer, visited = [value], 0
    while layer and (most is None or visited < most):
        visited += len(layer)
        deeper: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                if isinstance(found := item.get(REFERENCE_KEY), str):
                    yield found
                deeper.extend(item.values())
            elif isinstance(item, list):
                deeper.extend(item)
        layer = deeper


def is_storable_id(key: str) -> bool:
    """Return whether an id can be looked up: a NUL character would make PostgreSQL reject the whole batch."""
    return "\0" not in key


def link_files(ws: WorkingSet, job: Job, body: str) -> None:
    """Link a job to the files in its input. They must exist and belong to the job's user."""
    if _REFERENCE_JSON not in body:
        return
    found = list(dict.fromkeys(find_references(msgspec.json.decode(body))))
    check_range("the number of files", len(found), 0, ws.limits.files_per_task_max)
    for key in found:
        file = ws.find(File, key) if is_storable_id(key) else None
        if file is None or (file.tenant, file.user_id) != (job.tenant, job.user_id) or _is_deleted(ws, file):
            raise NotFound("file", key[:80])
        if file.status == "uploading":
            message = f"The file {file.name!r} is still uploading: upload its bytes and finish the upload first."
            raise Conflict("file_not_finished", message)
        if ws.find(JobFile, (job.id, key)) is None:
            ws.put(JobFile(job.id, key))
        _mark_needed(ws, job, file)


def relink_files(ws: WorkingSet, job: Job) -> None:
    """Mark the files of a retried job as needed. Refuses the retry if one of them was deleted."""
    for _, key in ws.get_fact(facts.FILE_LINKS_OF_JOB, job.id):
        file = ws.find(File, key)
        if file is None or _is_deleted(ws, file):
            raise NotFound("file", key[:80])
        _mark_needed(ws, job, file)
    for key in ws.get_fact(facts.OUTPUT_FILES_OF_JOB, job.id):
        created = ws.get(File, key)
        if created.status == "deleted":
            message = f"The output file {created.name!r} was deleted: retry with `retry_as=new_job`."
            raise Conflict("file_deleted", message)
        _mark_needed(ws, job, created)


def _is_deleted(ws: WorkingSet, file: File) -> bool:
    return file.status == "deleted" or file.job_id in ws.purged_job_ids


def _mark_needed(ws: WorkingSet, job: Job, file: File) -> None:
    """Record for the rest of the batch that a job needs the file."""
    ws.set_fact(facts.NEEDED_BY, file.id, "")
    if file.job_id not in {None, job.id}:
        ws.set_fact(facts.NEEDED_BY_OTHERS, file.id, "")


def check_files_unused(ws: WorkingSet, job: Job) -> None:
    """Refuse to delete a job while another open job or a workflow needs one of its files."""
    for key in ws.get_fact(facts.OUTPUT_FILES_OF_JOB, job.id):
        if (by := ws.get_fact(facts.NEEDED_BY_OTHERS, key)) is not None:
            message = (
                f"The file {ws.get(File, key).name!r} of this job is used by {_describe_user(by)}: delete it later."
            )
            raise Conflict("file_in_use", message)


def _describe_user(workflow: str) -> str:
    """Return what uses a file: the named workflow, or a job if the name is empty."""
    return f"the workflow {workflow!r}" if workflow else "a job that has not ended"


# -- files of workflows


def workflow_file_ids(definition: WorkflowDefinition, most: int | None = None) -> Iterator[str]:
    """Yield the ids of the files that a workflow definition refers to."""
    for stage in definition.stages:
        own = stage.comfyui
        values = [stage.inputs] if own is None else [stage.inputs, own.defaults, own.overrides]
        yield from find_references(values, most)


def link_workflow_files(ws: WorkingSet, definition: WorkflowDefinition, version: int, owner: str | None) -> None:
    """Link a version of a workflow to its files. They are kept while the version is current or has open jobs."""
    found = list(dict.fromkeys(workflow_file_ids(definition)))
    check_range(f"the number of files that {definition.name!r} names", len(found), 0, ws.limits.bulk_items_max)
    for key in found:
        file = ws.find(File, key) if is_storable_id(key) else None
        if file is None or file.status != "ready" or _is_deleted(ws, file) or owner not in {None, file.tenant}:
            whose = "" if owner is None else f" of the tenant {owner!r}"
            raise BadInput(
                "invalid_workflow",
                f"Workflow {definition.name!r} refers to the file {key[:80]!r}, but no finished file{whose} has this "
                "id: upload it first.",
            )
        ws.append(WorkflowFile(definition.name, version, key))
        ws.set_fact(facts.NEEDED_BY, key, definition.name)
        ws.set_fact(facts.NEEDED_BY_OTHERS, key, definition.name)


def check_workflow_files(ws: WorkingSet, definition: WorkflowDefinition) -> None:
    """Refuse to retry a job if a file of its workflow version was deleted."""
    for key in workflow_file_ids(definition):
        file = ws.find(File, key)
        if file is None or _is_deleted(ws, file):
            raise NotFound("file", key[:80])


# -- uploads


def create_upload(ws: WorkingSet, command: CreateUpload) -> File:
    """Create an upload: the file's row, before its bytes arrive. Limits the unfinished uploads of a user."""
    existing = ws.find(File, command.id)
    if existing is not None:
        return existing
    limits = ws.limits
    tenant = ws.find(Tenant, command.tenant)
    if tenant is None:
        raise NotFound("tenant", command.tenant[:80])
    if not command.user or len(command.user) > limits.key_chars_max or not command.user.isprintable():
        raise BadInput("invalid_user", f"The user id must have 1 to {limits.key_chars_max} printable characters.")
    check_file(command.name, command.media_type, command.bytes, command.sha256, limits)
    owner = (command.tenant, command.user)
    waiting = ws.get_fact(facts.PENDING_UPLOAD_COUNT, owner)
    if waiting >= limits.uploads_pending_max:
        raise Conflict(
            "too_many_uploads",
            f"This user has {pluralize(waiting, 'unfinished upload')}; at most {limits.uploads_pending_max} are "
            "allowed: finish one first.",
            waiting=waiting, max=limits.uploads_pending_max,
        )  # fmt: skip
    _announce_bytes(ws, tenant, command.bytes)
    ws.set_fact(facts.PENDING_UPLOAD_COUNT, owner, waiting + 1)
    created = File(
        command.id, command.tenant, command.user, None, None, 0, 0, command.name, command.media_type, command.bytes,
        command.sha256, ws.now, "uploading", ws.now + seconds(limits.upload_timeout_seconds),
    )  # fmt: skip
    ws.put(created)
    return created


def finish_upload(ws: WorkingSet, command: FinishUpload) -> File:
    """Mark an uploaded file as ready; repeating it changes nothing."""
    file = ws.find(File, command.file_id)
    if file is None or file.tenant != command.tenant or file.status == "deleted":
        raise NotFound("file", command.file_id[:80])
    if file.status == "ready":
        return file
    retention = ws.limits.upload_retention_seconds
    after = replace(file, status="ready", expires_at=None if retention is None else ws.now + seconds(retention))
    ws.put(after)
    _change_usage(ws, file.tenant, stored=file.bytes, pending=-file.bytes)
    return after


def check_file(name: str, media_type: str, size: int, sha256: str, limits: Limits) -> None:
    """Validate what a caller declares about a file. The name is a label for people, never a path."""
    if not name or len(name) > limits.name_chars_max or not name.isprintable() or set(name) & set("/\\"):
        most = limits.name_chars_max
        message = f"The file name {name[:80]!r} is invalid: use 1 to {most} printable characters without slashes."
        raise BadInput("invalid_file", message)
    if not MEDIA_TYPE.match(media_type):
        message = f"The media type {media_type[:80]!r} is invalid: use one such as image/png."
        raise BadInput("invalid_file", message)
    if not SHA256.match(sha256):
        message = f"The SHA-256 {sha256[:80]!r} is invalid: send 64 lowercase hexadecimal characters."
        raise BadInput("invalid_file", message)
    check_range("the size of a file", size, 0, limits.file_bytes_max)


# -- outputs of tasks, and usage


def announce_outputs(ws: WorkingSet, command: AnnounceOutputs) -> None:
    """Count the bytes that a worker is about to upload. Announcing the same object again counts it once."""
    job, task = get_leased_task(ws, command)
    for file in command.files:
        check_range("a file's number", file.no, 1, ws.limits.files_per_task_max)
        check_file(file.name, file.media_type, file.bytes, file.sha256, ws.limits)
    attempt = ws.get(Attempt, (task.id, task.attempts))
    before = announced_sizes(attempt)
    requested = {str(file.no): file.bytes for file in command.files}
    if command.preview_bytes:
        requested[PREVIEW] = command.preview_bytes
    after = before | {name: max(size, before.get(name, 0)) for name, size in requested.items()}
    if after == before:
        return
    growth = sum(after.values()) - sum(before.values())
    check_job_outputs(job, growth, ws.limits)
    _announce_bytes(ws, ws.get(Tenant, job.tenant), growth)
    ws.put(replace(attempt, announced=encode(after)))
    ws.put(replace(job, output_bytes=job.output_bytes + growth))


def store_outputs(ws: WorkingSet, job: Job, attempt: Attempt, files: Sequence[File]) -> Job:
    """Store the files that an attempt reports at its end. Only those that it did not announce can exceed a quota."""
    announced = announced_sizes(attempt)
    if unannounced := sum(max(file.bytes - announced.get(str(file.no), 0), 0) for file in files):
        check_job_outputs(job, unannounced, ws.limits)
        tenant = ws.get(Tenant, job.tenant)
        check_tenant_storage(ws.get(StorageUsage, job.tenant), tenant, unannounced, ws.limits)
    if files:
        total = sum(file.bytes for file in files)
        job = replace(job, output_bytes=job.output_bytes + total)
        for row in (*files, job):
            ws.put(row)
        _change_usage(ws, job.tenant, stored=total)
        ws.set_fact(facts.NEW_FILES_OF_JOB, job.id, (*_new_files(ws, job), *(file.id for file in files)))
    return release_outputs(ws, job, attempt, [str(file.no) for file in files])


def release_outputs(ws: WorkingSet, job: Job, attempt: Attempt, reported: Collection[str] = ()) -> Job:
    """End the announcements of an attempt that ends. The objects that it did not report are deleted."""
    announced = announced_sizes(attempt)
    if not announced:
        return job
    total = sum(announced.values())
    _change_usage(ws, job.tenant, pending=-total)
    if names := tuple(sorted(announced.keys() - set(reported))):
        ws.discard_outputs(DiscardedOutputs(job.tenant, job.id, attempt.task_id, attempt.no, names))
    job = replace(job, output_bytes=job.output_bytes - total)
    ws.put(job)
    return job


def forget_outputs(ws: WorkingSet, job: Job) -> None:
    """Count the files of a deleted job no longer."""
    file_ids = {*ws.get_fact(facts.OUTPUT_FILES_OF_JOB, job.id), *_new_files(ws, job)}
    stored = sum(file.bytes for key in file_ids if (file := ws.get(File, key)).status == "ready")
    _change_usage(ws, job.tenant, stored=-stored)


def _new_files(ws: WorkingSet, job: Job) -> Sequence[str]:
    return ws.find_fact(facts.NEW_FILES_OF_JOB, job.id) or ()


def _announce_bytes(ws: WorkingSet, tenant: Tenant, requested: int) -> None:
    """Count announced bytes towards the quotas of a tenant."""
    usage = ws.get(StorageUsage, tenant.id)
    check_tenant_storage(usage, tenant, requested, ws.limits)
    check_pending_bytes(usage, requested, ws.limits)
    _change_usage(ws, tenant.id, pending=requested)


def _change_usage(ws: WorkingSet, tenant: str, *, stored: int = 0, pending: int = 0) -> None:
    if not stored and not pending:
        return
    usage = ws.get(StorageUsage, tenant)
    ws.put(replace(usage, stored_bytes=usage.stored_bytes + stored, pending_bytes=usage.pending_bytes + pending))


# -- deletion


class DeletedFiles(NamedTuple):
    """The deleted files, so that their bytes can be deleted after the commit."""

    files: tuple[File, ...]
    still_needed: int
    """Number of files that were kept because an open job or a workflow needs them."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def delete_files(ws: WorkingSet, command: DeleteFiles) -> DeletedFiles:
    """Delete files, except those that an open job or a workflow needs."""
    deleted_files: list[File] = []
    deleted_before: list[File] = []
    still_needed = 0
    for key in command.file_ids:
        file = ws.find(File, key)
        if ws.retrying and _was_deleted(file, command):  # possibly by this command, before its bytes were deleted
            deleted_before.append(file)
        elif file is None or command.tenant not in {None, file.tenant} or file.status == "deleted":
            if command.tenant is not None:
                raise NotFound("file", key[:80])
        elif command.tenant is None and (file.expires_at is None or file.expires_at > ws.now):
            continue  # it had expired when it was selected, and was finished or used since
        elif (by := _needed_by(ws, file)) is not None:
            if command.tenant is not None:
                raise Conflict(
                    "file_in_use", f"The file {file.name!r} is used by {_describe_user(by)}: delete it later."
                )
            ws.put(replace(file, expires_at=ws.now + _RECHECK_SECONDS * SECOND))
            still_needed += 1
        else:
            deleted_files.append(replace(file, status="deleted", expires_at=None))
            ws.put(deleted_files[-1])
            _change_usage(ws, file.tenant, **{_COUNTED_AS[file.status]: -file.bytes})
    if command.tenant is None:
        _audit_deletion(ws, command, deleted_files)
    return DeletedFiles((*deleted_before, *deleted_files), still_needed)


def _was_deleted(file: File | None, command: DeleteFiles) -> TypeGuard[File]:
    return file is not None and file.status == "deleted" and command.tenant in {None, file.tenant}


def _audit_deletion(ws: WorkingSet, command: DeleteFiles, deleted_files: list[File]) -> None:
    """Record in the audit log of each tenant which files retention deleted."""
    at = ws.command_time()
    for no, tenant in enumerate(sorted({file.tenant for file in deleted_files}), 1):
        sizes = [file.bytes for file in deleted_files if file.tenant == tenant]
        data = encode({"files": len(sizes), "bytes": sum(sizes)})
        ws.append(Audit(child_id(command.id, no), tenant, at, command.requested_by, "files.delete", tenant, data))


def _needed_by(ws: WorkingSet, file: File) -> str | None:
    """Return the name of the workflow that needs a file, "" if a job needs it, or None."""
    maker = ws.find(Job, file.job_id) if file.job_id and ws.is_loaded(Job, file.job_id) else None
    if maker is not None and maker.finished_at is None:  # an earlier command of the batch may have retried it
        return ""
    return ws.get_fact(facts.NEEDED_BY, file.id)
