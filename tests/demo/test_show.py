"""The demonstration where it cannot go on, where it is interrupted, and on screens of all sorts."""

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
from tests.support.processes.live_server import LiveServer

ROWS = ["sketch", "tone", "clip", "short-video", "script", "storyboard 1", "storyboard 2", "storyboard 3", "render"]


@pytest.fixture(scope="module")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server without a worker, whose own `sketch` is not the demonstration's."""
    folder = tmp_path_factory.mktemp("show")
    with LiveServer(folder / "callsheet.db", folder) as started:
        yield started


@pytest.fixture
def furnished(live_server: LiveServer) -> LiveServer:
    seed_demo(live_server.engine)
    for definition in load(WORKFLOWS):
        live_server.engine.execute(PutWorkflow(definition=definition))
    return live_server


def interrupted(live_server: LiveServer, folder: Path, console: Console, told: io.StringIO, word: str = "") -> str:
    """Show it until a word is read, and return everything that stands there."""
    with pytest.raises(KeyboardInterrupt):
        show(live_server.url, live_server.keys["admin"], folder, console, lambda: word in told.getvalue())
    return told.getvalue()


def test_a_server_without_its_workflows_or_with_others_of_that_name_is_told_apart(
    live_server: LiveServer, tmp_path: Path
) -> None:
    def shown() -> None:
        show(live_server.url, live_server.keys["admin"], tmp_path, Console(file=io.StringIO()))

    with pytest.raises(CallsheetError, match=r"no demo workflows. Start it with `callsheet up`"):
        shown()
    seed_demo(live_server.engine)
    with pytest.raises(CallsheetError, match=r"The workflow sketch of this server is not the demo's"):
        shown()
    with live_server.client("client") as client:
        assert client.get("/v1/workflows/sketch").json()["definition"]["stages"][0]["kind"] == "draw", (
            "it is left alone"
        )


@pytest.mark.parametrize("terminal", [True, False])
def test_what_nobody_works_on_says_so(
    furnished: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    for quiet in ("callsheet.demo.runner._QUIET_SECONDS", "callsheet.core.policy.blocking_reasons.NO_WORKER_SECONDS"):
        monkeypatch.setattr(quiet, 0)
    told = io.StringIO()
    console = Console(file=told, width=200, force_terminal=terminal, color_system=None)
    said = interrupted(furnished, tmp_path, console, told, "start a worker of this kind.")
    assert re.search(r"^(sketch|tone|clip|short-video): .*start a worker of this kind\.", said, re.MULTILINE)


@pytest.mark.parametrize("width", [50, 80])
def test_an_interrupted_board_says_what_was_canceled_and_every_row_once(
    furnished: LiveServer, tmp_path: Path, width: int
) -> None:
    told = io.StringIO()
    console = Console(file=told, width=width, force_terminal=True, color_system="truecolor", no_color=True)
    last = interrupted(furnished, tmp_path, console, told).rpartition("\x1b[2K")[2]
    board, _, rest = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", last).partition("\nInterrupted. ")
    rows = [line.strip() for line in board.splitlines()]
    assert [re.split(" {2,}", row)[0] for row in rows if row] == ROWS
    assert all(" canceled" in row for row in rows if row)
    assert board.endswith("\n\n"), "Ctrl-C is echoed on a line of its own"
    assert rest == "Unfinished jobs are canceled.\n"


@pytest.mark.parametrize(("no_color", "shows_pictures"), [(True, False), (False, True)])
def test_pictures_are_drawn_where_there_are_colours(no_color: bool, shows_pictures: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", no_color=no_color)
    assert Board(console).shows_pictures == shows_pictures
