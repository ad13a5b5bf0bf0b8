"""Files: brought by people or made by tasks, referred to by inputs, kept for a while.

An input refers to a file with the object `{"$file": "<id>"}`, anywhere in its tree.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard

import msgspec
from msgspec.structs import replace

from callsheet.core.clock import SECOND, seconds
from callsheet.core.commands import AskUpload, DropFiles, FinishUpload
from callsheet.core.errors import BadInput, Conflict, Unknown
from callsheet.core.ids import child
from callsheet.core.limits import Limits
from callsheet.core.media import MEDIA_TYPE, SHA256
from callsheet.core.recipe import Recipe, in_range
from callsheet.core.rows import Audit, File, Job, Tenant, Use, WorkflowUse
from callsheet.core.working import WorkingSet, encode

REFERENCE = "$file"
_MARK = f'"{REFERENCE}"'
_AGAIN_SECONDS = 3_600
"""How soon a file that is still needed is looked at again."""


# -- references


def references(value: Any, most: int | None = None) -> Iterator[str]:
    """Find the ids of the files that an input refers to, level by level; where it has no end, in so many items."""
    layer, seen = [value], 0
    while layer and (most is None or seen < most):
        seen += len(layer)
        deeper: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                if isinstance(found := item.get(REFERENCE), str):
                    yield found
                deeper.extend(item.values())
            elif isinstance(item, list):
                deeper.extend(item)
        layer = deeper


def may_be(key: str) -> bool:
    """Say whether an id could be one: a database that is asked for a NUL answers nobody of the batch."""
    return "\0" not in key


def use(ws: WorkingSet, job: Job, body: str) -> None:
    """Let a job refer to files: its user's own, and there. Anything else looks absent."""
    if _MARK not in body:
        return
    found = list(dict.fromkeys(references(msgspec.json.decode(body))))
    in_range("the number of files", len(found), 0, ws.limits.files_per_task_max)
    for key in found:
        file = ws.find(File, key) if may_be(key) else None
        if file is None or (file.tenant, file.user_id) != (job.tenant, job.user_id) or _gone(ws, file):
            raise Unknown("file", key[:80])
        if file.status == "awaited":
            raise Conflict("file_not_finished", f"The file {file.name!r} has not been put and finished yet.")
        if ws.find(Use, (job.id, key)) is None:
            ws.put(Use(job.id, key))
        _need(ws, job, file)


def use_again(ws: WorkingSet, job: Job) -> None:
    """Let a job that is opened again need its files again; what was dropped meanwhile is missed now, not at work."""
    for _, key in ws.fact("used", job.id):
        file = ws.find(File, key)
        if file is None or _gone(ws, file):
            raise Unknown("file", key[:80])
        _need(ws, job, file)
    for key in ws.fact("files_of", job.id):
        made = ws.get(File, key)
        if made.status == "dropped":
            raise Conflict("file_dropped", f"The file {made.name!r} that it made is gone: retry it as a new job.")
        _need(ws, job, made)


def _gone(ws: WorkingSet, file: File) -> bool:
    return file.status == "dropped" or file.job_id in ws.purged


def _need(ws: WorkingSet, job: Job, file: File) -> None:
    """Keep what is needed true for the rest of the batch."""
    ws.set_fact("needed", file.id, "")
    if file.job_id not in {None, job.id}:
        ws.set_fact("lent", file.id, "")


def check_lent(ws: WorkingSet, job: Job) -> None:
    """Refuse to let a job's files go with it while another job, or a workflow, needs one of them."""
    for key in ws.fact("files_of", job.id):
        if (by := ws.fact("lent", key)) is not None:
            raise Conflict("file_in_use", f"The file {ws.get(File, key).name!r} of this job is needed by {_who(by)}.")


def _who(workflow: str) -> str:
    """Say who needs a file; a job if no workflow is named."""
    return f"the workflow {workflow!r}" if workflow else "a job that has not ended"


# -- of a workflow's own


def named(recipe: Recipe, most: int | None = None) -> Iterator[str]:
    """Find the ids of the files that a workflow itself names, for every job that does not bring its own."""
    for stage in recipe.stages:
        own = stage.comfyui
        values = [stage.inputs] if own is None else [stage.inputs, own.defaults, own.overrides]
        yield from references(values, most)


def name_files(ws: WorkingSet, recipe: Recipe, version: int, owner: str | None) -> None:
    """Let a version of a workflow name files that are there: they stay for as long as it is current, or has jobs."""
    found = list(dict.fromkeys(named(recipe)))
    in_range(f"the number of files that {recipe.name!r} names", len(found), 0, ws.limits.bulk_max)
    for key in found:
        file = ws.find(File, key) if may_be(key) else None
        if file is None or file.status != "ready" or _gone(ws, file) or owner not in {None, file.tenant}:
            whose = "" if owner is None else f" of the tenant {owner!r}"
            raise BadInput(
                "invalid_workflow",
                f"Workflow {recipe.name!r} names the file {key[:80]!r}, and there is none{whose} that is finished: "
                "bring it first.",
            )
        ws.append(WorkflowUse(recipe.name, version, key))
        ws.set_fact("needed", key, recipe.name)
        ws.set_fact("lent", key, recipe.name)


