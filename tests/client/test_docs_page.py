"""The client's page: its example runs, and it names every call."""

import hashlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import callsheet
from callsheet.blobs import object_keys
from callsheet.client import docs_page
from callsheet.core.model import commands
from tests.client.test_sync_async_parity import METHODS
from tests.support.processes.live_server import LiveServer
from tests.support.tidiness.source_scan import listed
from tests.support.tidiness.tidy import ROOT

PAGE, README = ROOT / "docs" / "reference" / "client.md", ROOT / "README.md"
EXAMPLE = re.compile(r"```python\n(from callsheet import .+?)```", re.DOTALL)


def example(page: Path) -> str | None:
    found = EXAMPLE.search(page.read_text())
    return found[1] if found else None


def draw(live_server: LiveServer) -> None:
    """Do one sketch and keep a file of it."""
    (leased,) = live_server.engine.claim(commands.Claim(worker_id="w1", kinds=("draw",)), wait_seconds=30)
    lease = leased.lease
    key = object_keys.output_key(leased.tenant, lease.job_id, lease.task_id, lease.attempt, 1)
    live_server.callsheet.state.blobs.put(key, b"picture")
    made = commands.OutputFile(1, "sketch.png", "image/png", 7, hashlib.sha256(b"picture").hexdigest())
    live_server.engine.execute(commands.Complete(lease=lease, files=(made,)))


def test_the_example_runs(live_server: LiveServer, tmp_path: Path) -> None:
    text = example(PAGE)
    assert text is not None
    assert len(text.splitlines()) <= 15
    worker = threading.Thread(target=draw, args=(live_server,))
    worker.start()
    env = os.environ | {"CALLSHEET_URL": live_server.url, "CALLSHEET_API_KEY": live_server.keys["operator"]}
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, cwd=tmp_path, env=env
    )
    worker.join()
    assert done.stderr == ""
    said = done.stdout.splitlines()
    assert (said[0], said[-3:]) == ("job.created", ["job.completed", "sketch.png image/png", "completed 17"])
    assert (tmp_path / "sketch.png").read_bytes() == b"picture"


def test_the_readme_shows_the_same_example_if_it_shows_one() -> None:
    assert example(README) in {None, example(PAGE)}


def test_every_call_is_on_the_page_with_its_signature() -> None:
    text = PAGE.read_text()
    assert text == docs_page.render_page(text), "run: python -m callsheet.client.docs_page docs/reference/client.md"
    assert docs_page.signatures().keys() == METHODS.keys()
    assert docs_page.signatures()["jobs.tasks"] == "jobs.tasks(job_id: str) -> Iterator[Task]"
    assert docs_page.render_page(text.replace("retry_as: Literal", "retry_like: Literal")) == text


def test_what_the_page_names_is_imported_from_the_package() -> None:
    named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)`", PAGE.read_text())) - {
        "Iterator",
        "TimeoutError",
        "Worker",
    }
    assert len(named) > 10
    assert named <= set(callsheet.__all__)


def test_every_call_is_on_the_page_and_iterators_are_marked() -> None:
    rows = listed(PAGE, "Methods")
    assert set(rows) == set(METHODS)
    marked = {name for name, cells in rows.items() if cells[0].startswith("∞")}
    assert marked == {name for name, one in METHODS.items() if type(one).__name__ == "iterate"}
