"""Values from the words of a command line, and what is said of those that are none."""

from pathlib import Path

import pytest

from tests.cli.conftest import Run, invoke_cli


@pytest.mark.parametrize(
    ("word", "stdin", "said"),
    [
        ("@input.json", None, "The file input.json is not JSON: JSON is malformed"),
        ("@-", "{secret", "Standard input is not JSON"),
        ("@absent.json", None, "The file absent.json cannot be read."),
        ("{secret", None, "'{secret' is not JSON"),
    ],
)
def test_an_input_that_is_none_is_named_by_where_it_came_from(
    run: Run, word: str, stdin: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("input.json").write_text("{secret")
    wrong = run("quote", "sketch", "--user", "ann", "--input", word, stdin=stdin)
    told = " ".join(wrong.err.split())
    assert (wrong.code, said in told) == (2, True), told
    assert ("secret" in told) == (not word.startswith("@"))


def test_help_says_how_standard_input_is_named() -> None:
    assert "@- is standard input" in " ".join(invoke_cli("quote", "--help").out.split())


@pytest.mark.parametrize(
    "words",
    [
        ["up", "--data-dir"], ["serve", "--data-dir"], ["demo", "--data-dir"], ["jobs", "--data-dir"],
        ["verify", "--data-dir"],
        ["worker", "studio:worker", "--cache-dir"], ["workflows", "import", "graph.json", "--output-dir"],
    ],
)  # fmt: skip
def test_a_file_where_a_folder_goes_is_a_wrong_call(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    wrong = invoke_cli(*words, file)
    assert (wrong.code, f"{file} is a file. Name a folder." in wrong.err) == (2, True)
