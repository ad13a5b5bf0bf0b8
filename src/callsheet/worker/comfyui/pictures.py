"""Pictures that a node sends over the socket and the server keeps nowhere: files from the moment that they come.

Such a node has as many steps as pictures, so it is known when all are here. What is missing cannot be had again: the
prompt has to be run anew.
"""

from pathlib import Path

from callsheet.core.comfy_info import sends_pictures
from callsheet.worker.comfyui.base import Graph, Missed, News, Nodes, Output, Preview


class Pictures:
    """What the nodes of one task send, as far as the task wants it."""

    def __init__(self, graph: Graph, output_node: str | None, folder: Path) -> None:
        self._graph = graph
        self._folder = folder
        self._count = 0
        self.nodes = [
            node for node, body in graph.items() if sends_pictures(body["class_type"]) and output_node in {None, node}
        ]
        self._here: dict[str, list[Output]] = {}
        self._steps: dict[str, int] = {}
        self._heard = False

    def begin(self) -> None:
        """Leave what an earlier run sent: pictures of two runs are not one output."""
        self._here = {node: [] for node in self.nodes}
        self._steps = {}
        self._heard = False

    def take(self, news: News) -> None:
        self._heard = True
        if isinstance(news, Nodes):
            self._steps |= {node: most for node, most in news.steps if node in self._here}
        elif isinstance(news, Preview) and news.node in self._here:
            here = self._here[news.node]
            self._count += 1
            path = self._folder / f"sent-{self._count}"
            path.write_bytes(news.picture)
            here.append(Output(news.node, f"websocket_{len(here) + 1:05}_.png", str(path), "sent"))

    @property
    def outputs(self) -> tuple[Output, ...]:
        return tuple(output for here in self._here.values() for output in here)

    def whole(self) -> bool:
        """Say whether everything is here for certain."""
        return all(len(here) == self._steps.get(node) for node, here in self._here.items())

    def settled(self) -> bool:
        """Say whether nothing more is to come, for one who listens only since lately and may have missed it all."""
        return not self._heard or self.whole()

    def check(self, *, cut: bool) -> None:
        """Refuse what is not whole. `cut`: the connection was lost, or fell silent, before the last word."""
        for node, here in self._here.items():
            most = self._steps.get(node)
            if len(here) == most or (most is None and here and not cut):
                continue
            of = f"{len(here)} of {most}" if most else f"{len(here) or 'none'}"
            which = f"the pictures of node {node} ({self._graph[node]['class_type']})"
            if cut or here:
                raise Missed(f"The connection to ComfyUI broke while it sent {which}: {of} arrived.", passing=True)
            raise Missed(f"The graph ran, but ComfyUI sent none of {which}: use SaveImage.", passing=False)
