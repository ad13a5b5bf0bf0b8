"""What a worker gets with a task: its input, addresses for its files, its graph; and nothing of whose it is."""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from callsheet import protocol
from callsheet.blobs import keys
from callsheet.blobs.base import Blobs
from callsheet.core import commands
from callsheet.core.comfy import Rendered, render
from callsheet.core.commands import Lease, Leased, Made
from callsheet.core.errors import LeaseLost, Refusal, Unknown
from callsheet.core.files import check_file, may_be, references
from callsheet.core.holding import hashed
from callsheet.core.recipe import Recipe, graph_of, in_range, parse
from callsheet.core.rows import File, Job, Task, Workflow
from callsheet.engine.engine import Engine
from callsheet.http.checking import Checks
from callsheet.http.made import NO_MAX, MadeBy, Place, made_by
from callsheet.http.problem import Problem

_EARLIER_MAX = 200
"""Tasks of earlier stages that are told at once."""
_GRANT_SECONDS_MIN = 60
PREVIEW_BYTES_MAX = 1024 * 1024
PREVIEW_TYPE = "application/octet-stream"
_RECIPES_MAX = 1_000
_DRAFTS = 2


class Handing:
    """Makes what workers get from what is stored."""

    def __init__(self, engine: Engine, blobs: Blobs) -> None:
        self._engine = engine
        self._blobs = blobs
        self._checks = Checks(blobs)
        self._recipes: dict[tuple[str, int], Recipe] = {}
        self._drafting = ThreadPoolExecutor(_DRAFTS, "callsheet-drafts")
        """For graphs, which take a while to fill in: no task shall wait for a storage that does not answer."""

    # -- with a task

    async def works(self, tasks: Sequence[Leased]) -> list[protocol.Work]:
        """Return tasks as their worker gets them; one whose graph cannot be filled in has failed for good."""
        recipes = await self._load({(task.workflow, task.workflow_version) for task in tasks})
        graphs = any(stage.comfyui for recipe in recipes.values() for stage in recipe.stages)
        if graphs:
            drafts = await asyncio.get_running_loop().run_in_executor(self._drafting, _drafts, tasks, recipes)
        else:
            drafts = _drafts(tasks, recipes)
        files = await self._files({key for draft in drafts for key in draft.files})
        failed = [draft for draft in drafts if draft.refusal is not None]
        if failed:
            await self._engine.aexecute_many([
                commands.Fail(
                    lease=draft.leased.lease, code=draft.refusal.code, message=draft.refusal.message, retryable=False
                )
                for draft in failed if draft.refusal is not None
            ])  # fmt: skip
        return [self._work(draft, files) for draft in drafts if draft.refusal is None]

    def _work(self, draft: "Draft", files: dict[str, File]) -> protocol.Work:
        task = draft.leased
        given = [self._given(files[key], task.lease_seconds) for key in draft.files if key in files]
        return protocol.Work(
            task.lease, task.kind, task.workflow, task.stage, task.stage_no, task.task_no, task.lease_seconds,
            msgspec.Raw(task.input.encode()), given, draft.graph and _told(draft.graph, files), task.resumed,
            None if task.trace is None else msgspec.json.decode(task.trace),
        )  # fmt: skip

    # -- addresses

    async def grants(self, task: Task, asked: protocol.Files | protocol.Beat) -> protocol.Grants:
        """Return fresh addresses for files that a task may read, and for what it made."""
        lasting, limits = task.lease_seconds, self._engine.settings.limits
        in_range("the number of files to get", len(asked.gets), 0, limits.bulk_max)
        in_range("the number of files to put", len(asked.puts), 0, limits.files_per_task_max)
        gets = [self._given(file, lasting) for file in await self._readable(task, asked.gets)]
        puts = [protocol.Granted(made.no, self._put(task, made)) for made in asked.puts]
        preview = None
        if isinstance(asked, protocol.Files) and asked.preview:
            key = keys.preview(task.tenant, task.job_id, task.id, task.attempts)
            preview = _grant(
                self._blobs.grant_put_over(
                    key, bytes_max=PREVIEW_BYTES_MAX, media_type=PREVIEW_TYPE, seconds=_lasting(lasting)
                )
            )
        return protocol.Grants(gets, puts, preview)

    def _put(self, task: Task, made: Made) -> protocol.Grant:
        limits = self._engine.settings.limits
        check_file(made.name, made.media_type, made.bytes, made.sha256, limits)
        if not 1 <= made.no <= limits.files_per_task_max:
            raise Problem(422, "out_of_range", f"Files are numbered from 1 to {limits.files_per_task_max}.")
        key = keys.made(task.tenant, task.job_id, task.id, task.attempts, made.no)
        seconds = _lasting(task.lease_seconds)
        return _grant(
            self._blobs.grant_put(key, size=made.bytes, sha256=made.sha256, media_type=made.media_type, seconds=seconds)
        )

    def _given(self, file: File, lease_seconds: int) -> protocol.Given:
        seconds = _lasting(lease_seconds)
        get = self._blobs.grant_get(keys.of(file), seconds=seconds, name=file.name, media_type=file.media_type)
        return protocol.Given(file.id, file.name, file.media_type, file.bytes, file.sha256, _grant(get))

    async def _readable(self, task: Task, asked: Iterable[str]) -> list[File]:
        """Return the files asked for: of the same job, or what its input or its graph refers to."""
        wanted = list(dict.fromkeys(asked))
        if not wanted:
            return []
        found = await self._files(set(wanted))
        outside = {key for key, file in found.items() if file.job_id != task.job_id}
        if outside and (strange := outside - await self._referred(task)):
            raise Unknown("file", min(strange))
        if missing := [key for key in wanted if key not in found]:
            raise Unknown("file", missing[0][:80])
        return [found[key] for key in wanted]

    async def _referred(self, task: Task) -> set[str]:
        """Return the files that a task's input refers to, and those of its workflow's graph."""
        jobs, stages, documents = await self._engine.reads.fetch_all([
            ("job_of_tenant", {"id": task.job_id, "tenant": task.tenant}), ("stages_of", {"id": task.job_id}),
            ("documents", {"ids": [task.id, task.job_id]}),
        ])  # fmt: skip
        found = {key for row in documents for key in references(msgspec.json.decode(row[3]))}
        for job in (Job(*row) for row in jobs):
            key = (job.workflow, job.workflow_version)
            stage_no = next(stage[3] for stage in stages if stage[0] == task.stage_id)
            recipe = (await self._load({key})).get(key)
            spec = None if recipe is None else graph_of(recipe, stage_no)
            if spec is not None:
                found.update(references([*spec.defaults.values(), *spec.overrides.values()]))
        return found

    # -- what a task made

    async def check(self, task: Task, files: Sequence[Made]) -> None:
        """Make sure that every file is there as it is claimed to be, before the result counts."""
        for made in files:
            check_file(made.name, made.media_type, made.bytes, made.sha256, self._engine.settings.limits)
        await self._checks.check(task, files)

    async def earlier(self, task: Task, after: protocol.Told | None = None) -> protocol.EarlierStages:
        """Return what the completed tasks of earlier stages made, in order: a page of it, behind what was told."""
        stages = await self._engine.reads.fetch("stages_of", id=task.job_id)
        here = next(stage[3] for stage in stages if stage[0] == task.stage_id)
        place = Place() if after is None else Place(after.stage_no, after.task_no)
        for number in place:
            in_range("the number of a stage or task", number, 0, NO_MAX)
        page = await made_by(self._engine.reads, task.job_id, place, _EARLIER_MAX, before=here)
        # Every file is signed for: thousands take a while, so not where everybody waits.
        told = await asyncio.to_thread(lambda: [self._told_of(one, task.lease_seconds) for one in page.made])
        return protocol.EarlierStages(told, page.next and protocol.Told(*page.next))

    def _told_of(self, one: MadeBy, lease_seconds: int) -> protocol.Earlier:
        files = [self._given(file, lease_seconds) for file in one.files if file.status == "ready"]
        return protocol.Earlier(one.stage, *one.place, one.output, files)

    async def held(self, worker_id: str, lease: Lease) -> Task:
        """Return the task of a live lease of this worker."""
        found = await self._engine.reads.fetch("task_of_job", id=lease.task_id, job=lease.job_id)
        task = Task(*found[0]) if found else None
        if task is None or task.worker_id != worker_id:
            raise Unknown("lease", lease.task_id[:80])
        if task.token_hash != hashed(lease.token) or task.attempts != lease.attempt:
            raise LeaseLost
        return task

    async def live(self, worker_id: str, lease: Lease) -> Task | None:
        """Return the task of a lease if it is live."""
        try:
            return await self.held(worker_id, lease)
        except Refusal:
            return None

    # -- what is stored

    async def _files(self, wanted: set[str]) -> dict[str, File]:
        if not wanted:
            return {}
        rows = await self._engine.reads.fetch("files_read", ids=sorted(filter(may_be, wanted)))
        return {file.id: file for file in (File(*row) for row in rows) if file.status == "ready"}

    async def _load(self, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], Recipe]:
        """Return recipes by name and version; a version never changes, so what was read stays true."""
        found = {key: self._recipes[key] for key in wanted & self._recipes.keys()}
        if unknown := sorted(wanted - found.keys()):
            if len(self._recipes) + len(unknown) > _RECIPES_MAX:
                self._recipes.clear()
            for row in await self._engine.reads.fetch("workflows", keys=unknown):
                workflow = Workflow(*row)
                found[workflow.name, workflow.version] = parse(workflow.spec)
            self._recipes |= found
        return found


