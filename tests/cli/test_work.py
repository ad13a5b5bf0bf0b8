"""`callsheet work` called wrongly."""

from pathlib import Path

import pytest

from tests.cli.conftest import Ran, ran
from tests.support.served import Served

MODULE = """from callsheet.worker import Worker

worker = Worker("mine")
worker.task("shout")(lambda ctx: ctx.input)
"""
HOUSE = ["--url", "http://127.0.0.1:1"]
SECRET = ["--fleet-secret-file", "secret"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["yard_of_cli:worker", *SECRET], "Name the house"),
        (["yard_of_cli:worker", *HOUSE], "Name the fleet's secret"),
        (["yard_of_cli:worker", "--url", "house", *SECRET], "http:// or https://"),
        (["yard_of_cli:worker", *HOUSE, *SECRET, "--spot", "gcp"], "choose aws"),
        (["yard_of_cli:worker", *HOUSE, *SECRET, "--kinds", "shout,whisper"], "no handler for 'whisper'"),
        (["yard_of_cli:worker", *HOUSE, *SECRET, "--name", "a/b"], "letters, digits"),
        (["yard_of_cli:worker", *HOUSE, *SECRET, "--label", "zone"], "NAME=VALUE"),
        (["yard_of_cli:worker", *HOUSE, *SECRET, "--protect", ""], "is empty"),
        (["nowhere:worker", *HOUSE, *SECRET], "cannot be imported"),
        (["yard_of_cli:shout", *HOUSE, *SECRET], "not a callsheet.worker.Worker"),
        ([":worker", *HOUSE, *SECRET], "Name a module and the worker in it"),
        (["broken:worker", *HOUSE, *SECRET], "broken cannot be imported: SyntaxError"),
        (["raising:worker", *HOUSE, *SECRET], "raising cannot be imported: KeyError: 'x'."),
        (["leaving:worker", *HOUSE, *SECRET], "leaving cannot be imported: SystemExit: 7."),
    ],
)
def test_a_wrong_call_exits_with_2_and_says_what_to_do(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = worked(*words, folder=tmp_path, monkeypatch=monkeypatch)
    assert done.code == 2
    assert said in " ".join(done.err.replace("│", " ").split())


def test_a_worker_that_cannot_work_says_why_in_a_sentence(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = ["yard_of_cli:worker", "--url", served.url]
    wrong = worked(*house, *SECRET, folder=tmp_path, monkeypatch=monkeypatch)
    assert (wrong.code, wrong.err) == (
        1, "callsheet: The house does not take this fleet secret: it is wrong, or was revoked.\n",
    )  # fmt: skip
    nowhere = worked(*house, "--fleet-secret-file", "nowhere", folder=tmp_path, monkeypatch=monkeypatch)
    assert (nowhere.code, nowhere.err) == (1, "callsheet: The fleet's secret cannot be read from nowhere.\n")
    assert nowhere.out == "Gone: The fleet's secret cannot be read from nowhere.\n"
    (tmp_path / "cache").rename(tmp_path / "old")
    (tmp_path / "cache").touch()
    taken = worked(*house, *SECRET, folder=tmp_path, monkeypatch=monkeypatch)
    assert taken.code == 1
    assert "Choose another with --cache" in taken.err


def worked(*words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Call it in a folder with modules of all sorts."""
    texts = {"yard_of_cli": MODULE, "broken": "def (", "raising": "{}['x']", "leaving": "raise SystemExit(7)"}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "secret").write_text("cs_secret")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return ran("work", *words, "--cache", folder / "cache")
