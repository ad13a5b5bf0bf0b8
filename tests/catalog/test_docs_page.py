"""docs/reference/workflows.md: its examples are valid, and it describes every field of a graph."""

import json
import re
from pathlib import Path

from msgspec.structs import fields

from callsheet.catalog import check, load
from callsheet.comfyui.template import render
from callsheet.core.model.comfyui_graph import ComfySpec
from callsheet.core.policy.input_schema.validator import InputSchema
from tests.support import comfyui_graphs
from tests.support.tidiness.tidy import ROOT

PAGE = ROOT / "docs" / "reference" / "workflows.md"


def test_the_examples_on_the_page_are_valid(tmp_path: Path) -> None:
    for name, text in re.findall(r"```toml\n# (\S+)\n(.+?)```", PAGE.read_text(), re.DOTALL):
        (tmp_path / name).write_text(text)
    (tmp_path / "portrait.graph.json").write_text(json.dumps(comfyui_graphs.text_to_image()))
    assert check([tmp_path]) == []
    noir, portrait, poster = load(tmp_path)
    assert (noir.name, portrait.price, poster.price) == ("noir", 8, 3)
    spec = noir.stages[0].comfyui
    assert spec is not None
    input = {"prompt": "a fox", "width": 768}
    assert InputSchema("noir", noir.input_schema).is_valid(input)
    rendered = render(spec, input, "task").graph
    assert rendered["5"]["inputs"] == {"width": 768, "height": 768, "batch_size": 1}
    assert rendered["7"]["inputs"]["text"] == "colour, daylight"
    assert rendered["3"]["inputs"]["seed"] < 2**31


def test_every_field_of_a_graph_is_described() -> None:
    page = PAGE.read_text()
    assert [field.name for field in fields(ComfySpec) if f"`{field.name}`" not in page] == []
