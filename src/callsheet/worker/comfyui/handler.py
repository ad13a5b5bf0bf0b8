"""The handler that runs a task's graph at a ComfyUI server and keeps what it made.

It writes the prompt's id down before it submits. Whoever takes the task up after a crash looks for that prompt first:
one that still runs is followed, one that has ended is collected, and only one that is lost is run again.
"""

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from callsheet.worker.comfyui.assets import Assets, digest_of
from callsheet.worker.comfyui.base import (
    ABSENT,
    Away,
    Busy,
    Comfy,
    Declined,
    Ended,
    Gone,
    Graph,
    News,
    Preview,
    Rejected,
)
from callsheet.worker.comfyui.follow import Follower, TookTooLong, listening
from callsheet.worker.comfyui.graph import anew, checked, filled
from callsheet.worker.comfyui.keep import Keeper
from callsheet.worker.comfyui.media import HEAD_BYTES, extension, media_type
from callsheet.worker.comfyui.meter import Meter
from callsheet.worker.comfyui.pace import Pace
from callsheet.worker.errors import GiveUp, Retry

_LOOK_SECONDS = 0.2
_SLICE_SECONDS = 0.25


class Slot(Protocol):
    """A field of a node that takes an uploaded file."""

    @property
    def node(self) -> str: ...
    @property
    def field(self) -> str: ...
    @property
    def file_id(self) -> str: ...
    @property
    def sha256(self) -> str | None: ...


class Rendered(Protocol):
    """A graph with its values, but for its files."""

    @property
    def graph(self) -> Graph: ...
    @property
    def assets(self) -> Sequence[Slot]: ...
    @property
    def output_node(self) -> str | None: ...


class Resumed(Protocol):
    """What an earlier try handed to a server."""

    @property
    def provider(self) -> str: ...
    @property
    def ref(self) -> str: ...


class Task(Protocol):
    """What this handler needs of the SDK's context. Calls raise a `Stop` when the work is to stop."""

    @property
    def comfyui(self) -> Rendered | None: ...
    @property
    def resumed(self) -> Resumed | None: ...
    @property
    def canceled(self) -> bool: ...
    def progress(self, percent: float, message: str | None = None) -> None: ...
    def preview(self, picture: bytes) -> None: ...
    def log(self, line: str) -> None: ...
    def download(self, file_id: str) -> Path: ...
    def upload(self, name: str, body: bytes | Path, media_type: str = ...) -> Any: ...
    def submitted(self, provider: str, ref: str) -> None: ...


class ComfyHandler:
    """Runs graphs at one server; called from many threads."""

    def __init__(self, comfy: Comfy, pace: Pace | None = None, assets: Assets | None = None) -> None:
        self._comfy = comfy
        self._pace = pace or Pace()
        self._assets = assets or Assets()

    def __call__(self, ctx: Task) -> dict[str, Any]:
        """Run a task, and say what became of it in the SDK's terms."""
        try:
            with TemporaryDirectory(prefix="callsheet-comfyui-") as folder:
                return _Job(self._comfy, self._pace, self._assets, ctx, Path(folder)).done()
        except Rejected as error:
            raise GiveUp(str(error), code=error.code) from error
        except Declined as error:
            raise GiveUp(str(error), code="comfyui_denied") from error
        except TookTooLong as error:
            limit = f"The graph did not end within {self._pace.limit_seconds:g} seconds."
            raise GiveUp(limit, code="comfyui_timeout") from error
        except Gone as error:
            raise Retry(str(error), code="output_gone") from error
        except Away as error:
            raise Retry(str(error), code="comfyui_unreachable") from error


