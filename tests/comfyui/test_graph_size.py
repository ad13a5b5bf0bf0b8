"""The size of what a graph and its inputs cost: inputs, places where values are inserted, and inserted bytes."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callsheet.comfyui.graph_rules_implementation import COMFYUI_GRAPH_RULES
from callsheet.comfyui.placeholders import count_placeholders, split_at_placeholders, texts_with_placeholders
from callsheet.comfyui.validate import find_issues
from callsheet.core.model.comfyui_graph import ComfySpec, Target
from callsheet.core.model.errors import BadInput
from callsheet.core.policy.engine_limits import Limits
from tests.support.comfyui_graphs import node

LIMITS = Limits()
TEXT = st.text("abc_\n", max_size=30)
PLACEHOLDERS = st.lists(st.text("abc_", min_size=1, max_size=4), min_size=1, max_size=4, unique=True)


def issues(spec: ComfySpec) -> list[str]:
    return [f"{issue.message} {issue.hint}" for issue in find_issues(spec, LIMITS)]


def repeated(places: int) -> ComfySpec:
    return ComfySpec(graph={"1": node("A", text="__PROMPT__ " * places)}, inputs={"prompt": "__PROMPT__"})


def test_a_graph_has_a_limit_of_inputs() -> None:
    inputs: dict[str, Any] = {f"i{no}": Target(node="1", field="text") for no in range(257)}
    (issue,) = issues(ComfySpec(graph={"1": node("A", text="")}, inputs=inputs))
    assert issue == "The graph has 257 inputs; at most 256 are allowed. Remove some."


def test_a_graph_has_a_limit_of_places_for_values() -> None:
    assert issues(repeated(1_000)) == []
    (issue,) = issues(repeated(1_001))
    assert issue.startswith("Inputs are inserted at 1001 places; at most 1000 are allowed.")


def test_an_input_that_makes_the_graph_too_large_is_refused() -> None:
    """A thousand places and an input of 256 KB would be a graph of 256 MB."""
    COMFYUI_GRAPH_RULES.check_input(repeated(1_000), {"prompt": "x" * 4_000}, LIMITS)
    with pytest.raises(BadInput, match="at most 4194304 are allowed") as refused:
        COMFYUI_GRAPH_RULES.check_input(repeated(1_000), {"prompt": "x" * 5_000}, LIMITS)
    assert refused.value.code == "input_too_large"


def test_a_placeholder_with_a_long_common_prefix_is_found_in_linear_time() -> None:
    """Trying every placeholder at every character would take minutes."""
    placeholders = [f"{'a' * 400}{no}" for no in range(1_000, 1_256)]
    texts = ["a" * 500_000]
    assert count_placeholders(texts, placeholders) == 0
    assert texts_with_placeholders(texts, placeholders) == set()


@given(TEXT, PLACEHOLDERS)
def test_a_text_is_split_like_a_regular_expression_would(text: str, placeholders: list[str]) -> None:
    pattern = re.compile("|".join(map(re.escape, placeholders)))
    parts = list(split_at_placeholders(text, placeholders))
    assert "".join(before + placeholder for before, placeholder in parts) == text
    assert [placeholder for _, placeholder in parts[:-1]] == pattern.findall(text)


@given(st.lists(TEXT, max_size=6), PLACEHOLDERS)
def test_texts_with_placeholders_are_found_and_counted(texts: list[str], placeholders: list[str]) -> None:
    expected = {text for text in texts if any(placeholder in text for placeholder in placeholders)}
    assert texts_with_placeholders(texts, placeholders) == expected
    assert count_placeholders(texts, placeholders) == sum(text.count(one) for text in texts for one in placeholders)
