"""The ComfyUI graph of a stage as plain data: the graph, and which of its values a job may set.

The rules about graphs are in `callsheet.comfyui`; decisions reach them through `GraphRules`.
"""

from typing import Any

from msgspec import Struct

Graph = dict[str, Any]
"""A graph in ComfyUI's API format: node id -> {class_type, inputs, _meta}."""


class Target(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a value goes in the graph: a field of a node."""

    node: str
    """The node's id in the graph."""
    field: str
    """The name of one of the node's inputs. The input must have a value, not a link to another node."""


class ComfySpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ComfyUI graph, and which of its values a job may set."""

    graph: Graph
    """The graph, exported from ComfyUI with Export (API). In a workflow file, it is a path relative to the file's
    folder, or a table; over HTTP, an object. At most `graph_bytes_max` bytes and `graph_nodes_max` nodes."""
    inputs: dict[str, Target | list[Target] | str] = {}
    """For each field of the job's input, where its value goes: `{ node, field }`, a list of these, or a placeholder
    text that occurs in the graph."""
    defaults: dict[str, Any] = {}
    """Values by input. An input without a default keeps the value in the graph. Write a file as
    `{"$file": id, "sha256": digest}`."""
    overrides: dict[str, Any] = {}
    """Values that a workflow with `extends` sets in `[overrides]`. They take precedence over `defaults`."""
    random: list[str] = []
    """Inputs that get a random 31-bit number if the job sets none. The number is derived from the task's id: each task
    has its own, and all attempts of a task use the same, so a retry produces the same image."""
    output_node: str | None = None
    """The id of the node whose files are the output. If absent, all files that the graph saves are."""


class FileSlot(Struct, frozen=True):
    """A field of a node that receives the name under which ComfyUI stores an uploaded file."""

    node: str
    """Id of the node in the graph."""
    field: str
    """Name of the node's input."""
    file_id: str
    """Id of the file."""
    sha256: str | None = None
    """SHA-256 that the workflow states for the file. Null for a file of the job's input: `files` has its digest."""
    input: str = ""
    """Name of the workflow input that the file comes from."""


class RenderedGraph(Struct, frozen=True):
    """The graph of one task, with its values. The worker uploads the files of `assets` and fills in their names."""

    graph: Graph
    """ComfyUI graph in the API format."""
    assets: list[FileSlot] = []
    """Fields that receive an uploaded file."""
    output_node: str | None = None
    """Id of the node whose files are the output. Null means all files that the graph saves."""
