"""`ComfyHandler`: runs the graph of a task on a ComfyUI server and uploads its outputs.

It records the prompt id before it submits. After a crash, the next attempt looks for that prompt: it follows a running
prompt, collects a finished one and resubmits only a lost one. If a paid server may have accepted a graph but the
response was lost, the task fails with `submission_unknown` instead of paying twice.
"""

import time
import uuid
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from callsheet.core.model.comfyui_graph import RenderedGraph
from callsheet.core.model.commands import PreviousSubmission
from callsheet.core.model.plural import pluralize
from callsheet.worker.comfyui.adapters.base import (
    NOT_FOUND,
    ComfyAccessDeniedError,
    ComfyBackend,
    ComfyBusyError,
    ComfyRejectedError,
    ComfyUnreachableError,
    EventStream,
    Graph,
    OutputNotFoundError,
    PicturesLostError,
    Preview,
    ProgressEvent,
    PromptResult,
    SubmissionUnknownError,
)
from callsheet.worker.comfyui.asset_cache import AssetCache
from callsheet.worker.comfyui.input_files import InputFiles
from callsheet.worker.comfyui.progress import PromptProgress
from callsheet.worker.comfyui.prompt_follower import AllReceived, Follower, PromptTimeoutError, open_events
from callsheet.worker.comfyui.save_outputs import OutputSaver
from callsheet.worker.comfyui.submission_graph import bypass_cache, fill_in_files, validate_graph
from callsheet.worker.comfyui.timeouts import Timeouts
from callsheet.worker.comfyui.websocket_images import ReceivedPictures
from callsheet.worker.errors import NonRetryableError, RetryableError, TaskLeaseLost, UnreachableError, WorkerShutdown
from callsheet.worker.runtime.worker_events import EventListener, WorkerWaiting, ignore_listener_errors, log_to_stderr

_STOP_CHECK_SECONDS = 0.25
_LOOKUPS_MAX, _PAID_LOOKUPS_MAX = 2, 5
"""How many lookups must fail before a prompt counts as not found: a job list may lag behind."""


class TaskContext(Protocol):
    """The part of `Context` that this handler uses. Calls raise a `TaskStopped` when the task must stop."""

    @property
    def comfyui(self) -> RenderedGraph | None: ...
    @property
    def resumed(self) -> PreviousSubmission | None: ...
    @property
    def should_stop(self) -> bool: ...
    @property
    def folder(self) -> Path: ...
    def progress(self, percent: float, message: str | None = None) -> None: ...
    def preview(self, picture: bytes) -> None: ...
    def log(self, line: str) -> None: ...
    def download(self, file_id: str) -> Path: ...
    def upload(self, name: str, body: bytes | Path, media_type: str = ...) -> Any: ...
    def record_submission(self, provider: str, ref: str) -> None: ...


class ComfyHandler:
    """Runs graphs on one server. Thread-safe."""

    def __init__(
        self,
        comfy: ComfyBackend,
        timeouts: Timeouts | None = None,
        assets: AssetCache | None = None,
        on_event: EventListener = log_to_stderr,
    ) -> None:
        self._comfy = comfy
        self._timeouts = timeouts or Timeouts()
        self._assets = assets or AssetCache()
        self._emit = ignore_listener_errors(on_event)

    def __call__(self, ctx: TaskContext) -> dict[str, Any]:
        """Run a task; translate backend errors to those of the SDK."""
        try:
            return _GraphRun(self._comfy, self._timeouts, self._assets, ctx, self._emit).run()
        except ComfyRejectedError as error:
            raise NonRetryableError(str(error), code=error.code) from error
        except ComfyAccessDeniedError as error:
            raise NonRetryableError(str(error), code="comfyui_denied") from error
        except PromptTimeoutError as error:
            limit = f"The graph did not finish within {pluralize(self._timeouts.prompt_timeout_seconds, 'second')}."
            raise NonRetryableError(limit, code="comfyui_timeout") from error
        except OutputNotFoundError as error:
            raise RetryableError(str(error), code="output_gone") from error
        except PicturesLostError as error:
            raise (RetryableError if error.retryable else NonRetryableError)(
                str(error), code="pictures_lost" if error.retryable else "no_output"
            ) from error
        except SubmissionUnknownError as error:
            raise NonRetryableError(str(error), code="submission_unknown") from error


