"""Files: brought by people or made by tasks, referred to by inputs, kept for a while.

An input refers to a file with the object `{"$file": "<id>"}`, anywhere in its tree.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard

import msgspec
from msgspec.structs import replace

from callsheet.core import facts
from callsheet.core.model.clock import SECOND, seconds
from callsheet.core.model.commands import CreateUpload, DeleteFiles, FinishUpload
from callsheet.core.model.errors import BadInput, Conflict, NotFound
from callsheet.core.model.ids import child_id
from callsheet.core.model.media_type import MEDIA_TYPE, SHA256
from callsheet.core.model.rows import Audit, File, Job, JobFile, Tenant, WorkflowFile
from callsheet.core.model.workflow_definition import WorkflowDefinition, check_range
from callsheet.core.policy.limits import Limits
from callsheet.core.working_set import WorkingSet, encode

REFERENCE_KEY = "$file"
_REFERENCE_JSON = f'"{REFERENCE_KEY}"'
_RECHECK_SECONDS = 3_600
"""How soon a file that is still needed is looked at again."""


# -- references


def find_references(value: Any, most: int | None = None) -> Iterator[str]:
    """Find the ids of the files that an input refers to, level by level; where it has no end, in so many items."""
    layer, seen = [value], 0
    while layer and (most is None or seen < most):
        seen += len(layer)
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
    """Say whether an id could be one: a database that is asked for a NUL answers nobody of the batch."""
    return "\0" not in key


def link_files(ws: WorkingSet, job: Job, body: str) -> None:
    """Let a job refer to files: its user's own, and there. Anything else looks absent."""
    if _REFERENCE_JSON not in body:
        return
    found = list(dict.fromkeys(find_references(msgspec.json.decode(body))))
    check_range("the number of files", len(found), 0, ws.limits.files_per_task_max)
    for key in found:
        file = ws.find(File, key) if is_storable_id(key) else None
        if file is None or (file.tenant, file.user_id) != (job.tenant, job.user_id) or _is_deleted(ws, file):
            raise NotFound("file", key[:80])
        if file.status == "uploading":
            raise Conflict("file_not_finished", f"The file {file.name!r} has not been put and finished yet.")
        if ws.find(JobFile, (job.id, key)) is None:
            ws.put(JobFile(job.id, key))
        _mark_needed(ws, job, file)


def relink_files(ws: WorkingSet, job: Job) -> None:
    """Let a job that is opened again need its files again; what was deleted meanwhile is missed now, not at work."""
    for _, key in ws.get_fact(facts.FILE_LINKS_OF_JOB, job.id):
        file = ws.find(File, key)
        if file is None or _is_deleted(ws, file):
            raise NotFound("file", key[:80])
        _mark_needed(ws, job, file)
    for key in ws.get_fact(facts.OUTPUT_FILES_OF_JOB, job.id):
        created = ws.get(File, key)
        if created.status == "deleted":
            raise Conflict("file_deleted", f"The file {created.name!r} that it made is gone: retry it as a new job.")
        _mark_needed(ws, job, created)


def _is_deleted(ws: WorkingSet, file: File) -> bool:
    return file.status == "deleted" or file.job_id in ws.purged_job_ids


def _mark_needed(ws: WorkingSet, job: Job, file: File) -> None:
    """Keep what is needed true for the rest of the batch."""
    ws.set_fact(facts.NEEDED_BY, file.id, "")
    if file.job_id not in {None, job.id}:
        ws.set_fact(facts.NEEDED_BY_OTHERS, file.id, "")


def check_files_unused(ws: WorkingSet, job: Job) -> None:
    """Refuse to let a job's files go with it while another job, or a workflow, needs one of them."""
    for key in ws.get_fact(facts.OUTPUT_FILES_OF_JOB, job.id):
        if (by := ws.get_fact(facts.NEEDED_BY_OTHERS, key)) is not None:
            raise Conflict(
                "file_in_use", f"The file {ws.get(File, key).name!r} of this job is needed by {_describe_needer(by)}."
            )


def _describe_needer(workflow: str) -> str:
    """Say who needs a file; a job if no workflow is named."""
    return f"the workflow {workflow!r}" if workflow else "a job that has not ended"


# -- of a workflow's own


def workflow_file_ids(definition: WorkflowDefinition, most: int | None = None) -> Iterator[str]:
    """Find the ids of the files that a workflow itself names, for every job that does not bring its own."""
    for stage in definition.stages:
        own = stage.comfyui
        values = [stage.inputs] if own is None else [stage.inputs, own.defaults, own.overrides]
        yield from find_references(values, most)


def link_workflow_files(ws: WorkingSet, definition: WorkflowDefinition, version: int, owner: str | None) -> None:
    """Let a version of a workflow name files that are there: they stay for as long as it is current, or has jobs."""
    found = list(dict.fromkeys(workflow_file_ids(definition)))
    check_range(f"the number of files that {definition.name!r} names", len(found), 0, ws.limits.bulk_items_max)
    for key in found:
        file = ws.find(File, key) if is_storable_id(key) else None
        if file is None or file.status != "ready" or _is_deleted(ws, file) or owner not in {None, file.tenant}:
            whose = "" if owner is None else f" of the tenant {owner!r}"
            raise BadInput(
                "invalid_workflow",
                f"Workflow {definition.name!r} names the file {key[:80]!r}, and there is none{whose} that is finished: "
                "bring it first.",
            )
        ws.append(WorkflowFile(definition.name, version, key))
        ws.set_fact(facts.NEEDED_BY, key, definition.name)
        ws.set_fact(facts.NEEDED_BY_OTHERS, key, definition.name)