class Draft(NamedTuple):
    """A task with the files it needs and its graph, or why it cannot be made."""

    leased: Leased
    files: list[str]
    graph: Rendered | None
    refusal: Refusal | None = None


def _drafts(tasks: Sequence[Leased], recipes: dict[tuple[str, int], Recipe]) -> list[Draft]:
    """Draft tasks, one after the other; a large graph takes tens of milliseconds, so not where everybody waits."""
    return [_draft(task, recipes.get((task.workflow, task.workflow_version))) for task in tasks]


def _draft(task: Leased, recipe: Recipe | None) -> Draft:
    spec = graph_of(recipe, task.stage_no) if recipe is not None else None
    if spec is None and '"$file"' not in task.input:
        return Draft(task, [], None)
    value: Any = msgspec.json.decode(task.input)
    graph: Rendered | None = None
    try:
        graph = None if spec is None else render(spec, value, task.lease.task_id)
    except Refusal as refusal:
        return Draft(task, [], None, refusal)
    slots = [slot.file_id for slot in graph.assets] if graph else []
    return Draft(task, list(dict.fromkeys([*references(value), *slots])), graph)


def _told(graph: Rendered, files: dict[str, File]) -> Rendered:
    """Tell the digest of every file that a graph takes, from its own row: a worker that has it need not fetch it."""
    assets = [
        replace(slot, sha256=files[slot.file_id].sha256) if slot.file_id in files else slot for slot in graph.assets
    ]
    return replace(graph, assets=assets)


def _lasting(lease_seconds: int) -> int:
    """Return how long an address is good: as long as the lease, and not for so short that nobody can use it."""
    return max(lease_seconds, _GRANT_SECONDS_MIN)


def _grant(grant: Any) -> protocol.Grant:
    return protocol.Grant(grant.method, grant.url, grant.headers, grant.seconds)
