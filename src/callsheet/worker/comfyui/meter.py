"""How far a prompt is: nodes that are done and the steps of the one that runs, as one number that never falls."""

from callsheet.worker.comfyui.base import Fraction, Graph, News, Nodes
from callsheet.worker.comfyui.graph import class_of

_MOST = 98.0
"""What is left is for fetching and keeping the files."""


class Meter:
    """The progress of one task, over all its runs."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._done: set[str] = set()
        self._parts: dict[str, float] = {}
        self.percent = 0.0
        self.message: str | None = None

    def take(self, news: News) -> bool:
        """Take in what was heard; say whether there is something to tell."""
        before = (int(self.percent), self.message)
        if isinstance(news, Nodes):
            self._nodes(news)
        elif isinstance(news, Fraction):
            self._rise(news.value)
            self._name(news.node)
        return (int(self.percent), self.message) != before

    def _nodes(self, news: Nodes) -> None:
        self._done.update(node for node in news.done if node in self._graph)
        for node, part in news.parts:
            self._name(node)
            if node in self._graph:
                self._parts[node] = min(max(part, self._parts.get(node, 0.0)), 1.0)
        running = sum(part for node, part in self._parts.items() if node not in self._done)
        self._rise((len(self._done) + running) / len(self._graph))

    def _rise(self, fraction: float) -> None:
        self.percent = max(self.percent, min(max(fraction, 0.0), 1.0) * _MOST)

    def _name(self, node: str | None) -> None:
        self.message = class_of(self._graph, node) or self.message
