"""The command line's page names every command, and its examples run as they stand there."""

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.tree import commands
from tests.support.catalogue import listed
from tests.support.tidy import ROOT

PAGE = ROOT / "docs" / "cli.md"
DEMO = ROOT / "src" / "callsheet" / "demo" / "workflows"


def test_every_command_is_on_the_page() -> None:
    names = {" ".join(("callsheet", *words)) for words, _ in commands()}
    assert len(names) > 25
    assert set(listed(PAGE)) == names


def test_the_examples_of_input_on_the_page_are_taken_by_the_workflows_they_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    recipe = re.search(r"```toml\n(# poster.toml\n.+?)```", text, re.DOTALL)
    assert recipe is not None
    Path("poster.toml").write_text(recipe[1])
    Path("input.json").write_text('{"prompt": "dunes"}')
    assert run("workflows", "put", "poster.toml", DEMO, role="operator").code == 0
    assert run("wallet", "topup", "eve", "20").code == 0
    examples = re.findall(r"^callsheet (submit .+)$", text, re.MULTILINE)
    assert len(examples) == 4
    for line in examples:
        done = run(*(word for word in shlex.split(line) if word != "--wait"))
        assert done.code == 0, (line, done.err)
