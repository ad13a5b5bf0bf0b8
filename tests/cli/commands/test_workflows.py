"""`callsheet workflows`: apply, check, list and show."""

import json
from pathlib import Path

from tests.cli.conftest import Run, invoke_cli

VALID_STAGE = '[[stages]]\nname = "draw"\nkind = "gpu"\n'


def test_the_workflows_of_a_server_are_listed(run: Run) -> None:
    assert "sketch" in run("workflows", "list").out
    (sketch,) = [one for one in run("workflows", "list", "--json").json["workflows"] if one["name"] == "sketch"]
    assert (sketch["price"], sketch["stages"]) == (3, ["draw"])


def test_a_workflow_is_printed_with_its_stages_and_its_input_schema(run: Run) -> None:
    printed = run("workflows", "show", "sketch").out
    assert printed.startswith(
        "sketch is version 1, for 3 credits.\n\nSTAGE  KIND  TASKS  APPROVAL\ndraw   draw  1      no"
    )
    schema = {"type": "object", "properties": {"prompt": {"type": "string"}}}
    assert json.loads(printed.partition("Its input, as JSON Schema:\n")[2]) == schema
    assert run("workflows", "show", "sketch", "--json").json["definition"]["input_schema"] == schema
    assert run("workflows", "show", "nothing").err == "callsheet: There is no workflow nothing.\n"


def test_workflow_files_are_applied_all_or_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "poster.toml").write_text(f"price = 4\n{VALID_STAGE}[retry]\nattempts_max = 2\n")
    (tmp_path / "banner.toml").write_text(VALID_STAGE)
    printed = "banner is version 1, for 0 credits.\nposter is version 1, for 4 credits.\n"
    for _ in range(2):  # applying an equal definition changes nothing
        done = run("workflows", "apply", tmp_path, role="operator")
        assert (done.code, done.out) == (0, printed), done.err
    applied = run("workflows", "apply", tmp_path / "poster.toml", "--json", role="operator").json["workflows"]
    assert [(one["name"], one["version"], one["price"]) for one in applied] == [("poster", 1, 4)]
    (tmp_path / "banner.toml").write_text(f"price = 9\n{VALID_STAGE}")
    (tmp_path / "poster.toml").write_text(f"prise = 3\n{VALID_STAGE}")
    broken = run("workflows", "apply", tmp_path, role="operator")
    assert (broken.code, broken.out) == (1, "")
    assert "poster.toml:1: There is no field 'prise' here." in broken.err
    listed = run("workflows", "list", "--json").json["workflows"]
    assert {one["name"]: one["price"] for one in listed if one["name"] in {"poster", "banner"}} == {
        "poster": 4, "banner": 0,
    }  # fmt: skip


def test_workflow_files_are_checked_without_a_server(tmp_path: Path) -> None:
    (tmp_path / "sketch.toml").write_text(VALID_STAGE)
    valid = invoke_cli("workflows", "check", tmp_path)
    assert (valid.code, valid.out) == (0, "All workflows are valid.\n")
    assert invoke_cli("workflows", "check", tmp_path, "--json").json == {"valid": True, "findings": []}
    (tmp_path / "poster.toml").write_text(f"prise = 3\n{VALID_STAGE}")
    broken = invoke_cli("workflows", "check", tmp_path)
    assert broken.code == 1
    assert f"{tmp_path / 'poster.toml'}:1: There is no field 'prise' here. Did you mean 'price'?" in broken.out
    assert broken.out.endswith("1 finding.\n")
    found = invoke_cli("workflows", "check", tmp_path, "--json")
    assert (found.code, found.json["valid"], found.json["findings"][0]["line"]) == (1, False, 1)
    assert invoke_cli("workflows", "check").code == 2
