"""`OutputSaver`: fetches the outputs of a prompt and uploads them as files of the task."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from callsheet.worker.comfyui.adapters import error_text
from callsheet.worker.comfyui.adapters.base import (
    ComfyAccessDeniedError,
    ComfyBackend,
    ComfyRejectedError,
    ComfyUnreachableError,
    Graph,
    Output,
    OutputNotFoundError,
    PromptResult,
)
from callsheet.worker.comfyui.adapters.output_list import select_outputs
from callsheet.worker.comfyui.media_type import HEAD_BYTES, detect_media_type, extension_for
from callsheet.worker.comfyui.prompt_follower import forget
from callsheet.worker.comfyui.submission_graph import input_texts
from callsheet.worker.errors import NonRetryableError, RetryableError

_TEXT_CHARS_MAX = 10_000
"""Longer texts are uploaded as files."""
_NAME_CHARS_MAX = 100
_COLLECTING_PERCENT = 99.0


class TaskContext(Protocol):
    """The part of `Context` that this module uses."""

    def progress(self, percent: float, message: str | None = None) -> None: ...
    def log(self, line: str) -> None: ...
    def upload(self, name: str, body: bytes | Path, media_type: str = ...) -> Any: ...


class OutputSaver:
    """Saves the outputs of one task."""

    def __init__(
        self, comfy: ComfyBackend, ctx: TaskContext, folder: Path, graph: Graph, output_node: str | None
    ) -> None:
        self._comfy = comfy
        self._ctx = ctx
        self._folder = folder
        self._graph = graph
        self._output_node = output_node
        self._names: set[str] = set()
        self.ref: str | None = None

    def save_outputs(self, result: PromptResult) -> dict[str, Any]:
        """Upload all outputs and return the task's output; raise if the prompt failed or a file is missing."""
        if result.outcome == "failed":
            self._save_partial_outputs(result.outputs)
            self.forget()
            raise self._error_for(result)
        selected = select_outputs(result.outputs, self._output_node)
        if not selected:
            self.forget()
            raise NonRetryableError(self._no_output_message(), code="no_output")
        self._ctx.progress(_COLLECTING_PERCENT, "collecting")
        fetched = [(output, self._fetch(no, output)) for no, output in enumerate(selected)]
        saved = [self._save(output, *file) for output, file in fetched]
        self.forget()
        return {"outputs": saved}

    def _error_for(self, result: PromptResult) -> RetryableError | NonRetryableError:
        if result.node_error is None:
            return (RetryableError if result.retryable else NonRetryableError)(result.error, code="comfyui_failed")
        error, retryable = error_text.describe_failure(result.node_error, input_texts(self._graph))
        return (RetryableError if retryable or result.retryable else NonRetryableError)(error, code="comfyui_failed")

    def _no_output_message(self) -> str:
        if self._output_node is not None:
            return f"The graph ran, but its output node {self._output_node} produced no file and no text."
        return "The graph ran, but produced no file and no text. Add an output node such as SaveImage."

    def _fetch(self, no: int, output: Output) -> tuple[Path | None, str]:
        """Fetch one file. All are fetched before the first is uploaded: if one is missing, the prompt runs again."""
        if output.text is not None:
            return None, "text/plain"
        into = Path(output.location) if output.kind == "sent" else self._folder / str(no)
        content_type = "" if output.kind == "sent" else self._comfy.fetch(output, into)
        with into.open("rb") as file:
            return into, detect_media_type(file.read(HEAD_BYTES), content_type, output.name)

    def _save(self, output: Output, path: Path | None, kind: str) -> dict[str, Any]:
        if path is None:
            return self._save_text(output)
        name = self._unique_name(output, kind)
        size = path.stat().st_size
        self._ctx.upload(name, path, kind)
        path.unlink()
        return {"node": output.node, "name": name, "media_type": kind, "bytes": size}

    def _save_text(self, output: Output) -> dict[str, Any]:
        text = output.text or ""
        if len(text) <= _TEXT_CHARS_MAX:
            return {"node": output.node, "text": text}
        body, name = text.encode(), self._unique_name(output, "text/plain")
        self._ctx.upload(name, body, "text/plain")
        return {"node": output.node, "name": name, "media_type": "text/plain", "bytes": len(body)}

    def _unique_name(self, output: Output, kind: str) -> str:
        """Return a safe file name that is unique within the task."""
        base = "".join(c if c.isalnum() or c in "._-" else "_" for c in output.name)[-_NAME_CHARS_MAX:].lstrip(".")
        name = base if "." in base else f"{base or 'file'}{extension_for(kind)}"
        if name in self._names:
            name = f"{len(self._names) + 1}-{name}"
        self._names.add(name)
        return name

    def _save_partial_outputs(self, outputs: Sequence[Output]) -> None:
        """Upload the outputs of a failed prompt as far as possible."""
        for no, output in enumerate(outputs):
            with suppress(ComfyUnreachableError, OutputNotFoundError, ComfyAccessDeniedError, ComfyRejectedError):
                saved = self._save(output, *self._fetch(no, output))
                self._ctx.log(f"Produced before the failure: {saved.get('name', 'a text')} of node {output.node}.")

    def forget(self) -> None:
        """Delete the server's record of the prompt."""
        if self.ref is not None:
            forget(self._comfy, self.ref)
