"""`PromptProgress`: combines finished nodes and the steps of running ones into one percentage that never falls."""

from callsheet.worker.comfyui.adapters.base import Graph, NodeProgress, OverallProgress, ProgressEvent
from callsheet.worker.comfyui.submission_graph import class_of

_PERCENT_MAX = 98.0
"""The rest is for collecting the outputs."""


class PromptProgress:
    """The progress of one task, across resubmissions."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._done: set[str] = set()
        self._fractions: dict[str, float] = {}
        self.percent = 0.0
        self.message: str | None = None

    def apply(self, event: ProgressEvent) -> bool:
        """Apply an event; return whether the percentage or the message changed."""
        previous = (int(self.percent), self.message)
        if isinstance(event, NodeProgress):
            self._apply_nodes(event)
        elif isinstance(event, OverallProgress):
            self._raise_percent(event.value)
            self._set_message(event.node)
        return (int(self.percent), self.message) != previous

    def _apply_nodes(self, event: NodeProgress) -> None:
        self._done.update(node for node in event.done if node in self._graph)
        for node, fraction in event.fractions:
            self._set_message(node)
            if node in self._graph:
                self._fractions[node] = min(max(fraction, self._fractions.get(node, 0.0)), 1.0)
        running = sum(fraction for node, fraction in self._fractions.items() if node not in self._done)
        self._raise_percent((len(self._done) + running) / len(self._graph))

    def _raise_percent(self, fraction: float) -> None:
        self.percent = max(self.percent, min(max(fraction, 0.0), 1.0) * _PERCENT_MAX)

    def _set_message(self, node: str | None) -> None:
        self.message = class_of(self._graph, node) or self.message
