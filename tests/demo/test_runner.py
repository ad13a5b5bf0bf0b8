"""The demo without its workflows, without a worker, interrupted, and on several kinds of terminals."""

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from callsheet.catalog import load
from callsheet.client import CallsheetError
from callsheet.core.model.commands import PutWorkflow
from callsheet.demo.progress_board import Board
from callsheet.demo.runner import show
from callsheet.demo.setup import WORKFLOWS, seed_demo
from tests.support.doubles.hostile_server import MARK, TEXT
from tests.support.processes.live_server import LiveServer

ROWS = ["sketch", "tone", "clip", "short-video", "script", "storyboard 1", "storyboard 2", "storyboard 3", "render"]


@pytest.fixture(scope="module")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server without a worker, whose workflow `sketch` is not the demo's."""
    folder = tmp_path_factory.mktemp("demo")
    with LiveServer(folder / "callsheet.db", folder) as started:
        yield started


@pytest.fixture
def demo_server(live_server: LiveServer) -> LiveServer:
    """The same server, with the demo's workflows."""
    seed_demo(live_server.engine)
    for definition in load(WORKFLOWS):
        live_server.engine.execute(PutWorkflow(definition=definition))
    return live_server


def show_and_interrupt(
    live_server: LiveServer, folder: Path, console: Console, screen: io.StringIO, text: str = ""
) -> str:
    """Run the demo until the screen shows a text, interrupt it, and return what was printed."""
    with pytest.raises(KeyboardInterrupt):
        show(live_server.url, live_server.keys["admin"], folder, console, lambda: text in screen.getvalue())
    return screen.getvalue()


def test_missing_demo_workflows_and_other_workflows_of_the_same_name_are_reported(
    live_server: LiveServer, tmp_path: Path
) -> None:
    def run_demo() -> None:
        show(live_server.url, live_server.keys["admin"], tmp_path, Console(file=io.StringIO()))

    with pytest.raises(CallsheetError, match=r"no demo workflows. Start it with `callsheet up`"):
        run_demo()
    seed_demo(live_server.engine)
    with pytest.raises(CallsheetError, match=r"The workflow sketch of this server is not the demo's"):
        run_demo()
    with live_server.client("client") as client:
        assert client.get("/v1/workflows/sketch").json()["definition"]["stages"][0]["kind"] == "draw", (
            "the workflow is unchanged"
        )


@pytest.mark.parametrize("terminal", [True, False])
def test_a_job_without_a_worker_is_reported(
    demo_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    for setting in (
        "callsheet.demo.runner._QUIET_SECONDS",
        "callsheet.core.policy.explanation.blocking_reasons.NO_WORKER_SECONDS",
    ):
        monkeypatch.setattr(setting, 0)
    screen = io.StringIO()
    console = Console(file=screen, width=200, force_terminal=terminal, color_system=None)
    printed = show_and_interrupt(demo_server, tmp_path, console, screen, "start a worker of this kind.")
    assert re.search(r"^(sketch|tone|clip|short-video): .*start a worker of this kind\.", printed, re.MULTILINE)


@pytest.mark.parametrize("width", [50, 80])
def test_an_interrupted_demo_shows_each_row_once_as_canceled(
    demo_server: LiveServer, tmp_path: Path, width: int
) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=width, force_terminal=True, color_system="truecolor", no_color=True)
    last = show_and_interrupt(demo_server, tmp_path, console, screen).rpartition("\x1b[2K")[2]
    board, _, rest = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", last).partition("\nInterrupted. ")
    rows = [line.strip() for line in board.splitlines()]
    assert [re.split(" {2,}", row)[0] for row in rows if row] == ROWS
    assert all(" canceled" in row for row in rows if row)
    assert board.endswith("\n\n"), "Ctrl-C is echoed on a line of its own"
    assert rest == "Unfinished jobs are canceled.\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_the_board_shows_no_unsafe_character_of_a_text(terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, color_system=None, width=400)
    with Board(console) as board:
        line = board.add(f"job{TEXT}", f"note{TEXT}")
        line.update(5, TEXT)
        line.show_blocked(TEXT)
        line.set_note(TEXT)
        line.end("failed", TEXT)
    shown = re.sub(r"\x1b\[\??[0-9;]*[mhlKA]|[\r\n]", "", stream.getvalue())
    assert MARK in shown
    assert shown.isprintable()


@pytest.mark.parametrize(("no_color", "shows_pictures"), [(True, False), (False, True)])
def test_pictures_appear_only_on_terminals_with_colours(no_color: bool, shows_pictures: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", no_color=no_color)
    assert Board(console).shows_pictures == shows_pictures
