"""The reference page of the client: its example runs, and it lists every method."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import callsheet
from callsheet.client import docs_page
from tests.client.output_files import complete_with_files
from tests.client.test_sync_async_parity import METHODS
from tests.support.processes.live_server import LiveServer
from tests.support.tidiness.source_scan import read_tables
from tests.support.tidiness.tidy import ROOT

PAGE, README = ROOT / "docs" / "reference" / "client.md", ROOT / "README.md"
EXAMPLE = re.compile(r"```python\n(from callsheet import .+?)```", re.DOTALL)


def example(page: Path) -> str | None:
    found = EXAMPLE.search(page.read_text())
    return found[1] if found else None


def test_the_example_runs(live_server: LiveServer, tmp_path: Path) -> None:
    text = example(PAGE)
    assert text is not None
    assert len(text.splitlines()) <= 15
    worker = threading.Thread(
        target=complete_with_files, args=(live_server, ("sketch.png", b"picture")), kwargs={"wait_seconds": 30}
    )
    worker.start()
    env = os.environ | {"CALLSHEET_URL": live_server.url, "CALLSHEET_API_KEY": live_server.keys["operator"]}
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, cwd=tmp_path, env=env
    )
    worker.join()
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-3:]) == ("job.created", ["job.completed", "sketch.png image/png", "completed 17"])
    assert (tmp_path / "sketch.png").read_bytes() == b"picture"


def test_the_readme_shows_the_same_example_if_it_shows_one() -> None:
    assert example(README) in {None, example(PAGE)}


def test_every_method_is_on_the_page_with_its_signature() -> None:
    text = PAGE.read_text()
    assert text == docs_page.render_page(text), "run: python -m callsheet.client.docs_page docs/reference/client.md"
    assert docs_page.signatures().keys() == METHODS.keys()
    assert docs_page.signatures()["jobs.tasks"] == "jobs.tasks(job_id: str) -> Iterator[Task]"
    assert docs_page.render_page(text.replace("retry_as: Literal", "retry_like: Literal")) == text


def test_the_classes_on_the_page_are_exported_by_the_package() -> None:
    named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)`", PAGE.read_text())) - {
        "Iterator",
        "TimeoutError",
        "Worker",
    }
    assert len(named) > 10
    assert named <= set(callsheet.__all__)


def test_every_method_is_in_the_table_and_iterators_are_marked() -> None:
    rows = read_tables(PAGE, "Methods")
    assert set(rows) == set(METHODS)
    marked = {name for name, cells in rows.items() if cells[0].startswith("∞")}
    assert marked == {name for name, one in METHODS.items() if type(one).__name__ == "iterate"}
