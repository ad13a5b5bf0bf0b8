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
ABSENT: Literal["absent"] = "absent"


class Output(NamedTuple):
    """Something that a node made: a file at the server, or a text."""

    node: str
    name: str
    place: str = ""
    """Where the server keeps the file: a subfolder, or an id; of a picture that was sent, its path on this machine."""
    kind: str = "output"
    """output; temp: what is only good until the server restarts; sent: what came over the socket and is here."""
    text: str | None = None


class Ended(NamedTuple):
    """How a prompt ended."""

    outcome: Outcome
    outputs: tuple[Output, ...] = ()
    error: str = ""
    """One sentence that a user may read."""
    retryable: bool = False
    raised: Mapping[str, Any] | None = None
    """What a node raised, in ComfyUI's own words, which hold paths and prompts: nobody may read it as it is."""


Look = Literal["waiting", "running", "absent"] | Ended
"""What one look at the server says of a prompt."""


class Nodes(NamedTuple):
    """Nodes that are done, how far others are, and of how many steps."""

    done: tuple[str, ...] = ()
    parts: tuple[tuple[str, float], ...] = ()
    steps: tuple[tuple[str, int], ...] = ()


class Fraction(NamedTuple):
    """How far the whole is, where the server itself reckons that."""

    value: float
    node: str | None = None


class Preview(NamedTuple):
    """A picture of what there is so far, or the very output of a node that saves none."""

    picture: bytes
    node: str | None = None


class Over(NamedTuple):
    """The server says that the prompt has ended: time to look."""


News = Nodes | Fraction | Preview | Over


class Live(Protocol):
    """What the server says by itself. It may fall silent at any time: then only looking helps."""

    cuts: int
    """How often the connection was lost, or not to be had."""

    @property
    def ready(self) -> bool:
        """Whether a picture that is sent from now on would be heard, and known by its node."""
        ...

    def heard(self, ref: str, seconds: float) -> Sequence[News]:
        """Return the news of one prompt; wait up to `seconds` for the first."""
        ...

    def close(self) -> None: ...


class Comfy(Protocol):
    """One place that runs graphs. Called from many threads."""

    provider: str
    endpoint: str
    """Its address without secrets: assets are kept per endpoint."""
    sends: bool
    """Whether pictures of nodes that save none are sent while a prompt runs."""
    repeats: bool
    """Whether what cannot be found was never taken, and may be submitted again; else that might be paid twice."""

    def ready(self) -> None:
        """Look whether the server is there and would work for us; `Away` or `Declined` if not."""
        ...

    def named(self, prompt_id: str) -> str | None:
        """Return a reference by which a prompt can be found, if there is one before it is submitted."""
        ...

    def known_as(self, ref: str) -> str | None:
        """Return the reference that the server itself gave to what was submitted as `ref`; None if it has no such."""
        ...

    def upload(self, name: str, path: Path) -> Any:
        """Bring a file; return what stands for it in a graph."""
        ...

    def listen(self, prompt_id: str) -> Live:
        """Begin to listen, before the prompt is submitted."""
        ...

    def submit(self, prompt_id: str, graph: Graph) -> str:
        """Hand in a graph and return its reference. Not to be repeated before a look."""
        ...

    def look(self, ref: str) -> Look: ...

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


class Away(Exception):  # noqa: N818 - it says what happened
    """There was no good answer."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether the request may have been heard; if not, it may be sent again without a look."""


class Busy(Exception):  # noqa: N818 - it says what happened
    """Not now."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class Rejected(Exception):  # noqa: N818 - it says what happened
    """The graph, or a file, is not taken."""

    def __init__(
        self, message: str, nodes: tuple[str, ...] = (), code: str = "invalid_graph", ref: str | None = None
    ) -> None:
        super().__init__(message)
        self.nodes = nodes
        self.code = code
        self.ref = ref
        """A prompt that runs all the same, without what was wrong with it; it is to be canceled."""


class Declined(Exception):  # noqa: N818 - it says what happened
    """The account cannot do this."""


class Gone(Exception):  # noqa: N818 - it says what happened
    """A file is not there."""

    def __init__(self, output: Output) -> None:
        super().__init__(f"The server does not have {output.name} any more.")
        self.node = output.node


class Missed(Exception):  # noqa: N818 - it says what happened
    """Pictures of a node are not all here. `passing`: another try may hear them."""

    def __init__(self, message: str, *, passing: bool) -> None:
        super().__init__(message)
        self.passing = passing


class Unknown(Exception):  # noqa: N818 - it says what happened
    """Whether the work was taken cannot be found out."""

    def __init__(self) -> None:
        super().__init__(
            "The server may have taken the graph, but its answer was lost and the prompt cannot be found there. "
            "It is not submitted again by itself: that might be paid for twice."
        )
