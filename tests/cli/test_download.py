"""What takes long in the shell: a person sees how far it is. Files are fetched so that nothing of another job goes."""

import hashlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from callsheet.blobs import object_keys
from callsheet.core.model import commands
from callsheet.engine import Engine
from tests.cli.conftest import Run
from tests.cli.test_jobs import read_terminal, submit_job
from tests.support.processes.live_server import LiveServer

CALLSHEET = Path(sys.executable).with_name("callsheet")
LARGE = bytes(5 * 1024 * 1024)


def made(live_server: LiveServer, run: Run, body: bytes) -> str:
    """Do a job that makes one file."""
    job = submit_job(run)
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
    lease = leased.lease
    key = object_keys.output_key(leased.tenant, lease.job_id, lease.task_id, lease.attempt, 1)
    live_server.callsheet.state.blobs.put(key, body)
    file = commands.OutputFile(1, "sketch.png", "image/png", len(body), hashlib.sha256(body).hexdigest())
    live_server.engine.execute(commands.Complete(lease=lease, files=(file,)))
    return job


def test_files_of_another_job_stay_and_those_of_the_same_are_there_once(
    live_server: LiveServer, run: Run, tmp_path: Path
) -> None:
    jobs = [made(live_server, run, body) for body in (b"one", b"two")]
    names = [tmp_path / "1-1-sketch.png", tmp_path / "1-1-sketch-2.png"]
    for _ in "again":
        assert [run("jobs", "download", job, "--output", tmp_path).out for job in jobs] == [
            f"{name}\n" for name in names
        ]
    assert [name.read_bytes() for name in names] == [b"one", b"two"]
    assert len(list(tmp_path.iterdir())) == 2


def run_on_terminal(live_server: LiveServer, *words: str) -> str:
    ours, theirs = pty.openpty()
    env = os.environ | {
        "CALLSHEET_URL": live_server.url, "CALLSHEET_API_KEY": live_server.keys["admin"], "TERM": "xterm",
        "COLUMNS": "200",
    }  # fmt: skip
    with subprocess.Popen([CALLSHEET, *words], stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        printed = read_terminal(ours)
    assert process.returncode == 0, printed
    return printed


def test_a_person_sees_how_much_of_a_large_file_is_here_and_nobody_else_does(
    live_server: LiveServer, run: Run, tmp_path: Path
) -> None:
    large, small = made(live_server, run, LARGE), made(live_server, run, b"small")
    assert "/5.2 MB" in run_on_terminal(live_server, "jobs", "download", large, "--output", str(tmp_path / "a"))
    assert (tmp_path / "a" / "1-1-sketch.png").read_bytes() == LARGE
    for words in ([large, "--output", str(tmp_path / "b"), "--json"], [small, "--output", str(tmp_path / "c")]):
        assert "MB" not in run_on_terminal(live_server, "jobs", "download", *words)
    assert run("jobs", "download", large, "--output", tmp_path / "d").out == f"{tmp_path / 'd' / '1-1-sketch.png'}\n"


def test_a_person_sees_how_much_of_a_large_file_was_brought_and_fetched(
    live_server: LiveServer, tmp_path: Path
) -> None:
    (tmp_path / "large.bin").write_bytes(LARGE)
    printed = run_on_terminal(live_server, "files", "upload", str(tmp_path / "large.bin"), "--user", "ann")
    assert "/5.2 MB" in printed
    file = re.search(r"([0-9a-f-]{36}) is large.bin", printed)
    assert file is not None, printed
    assert "/5.2 MB" in run_on_terminal(live_server, "files", "download", file[1], "--output", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == LARGE
    again = run_on_terminal(live_server, "files", "upload", str(tmp_path / "large.bin"), "--user", "ann", "--json")
    assert "MB" not in again


def test_a_person_sees_how_far_a_proof_is(live_server: LiveServer, tmp_path: Path) -> None:
    Engine.open(tmp_path / "callsheet.db").close()
    assert "Verifying" in run_on_terminal(live_server, "verify", "--data-dir", str(tmp_path))
    assert "Verifying" not in run_on_terminal(live_server, "verify", "--data-dir", str(tmp_path), "--json")
