"""Task payloads: the input, signed URLs and graph that a worker receives with a task. They name no tenant or user."""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from callsheet.api import worker_protocol
from callsheet.blobs import object_keys
from callsheet.blobs.base import Blobs
from callsheet.comfyui.template import render
from callsheet.core.decisions.files import find_references, is_storable_id
from callsheet.core.decisions.lease_check import has_expired, is_newest_lease
from callsheet.core.model import commands
from callsheet.core.model.comfyui_graph import RenderedGraph
from callsheet.core.model.commands import Lease, LeasedTask, OutputFile
from callsheet.core.model.errors import LeaseLost, NotFound, Refusal
from callsheet.core.model.rows import File, Job, Task, Workflow
from callsheet.core.model.workflow_definition import WorkflowDefinition, check_range, graph_of, parse_definition
from callsheet.dispatch.output_check import FileVerifier
from callsheet.engine.engine import Engine
from callsheet.engine.reads.task_output_pages import TASK_NUMBER_MAX, TaskOutput, TaskPosition, list_task_outputs

_PREVIOUS_OUTPUTS_MAX = 200
"""Tasks of previous stages in one page."""
_GRANT_SECONDS_MIN = 60
PREVIEW_BYTES_MAX = 1024 * 1024
_PREVIEW_SPACE_BYTES = 2 * PREVIEW_BYTES_MAX
"""What a preview may occupy: the stored one, and the one that replaces it."""
PREVIEW_TYPE = "application/octet-stream"
_DEFINITIONS_MAX = 1_000
_DRAFT_THREADS = 2


