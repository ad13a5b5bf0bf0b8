"""The architecture page names files and functions that exist, and shows the layers that the import rules enforce."""

import re
from pathlib import Path

import pytest

from tests.support.tidiness.tidy import ROOT
from tools import layers

PAGE = ROOT / "docs" / "design" / "architecture.md"
SOURCE = ROOT / "src" / "callsheet"
PATH = re.compile(r"`([\w/]+(?:\.py|/))`")
NAMED = re.compile(r"`(\w+)` (?:in|of) `([\w/]+\.py)`")


def locate(path: str) -> Path:
    return ROOT / path if path.startswith("src/") else SOURCE / path


def missing_paths(text: str) -> list[str]:
    return [path for path in PATH.findall(text) if not locate(path).exists()]


def missing_names(text: str) -> list[str]:
    return [
        f"{name} in {path}"
        for name, path in NAMED.findall(text)
        if not re.search(rf"^ *(?:async )?(?:def|class) {name}\b", locate(path).read_text(), re.MULTILINE)
    ]


def test_every_file_on_the_page_exists() -> None:
    assert len(PATH.findall(PAGE.read_text())) > 40
    assert missing_paths(PAGE.read_text()) == []


def test_every_function_on_the_page_is_in_the_file_it_names() -> None:
    assert len(NAMED.findall(PAGE.read_text())) > 10
    assert missing_names(PAGE.read_text()) == []


def test_planted_paths_and_names_are_found() -> None:
    assert missing_paths("`core/nothing.py` `core/command_registry.py`") == ["core/nothing.py"]
    assert missing_names("`nothing` in `core/command_registry.py`") == ["nothing in core/command_registry.py"]


def test_the_diagram_shows_every_layer_and_changes_with_the_rules() -> None:
    text = PAGE.read_text()
    assert layers.update_page(text) == text, "run: make docs"
    packages = {path.stem for path in SOURCE.iterdir() if path.is_dir() or path.suffix == ".py"}
    drawn = {package for layer in layers.read_layers() for package in layer}
    assert packages - {"__init__", "__pycache__", "py"} == drawn
    assert layers.render_diagram([["a"], ["b", "c"]]).count("-->") == 1


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the lines"):
        layers.update_page("# Architecture\n")
