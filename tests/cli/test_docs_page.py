"""The reference pages of the command line and of workflow files are complete, and their examples run as printed."""

import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import fields

from callsheet.catalog.workflow_file_checks import WorkflowFile
from callsheet.cli import settings_and_workflow_docs_page
from callsheet.core.model.comfyui_graph import ComfySpec
from callsheet.core.model.workflow_definition import Backoff, RefundPolicy, RetryPolicy, StageSpec
from tests.cli.command_tree import commands
from tests.cli.conftest import Run, invoke_cli
from tests.support.processes.live_server import LiveServer
from tests.support.tidiness.source_scan import read_tables
from tests.support.tidiness.tidy import ROOT

PAGE = ROOT / "docs" / "reference" / "cli.md"
BACKUP = ROOT / "docs" / "guides" / "backup.md"
DEMO = ROOT / "src" / "callsheet" / "demo" / "workflows"


def test_every_command_is_on_the_page() -> None:
    names = {" ".join(("callsheet", *words)) for words, _ in commands()}
    assert len(names) > 25
    assert set(read_tables(PAGE)) == names


def test_every_field_of_a_workflow_file_is_on_its_page_with_a_description() -> None:
    page = ROOT / "docs" / "reference" / "workflows.md"
    text = page.read_text()
    assert text == settings_and_workflow_docs_page.update_fields_section(text), (
        "run: python -m callsheet.cli.settings_and_workflow_docs_page docs/reference/workflows.md"
    )
    section = text.partition("## Every field")[2]
    for shape in (WorkflowFile, StageSpec, ComfySpec, RetryPolicy, Backoff, RefundPolicy):
        for field in fields(shape):
            assert re.search(rf"^\| `{field.name}` \| [^|]*\| \S.+ \|$", section, re.MULTILINE), (shape, field.name)
    assert (
        settings_and_workflow_docs_page.update_fields_section(text.replace("| `price` | `0` |", "| `price` | `1` |"))
        == text
    )


def test_the_backup_command_of_the_guide_copies_the_database_of_a_running_server(tmp_path: Path) -> None:
    [statement] = re.findall(r"`(VACUUM INTO 'copy\.db')`", BACKUP.read_text())
    copy = tmp_path / "copy"
    copy.mkdir()
    with LiveServer(tmp_path / "callsheet.db", tmp_path) as live_server:
        job = live_server.submit()["id"]
        with closing(sqlite3.connect(tmp_path / "callsheet.db")) as database:
            database.execute(statement.replace("copy.db", str(copy / "callsheet.db")))
        live_server.work()
    assert invoke_cli("verify", "--data-dir", copy).code == 0
    with closing(sqlite3.connect(copy / "callsheet.db")) as database:
        assert database.execute("SELECT id, status FROM job").fetchall() == [(job, "queued")]


def test_the_workflows_accept_the_inputs_in_the_examples_of_the_page(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    definition = re.search(r"```toml\n(# poster.toml\n.+?)```", text, re.DOTALL)
    assert definition is not None
    Path("poster.toml").write_text(definition[1])
    Path("input.json").write_text('{"prompt": "dunes"}')
    assert run("workflows", "apply", "poster.toml", DEMO, role="operator").code == 0
    examples = re.findall(r"^callsheet ((?:wallet|submit) .+)$", text, re.MULTILINE)
    assert len(examples) == 5
    for line in examples:
        done = run(*(word for word in shlex.split(line) if word != "--wait"))
        assert done.code == 0, (line, done.err)
