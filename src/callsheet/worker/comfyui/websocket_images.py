"""`ReceivedPictures`: images that nodes such as SaveImageWebsocket send over the WebSocket and do not store.

Each image is written to a file on arrival. Such a node has as many steps as images, so it is known when all have
arrived. A missing image cannot be requested again: the prompt must run again.
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
    """The images of one task."""

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
        """Discard the images of an earlier submission."""
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
        """Return whether all images have arrived."""
        return all(len(received) == self._expected.get(node) for node, received in self._received.items())

    def nothing_pending(self) -> bool:
        """Return whether no more images are expected after resuming, when earlier events may have been missed."""
        return not self._event_seen or self.all_received()

    def check(self, *, disconnected: bool) -> None:
        """Raise if images are missing. `disconnected`: the connection was lost before the final event."""
        for node, received in self._received.items():
            expected = self._expected.get(node)
            if len(received) == expected or (expected is None and received and not disconnected):
                continue
            arrived = f"{len(received)} of {expected}" if expected else f"{len(received) or 'none'}"
            images = f"the images of node {node} ({self._graph[node]['class_type']})"
            if disconnected or received:
                raise PicturesLostError(
                    f"The connection to ComfyUI was lost while it sent {images}: {arrived} arrived.", retryable=True
                )
            raise PicturesLostError(
                f"The graph ran, but ComfyUI sent none of {images}. Use SaveImage instead.", retryable=False
            )
