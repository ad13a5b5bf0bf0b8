"""What a place that runs ComfyUI graphs can do, whoever runs it, and how it says no.

    Exception
      Away                     it did not answer, or said that it is in trouble: what became of the request is not known
      Busy                     it takes no more just now; nothing was accepted
      Rejected                 it will not run this graph, and says why
      Declined                 it will not work for this key, or this account
      Gone                     a file that it made is not there any more
      Missed                   pictures that it sends while it runs, and keeps nowhere, did not all arrive
      Unknown                  paid work may have been taken, and nobody can say

`Ended` is decided on the status that the server gives, never on the outputs: a failed prompt may have some, and a
good one none.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

Graph = dict[str, Any]
"""The API format: a node's id -> {class_type, inputs}."""
Outcome = Literal["succeeded", "failed", "canceled", "lost"]
NOT_FOUND: Literal["absent"] = "absent"


class Output(NamedTuple):
    """Something that a node made: a file at the server, or a text."""

    node: str
    name: str
    location: str = ""
    """Where the server keeps the file: a subfolder, or an id; of a picture that was sent, its path on this machine."""
    kind: str = "output"
    """output; temp: what is only good until the server restarts; sent: what came over the socket and is here."""
    text: str | None = None


class PromptResult(NamedTuple):
    """How a prompt ended."""

    outcome: Outcome
    outputs: tuple[Output, ...] = ()
    error: str = ""
    """One sentence that a user may read."""
    retryable: bool = False
    node_error: Mapping[str, Any] | None = None
    """What a node raised, in ComfyUI's own words, which hold paths and prompts: nobody may read it as it is."""


PromptStatus = Literal["waiting", "running", "absent"] | PromptResult
"""What one look at the server says of a prompt."""


class NodeProgress(NamedTuple):
    """Nodes that are done, how far others are, and of how many steps."""

    done: tuple[str, ...] = ()
    fractions: tuple[tuple[str, float], ...] = ()
    steps: tuple[tuple[str, int], ...] = ()


class OverallProgress(NamedTuple):
    """How far the whole is, where the server itself reckons that."""

    value: float
    node: str | None = None


class Preview(NamedTuple):
    """A picture of what there is so far, or the very output of a node that saves none."""

    picture: bytes
    node: str | None = None


class PromptEnded(NamedTuple):
    """The server says that the prompt has ended: time to look."""


ProgressEvent = NodeProgress | OverallProgress | Preview | PromptEnded


class EventStream(Protocol):
    """What the server says by itself. It may fall silent at any time: then only looking helps."""

    disconnects: int
    """How often the connection was lost, or not to be had."""

    @property
    def ready(self) -> bool:
        """Whether a picture that is sent from now on would be heard, and known by its node."""
        ...

    def receive(self, ref: str, seconds: float) -> Sequence[ProgressEvent]:
        """Return the news of one prompt; wait up to `seconds` for the first."""
        ...

    def close(self) -> None: ...


class ComfyBackend(Protocol):
    """One place that runs graphs. Called from many threads."""

    provider: str
    endpoint: str
    """Its address without secrets: assets are kept per endpoint."""
    supports_websocket_pictures: bool
    """Whether pictures of nodes that save none are sent while a prompt runs."""
    safe_to_resubmit: bool
    """Whether what cannot be found was never taken, and may be submitted again; else that might be paid twice."""

    def check_ready(self) -> None:
        """Look whether the server is there and would work for us; `Away` or `Declined` if not."""
        ...

    def planned_ref(self, prompt_id: str) -> str | None:
        """Return a reference by which a prompt can be found, if there is one before it is submitted."""
        ...

    def resolve_ref(self, ref: str) -> str | None:
        """Return the reference that the server itself gave to what was submitted as `ref`; None if it has no such."""
        ...

    def upload(self, name: str, path: Path) -> Any:
        """Bring a file; return what stands for it in a graph."""
        ...

    def listen(self, prompt_id: str) -> EventStream:
        """Begin to listen, before the prompt is submitted."""
        ...

    def submit(self, prompt_id: str, graph: Graph) -> str:
        """Hand in a graph and return its reference. Not to be repeated before a look."""
        ...

    def get_status(self, ref: str) -> PromptStatus: ...

    def cancel(self, ref: str) -> None:
        """Ask once for the end of one prompt, waiting or running, and of no other."""
        ...

    def fetch(self, output: Output, into: Path) -> str:
        """Write a file that was made; return the content type that the server gives it, or nothing."""
        ...

    def forget(self, ref: str) -> None:
        """Let the server drop its record of a prompt that has ended."""
        ...

    def close(self) -> None: ...


class ComfyUnreachableError(Exception):
    """There was no good answer."""

    def __init__(self, message: str, *, maybe_sent: bool = True) -> None:
        super().__init__(message)
        self.maybe_sent = maybe_sent
        """Whether the request may have been heard; if not, it may be sent again without a look."""


class ComfyBusyError(Exception):
    """Not now."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ComfyRejectedError(Exception):
    """The graph, or a file, is not taken."""

    def __init__(
        self, message: str, nodes: tuple[str, ...] = (), code: str = "invalid_graph", ref: str | None = None
    ) -> None:
        super().__init__(message)
        self.nodes = nodes
        self.code = code
        self.ref = ref
        """A prompt that runs all the same, without what was wrong with it; it is to be canceled."""


class ComfyAccessDeniedError(Exception):
    """The account cannot do this."""


class OutputNotFoundError(Exception):
    """A file is not there."""

    def __init__(self, output: Output) -> None:
        super().__init__(f"The server does not have {output.name} any more.")
        self.node = output.node


class PicturesLostError(Exception):
    """Pictures of a node are not all here. `passing`: another try may hear them."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class SubmissionUnknownError(Exception):
    """Whether the work was taken cannot be found out."""

    def __init__(self) -> None:
        super().__init__(
            "The server may have taken the graph, but its answer was lost and the prompt cannot be found there. "
            "It is not submitted again by itself: that might be paid for twice."
        )
