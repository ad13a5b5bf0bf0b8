"""Parsing of arguments, and the messages about invalid ones."""

from pathlib import Path

import pytest

from tests.cli.conftest import Run, invoke_cli


@pytest.mark.parametrize(
    ("word", "stdin", "message"),
    [
        ("@input.json", None, "The file input.json is not JSON: JSON is malformed"),
        ("@-", "{secret", "Standard input is not JSON"),
        ("@absent.json", None, "The file absent.json cannot be read. Pass a UTF-8 file that you may read."),
        ("{secret", None, "'{secret' is not JSON"),
        ('{"secret":1,"secret":2}', None, "is not JSON: The key 'secret' is repeated in one object."),
    ],
)
def test_an_invalid_input_is_reported_with_its_source_and_without_the_content_of_a_file(
    run: Run, word: str, stdin: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("input.json").write_text("{secret")
    wrong = run("quote", "sketch", "--user", "ann", "--input", word, stdin=stdin)
    error = " ".join(wrong.err.split())
    assert (wrong.code, message in error) == (2, True), error
    assert ("secret" in error) == (not word.startswith("@"))


def test_the_help_explains_how_to_read_standard_input() -> None:
    assert "@- is standard input" in " ".join(invoke_cli("quote", "--help").out.split())


@pytest.mark.parametrize(
    "words",
    [
        ["up", "--data-dir"], ["serve", "--data-dir"], ["demo", "--data-dir"], ["jobs", "--data-dir"],
        ["verify", "--data-dir"],
        ["worker", "studio:worker", "--cache-dir"], ["workflows", "import", "graph.json", "--output-dir"],
    ],
)  # fmt: skip
def test_a_file_where_a_folder_is_required_is_a_usage_error(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    wrong = invoke_cli(*words, file)
    assert (wrong.code, f"{file} is a file. Pass a folder." in wrong.err) == (2, True)
