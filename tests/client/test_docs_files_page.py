"""The example of the guide to files runs as printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

from callsheet.demo.setup import seed_demo
from tests.support.processes.live_server import LiveServer
from tests.support.tidiness.tidy import ROOT

PAGE = ROOT / "docs" / "guides" / "files.md"


def test_the_upload_example_runs_and_prints_what_its_comments_say(live_server: LiveServer, tmp_path: Path) -> None:
    [text] = re.findall(r"```python\n(.+?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1_000))
    seed_demo(live_server.engine)  # as `callsheet up` does
    env = os.environ | {"CALLSHEET_URL": live_server.url, "CALLSHEET_API_KEY": live_server.keys["operator"]}
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, cwd=tmp_path, env=env
    )
    assert done.stderr == ""
    comments = re.findall(r"print\(.+\)  # (.+)", text)
    assert done.stdout.splitlines() == [comments[0], comments[1].partition(":")[0]]