def check_workflow_files(ws: WorkingSet, definition: WorkflowDefinition) -> None:
    """Refuse to open a job again whose version of the workflow named files that were deleted since."""
    for key in workflow_file_ids(definition):
        file = ws.find(File, key)
        if file is None or _is_deleted(ws, file):
            raise NotFound("file", key[:80])


# -- brought by people


def create_upload(ws: WorkingSet, command: CreateUpload) -> File:
    """Announce a file; a bounded number of them may wait for their bytes."""
    existing = ws.find(File, command.id)
    if existing is not None:
        return existing
    limits = ws.limits
    if ws.find(Tenant, command.tenant) is None:
        raise NotFound("tenant", command.tenant[:80])
    if not command.user or len(command.user) > limits.key_chars_max or not command.user.isprintable():
        raise BadInput("invalid_user", f"A user id has 1 to {limits.key_chars_max} printable characters.")
    check_file(command.name, command.media_type, command.bytes, command.sha256, limits)
    owner = (command.tenant, command.user)
    waiting = ws.get_fact(facts.PENDING_UPLOAD_COUNT, owner)
    if waiting >= limits.uploads_pending_max:
        raise Conflict(
            "too_many_uploads",
            f"{waiting} announced files of this user have not been put yet: put and finish them first.",
            waiting=waiting, max=limits.uploads_pending_max,
        )  # fmt: skip
    ws.set_fact(facts.PENDING_UPLOAD_COUNT, owner, waiting + 1)
    created = File(
        command.id, command.tenant, command.user, None, None, 0, 0, command.name, command.media_type, command.bytes,
        command.sha256, ws.now, "uploading", ws.now + seconds(limits.upload_timeout_seconds),
    )  # fmt: skip
    ws.put(created)
    return created


def finish_upload(ws: WorkingSet, command: FinishUpload) -> File:
    """Make a file ready; again is the same."""
    file = ws.find(File, command.file_id)
    if file is None or file.tenant != command.tenant or file.status == "deleted":
        raise NotFound("file", command.file_id[:80])
    if file.status == "ready":
        return file
    retention = ws.limits.upload_retention_seconds
    after = replace(file, status="ready", expires_at=None if retention is None else ws.now + seconds(retention))
    ws.put(after)
    return after


def check_file(name: str, media_type: str, size: int, sha256: str, limits: Limits) -> None:
    """Refuse what could not be a file; its name is for people, and never a path."""
    if not name or len(name) > limits.name_chars_max or not name.isprintable() or set(name) & set("/\\"):
        raise BadInput("invalid_file", f"A file's name has 1 to {limits.name_chars_max} characters, and no slash.")
    if not MEDIA_TYPE.match(media_type) or not SHA256.match(sha256):
        raise BadInput("invalid_file", "A file has a media type such as image/png, and its SHA-256 in hexadecimal.")
    check_range("the size of a file", size, 0, limits.file_bytes_max)


# -- no longer kept


class DeletedFiles(NamedTuple):
    """What went: how many files, how many bytes, and which, so that their bytes can go after the commit."""

    files: tuple[File, ...]
    still_needed: int
    """How many are still needed, by an open job or by a workflow."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def delete_files(ws: WorkingSet, command: DeleteFiles) -> DeletedFiles:
    """Forget files, except those that an open job made or needs, and those of workflows."""
    deleted_files: list[File] = []
    deleted_before: list[File] = []
    still_needed = 0
    for key in command.file_ids:
        file = ws.find(File, key)
        if ws.retrying and _was_deleted(file, command):  # perhaps by this very command: its bytes go, if they have not
            deleted_before.append(file)
        elif file is None or command.tenant not in {None, file.tenant} or file.status == "deleted":
            if command.tenant is not None:
                raise NotFound("file", key[:80])
        elif command.tenant is None and (file.expires_at is None or file.expires_at > ws.now):
            continue  # it was due when the house looked, and has been finished or needed since
        elif (by := _needed_by(ws, file)) is not None:
            if command.tenant is not None:
                raise Conflict("file_in_use", f"The file {file.name!r} is needed by {_describe_needer(by)}.")
            ws.put(replace(file, expires_at=ws.now + _RECHECK_SECONDS * SECOND))
            still_needed += 1
        else:
            deleted_files.append(replace(file, status="deleted", expires_at=None))
            ws.put(deleted_files[-1])
    if command.tenant is None:
        _audit_deletion(ws, command, deleted_files)
    return DeletedFiles((*deleted_before, *deleted_files), still_needed)


def _was_deleted(file: File | None, command: DeleteFiles) -> TypeGuard[File]:
    return file is not None and file.status == "deleted" and command.tenant in {None, file.tenant}


def _audit_deletion(ws: WorkingSet, command: DeleteFiles, deleted_files: list[File]) -> None:
    """Let every tenant see in its audit log what the house did not keep any longer."""
    for no, tenant in enumerate(sorted({file.tenant for file in deleted_files}), 1):
        sizes = [file.bytes for file in deleted_files if file.tenant == tenant]
        data = encode({"files": len(sizes), "bytes": sum(sizes)})
        ws.append(Audit(child_id(command.id, no), tenant, ws.now, command.by, "files.delete", tenant, data))


def _needed_by(ws: WorkingSet, file: File) -> str | None:
    """Return the workflow that needs a file, nothing for a job, None if nobody does."""
    maker = ws.find(Job, file.job_id) if file.job_id and ws.is_loaded(Job, file.job_id) else None
    if maker is not None and maker.finished_at is None:  # perhaps opened again by a command before this one
        return ""
    return ws.get_fact(facts.NEEDED_BY, file.id)