def check_named(ws: WorkingSet, recipe: Recipe) -> None:
    """Refuse to open a job again whose version of the workflow named files that were dropped since."""
    for key in named(recipe):
        file = ws.find(File, key)
        if file is None or _gone(ws, file):
            raise Unknown("file", key[:80])


# -- brought by people


def ask_upload(ws: WorkingSet, command: AskUpload) -> File:
    """Announce a file; a bounded number of them may wait for their bytes."""
    known = ws.find(File, command.id)
    if known is not None:
        return known
    limits = ws.limits
    if ws.find(Tenant, command.tenant) is None:
        raise Unknown("tenant", command.tenant[:80])
    if not command.user or len(command.user) > limits.key_chars_max or not command.user.isprintable():
        raise BadInput("invalid_user", f"A user id has 1 to {limits.key_chars_max} printable characters.")
    check_file(command.name, command.media_type, command.bytes, command.sha256, limits)
    owner = (command.tenant, command.user)
    waiting: int = ws.fact("awaited", owner)
    if waiting >= limits.uploads_awaited_max:
        raise Conflict(
            "too_many_uploads",
            f"{waiting} announced files of this user have not been put yet: put and finish them first.",
            waiting=waiting, max=limits.uploads_awaited_max,
        )  # fmt: skip
    ws.set_fact("awaited", owner, waiting + 1)
    made = File(
        command.id, command.tenant, command.user, None, None, 0, 0, command.name, command.media_type, command.bytes,
        command.sha256, ws.now, "awaited", ws.now + seconds(limits.upload_seconds_max),
    )  # fmt: skip
    ws.put(made)
    return made


def finish_upload(ws: WorkingSet, command: FinishUpload) -> File:
    """Make a file ready; again is the same."""
    file = ws.find(File, command.file_id)
    if file is None or file.tenant != command.tenant or file.status == "dropped":
        raise Unknown("file", command.file_id[:80])
    if file.status == "ready":
        return file
    keep = ws.limits.upload_keep_seconds
    after = replace(file, status="ready", keep_until=ws.now + seconds(keep) if keep else None)
    ws.put(after)
    return after


def check_file(name: str, media_type: str, size: int, sha256: str, limits: Limits) -> None:
    """Refuse what could not be a file; its name is for people, and never a path."""
    if not name or len(name) > limits.name_chars_max or not name.isprintable() or set(name) & set("/\\"):
        raise BadInput("invalid_file", f"A file's name has 1 to {limits.name_chars_max} characters, and no slash.")
    if not MEDIA_TYPE.match(media_type) or not SHA256.match(sha256):
        raise BadInput("invalid_file", "A file has a media type such as image/png, and its SHA-256 in hexadecimal.")
    in_range("the size of a file", size, 0, limits.file_bytes_max)


# -- no longer kept


class Dropped(NamedTuple):
    """What went: how many files, how many bytes, and which, so that their bytes can go after the commit."""

    files: tuple[File, ...]
    kept: int
    """How many are still needed, by an open job or by a workflow."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def drop_files(ws: WorkingSet, command: DropFiles) -> Dropped:
    """Forget files, except those that an open job made or needs, and those of workflows."""
    gone: list[File] = []
    before: list[File] = []
    kept = 0
    for key in command.file_ids:
        file = ws.find(File, key)
        if ws.again and _was_dropped(file, command):  # perhaps by this very command: its bytes go, if they have not
            before.append(file)
        elif file is None or command.tenant not in {None, file.tenant} or file.status == "dropped":
            if command.tenant is not None:
                raise Unknown("file", key[:80])
        elif command.tenant is None and (file.keep_until is None or file.keep_until > ws.now):
            continue  # it was due when the house looked, and has been finished or needed since
        elif (by := _needed(ws, file)) is not None:
            if command.tenant is not None:
                raise Conflict("file_in_use", f"The file {file.name!r} is needed by {_who(by)}.")
            ws.put(replace(file, keep_until=ws.now + _AGAIN_SECONDS * SECOND))
            kept += 1
        else:
            gone.append(replace(file, status="dropped", keep_until=None))
            ws.put(gone[-1])
    if command.tenant is None:
        _write_down(ws, command, gone)
    return Dropped((*before, *gone), kept)


def _was_dropped(file: File | None, command: DropFiles) -> TypeGuard[File]:
    return file is not None and file.status == "dropped" and command.tenant in {None, file.tenant}


def _write_down(ws: WorkingSet, command: DropFiles, gone: list[File]) -> None:
    """Let every tenant see in its audit log what the house did not keep any longer."""
    for no, tenant in enumerate(sorted({file.tenant for file in gone}), 1):
        sizes = [file.bytes for file in gone if file.tenant == tenant]
        data = encode({"files": len(sizes), "bytes": sum(sizes)})
        ws.append(Audit(child(command.id, no), tenant, ws.now, command.by, "files.drop", tenant, data))


def _needed(ws: WorkingSet, file: File) -> str | None:
    """Return the workflow that needs a file, nothing for a job, None if nobody does."""
    maker = ws.find(Job, file.job_id) if file.job_id and ws.knows(Job, file.job_id) else None
    if maker is not None and maker.finished_at is None:  # perhaps opened again by a command before this one
        return ""
    needed: str | None = ws.fact("needed", file.id)
    return needed
