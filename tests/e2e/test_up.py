"""`callsheet up` as a process: its files, the demo on it, public URLs, kills and restarts."""

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import av
import httpx
import pytest

from callsheet.client import Client
from tests.demo.media_decode import boxes, frames, samples
from tests.support.processes.cli_process import CommandProcess, ServerProcess, run
from tests.support.tidiness.tidy import ROOT
from tests.support.wait import wait_until

WAIT_SECONDS = 90.0
PROMPTS = {"sketch": "a tower", "tone": "rain", "clip": "the sea", "short-video": "a letter"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("up") / "data") as started:
        yield started


@pytest.fixture(scope="module")
def demo_output(up: ServerProcess) -> str:
    """What the demo printed, which has run once on that server."""
    done = run("demo", "--once", "--data-dir", up.data)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_the_first_line_is_json_with_the_url_the_key_file_and_the_pid(up: ServerProcess) -> None:
    assert up.banner == {
        "url": up.url,
        "admin_key_file": str(up.data / "admin.key"),
        "pid": up.process.pid,
        "dialects": [],
    }
    assert httpx.get(f"{up.url}/readyz").json() == {"status": "ready"}
    assert up.url.startswith("http://127.0.0.1:")


def test_secrets_and_the_database_are_readable_by_their_owner_only(up: ServerProcess) -> None:
    assert {mode(up.data / name) for name in ("admin.key", "secret.key", "server.json", "callsheet.db")} == {0o600}
    assert up.key.startswith("cs_")
    with up.client() as client:
        assert client.identity.get().role == "operator"


def test_the_demo_user_has_credits_and_workflows(up: ServerProcess) -> None:
    with up.client() as client:
        prices = {workflow.name: workflow.price for workflow in client.workflows.list()}
        assert prices == {"sketch": 3, "tone": 2, "clip": 8, "short-video": 20}
        assert sum(entry.amount for entry in client.wallets.entries("demo") if entry.kind == "topup") == 100


def test_the_demo_makes_a_picture_a_tone_a_clip_and_a_short_video(up: ServerProcess, demo_output: str) -> None:
    files = {file.name.partition("-")[2]: file.read_bytes() for file in (up.data / "demo").iterdir()}
    assert sorted(files) == ["clip.mp4", "short-video.mp4", "sketch.png", "tone.wav"]
    (picture,) = frames(files["sketch.png"])
    assert picture.shape == (400, 640, 3)
    assert 2 < len(samples(files["tone.wav"])) / 44_100 < 5
    assert [len(frames(files[name])) for name in ("clip.mp4", "short-video.mp4")] == [72, 108]
    assert "moov" in list(boxes(files["short-video.mp4"]))
    with av.open(str(next((up.data / "demo").glob("*short-video.mp4")))) as film:
        assert [stream.type for stream in film.streams] == ["video", "audio"]
    assert str(up.data / "demo") in demo_output.replace("\n", "")
    assert "approved in your name" in demo_output
    assert "The wallet has 67 credits left.\n" in demo_output


def test_the_jobs_of_the_demo_have_previews_stages_and_outputs(up: ServerProcess, demo_output: str) -> None:
    assert "completed" in demo_output
    with up.client() as client:
        jobs = {job.workflow: job for job in client.jobs.list(user="demo")}
        assert {job.status for job in jobs.values()} == {"completed"}
        events = list(client.jobs.events(jobs["clip"].id))
        assert any(event.data.get("preview", 0) > 1 for event in events if event.type == "task.progressed")
        board = [stage for stage in client.jobs.stages(jobs["short-video"].id) if stage.name == "storyboard"]
        assert [(stage.tasks_total, stage.tasks_completed) for stage in board] == [(3, 3)]
        titles = [
            output.output["title"] for output in client.jobs.outputs(jobs["short-video"].id) if output.stage_no == 2
        ]
        assert len(set(titles)) == 3
    assert run("verify", "--data-dir", up.data).returncode == 0


def test_a_second_server_on_one_folder_and_a_port_in_use_are_reported_in_one_line(
    up: ServerProcess, tmp_path: Path
) -> None:
    done = run("up", "--data-dir", up.data, "--port", 0)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"already runs on {up.data} at {up.url}" in done.stderr
    assert "Stop it before you start another one, or start that one with another --data-dir and --port." in done.stderr
    port = up.url.rpartition(":")[2]
    done = run("up", "--data-dir", tmp_path, "--port", port)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"Port {port}" in done.stderr


