"""Pictures that a node sends over the socket and the server keeps nowhere: files from the moment that they come.

Such a node has as many steps as pictures, so it is known when all are here. What is missing cannot be had again: the
prompt has to be run anew.
"""

from pathlib import Path

from callsheet.comfyui.node_info import sends_over_websocket
from callsheet.worker.comfyui.adapters.base import (
    Graph,
    NodeProgress,
    Output,
    PicturesLostError,
    Preview,
    ProgressEvent,
)


class ReceivedPictures:
    """What the nodes of one task send, as far as the task wants it."""

    def __init__(self, graph: Graph, output_node: str | None, folder: Path) -> None:
        self._graph = graph
        self._folder = folder
        self._count = 0
        self.nodes = [
            node
            for node, body in graph.items()
            if sends_over_websocket(body["class_type"]) and output_node in {None, node}
        ]
        self._received: dict[str, list[Output]] = {}
        self._expected: dict[str, int] = {}
        self._event_seen = False

    def reset(self) -> None:
        """Leave what an earlier run sent: pictures of two runs are not one output."""
        self._received = {node: [] for node in self.nodes}
        self._expected = {}
        self._event_seen = False

    def apply(self, event: ProgressEvent) -> None:
        self._event_seen = True
        if isinstance(event, NodeProgress):
            self._expected |= {node: expected for node, expected in event.steps if node in self._received}
        elif isinstance(event, Preview) and event.node in self._received:
            received = self._received[event.node]
            self._count += 1
            path = self._folder / f"sent-{self._count}"
            path.write_bytes(event.picture)
            received.append(Output(event.node, f"websocket_{len(received) + 1:05}_.png", str(path), "sent"))

    @property
    def outputs(self) -> tuple[Output, ...]:
        return tuple(output for received in self._received.values() for output in received)

    def all_received(self) -> bool:
        """Say whether everything is here for certain."""
        return all(len(received) == self._expected.get(node) for node, received in self._received.items())

    def nothing_pending(self) -> bool:
        """Say whether nothing more is to come, for one who listens only since lately and may have missed it all."""
        return not self._event_seen or self.all_received()

    def check(self, *, disconnected: bool) -> None:
        """Refuse what is not whole. `cut`: the connection was lost, or fell silent, before the last word."""
        for node, received in self._received.items():
            expected = self._expected.get(node)
            if len(received) == expected or (expected is None and received and not disconnected):
                continue
            arrived = f"{len(received)} of {expected}" if expected else f"{len(received) or 'none'}"
            which = f"the pictures of node {node} ({self._graph[node]['class_type']})"
            if disconnected or received:
                raise PicturesLostError(
                    f"The connection to ComfyUI broke while it sent {which}: {arrived} arrived.", retryable=True
                )
            raise PicturesLostError(f"The graph ran, but ComfyUI sent none of {which}: use SaveImage.", retryable=False)
