"""Validation of what a caller sends: user ids, idempotency keys, inputs, annotations.

Every value has a limit in size, depth and number of items, so that workers and pages can handle what is stored.
"""

from math import isfinite
from typing import Any

from callsheet.core.model.errors import BadInput
from callsheet.core.model.graph_rules_protocol import GraphRules
from callsheet.core.model.plural import pluralize
from callsheet.core.model.workflow_definition import WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.input_schema.validator import InputSchema
from callsheet.core.policy.storable_text import contains_nul, unstorable_text
from callsheet.core.working_set import encode, encode_bytes


def check_user(user: str, limits: Limits) -> None:
    """Refuse an invalid user id."""
    _check_text("user", user, limits.key_chars_max)


def check_key(key: str, limits: Limits) -> None:
    """Refuse an invalid idempotency key."""
    _check_text("idempotency key", key, limits.key_chars_max)


def validate_input(
    definition: WorkflowDefinition, schema: InputSchema | None, value: Any, limits: Limits, graph_rules: GraphRules
) -> str | None:
    """Return an input as stored JSON. Refuses it if it is not JSON, too deep, too large, or violates the schema."""
    if value is None and definition.input_schema is None:
        return None
    body = encode_input(value, limits)
    if schema is not None:
        schema.check(value, len(body), limits)
    for stage in definition.stages:
        if stage.comfyui is not None and stage.inputs is None:
            graph_rules.check_input(stage.comfyui, value, limits)  # refuse it now, not on a worker
    return body


def check_annotations(
    labels: dict[str, str] | None, metadata: dict[str, Any] | None, trace: dict[str, str] | None, limits: Limits
) -> None:
    """Refuse labels, metadata or trace context over their limits."""
    for name, value in (labels or {}).items():
        if not name or max(len(name), len(value)) > limits.label_chars_max:
            most = limits.label_chars_max
            message = (
                f"The label {name[:80]!r} is invalid: its name has 1 to {most} characters, its value at most {most}."
            )
            raise BadInput("invalid_label", message)
    if len(labels or {}) > limits.labels_max:
        message = f"The request has {len(labels or {})} labels; at most {limits.labels_max} are allowed."
        raise BadInput("too_many_labels", message)
    if labels:
        encode_bounded("labels", labels, 16 * limits.labels_max * limits.label_chars_max)
    for what, annotation in (("metadata", metadata), ("trace", trace)):
        if annotation is not None:
            encode_bounded(what, annotation, limits.metadata_bytes_max)


def encode_bounded(what: str, value: Any, bytes_max: int, depth_max: int = 64) -> str:
    """Encode a value as JSON. Refuses it if it is not JSON, too deep or too large."""
    try:
        body = encode_bytes(value)
    except RecursionError:
        raise BadInput(f"{what}_too_deep", f"The {what} is nested deeper than {depth_max} levels.") from None
    except UnicodeEncodeError:
        raise unstorable_text(what) from None
    except (TypeError, ValueError) as error:
        raise BadInput(f"invalid_{what}", f"The {what} is not JSON: {error}.") from None
    if contains_nul(body):
        raise unstorable_text(what)
    if body.count(b"[") + body.count(b"{") > depth_max or b"null" in body:
        _check_depth(what, value, depth_max)
    if len(body) > bytes_max:
        message = f"The JSON of {what} has {pluralize(len(body), 'byte')}; at most {bytes_max} bytes are allowed."
        raise BadInput(f"{what}_too_large", message)
    return body.decode()


def encode_input(value: Any, limits: Limits) -> str:
    """Encode an input as JSON, within the limits of size, depth, items per object and length of names."""
    body = encode_bounded("input", value, limits.input_bytes_max, limits.input_depth_max)
    todo = [value] if len(body) > min(limits.input_items_max, limits.key_chars_max) else []
    while todo:
        item = todo.pop()
        if not isinstance(item, dict | list | tuple):
            continue
        if len(item) > limits.input_items_max:
            most = limits.input_items_max
            message = f"An object or array in the input has {len(item)} items; at most {most} are allowed."
            raise BadInput("input_too_large", message)
        if isinstance(item, dict) and any(len(str(name)) > limits.key_chars_max for name in item):
            most = limits.key_chars_max
            message = f"A field name in the input is too long: at most {most} characters are allowed."
            raise BadInput("input_too_large", message)
        todo.extend(item.values() if isinstance(item, dict) else item)
    return body


def encode_or_none(value: dict[str, Any] | None) -> str | None:
    """Encode annotations as JSON, or return None."""
    return None if value is None else encode(value)


def _check_text(what: str, text: str, chars_max: int) -> None:
    if not text.strip() or len(text) > chars_max or not text.isprintable():
        raise BadInput(
            f"invalid_{what.replace(' ', '_')}", f"The {what} must have 1 to {chars_max} printable characters."
        )


def _check_depth(what: str, value: Any, levels: int) -> None:
    """Refuse values that are too deep, and NaN or Infinity. Iterates by level, so depth cannot exhaust the stack."""
    layer = [value]
    for _ in range(levels + 1):
        deeper: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                deeper.extend(item.values())
            elif isinstance(item, list | tuple):
                deeper.extend(item)
            elif isinstance(item, float) and not isfinite(item):
                raise BadInput(f"invalid_{what}", f"The {what} contains {item}, which JSON does not allow.")
        if not deeper:
            return
        layer = deeper
    raise BadInput(f"{what}_too_deep", f"The {what} is nested deeper than {levels} levels.")