def test_a_public_host_requires_the_public_option_and_an_existing_key(up: ServerProcess, tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", socket.gethostname()):
        done = run("up", "--data-dir", tmp_path, "--port", 0, "--host", host)
        assert done.returncode == 1
        assert "--public" in done.stderr
    done = run("up", "--data-dir", tmp_path, "--port", 0, "--host", "0.0.0.0", "--public")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No API key exists yet" in done.stderr
    assert not (tmp_path / "admin.key").exists()
    assert up.process.poll() is None


def test_a_public_host_is_served_if_a_key_exists(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--no-demo-workflows") as first:
        key = first.key
        assert first.stop() == 0
    with ServerProcess(tmp_path / "data", "--no-demo-workflows", "--host", "0.0.0.0", "--public") as second:
        assert second.key == key
        with second.client() as client:
            assert list(client.workflows.list()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["up", "--data-dir", "file/below"], "Cannot create the folder"),
        (
            ["up", "--data-dir", "x", "--database", "postgresql://user@127.0.0.1:1/none", "--config", "no-wait"],
            "127.0.0.1",
        ),
        (
            ["serve", "--data-dir", "x", "--signing-secret-file", "nowhere"],
            "signing secret from nowhere",
        ),
        (["serve", "--data-dir", "x", "--signing-secret-file", "file"], "at least 32"),
    ],
)
def test_a_failed_start_is_reported_in_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("short")
    (tmp_path / "no-wait").write_text("[engine]\ndatabase_start_seconds = 0\n")
    done = run(*words, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_make_run_runs_the_demo_and_keeps_the_server_up_until_it_is_interrupted(tmp_path: Path) -> None:
    data = tmp_path / "here"
    command = ("make", "--silent", "-C", ROOT, "run", f"ARGS=--data-dir {data} --port 0")
    with CommandProcess(command=command, log=tmp_path / "log", cwd=tmp_path) as started:
        lines: list[str] = []
        while not lines or "keeps running at" not in lines[-1]:
            line = started.line()
            assert line, "".join(lines)
            lines.append(line)
        url = next(word for word in lines[-1].split() if word.startswith("http")).rstrip(".")
        assert httpx.get(f"{url}/healthz").is_success
        assert {file.name.partition("-")[2] for file in (data / "demo").iterdir()} == {
            "sketch.png", "tone.wav", "clip.mp4", "short-video.mp4",
        }  # fmt: skip
        key = (data / "admin.key").read_text().strip()
        assert sum(key in line for line in lines) == 1
        started.interrupt()
        wait_until(lambda: not (data / "server.json").exists(), WAIT_SECONDS)
    assert (data / "admin.key").exists()


def test_a_killed_server_finishes_its_jobs_after_a_restart(tmp_path: Path) -> None:
    # R104, R153
    with ServerProcess(tmp_path / "data", "--concurrency", 1) as first, first.client() as client:
        jobs = {name: client.jobs.submit(name, user="demo", input={"prompt": text}) for name, text in PROMPTS.items()}
        _wait_for_progress(client, jobs["clip"].id)
        assert client.jobs.get(jobs["short-video"].id).status == "queued"
        before = {job.id: client.jobs.get(job.id).last_event_seq for job in jobs.values()}
        first.kill()
    with ServerProcess(tmp_path / "data") as second, second.client() as client:
        _approve(client, jobs["short-video"].id)
        for job in jobs.values():
            assert client.jobs.wait(job.id, WAIT_SECONDS).completed
            events = [event.seq for event in client.jobs.events(job.id)]
            assert events == list(range(1, len(events) + 1)), "no event was lost"
            assert len(events) >= before[job.id]
        (task,) = client.jobs.tasks(jobs["clip"].id)
        assert [attempt.outcome for attempt in client.jobs.attempts(jobs["clip"].id, task.id)] == ["lost", "completed"]
        wallet = client.wallets.get("demo")
        assert (wallet.balance, wallet.reserved) == (67, 0)
        for job in jobs.values():
            for file in (file for output in client.jobs.outputs(job.id) for file in output.files):
                assert len(client.files.read(file)) == file.bytes
        assert second.stop() == 0
    done = run("verify", "--data-dir", tmp_path / "data")
    assert (done.returncode, done.stdout.startswith("Every rule holds.\n")) == (0, True)


def test_a_stopped_server_requeues_its_tasks_without_counting_an_attempt(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--concurrency", 1) as first, first.client() as client:
        jobs = [client.jobs.submit("clip", user="demo", input={"prompt": f"sea {n}"}).id for n in range(2)]
        _wait_for_progress(client, jobs[0])
        assert first.stop() == 0
    with ServerProcess(tmp_path / "data") as second, second.client() as client:
        for job_id in jobs:
            assert client.jobs.wait(job_id, WAIT_SECONDS).completed
            (task,) = client.jobs.tasks(job_id)
            assert task.attempts_counted == 1
            outcomes = [attempt.outcome for attempt in client.jobs.attempts(job_id, task.id)]
            assert set(outcomes[:-1]) <= {"requeued"}
            assert outcomes[-1] == "completed"


def _wait_for_progress(client: Client, job_id: str) -> None:
    """Wait until a worker is in the middle of a job."""
    wait_until(lambda: any(task.progress > 5 for task in client.jobs.tasks(job_id)), WAIT_SECONDS)


def _approve(client: Client, job_id: str) -> None:
    wait_until(lambda: client.jobs.stages(job_id)[-1].status == "waiting", WAIT_SECONDS)
    client.jobs.approve(job_id, "render", approver="a person")
