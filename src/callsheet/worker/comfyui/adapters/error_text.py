"""Turns ComfyUI errors into messages that may be shown to users: no paths, no prompts, no stack traces.

ComfyUI errors contain absolute paths, input values and lists of all models. These messages name the node, the field and
the type of error; text of the server is included only after redaction.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from callsheet.core.model.plural import pluralize
from callsheet.core.policy.redaction import redact_error

_MESSAGE_CHARS_MAX = 300
_VALUE_CHARS_MAX = 60
_NODES_MAX = 10
_HIDDEN = "[input]"
_NODE_ID = re.compile(r"Node ID '#(.{1,40})'")
_MEMORY_ERRORS = ("outofmemory", "out of memory", "oom", "cuda", "cublas", "cudnn")
_TRANSIENT_ERRORS = ("ConnectionError", "TimeoutError", "ReadTimeout", "ConnectTimeout", "BrokenPipeError")


def describe_rejection(error: Any, node_errors: Any) -> tuple[str, tuple[str, ...]]:
    """Return why a graph was rejected, per node, and the ids of these nodes."""
    nodes = _as_dict(node_errors)
    messages = [_describe_node(node, entry) for node, entry in list(nodes.items())[:_NODES_MAX]]
    if len(nodes) > _NODES_MAX:
        messages.append(f"{pluralize(len(nodes) - _NODES_MAX, 'more node', verb='has')} errors.")
    if not messages:
        details = _as_dict(error)
        node_match = _NODE_ID.match(str(details.get("details")))
        prefix = f"Node {_clean_value(node_match[1])}: " if node_match else ""
        messages.append(prefix + _clean_message(details.get("message") or "ComfyUI rejected the graph."))
    return " ".join(messages), tuple(str(node) for node in nodes)


def _describe_node(node: str, entry: Any) -> str:
    if isinstance(entry, list):  # the Comfy API v2 lists fields and reasons
        pairs = [
            (_clean_value(_as_dict(error).get("field")), _clean_value(_as_dict(error).get("reason"))) for error in entry
        ]
        return f"Node {_clean_value(node)}: {'; '.join(f'{field}: {reason}' for field, reason in pairs)}."
    entry = _as_dict(entry)
    errors = entry.get("errors")
    reasons = [_describe_error(_as_dict(error)) for error in errors] if isinstance(errors, list) else []
    reasons_text = "; ".join(reasons) or "not valid"
    return f"Node {_clean_value(node)} ({_clean_value(entry.get('class_type'))}): {reasons_text}."


def _describe_error(error: dict[str, Any]) -> str:
    extra = _as_dict(error.get("extra_info"))
    field, kind = _clean_value(extra.get("input_name")), error.get("type")
    value = extra.get("received_value")
    if kind == "required_input_missing":
        return f"{field} is missing"
    if kind == "value_not_in_list":
        return f"{field}: {_clean_value(value)!r} is not one of the values that the server offers"
    if kind in {"value_smaller_than_min", "value_bigger_than_max"}:
        is_minimum = kind == "value_smaller_than_min"
        bound = "minimum is" if is_minimum else "maximum is"
        return f"{field} is {_clean_value(value)}, the {bound} {_range_limit(extra, is_minimum=is_minimum)}"
    if kind == "invalid_input_type":
        return f"{field} has the wrong type"
    if kind == "custom_validation_failed":
        return f"{field} was rejected by the node: a file may be missing on the server"
    if kind == "exception_during_inner_validation":
        return f"{field} is linked to a node that the graph does not contain"
    if kind == "dependency_cycle":
        return "it depends on itself"
    cleaned = _clean_message(error.get("message") or "not valid").rstrip(".")
    return f"{field}: {cleaned}" if field else cleaned


def _range_limit(extra: dict[str, Any], *, is_minimum: bool) -> str:
    config = extra.get("input_config")
    options = _as_dict(config[1]) if isinstance(config, list) and len(config) > 1 else {}
    return _clean_value(options.get("min" if is_minimum else "max"))


def describe_failure(error: Mapping[str, Any], hidden_texts: Iterable[str]) -> tuple[str, bool]:
    """Return the message for a failed node and whether another attempt may succeed.

    `hidden_texts` are the texts of the graph; they are removed from the message, because it must not contain prompts.
    """
    kind = str(error.get("exception_type") or "").rpartition(".")[2]
    message = str(error.get("exception_message") or "").replace("\n", " ").strip()
    for text in hidden_texts:
        message = message.replace(text.replace("\n", " "), _HIDDEN)
    cleaned = _clean_message(f"{kind}: {message}" if message else kind or "it gave no reason").replace(
        f"]{_HIDDEN}", "]"
    )
    retryable = kind in _TRANSIENT_ERRORS or any(word in f"{kind} {message}".lower() for word in _MEMORY_ERRORS)
    return (
        f"Node {_clean_value(error.get('node_id'))} ({_clean_value(error.get('node_type'))}) failed: {cleaned}",
        retryable,
    )


def _clean_message(text: Any) -> str:
    return redact_error(str(text), _MESSAGE_CHARS_MAX)


def _clean_value(value: Any) -> str:
    return "" if value is None else redact_error(str(value), _VALUE_CHARS_MAX)


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
