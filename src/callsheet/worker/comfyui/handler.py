"""The handler that runs a task's graph at a ComfyUI server and keeps what it made.

It writes the prompt's id down before it submits. Whoever takes the task up after a crash looks for that prompt first:
one that still runs is followed, one that has ended is collected, and only one that is lost is run again. Where a
server is paid and may have taken a graph without anybody knowing, the task ends as that, and is not run twice.
"""

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from callsheet.core.counting import counted
from callsheet.worker.comfyui.assets import Assets
from callsheet.worker.comfyui.base import (
    ABSENT,
    Away,
    Busy,
    Comfy,
    Declined,
    Ended,
    Gone,
    Graph,
    Live,
    Missed,
    News,
    Preview,
    Rejected,
    Unknown,
)
from callsheet.worker.comfyui.files import Files, Slot
from callsheet.worker.comfyui.follow import Follower, TookTooLong, Whole, listening
from callsheet.worker.comfyui.graph import anew, checked, filled
from callsheet.worker.comfyui.keep import Keeper
from callsheet.worker.comfyui.meter import Meter
from callsheet.worker.comfyui.pace import Pace
from callsheet.worker.comfyui.pictures import Pictures
from callsheet.worker.errors import GiveUp, Leaving, Lost, Retry, Unreachable
from callsheet.worker.facts import Tell, Waiting, guarded, to_stderr

_SLICE_SECONDS = 0.25
_LOOKS, _LOOKS_FOR_PAID = 2, 5
"""How often a prompt is looked for before it is not there: a list of jobs may be late."""


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
    @property
    def folder(self) -> Path: ...
    def progress(self, percent: float, message: str | None = None) -> None: ...
    def preview(self, picture: bytes) -> None: ...
    def log(self, line: str) -> None: ...
    def download(self, file_id: str) -> Path: ...
    def upload(self, name: str, body: bytes | Path, media_type: str = ...) -> Any: ...
    def submitted(self, provider: str, ref: str) -> None: ...


class ComfyHandler:
    """Runs graphs at one server; called from many threads."""

    def __init__(
        self, comfy: Comfy, pace: Pace | None = None, assets: Assets | None = None, tell: Tell = to_stderr
    ) -> None:
        self._comfy = comfy
        self._pace = pace or Pace()
        self._assets = assets or Assets()
        self._tell = guarded(tell)

    def __call__(self, ctx: Task) -> dict[str, Any]:
        """Run a task, and say what became of it in the SDK's terms."""
        try:
            return _Job(self._comfy, self._pace, self._assets, ctx, self._tell).done()
        except Rejected as error:
            raise GiveUp(str(error), code=error.code) from error
        except Declined as error:
            raise GiveUp(str(error), code="comfyui_denied") from error
        except TookTooLong as error:
            limit = f"The graph did not end within {counted(self._pace.limit_seconds, 'second')}."
            raise GiveUp(limit, code="comfyui_timeout") from error
        except Gone as error:
            raise Retry(str(error), code="output_gone") from error
        except Missed as error:
            raise (Retry if error.passing else GiveUp)(
                str(error), code="pictures_lost" if error.passing else "no_output"
            ) from error
        except Unknown as error:
            raise GiveUp(str(error), code="submission_unknown") from error


