"""`callsheet jobs download`, and the progress bars of long transfers."""

import re
from pathlib import Path

from callsheet.engine import Engine
from tests.cli.conftest import Run
from tests.cli.sketch_jobs import submit_job
from tests.cli.terminal import run_on_terminal, strip_styles
from tests.client.output_files import complete_with_files
from tests.support.processes.live_server import LiveServer

LARGE = bytes(5 * 1024 * 1024)


def completed_job(live_server: LiveServer, run: Run, body: bytes) -> str:
    """Return a completed job with one output file."""
    job = submit_job(run)
    complete_with_files(live_server, ("sketch.png", body))
    return job


def test_a_download_keeps_the_files_of_other_jobs_and_saves_its_own_once(
    live_server: LiveServer, run: Run, tmp_path: Path
) -> None:
    jobs = [completed_job(live_server, run, body) for body in (b"one", b"two")]
    names = [tmp_path / "1-1-sketch.png", tmp_path / "1-1-sketch-2.png"]
    for _ in range(2):
        assert [run("jobs", "download", job, "--output", tmp_path).out for job in jobs] == [
            f"{name}\n" for name in names
        ]
    assert [name.read_bytes() for name in names] == [b"one", b"two"]
    assert len(list(tmp_path.iterdir())) == 2


def test_files_with_the_same_name_are_all_saved(live_server: LiveServer, run: Run, tmp_path: Path) -> None:
    job = submit_job(run)
    output_names = ["a.txt", "a.txt", "a-2.txt", "A.txt", "b"]
    files = [(name, b"%d" % no) for no, name in enumerate(output_names, 1)]
    complete_with_files(live_server, *files, media_type="text/plain")
    paths = run("jobs", "download", job, "--output", tmp_path, "--json").json["paths"]
    names = ["1-1-a.txt", "1-1-a-2.txt", "1-1-a-2-2.txt", "1-1-A-3.txt", "1-1-b"]
    assert paths == [str(tmp_path / name) for name in names]
    assert [(tmp_path / name).read_text() for name in names] == ["1", "2", "3", "4", "5"]


def test_a_large_download_shows_its_progress_on_a_terminal_only(
    live_server: LiveServer, run: Run, tmp_path: Path
) -> None:
    large, small = completed_job(live_server, run, LARGE), completed_job(live_server, run, b"small")
    assert "/5.2 MB" in run_on_terminal(live_server, "jobs", "download", large, "--output", str(tmp_path / "a"))
    assert (tmp_path / "a" / "1-1-sketch.png").read_bytes() == LARGE
    for words in ([large, "--output", str(tmp_path / "b"), "--json"], [small, "--output", str(tmp_path / "c")]):
        assert "MB" not in run_on_terminal(live_server, "jobs", "download", *words)
    assert run("jobs", "download", large, "--output", tmp_path / "d").out == f"{tmp_path / 'd' / '1-1-sketch.png'}\n"


def test_uploads_and_downloads_of_files_show_their_progress(live_server: LiveServer, tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(LARGE)
    printed = run_on_terminal(live_server, "files", "upload", str(tmp_path / "large.bin"), "--user", "ann")
    assert "/5.2 MB" in printed
    file = re.search(r"([0-9a-f-]{36}) is large.bin", printed)
    assert file is not None, printed
    assert "/5.2 MB" in run_on_terminal(live_server, "files", "download", file[1], "--output", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == LARGE
    again = run_on_terminal(live_server, "files", "upload", str(tmp_path / "large.bin"), "--user", "ann", "--json")
    assert "MB" not in again


def test_verify_shows_its_progress(live_server: LiveServer, tmp_path: Path) -> None:
    Engine.open(tmp_path / "callsheet.db").close()
    printed = strip_styles(run_on_terminal(live_server, "verify", "--data-dir", str(tmp_path), "--rule", "G9"))
    assert re.search(r"G9 \(1 of 1\): \d+ slices? of \d+", printed), printed
    assert "Verifying" not in run_on_terminal(live_server, "verify", "--data-dir", str(tmp_path), "--json")