class _GraphRun:
    """One task on one server."""

    def __init__(
        self, comfy: ComfyBackend, timeouts: Timeouts, assets: AssetCache, ctx: TaskContext, on_event: EventListener
    ) -> None:
        if ctx.comfyui is None:
            raise ComfyRejectedError("The stage of this workflow has no ComfyUI graph.", code="no_graph")
        self._comfy = comfy
        self._timeouts = timeouts
        self._ctx = ctx
        self._emit = on_event
        self._outage_reported = False
        self._resumable = False
        """Whether the server may have a prompt that has not failed and whose outputs were not collected."""
        self._graph = validate_graph(ctx.comfyui.graph)
        self._progress = PromptProgress(self._graph)
        folder = ctx.folder / "outputs"
        folder.mkdir(exist_ok=True)
        self._saver = OutputSaver(comfy, ctx, folder, self._graph, ctx.comfyui.output_node)
        self._pictures = ReceivedPictures(self._graph, ctx.comfyui.output_node, folder)
        if self._pictures.nodes and not comfy.supports_websocket_pictures:
            raise ComfyRejectedError(
                f"Node {self._pictures.nodes[0]} sends images over a WebSocket, which this server does not support. "
                "Use SaveImage instead.", tuple(self._pictures.nodes),
            )  # fmt: skip
        self._files = InputFiles(comfy, assets, ctx.download, ctx.comfyui.assets)

    def run(self) -> dict[str, Any]:
        """Run the task. After a temporary failure the next attempt resumes the submitted prompt."""
        try:
            return self._run_until_collected()
        except ComfyUnreachableError as error:
            raise RetryableError(str(error), code="comfyui_unreachable", resume=self._resumable) from error
        except UnreachableError as error:  # the Callsheet server or its storage
            raise RetryableError(str(error), code="unreachable", resume=self._resumable) from error
        except RetryableError as error:
            raise RetryableError(error.message, error.code, resume=self._resumable) from error

    def _run_until_collected(self) -> dict[str, Any]:
        """Resume the previous submission or submit; submit again if the server lost the prompt or its files."""
        result = self._resume_previous()
        stale_nodes: set[str] = set()
        reuploaded = False
        for _ in range(self._timeouts.submissions_max):
            if result is None:
                try:
                    result = self._submit_and_follow(stale_nodes)
                except ComfyRejectedError as error:
                    if reuploaded or not self._files.invalidate_missing(error):
                        raise
                    reuploaded = True
                    continue
            self._resumable = result.outcome == "succeeded"
            if result.outcome in {"lost", "canceled"}:
                self._files.invalidate()
                self._ctx.log(f"{result.error} Submitting it again.")
                result = None
                continue
            try:
                return self._collect(result)
            except OutputNotFoundError as error:
                self._resumable = False
                stale_nodes.add(error.node)
                self._ctx.log(f"{error} Running its node again.")
                result = None
        raise RetryableError(
            "The ComfyUI server lost the prompt or its files several times in a row.", code="prompt_lost"
        )

    def _collect(self, result: PromptResult) -> dict[str, Any]:
        """Collect the outputs; wait for an unreachable server, then leave it to the next attempt."""
        deadline, interval = time.monotonic() + self._timeouts.outage_timeout_seconds, self._timeouts.retry_seconds
        while True:
            try:
                return self._saver.save_outputs(result)
            except ComfyUnreachableError as error:
                outage = error
            try:
                self._wait(interval, deadline, outage)
            except ComfyUnreachableError as error:
                raise RetryableError(f"The outputs cannot be fetched now. {error}", "output_unreachable") from error
            interval = min(interval * 2, max(self._timeouts.poll_seconds, self._timeouts.retry_seconds))

    # -- the previous submission

    def _resume_previous(self) -> PromptResult | None:
        previous = self._ctx.resumed
        if previous is None or previous.provider != self._comfy.provider:
            return None
        self._resumable = True
        ref = self._resolve_previous_ref(previous.ref)
        if ref is None:
            self._resumable = False
            return None
        if ref != previous.ref:  # the earlier attempt recorded only its planned reference
            self._ctx.record_submission(self._comfy.provider, ref)
        try:
            with open_events(self._comfy, ref) as event_stream:
                result: PromptResult | None = self._follow(ref, event_stream, self._pictures.nothing_pending)
        except PicturesLostError:
            self._ctx.log("The images that were sent to an earlier attempt are lost. Submitting it again.")
            result = None
        self._resumable = result is not None and result.outcome == "succeeded"
        return result if result is not None and result.outcome in {"succeeded", "failed"} else None

    def _resolve_previous_ref(self, ref: str) -> str | None:
        """Return the server's own id of the previously submitted prompt; None if it has none."""
        deadline = time.monotonic() + self._timeouts.outage_timeout_seconds
        while True:
            try:
                resolved = self._comfy.resolve_ref(ref)
            except ComfyUnreachableError as error:
                self._wait(self._timeouts.retry_seconds, deadline, error)
                continue
            if resolved is None:
                self._ctx.log("The prompt of an earlier attempt was not found. It runs again and may be billed twice.")
            return resolved

    # -- submit and follow

    def _submit_and_follow(self, stale_nodes: set[str]) -> PromptResult:
        deadline = time.monotonic() + self._timeouts.outage_timeout_seconds
        while True:
            prompt_id = str(uuid.uuid4())
            try:
                graph = bypass_cache(self._graph_with_files(deadline), stale_nodes, prompt_id)
                with open_events(self._comfy, prompt_id) as event_stream:
                    self._wait_for_socket(event_stream, deadline)
                    ref = self._submit_and_record(prompt_id, graph, deadline)
                    return self._follow(ref, event_stream, self._pictures.all_received)
            except ComfyBusyError as busy:
                self._resumable = False
                self._wait(busy.retry_after_seconds, deadline, busy)

    def _wait_for_socket(self, event_stream: EventStream, deadline: float) -> None:
        """Wait for the WebSocket if images are only sent over it: otherwise they would be lost."""
        while self._pictures.nodes and not event_stream.ready:
            self._wait(
                self._timeouts.retry_seconds,
                deadline,
                ComfyUnreachableError("Images cannot be received: ComfyUI accepts no WebSocket connection."),
            )
            event_stream.receive("", 0.0)

    def _follow(self, ref: str, event_stream: EventStream, all_received: AllReceived) -> PromptResult:
        timeouts, disconnects = self._timeouts, event_stream.disconnects
        if not self._comfy.safe_to_resubmit:  # paid work is followed until the prompt timeout
            timeouts = replace(
                timeouts, outage_timeout_seconds=max(timeouts.outage_timeout_seconds, timeouts.prompt_timeout_seconds)
            )
        follower = Follower(self._comfy, ref, timeouts, self._on_outage)
        self._pictures.reset()
        try:
            result = follower.wait_until_ended(event_stream, self._handle_event, self._raise_if_stopped, all_received)
        except ComfyUnreachableError:
            raise  # an unreachable server cannot receive a cancel
        except (WorkerShutdown, TaskLeaseLost):
            if (
                self._comfy.safe_to_resubmit or self._pictures.nodes
            ):  # paid work continues; the next attempt collects it
                follower.stop()
            raise
        except BaseException:
            follower.stop()
            raise
        self._saver.ref = ref
        if result.outcome == "succeeded":
            self._check_pictures(disconnected=event_stream.disconnects > disconnects or not follower.end_seen)
        return result._replace(outputs=result.outputs + self._pictures.outputs)

    def _check_pictures(self, *, disconnected: bool) -> None:
        try:
            self._pictures.check(disconnected=disconnected)
        except PicturesLostError:
            self._saver.forget()
            raise

    def _submit_and_record(self, prompt_id: str, graph: Graph, deadline: float) -> str:
        """Submit and record the reference; if it is known in advance, record it first."""
        ref = planned_ref = self._comfy.planned_ref(prompt_id)
        if planned_ref is not None:
            self._ctx.record_submission(self._comfy.provider, planned_ref)
        try:
            ref = self._submit_until_accepted(prompt_id, planned_ref, graph, deadline)
            if ref != planned_ref:
                self._ctx.record_submission(self._comfy.provider, ref)
        except ComfyRejectedError as error:
            self._cancel(error.ref)
            raise
        except (ComfyBusyError, ComfyAccessDeniedError, ComfyUnreachableError):
            raise
        except BaseException:
            self._cancel(ref)
            raise
        return ref

    def _submit_until_accepted(self, prompt_id: str, planned_ref: str | None, graph: Graph, deadline: float) -> str:
        """Submit until the server accepts. After a lost response, look for the prompt before submitting again.

        A retry has the same id, so that two submissions are one prompt. If the server assigns its own ids, a retry
        might be billed twice: the task fails instead.
        """
        while True:
            try:
                ref: str | None = self._comfy.submit(prompt_id, graph)
            except ComfyUnreachableError as error:
                if not error.maybe_sent:
                    self._wait(self._timeouts.retry_seconds, deadline, error)
                    continue
                self._resumable = True
                ref = (
                    self._find_submitted(planned_ref, deadline, error)
                    if self._comfy.safe_to_resubmit
                    else self._find_paid(planned_ref, deadline, error)
                )
            if ref is not None:
                self._resumable = True
                return ref

    def _find_paid(self, planned_ref: str | None, deadline: float, error: ComfyUnreachableError) -> str:
        """Find a prompt on a paid server, or raise: it is never submitted twice."""
        try:
            ref = self._find_submitted(planned_ref, deadline, error)
        except ComfyUnreachableError:
            ref = None
        if ref is None:
            raise SubmissionUnknownError
        return ref

    def _find_submitted(self, planned_ref: str | None, deadline: float, error: ComfyUnreachableError) -> str | None:
        """Look for a prompt several times; wait for an unreachable server."""
        safe_to_resubmit, absences = self._comfy.safe_to_resubmit, 0
        while planned_ref is not None and absences < (_LOOKUPS_MAX if safe_to_resubmit else _PAID_LOOKUPS_MAX):
            self._wait(
                self._timeouts.retry_seconds if safe_to_resubmit else self._timeouts.poll_seconds, deadline, error
            )
            try:
                ref = self._comfy.resolve_ref(planned_ref)
                if ref is not None and self._comfy.get_status(ref) != NOT_FOUND:
                    return ref
            except ComfyUnreachableError:
                continue
            absences += 1
        return None

    def _cancel(self, ref: str | None) -> None:
        if ref is not None:
            Follower(self._comfy, ref, self._timeouts).stop()

    def _wait(self, seconds: float, deadline: float, error: Exception) -> None:
        """Sleep, report the outage, and stop early if the task must stop."""
        end = time.monotonic() + seconds
        if end > deadline:
            raise ComfyUnreachableError(str(error)) from error
        self._on_outage(error)
        while (remaining := end - time.monotonic()) > 0:
            self._raise_if_stopped()
            time.sleep(min(remaining, _STOP_CHECK_SECONDS))
        self._raise_if_stopped()

    def _on_outage(self, error: Exception | None) -> None:
        """Report an outage once; without an error, report that the server responds again."""
        if error is None:
            self._outage_reported = False
            self._ctx.progress(self._progress.percent, self._progress.message or "running")
        elif not self._outage_reported:
            self._outage_reported = True
            self._ctx.progress(self._progress.percent, "waiting for ComfyUI")
            self._emit(WorkerWaiting(f"A task is waiting for ComfyUI: {error}"))

    # -- events

    def _handle_event(self, event: ProgressEvent) -> None:
        self._pictures.apply(event)
        if isinstance(event, Preview):
            self._ctx.preview(event.picture)
        elif self._progress.apply(event):
            self._outage_reported = False
            self._ctx.progress(self._progress.percent, self._progress.message)

    def _raise_if_stopped(self) -> None:
        if self._ctx.should_stop:
            self._ctx.progress(self._progress.percent)  # raises the stop reason

    # -- input files

    def _graph_with_files(self, deadline: float) -> Graph:
        """Upload the input files and return the graph that refers to them; wait for an unreachable server."""
        while True:
            try:
                return fill_in_files(self._graph, self._files.ensure_uploaded())
            except ComfyUnreachableError as error:
                self._wait(self._timeouts.retry_seconds, deadline, error)
