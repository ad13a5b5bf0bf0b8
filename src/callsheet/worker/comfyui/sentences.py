"""What ComfyUI says of a failure, in sentences that may be shown: no paths, no prompts, no stack traces.

ComfyUI puts absolute paths, the values of inputs and the list of every model into its errors. A sentence here is made
of the node, the field and the kind of error; words of the server are used only after all that has been taken out.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from callsheet.core.counting import counted
from callsheet.core.redact import clean

_CHARS_MAX = 300
_VALUE_CHARS_MAX = 60
_NODES_MAX = 10
_HIDDEN = "[input]"
_WHERE = re.compile(r"Node ID '#(.{1,40})'")
_MEMORY = ("outofmemory", "out of memory", "oom", "cuda", "cublas", "cudnn")
_PASSING = ("ConnectionError", "TimeoutError", "ReadTimeout", "ConnectTimeout", "BrokenPipeError")


def rejection(error: Any, node_errors: Any) -> tuple[str, tuple[str, ...]]:
    """Return why a graph was not taken, per node, and which nodes are at fault."""
    nodes = _table(node_errors)
    said = [_node(node, entry) for node, entry in list(nodes.items())[:_NODES_MAX]]
    if len(nodes) > _NODES_MAX:
        said.append(f"{counted(len(nodes) - _NODES_MAX, 'more node', verb='has')} errors.")
    if not said:
        whole = _table(error)
        where = _WHERE.match(str(whole.get("details")))
        place = f"Node {_short(where[1])}: " if where else ""
        said.append(place + _words(whole.get("message") or "ComfyUI did not take the graph."))
    return " ".join(said), tuple(str(node) for node in nodes)


def _node(node: str, entry: Any) -> str:
    if isinstance(entry, list):  # the Comfy API v2 has a form of its own: fields and reasons
        pairs = [(_short(_table(one).get("field")), _short(_table(one).get("reason"))) for one in entry]
        return f"Node {_short(node)}: {'; '.join(f'{field}: {reason}' for field, reason in pairs)}."
    entry = _table(entry)
    errors = entry.get("errors")
    reasons = [_reason(_table(error)) for error in errors] if isinstance(errors, list) else []
    why = "; ".join(reasons) or "not valid"
    return f"Node {_short(node)} ({_short(entry.get('class_type'))}): {why}."


def _reason(error: dict[str, Any]) -> str:
    more = _table(error.get("extra_info"))
    field, kind = _short(more.get("input_name")), error.get("type")
    value = more.get("received_value")
    if kind == "required_input_missing":
        return f"{field} is missing"
    if kind == "value_not_in_list":
        return f"{field}: {_short(value)!r} is not among the server's choices"
    if kind in {"value_smaller_than_min", "value_bigger_than_max"}:
        least = kind == "value_smaller_than_min"
        return f"{field} is {_short(value)}, the {'least is' if least else 'most is'} {_limit(more, least=least)}"
    if kind == "invalid_input_type":
        return f"{field} is not of the type that the node takes"
    if kind == "custom_validation_failed":
        return f"{field} was not accepted by the node: a file may be missing at the server"
    if kind == "exception_during_inner_validation":
        return f"{field} is linked to something that the graph does not have"
    if kind == "dependency_cycle":
        return "it depends on itself"
    words = _words(error.get("message") or "not valid").rstrip(".")
    return f"{field}: {words}" if field else words


def _limit(more: dict[str, Any], *, least: bool) -> str:
    config = more.get("input_config")
    table = _table(config[1]) if isinstance(config, list) and len(config) > 1 else {}
    return _short(table.get("min" if least else "max"))


def failure(error: Mapping[str, Any], hide: Iterable[str]) -> tuple[str, bool]:
    """Return what went wrong in which node, and whether another try may do better.

    `hide` are the texts of the graph: a prompt is not to be read in an error.
    """
    kind = str(error.get("exception_type") or "").rpartition(".")[2]
    message = str(error.get("exception_message") or "").replace("\n", " ").strip()
    for text in hide:
        message = message.replace(text.replace("\n", " "), _HIDDEN)
    words = _words(f"{kind}: {message}" if message else kind or "it gave no reason").replace(f"]{_HIDDEN}", "]")
    passing = kind in _PASSING or any(word in f"{kind} {message}".lower() for word in _MEMORY)
    return f"Node {_short(error.get('node_id'))} ({_short(error.get('node_type'))}) failed: {words}", passing


def _words(text: Any) -> str:
    return clean(str(text), _CHARS_MAX)


def _short(value: Any) -> str:
    return "" if value is None else clean(str(value), _VALUE_CHARS_MAX)


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
