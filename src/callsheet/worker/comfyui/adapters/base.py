"""`ComfyBackend`: the interface of a ComfyUI API, its types and its errors.

    Exception
      ComfyUnreachableError    no response, or a server error: whether the request was processed is unknown
      ComfyBusyError           the server accepts no more prompts at the moment; nothing was accepted
      ComfyRejectedError       the server rejected the graph or a file
      ComfyAccessDeniedError   the API key is invalid, or the account may not do this
      OutputNotFoundError      an output file no longer exists on the server
      PicturesLostError        images that are only sent over the WebSocket did not all arrive
      SubmissionUnknownError   a paid server may have accepted the graph, and it cannot be found out

Whether a prompt succeeded depends on the status that the server reports, never on its outputs: a failed prompt may
have outputs, and a successful one none.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

Graph = dict[str, Any]
"""A graph in the API format: node id -> {class_type, inputs}."""
Outcome = Literal["succeeded", "failed", "canceled", "lost"]
NOT_FOUND: Literal["absent"] = "absent"


class Output(NamedTuple):
    """An output of a node: a file on the server, or a text."""

    node: str
    name: str
    location: str = ""
    """A subfolder or an id on the server; for an image received over the WebSocket, its local path."""
    kind: str = "output"
    """`output`; `temp`: deleted when the server restarts; `sent`: received over the WebSocket; `text`."""
    text: str | None = None


class PromptResult(NamedTuple):
    """How a prompt ended."""

    outcome: Outcome
    outputs: tuple[Output, ...] = ()
    error: str = ""
    """One sentence that may be shown to users."""
    retryable: bool = False
    node_error: Mapping[str, Any] | None = None
    """The error of a node as ComfyUI reports it. It contains paths and prompts: redact it before it is shown."""


PromptStatus = Literal["waiting", "running", "absent"] | PromptResult
"""The result of one status query."""


class NodeProgress(NamedTuple):
    """Finished nodes, the progress of running ones, and their number of steps."""

    done: tuple[str, ...] = ()
    fractions: tuple[tuple[str, float], ...] = ()
    steps: tuple[tuple[str, int], ...] = ()


class OverallProgress(NamedTuple):
    """The progress of the whole prompt, if the server computes it."""

    value: float
    node: str | None = None


class Preview(NamedTuple):
    """A preview image, or the output image of a node that only sends it over the WebSocket."""

    picture: bytes
    node: str | None = None


class PromptEnded(NamedTuple):
    """The server reports that the prompt has ended; the status query says how."""


ProgressEvent = NodeProgress | OverallProgress | Preview | PromptEnded


class EventStream(Protocol):
    """Events that the server pushes. They may stop at any time, so callers also query the status."""

    disconnects: int
    """How often the connection was lost or could not be opened."""

    @property
    def ready(self) -> bool:
        """Whether an image sent from now on would be received and attributed to its node."""
        ...

    def receive(self, ref: str, seconds: float) -> Sequence[ProgressEvent]:
        """Return the events of one prompt; wait up to `seconds` for the first."""
        ...

    def close(self) -> None: ...


class ComfyBackend(Protocol):
    """A server that runs graphs. Implementations are thread-safe."""

    provider: str
    endpoint: str
    """Its URL without credentials; uploaded files are cached per endpoint."""
    supports_websocket_pictures: bool
    """Whether the server sends images of nodes such as SaveImageWebsocket."""
    safe_to_resubmit: bool
    """Whether a prompt that cannot be found may be submitted again; if not, it might be billed twice."""

    def check_ready(self) -> None:
        """Raise `ComfyUnreachableError` or `ComfyAccessDeniedError` if the server cannot be used."""
        ...

    def planned_ref(self, prompt_id: str) -> str | None:
        """Return the reference of a prompt before it is submitted; None if only the server can assign it."""
        ...

    def resolve_ref(self, ref: str) -> str | None:
        """Return the server's own id of a prompt; None if the server does not know it."""
        ...

    def upload(self, name: str, path: Path) -> Any:
        """Upload a file; return the value that refers to it in a graph."""
        ...

    def listen(self, prompt_id: str) -> EventStream:
        """Open the event stream, before the prompt is submitted."""
        ...

    def submit(self, prompt_id: str, graph: Graph) -> str:
        """Submit a graph and return its reference. Look for the prompt before you repeat this."""
        ...

    def get_status(self, ref: str) -> PromptStatus: ...

    def cancel(self, ref: str) -> None:
        """Request the cancellation of one prompt, queued or running, and of no other."""
        ...

    def fetch(self, output: Output, into: Path) -> str:
        """Download an output file; return the server's Content-Type, or an empty string."""
        ...

    def forget(self, ref: str) -> None:
        """Delete the server's record of a finished prompt."""
        ...

    def close(self) -> None: ...


class ComfyUnreachableError(Exception):
    """No response, or a server error."""

    def __init__(self, message: str, *, maybe_sent: bool = True) -> None:
        super().__init__(message)
        self.maybe_sent = maybe_sent
        """Whether the request may have been processed. If not, it is safe to repeat."""


class ComfyBusyError(Exception):
    """The server accepts no prompts at the moment."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ComfyRejectedError(Exception):
    """The server rejected the graph or a file."""

    def __init__(
        self, message: str, nodes: tuple[str, ...] = (), code: str = "invalid_graph", ref: str | None = None
    ) -> None:
        super().__init__(message)
        self.nodes = nodes
        self.code = code
        self.ref = ref
        """A prompt that the server runs anyway, without the rejected nodes; cancel it."""


class ComfyAccessDeniedError(Exception):
    """The API key is invalid, or the account may not do this."""


class OutputNotFoundError(Exception):
    """An output file no longer exists on the server."""

    def __init__(self, output: Output) -> None:
        super().__init__(f"The server no longer has {output.name}.")
        self.node = output.node


class PicturesLostError(Exception):
    """Images of a node did not all arrive. `retryable`: another attempt may receive them."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class SubmissionUnknownError(Exception):
    """Whether the server accepted the graph is unknown."""

    def __init__(self) -> None:
        super().__init__(
            "The server may have accepted the graph, but its response was lost and the prompt was not found. "
            "It is not submitted again automatically, because it might be billed twice."
        )