class TaskPayloads:
    """Builds task payloads and signed URLs from stored rows."""

    def __init__(self, engine: Engine, blobs: Blobs) -> None:
        self._engine = engine
        self._blobs = blobs
        self._verifier = FileVerifier(blobs)
        self._definitions: dict[tuple[str, int], WorkflowDefinition] = {}
        self._draft_threads = ThreadPoolExecutor(_DRAFT_THREADS, "callsheet-drafts")
        """Renders graphs. Separate from the default threads, which an unavailable storage can block."""

    # -- payloads

    async def build_payloads(self, tasks: Sequence[LeasedTask]) -> list[worker_protocol.TaskPayload]:
        """Return the payloads of leased tasks. A task whose graph cannot be rendered fails without a retry."""
        definitions = await self._load_definitions({(task.workflow, task.workflow_version) for task in tasks})
        graphs = any(stage.comfyui for definition in definitions.values() for stage in definition.stages)
        if graphs:
            drafts = await asyncio.get_running_loop().run_in_executor(self._draft_threads, _drafts, tasks, definitions)
        else:
            drafts = _drafts(tasks, definitions)
        files = await self._ready_files({key for draft in drafts for key in draft.files})
        failed = [draft for draft in drafts if draft.refusal is not None]
        if failed:
            await self._engine.aexecute_many([
                commands.Fail(
                    lease=draft.leased.lease, code=draft.refusal.code, message=draft.refusal.message, retryable=False
                )
                for draft in failed if draft.refusal is not None
            ])  # fmt: skip
        return [self._build_payload(draft, files) for draft in drafts if draft.refusal is None]

    def _build_payload(self, draft: "Draft", files: dict[str, File]) -> worker_protocol.TaskPayload:
        task = draft.leased
        input_files = [self._input_file(files[key], task.lease_seconds) for key in draft.files if key in files]
        return worker_protocol.TaskPayload(
            task.lease, task.kind, task.workflow, task.stage, task.stage_no, task.task_no, task.lease_seconds,
            msgspec.Raw(task.input.encode()), input_files, draft.graph and _with_digests(draft.graph, files),
            task.resumed, None if task.trace is None else msgspec.json.decode(task.trace),
        )  # fmt: skip

    # -- signed URLs

    async def create_grants(
        self, task: Task, request: worker_protocol.FileGrantsRequest | worker_protocol.TaskHeartbeat
    ) -> worker_protocol.FileGrants:
        """Return signed URLs for files that a task may download, and for its outputs."""
        lease_seconds, limits = task.lease_seconds, self._engine.settings.limits
        check_range("the number of downloads", len(request.downloads), 0, limits.bulk_items_max)
        check_range("the number of uploads", len(request.uploads), 0, limits.files_per_task_max)
        downloads = [
            self._input_file(file, lease_seconds) for file in await self._readable_files(task, request.downloads)
        ]
        wants_preview = isinstance(request, worker_protocol.FileGrantsRequest) and request.preview
        if request.uploads or wants_preview:
            await self.announce_outputs(task, request.lease, request.uploads, preview=wants_preview)
        uploads = [worker_protocol.UploadGrant(file.no, self._upload_grant(task, file)) for file in request.uploads]
        preview = None
        if wants_preview:
            key = object_keys.preview_key(task.tenant, task.job_id, task.id, task.attempts)
            preview = _grant(
                self._blobs.grant_overwrite(
                    key,
                    bytes_max=PREVIEW_BYTES_MAX,
                    media_type=PREVIEW_TYPE,
                    expires_in_seconds=_grant_seconds(lease_seconds),
                )
            )
        return worker_protocol.FileGrants(downloads, uploads, preview)

    async def announce_outputs(
        self, task: Task, lease: Lease, files: Sequence[OutputFile], *, preview: bool = False
    ) -> None:
        """Validate the objects that a worker wants to upload, and count them towards the storage quotas."""
        await self._engine.aexecute(
            commands.AnnounceOutputs(
                lease=lease, files=tuple(files), preview_bytes=_PREVIEW_SPACE_BYTES if preview else 0,
                worker_id=task.worker_id,
            )
        )  # fmt: skip

    def _upload_grant(self, task: Task, file: OutputFile) -> worker_protocol.Grant:
        key = object_keys.output_key(task.tenant, task.job_id, task.id, task.attempts, file.no)
        expires_in_seconds = _grant_seconds(task.lease_seconds)
        return _grant(
            self._blobs.grant_upload(
                key,
                size=file.bytes,
                sha256=file.sha256,
                media_type=file.media_type,
                expires_in_seconds=expires_in_seconds,
            )
        )

    def _input_file(self, file: File, lease_seconds: int) -> worker_protocol.InputFile:
        expires_in_seconds = _grant_seconds(lease_seconds)
        grant = self._blobs.grant_download(
            object_keys.file_key(file),
            expires_in_seconds=expires_in_seconds,
            name=file.name,
            media_type=file.media_type,
        )
        return worker_protocol.InputFile(file.id, file.name, file.media_type, file.bytes, file.sha256, _grant(grant))

    async def _readable_files(self, task: Task, file_ids: Iterable[str]) -> list[File]:
        """Return the requested files. A task may read files of its job, and those in its input or graph."""
        requested = list(dict.fromkeys(file_ids))
        if not requested:
            return []
        found = await self._ready_files(set(requested))
        outside = {key for key, file in found.items() if file.job_id != task.job_id}
        if outside and (foreign := outside - await self._referenced_files(task)):
            raise NotFound("file", min(foreign))
        if missing := [key for key in requested if key not in found]:
            raise NotFound("file", missing[0][:80])
        return [found[key] for key in requested]

    async def _referenced_files(self, task: Task) -> set[str]:
        """Return the files that a task's input refers to, and those of its workflow's graph."""
        jobs, stages, documents = await self._engine.reads.lookup_many([
            ("job_of_tenant", {"id": task.job_id, "tenant": task.tenant}), ("stages_of", {"id": task.job_id}),
            ("documents", {"ids": [task.id, task.job_id]}),
        ])  # fmt: skip
        found = {key for row in documents for key in find_references(msgspec.json.decode(row[3]))}
        for job in (Job(*row) for row in jobs):
            key = (job.workflow, job.workflow_version)
            stage_no = next(stage[3] for stage in stages if stage[0] == task.stage_id)
            definition = (await self._load_definitions({key})).get(key)
            spec = None if definition is None else graph_of(definition, stage_no)
            if spec is not None:
                found.update(find_references([*spec.defaults.values(), *spec.overrides.values()]))
        return found

    # -- outputs

    async def verify_files(self, task: Task, files: Sequence[OutputFile]) -> None:
        """Check that every file is stored as it is reported. The decision checks names, types and sizes."""
        await self._verifier.verify_files(task, files)

    async def previous_outputs(
        self, task: Task, after: worker_protocol.TaskCursor | None = None
    ) -> worker_protocol.PreviousOutputs:
        """Return a page of the outputs of completed tasks of previous stages, after a cursor."""
        stages = await self._engine.reads.lookup("stages_of", id=task.job_id)
        stage_no = next(stage[3] for stage in stages if stage[0] == task.stage_id)
        position = TaskPosition() if after is None else TaskPosition(after.stage_no, after.task_no)
        for number in position:
            check_range("the number of a stage or task", number, 0, TASK_NUMBER_MAX)
        page = await list_task_outputs(
            self._engine.reads, task.job_id, position, _PREVIOUS_OUTPUTS_MAX, stage_no_below=stage_no
        )
        # Signing thousands of URLs takes a while, so it runs outside the event loop.
        outputs = await asyncio.to_thread(
            lambda: [self._previous_output(output, task.lease_seconds) for output in page.task_outputs]
        )
        return worker_protocol.PreviousOutputs(outputs, page.next and worker_protocol.TaskCursor(*page.next))

    def _previous_output(self, task_output: TaskOutput, lease_seconds: int) -> worker_protocol.PreviousOutput:
        files = [self._input_file(file, lease_seconds) for file in task_output.files if file.status == "ready"]
        return worker_protocol.PreviousOutput(task_output.stage, *task_output.position, task_output.output, files)

    async def get_leased_task(self, worker_id: str, lease: Lease) -> Task:
        """Return the task of a live lease of this worker."""
        reads = self._engine.reads
        found, ((database_time,),) = await reads.lookup_many([
            ("task_of_job", {"id": lease.task_id, "job": lease.job_id}), ("clock", {}),
        ])  # fmt: skip
        task = Task(*found[0]) if found else None
        if task is None or task.worker_id != worker_id:
            raise NotFound("lease", lease.task_id[:80])
        if not is_newest_lease(task, lease) or has_expired(task, reads.engine_time(database_time)):
            raise LeaseLost
        return task

    async def find_leased_task(self, worker_id: str, lease: Lease) -> Task | None:
        """Return the task of a lease if it is live."""
        try:
            return await self.get_leased_task(worker_id, lease)
        except Refusal:
            return None

    # -- rows

    async def _ready_files(self, file_ids: set[str]) -> dict[str, File]:
        if not file_ids:
            return {}
        rows = await self._engine.reads.lookup("files_by_id", ids=sorted(filter(is_storable_id, file_ids)))
        return {file.id: file for file in (File(*row) for row in rows) if file.status == "ready"}

    async def _load_definitions(self, versions: set[tuple[str, int]]) -> dict[tuple[str, int], WorkflowDefinition]:
        """Return definitions by name and version. A version never changes, so it can be cached."""
        found = {key: self._definitions[key] for key in versions & self._definitions.keys()}
        if unknown := sorted(versions - found.keys()):
            if len(self._definitions) + len(unknown) > _DEFINITIONS_MAX:
                self._definitions.clear()
            for row in await self._engine.reads.lookup("workflows", keys=unknown):
                workflow = Workflow(*row)
                found[workflow.name, workflow.version] = parse_definition(workflow.spec)
            self._definitions |= found
        return found


