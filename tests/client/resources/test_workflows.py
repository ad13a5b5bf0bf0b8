"""Workflows, by both clients, on both databases."""

from typing import Any

import pytest

from callsheet.client import CallsheetError


def test_workflows_are_put_listed_and_read(operator: Any) -> None:
    definition = {"price": 4, "stages": [{"name": "draw", "kind": "ink"}], "input_schema": {"type": "object"}}
    poster = operator.workflows.put("poster", definition)
    assert operator.workflows.put("poster", definition).version == poster.version
    assert (poster.price, poster.stages, poster.definition["input_schema"]) == (4, ["draw"], {"type": "object"})
    assert operator.workflows.get("poster") == poster
    assert {"poster", "sketch"} <= {workflow.name for workflow in operator.workflows.list()}
    with pytest.raises(CallsheetError) as refused:
        operator.workflows.put("poster", {"prise": 4})
    assert refused.value.code == "invalid_definition"