class _Job:
    """One task at one server."""

    def __init__(self, comfy: Comfy, pace: Pace, assets: Assets, ctx: Task, folder: Path) -> None:
        if ctx.comfyui is None:
            raise Rejected("The workflow has no ComfyUI graph for this worker to run.", code="no_graph")
        self._comfy = comfy
        self._pace = pace
        self._assets = assets
        self._ctx = ctx
        self._wanted = ctx.comfyui
        self._graph = checked(ctx.comfyui.graph)
        self._meter = Meter(self._graph)
        self._keeper = Keeper(comfy, ctx, folder, self._graph, ctx.comfyui.output_node)
        self._digests: dict[str, str] = {}
        """By node, the file that it takes."""

    def done(self) -> dict[str, Any]:
        """Take up what an earlier try began, else begin; again where the server lost something."""
        ended = self._earlier()
        stale: set[str] = set()
        brought = False
        for _ in range(self._pace.turns_max):
            if ended is None:
                try:
                    ended = self._run(stale)
                except Rejected as error:
                    if brought or not self._missing(error):
                        raise
                    brought = True
                    continue
            if ended.outcome in {"lost", "canceled"}:
                self._assets.drop(self._comfy.endpoint, self._digests.values())
                self._ctx.log(f"{ended.error} It is submitted again.")
                ended = None
                continue
            try:
                return self._keeper.collected(ended)
            except Gone as error:
                stale.add(error.node)
                self._ctx.log(f"{error} Its node is run again.")
                ended = None
        raise Retry("The ComfyUI server lost the prompt, or its files, again and again.", code="prompt_lost")

    # -- what an earlier try began

    def _earlier(self) -> Ended | None:
        before = self._ctx.resumed
        if before is None or before.provider != self._comfy.provider:
            return None
        follower = Follower(self._comfy, before.ref, self._pace)
        with listening(self._comfy, before.ref) as live:
            ended = self._followed(follower, before.ref, live)
        return ended if ended.outcome in {"succeeded", "failed"} else None

    # -- a run

    def _run(self, stale: set[str]) -> Ended:
        until = time.monotonic() + self._pace.away_seconds
        while True:
            prompt_id = str(uuid.uuid4())
            try:
                graph = anew(self._with_files(until), stale, prompt_id)
                with listening(self._comfy, prompt_id) as live:
                    ref = self._submitted(prompt_id, graph, until)
                    return self._followed(Follower(self._comfy, ref, self._pace), ref, live)
            except Busy as busy:
                self._pause(busy.seconds, until, busy)

    def _followed(self, follower: Follower, ref: str, live: Any) -> Ended:
        try:
            ended = follower.until_ended(live, self._hear, self._check)
        except Away:
            raise  # there is nobody to tell
        except BaseException:
            follower.stop()
            raise
        self._keeper.ref = ref
        return ended

    def _submitted(self, prompt_id: str, graph: Graph, until: float) -> str:
        """Submit, with the reference written down: before, where it is known, so that a lost answer loses nothing."""
        ref = named = self._comfy.named(prompt_id)
        if named is not None:
            self._ctx.submitted(self._comfy.provider, named)
        try:
            ref = self._taken(prompt_id, named, graph, until)
            if ref != named:
                self._ctx.submitted(self._comfy.provider, ref)
        except Rejected as error:
            self._stop(error.ref)
            raise
        except (Busy, Declined, Away):
            raise
        except BaseException:
            self._stop(ref)
            raise
        return ref

    def _taken(self, prompt_id: str, named: str | None, graph: Graph, until: float) -> str:
        """Submit until there is an answer; where one is lost, look whether the prompt is there before it is sent again.

        Sent again it has the same id: if both arrive after all, they are one prompt.
        """
        while True:
            try:
                return self._comfy.submit(prompt_id, graph)
            except Away as error:
                if named is None:
                    raise
                if self._found(named, until, error):
                    return named

    def _found(self, ref: str, until: float, error: Away) -> bool:
        """Look for a prompt, twice in a row; a server that is silent is waited for."""
        absences = 0
        while absences < 2:  # noqa: PLR2004 - as for a prompt that is lost
            self._pause(_LOOK_SECONDS, until, error)
            try:
                if self._comfy.look(ref) != ABSENT:
                    return True
            except Away:
                continue
            absences += 1
        return False

    def _stop(self, ref: str | None) -> None:
        if ref is not None:
            Follower(self._comfy, ref, self._pace).stop()

    def _pause(self, seconds: float, until: float, error: Exception) -> None:
        """Wait, and hear the wish to stop meanwhile."""
        end = time.monotonic() + seconds
        if end > until:
            raise Away(str(error)) from error
        while (left := end - time.monotonic()) > 0:
            self._check()
            time.sleep(min(left, _SLICE_SECONDS))
        self._check()

    # -- what is heard on the way

    def _hear(self, news: News) -> None:
        if isinstance(news, Preview):
            self._ctx.preview(news.picture)
        elif self._meter.take(news):
            self._ctx.progress(self._meter.percent, self._meter.message)

    def _check(self) -> None:
        if self._ctx.canceled:
            self._ctx.progress(self._meter.percent)  # raises what the task is to stop for

    # -- its files

    def _with_files(self, until: float) -> Graph:
        """Return the graph with its files at the server; one that is silent is waited for."""
        while True:
            try:
                files = [(slot.node, slot.field, self._brought(slot)) for slot in self._wanted.assets]
                return filled(self._graph, files)
            except Away as error:
                self._pause(_LOOK_SECONDS, until, error)

    def _brought(self, slot: Slot) -> Any:
        """Return what stands for a file, which is only downloaded if the server may not have it."""
        sha256 = slot.sha256
        known = self._assets.get(self._comfy.endpoint, sha256) if sha256 else None
        if sha256 is None or known is None:
            path = self._ctx.download(slot.file_id)
            sha256 = digest_of(path)
            known = self._assets.get(self._comfy.endpoint, sha256)
            if known is None:
                known = self._comfy.upload(_name(sha256, path), path)
                self._assets.put(self._comfy.endpoint, sha256, known)
        self._digests[slot.node] = sha256
        return known

    def _missing(self, error: Rejected) -> bool:
        """Forget the files of nodes that the server does not take: it may have lost them."""
        everything = error.code == "missing_asset"
        lost = [sha256 for node, sha256 in self._digests.items() if everything or node in error.nodes]
        self._assets.drop(self._comfy.endpoint, lost)
        return bool(lost)


def _name(sha256: str, path: Path) -> str:
    """Name a file by its content, so that a server that has it keeps one."""
    with path.open("rb") as file:
        ending = extension(media_type(file.read(HEAD_BYTES), name=path.name)) or path.suffix
    return f"callsheet-{sha256[:32]}{ending}"