class Draft(NamedTuple):
    """A task with its input files and rendered graph, or the reason why it cannot run."""

    leased: LeasedTask
    files: list[str]
    graph: RenderedGraph | None
    refusal: Refusal | None = None


def _drafts(tasks: Sequence[LeasedTask], definitions: dict[tuple[str, int], WorkflowDefinition]) -> list[Draft]:
    """Draft tasks one after another. A large graph takes tens of milliseconds: call it outside the event loop."""
    return [_draft(task, definitions.get((task.workflow, task.workflow_version))) for task in tasks]


def _draft(task: LeasedTask, definition: WorkflowDefinition | None) -> Draft:
    spec = graph_of(definition, task.stage_no) if definition is not None else None
    if spec is None and '"$file"' not in task.input:
        return Draft(task, [], None)
    value: Any = msgspec.json.decode(task.input)
    graph: RenderedGraph | None = None
    try:
        graph = None if spec is None else render(spec, value, task.lease.task_id)
    except Refusal as refusal:
        return Draft(task, [], None, refusal)
    slots = [slot.file_id for slot in graph.assets] if graph else []
    return Draft(task, list(dict.fromkeys([*find_references(value), *slots])), graph)


def _with_digests(graph: RenderedGraph, files: dict[str, File]) -> RenderedGraph:
    """Add the digest of every file of a graph, so that a worker can skip files that it has cached."""
    assets = [
        replace(slot, sha256=files[slot.file_id].sha256) if slot.file_id in files else slot for slot in graph.assets
    ]
    return replace(graph, assets=assets)


def _grant_seconds(lease_seconds: int) -> int:
    """Return how long a signed URL is valid: as long as the lease, but at least a minute."""
    return max(lease_seconds, _GRANT_SECONDS_MIN)


def _grant(grant: Any) -> worker_protocol.Grant:
    return worker_protocol.Grant(grant.method, grant.url, grant.headers, grant.expires_in_seconds)