class _Job:
    """One task at one server."""

    def __init__(self, comfy: Comfy, pace: Pace, assets: Assets, ctx: Task, tell: Tell) -> None:
        if ctx.comfyui is None:
            raise Rejected("The workflow has no ComfyUI graph for this worker to run.", code="no_graph")
        self._comfy = comfy
        self._pace = pace
        self._ctx = ctx
        self._tell = tell
        self._waiting = False
        self._open = False
        """Whether a prompt may be at the server that was not collected, and is not known to have failed."""
        self._graph = checked(ctx.comfyui.graph)
        self._meter = Meter(self._graph)
        folder = ctx.folder / "made"
        folder.mkdir(exist_ok=True)
        self._keeper = Keeper(comfy, ctx, folder, self._graph, ctx.comfyui.output_node)
        self._pictures = Pictures(self._graph, ctx.comfyui.output_node, folder)
        if self._pictures.nodes and not comfy.sends:
            raise Rejected(
                f"Node {self._pictures.nodes[0]} sends its pictures over a WebSocket, which this server does not have: "
                "use SaveImage.", tuple(self._pictures.nodes),
            )  # fmt: skip
        self._files = Files(comfy, assets, ctx.download, ctx.comfyui.assets)

    def done(self) -> dict[str, Any]:
        """Do the task; where it cannot be done for now, let the next try go on with what is at the server."""
        try:
            return self._done()
        except Away as error:
            raise Retry(str(error), code="comfyui_unreachable", resume=self._open) from error
        except Unreachable as error:  # of the house, or its store
            raise Retry(str(error), code="unreachable", resume=self._open) from error
        except Retry as error:
            raise Retry(error.message, error.code, resume=self._open) from error

    def _done(self) -> dict[str, Any]:
        """Take up what an earlier try began, else begin; again where the server lost something."""
        ended = self._earlier()
        stale: set[str] = set()
        brought = False
        for _ in range(self._pace.turns_max):
            if ended is None:
                try:
                    ended = self._run(stale)
                except Rejected as error:
                    if brought or not self._files.missing(error):
                        raise
                    brought = True
                    continue
            self._open = ended.outcome == "succeeded"
            if ended.outcome in {"lost", "canceled"}:
                self._files.drop()
                self._ctx.log(f"{ended.error} It is submitted again.")
                ended = None
                continue
            try:
                return self._collected(ended)
            except Gone as error:
                self._open = False
                stale.add(error.node)
                self._ctx.log(f"{error} Its node is run again.")
                ended = None
        raise Retry("The ComfyUI server lost the prompt, or its files, again and again.", code="prompt_lost")

    def _collected(self, ended: Ended) -> dict[str, Any]:
        """Collect; a server that is silent is waited for, since what it made is there, then by the next try."""
        until, gap = time.monotonic() + self._pace.away_seconds, self._pace.look_seconds
        while True:
            try:
                return self._keeper.collected(ended)
            except Away as error:
                lost = error
            try:
                self._pause(gap, until, lost)
            except Away as error:
                raise Retry(f"What the graph made cannot be fetched for now. {error}", "output_unreachable") from error
            gap = min(gap * 2, max(self._pace.poll_seconds, self._pace.look_seconds))

    # -- what an earlier try began

    def _earlier(self) -> Ended | None:
        before = self._ctx.resumed
        if before is None or before.provider != self._comfy.provider:
            return None
        self._open = True
        ref = self._earlier_ref(before.ref)
        if ref is None:
            self._open = False
            return None
        if ref != before.ref:  # what the house has written down for this try is what the one before knew
            self._ctx.submitted(self._comfy.provider, ref)
        try:
            with listening(self._comfy, ref) as live:
                ended: Ended | None = self._followed(ref, live, self._pictures.settled)
        except Missed:
            self._ctx.log("Pictures that an earlier try was sent are gone. It is submitted again.")
            ended = None
        self._open = ended is not None and ended.outcome == "succeeded"
        return ended if ended is not None and ended.outcome in {"succeeded", "failed"} else None

    def _earlier_ref(self, ref: str) -> str | None:
        """Return what the server calls an earlier try's prompt."""
        until = time.monotonic() + self._pace.away_seconds
        while True:
            try:
                known = self._comfy.known_as(ref)
            except Away as error:
                self._pause(self._pace.look_seconds, until, error)
                continue
            if known is None:
                self._ctx.log("What an earlier try submitted is not found. It is run again, and maybe paid for twice.")
            return known

    # -- a run

    def _run(self, stale: set[str]) -> Ended:
        until = time.monotonic() + self._pace.away_seconds
        while True:
            prompt_id = str(uuid.uuid4())
            try:
                graph = anew(self._with_files(until), stale, prompt_id)
                with listening(self._comfy, prompt_id) as live:
                    self._hearing(live, until)
                    ref = self._submitted(prompt_id, graph, until)
                    return self._followed(ref, live, self._pictures.whole)
            except Busy as busy:
                self._open = False
                self._pause(busy.seconds, until, busy)

    def _hearing(self, live: Live, until: float) -> None:
        """Wait for the socket if pictures come over it alone: what cannot be heard is not begun."""
        while self._pictures.nodes and not live.ready:
            self._pause(self._pace.look_seconds, until, Away("Pictures cannot be heard: ComfyUI opens no WebSocket."))
            live.heard("", 0.0)

    def _followed(self, ref: str, live: Live, whole: Whole) -> Ended:
        pace, cuts = self._pace, live.cuts
        if not self._comfy.repeats:  # what was paid for is followed for as long as it may take
            pace = replace(pace, away_seconds=max(pace.away_seconds, pace.limit_seconds))
        follower = Follower(self._comfy, ref, pace, self._silent)
        self._pictures.begin()
        try:
            ended = follower.until_ended(live, self._hear, self._check, whole)
        except Away:
            raise  # there is nobody to tell
        except (Leaving, Lost):
            if self._comfy.repeats or self._pictures.nodes:  # else it is paid for, and goes on without us
                follower.stop()
            raise
        except BaseException:
            follower.stop()
            raise
        self._keeper.ref = ref
        if ended.outcome == "succeeded":
            self._whole(cut=live.cuts > cuts or not follower.over)
        return ended._replace(outputs=ended.outputs + self._pictures.outputs)

    def _whole(self, *, cut: bool) -> None:
        try:
            self._pictures.check(cut=cut)
        except Missed:
            self._keeper.forget()
            raise

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

        Sent again it has the same id: if both arrive after all, they are one prompt. A server that takes no id of ours
        would be paid for both: there the task ends.
        """
        while True:
            try:
                ref: str | None = self._comfy.submit(prompt_id, graph)
            except Away as error:
                if not error.sent:
                    self._pause(self._pace.look_seconds, until, error)
                    continue
                self._open = True
                ref = self._found(named, until, error) if self._comfy.repeats else self._paid(named, until, error)
            if ref is not None:
                self._open = True
                return ref

    def _paid(self, named: str | None, until: float, error: Away) -> str:
        """Look for a prompt that was paid for if it was taken; it is not sent twice."""
        try:
            ref = self._found(named, until, error)
        except Away:
            ref = None
        if ref is None:
            raise Unknown
        return ref

    def _found(self, named: str | None, until: float, error: Away) -> str | None:
        """Look for a prompt, several times in a row; a server that is silent is waited for."""
        repeats, absences = self._comfy.repeats, 0
        while named is not None and absences < (_LOOKS if repeats else _LOOKS_FOR_PAID):
            self._pause(self._pace.look_seconds if repeats else self._pace.poll_seconds, until, error)
            try:
                ref = self._comfy.known_as(named)
                if ref is not None and self._comfy.look(ref) != ABSENT:
                    return ref
            except Away:
                continue
            absences += 1
        return None

    def _stop(self, ref: str | None) -> None:
        if ref is not None:
            Follower(self._comfy, ref, self._pace).stop()

    def _pause(self, seconds: float, until: float, error: Exception) -> None:
        """Wait, say so, and hear the wish to stop meanwhile."""
        end = time.monotonic() + seconds
        if end > until:
            raise Away(str(error)) from error
        self._silent(error)
        while (left := end - time.monotonic()) > 0:
            self._check()
            time.sleep(min(left, _SLICE_SECONDS))
        self._check()

    def _silent(self, error: Exception | None) -> None:
        """Say once that the server is waited for; without an error it is there again."""
        if error is None:
            self._waiting = False
            self._ctx.progress(self._meter.percent, self._meter.message or "running")
        elif not self._waiting:
            self._waiting = True
            self._ctx.progress(self._meter.percent, "waiting for ComfyUI")
            self._tell(Waiting(f"A task waits for ComfyUI: {error}"))

    # -- what is heard on the way

    def _hear(self, news: News) -> None:
        self._pictures.take(news)
        if isinstance(news, Preview):
            self._ctx.preview(news.picture)
        elif self._meter.take(news):
            self._waiting = False
            self._ctx.progress(self._meter.percent, self._meter.message)

    def _check(self) -> None:
        if self._ctx.canceled:
            self._ctx.progress(self._meter.percent)  # raises what the task is to stop for

    # -- its files

    def _with_files(self, until: float) -> Graph:
        """Return the graph with its files at the server; one that is silent is waited for."""
        while True:
            try:
                return filled(self._graph, self._files.brought())
            except Away as error:
                self._pause(self._pace.look_seconds, until, error)
