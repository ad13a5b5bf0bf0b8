"""From a server's outputs to the task's files: fetched, told apart by content, kept, then forgotten at the server."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from callsheet.worker.comfyui import sentences
from callsheet.worker.comfyui.base import Away, Comfy, Declined, Ended, Gone, Graph, Output, Rejected
from callsheet.worker.comfyui.follow import forget
from callsheet.worker.comfyui.graph import inputs
from callsheet.worker.comfyui.media import HEAD_BYTES, extension, media_type
from callsheet.worker.comfyui.outputs import chosen
from callsheet.worker.errors import GiveUp, Retry

_TEXT_CHARS_MAX = 10_000
"""A longer text is kept as a file."""
_NAME_CHARS_MAX = 100
_COLLECTING = 99.0


class Task(Protocol):
    """What keeping needs of the SDK's context."""

    def progress(self, percent: float, message: str | None = None) -> None: ...
    def log(self, line: str) -> None: ...
    def upload(self, name: str, body: bytes | Path, media_type: str = ...) -> Any: ...


class Keeper:
    """Collects one task's outputs."""

    def __init__(self, comfy: Comfy, ctx: Task, folder: Path, graph: Graph, output_node: str | None) -> None:
        self._comfy = comfy
        self._ctx = ctx
        self._folder = folder
        self._graph = graph
        self._output_node = output_node
        self._names: set[str] = set()
        self.ref: str | None = None

    def collected(self, ended: Ended) -> dict[str, Any]:
        """Return the task's output, or raise what the prompt failed for. A file that is gone is never left out."""
        if ended.outcome == "failed":
            self._keep_evidence(ended.outputs)
            self.forget()
            raise self._failure(ended)
        wanted = chosen(ended.outputs, self._output_node)
        if not wanted:
            self.forget()
            raise GiveUp(self._nothing(), code="no_output")
        self._ctx.progress(_COLLECTING, "collecting")
        here = [(output, self._fetched(no, output)) for no, output in enumerate(wanted)]
        made = [self._kept(output, *file) for output, file in here]
        self.forget()
        return {"outputs": made}

    def _failure(self, ended: Ended) -> Retry | GiveUp:
        if ended.raised is None:
            return (Retry if ended.retryable else GiveUp)(ended.error, code="comfyui_failed")
        error, passing = sentences.failure(ended.raised, inputs(self._graph))
        return (Retry if passing or ended.retryable else GiveUp)(error, code="comfyui_failed")

    def _nothing(self) -> str:
        if self._output_node is not None:
            return f"The graph ran, but its output node {self._output_node} made no file and no text."
        return "The graph ran, but saved no file and no text: give it a node such as SaveImage."

    def _fetched(self, no: int, output: Output) -> tuple[Path | None, str]:
        """Bring one file here before any is kept: if one is gone, all are made again."""
        if output.text is not None:
            return None, "text/plain"
        into = Path(output.place) if output.kind == "sent" else self._folder / str(no)
        said = "" if output.kind == "sent" else self._comfy.fetch(output, into)
        with into.open("rb") as file:
            return into, media_type(file.read(HEAD_BYTES), said, output.name)

    def _kept(self, output: Output, path: Path | None, kind: str) -> dict[str, Any]:
        if path is None:
            return self._text(output)
        name = self._name(output, kind)
        size = path.stat().st_size
        self._ctx.upload(name, path, kind)
        path.unlink()
        return {"node": output.node, "name": name, "media_type": kind, "bytes": size}

    def _text(self, output: Output) -> dict[str, Any]:
        text = output.text or ""
        if len(text) <= _TEXT_CHARS_MAX:
            return {"node": output.node, "text": text}
        body, name = text.encode(), self._name(output, "text/plain")
        self._ctx.upload(name, body, "text/plain")
        return {"node": output.node, "name": name, "media_type": "text/plain", "bytes": len(body)}

    def _name(self, output: Output, kind: str) -> str:
        """Return a name that is a file's and no path's, and no other's of this task."""
        base = "".join(c if c.isalnum() or c in "._-" else "_" for c in output.name)[-_NAME_CHARS_MAX:].lstrip(".")
        name = base if "." in base else f"{base or 'file'}{extension(kind)}"
        if name in self._names:
            name = f"{len(self._names) + 1}-{name}"
        self._names.add(name)
        return name

    def _keep_evidence(self, outputs: Sequence[Output]) -> None:
        """Keep what a failed prompt had made, as far as that goes."""
        for no, output in enumerate(outputs):
            with suppress(Away, Gone, Declined, Rejected):
                kept = self._kept(output, *self._fetched(no, output))
                self._ctx.log(f"Made before it failed: {kept.get('name', 'a text')} of node {output.node}.")

    def forget(self) -> None:
        """Let the server drop its record of what was collected, or cannot be."""
        if self.ref is not None:
            forget(self._comfy, self.ref)
