"""`callsheet up` and `callsheet demo` in real processes: what they print, what they make, and what kills do to them."""

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

SECONDS = 90.0
PROMPTS = {"sketch": "a tower", "tone": "rain", "clip": "the sea", "short-video": "a letter"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("up") / "data") as started:
        yield started


@pytest.fixture(scope="module")
def shown(up: ServerProcess) -> str:
    """The demonstration, run once on that server: what it printed."""
    done = run("demo", "--once", "--data-dir", up.data)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_the_first_line_tells_a_program_all_it_needs(up: ServerProcess) -> None:
    assert up.banner == {
        "url": up.url,
        "admin_key_file": str(up.data / "admin.key"),
        "pid": up.process.pid,
        "dialects": [],
    }
    assert httpx.get(f"{up.url}/readyz").json() == {"status": "ready"}
    assert up.url.startswith("http://127.0.0.1:")


def test_what_only_its_owner_may_read_is_readable_by_nobody_else(up: ServerProcess) -> None:
    assert {mode(up.data / name) for name in ("admin.key", "secret.key", "server.json", "callsheet.db")} == {0o600}
    assert up.key.startswith("cs_")
    with up.client() as client:
        assert client.identity.get().role == "operator"


def test_the_user_of_the_demonstration_has_credits_and_workflows(up: ServerProcess) -> None:
    with up.client() as client:
        prices = {workflow.name: workflow.price for workflow in client.workflows.list()}
        assert prices == {"sketch": 3, "tone": 2, "clip": 8, "short-video": 20}
        assert sum(entry.amount for entry in client.wallets.entries("demo") if entry.kind == "topup") == 100


def test_the_demonstration_makes_a_picture_a_tone_a_clip_and_a_short_video(up: ServerProcess, shown: str) -> None:
    made = {file.name.partition("-")[2]: file.read_bytes() for file in (up.data / "demo").iterdir()}
    assert sorted(made) == ["clip.mp4", "short-video.mp4", "sketch.png", "tone.wav"]
    (picture,) = frames(made["sketch.png"])
    assert picture.shape == (400, 640, 3)
    assert 2 < len(samples(made["tone.wav"])) / 44_100 < 5
    assert [len(frames(made[name])) for name in ("clip.mp4", "short-video.mp4")] == [72, 108]
    assert "moov" in list(boxes(made["short-video.mp4"]))
    with av.open(str(next((up.data / "demo").glob("*short-video.mp4")))) as film:
        assert [stream.type for stream in film.streams] == ["video", "audio"]
    assert str(up.data / "demo") in shown.replace("\n", "")
    assert "approved in your name" in shown
    assert "The wallet has 67 credits left.\n" in shown


def test_what_the_jobs_went_through_is_on_record(up: ServerProcess, shown: str) -> None:
    assert "completed" in shown
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


def test_a_second_server_on_the_same_folder_and_a_port_in_use_are_said_in_one_line(
    up: ServerProcess, tmp_path: Path
) -> None:
    done = run("up", "--data-dir", up.data, "--port", 0)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"already runs on {up.data} at {up.url}" in done.stderr
    port = up.url.rpartition(":")[2]
    done = run("up", "--data-dir", tmp_path, "--port", port)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"Port {port}" in done.stderr


def test_a_public_address_is_refused_without_a_word_and_without_keys(up: ServerProcess, tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", socket.gethostname()):
        done = run("up", "--data-dir", tmp_path, "--port", 0, "--host", host)
        assert done.returncode == 1
        assert "--public" in done.stderr
    done = run("up", "--data-dir", tmp_path, "--port", 0, "--host", "0.0.0.0", "--public")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No API key exists yet" in done.stderr
    assert not (tmp_path / "admin.key").exists()
    assert up.process.poll() is None


def test_a_public_address_is_served_once_there_is_a_key(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--no-demo-workflows") as first:
        key = first.key
        assert first.stop() == 0
    with ServerProcess(tmp_path / "data", "--no-demo-workflows", "--host", "0.0.0.0", "--public") as second:
        assert second.key == key
        with second.client() as client:
            assert list(client.workflows.list()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--data-dir", "file/below"], "Cannot create the folder"),
        (["up", "--data-dir", "x", "--database", "postgresql://nobody@127.0.0.1:1/none"], "127.0.0.1"),
        (
            ["serve", "--data-dir", "x", "--signing-secret-file", "nowhere"],
            "signing secret from nowhere",
        ),
        (["serve", "--data-dir", "x", "--signing-secret-file", "file"], "at least 32"),
    ],
)
def test_what_cannot_be_started_is_said_in_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("short")
    done = run(*words, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_make_run_makes_everything_in_front_of_you_and_stays_up_until_it_is_interrupted(tmp_path: Path) -> None:
    data = tmp_path / "here"
    made = ("make", "--silent", "-C", ROOT, "run", f"ARGS=--data-dir {data} --port 0")
    with CommandProcess(command=made, log=tmp_path / "log", cwd=tmp_path) as started:
        said: list[str] = []
        while not said or "keeps running at" not in said[-1]:
            line = started.line()
            assert line, "".join(said)
            said.append(line)
        url = next(word for word in said[-1].split() if word.startswith("http")).rstrip(".")
        assert httpx.get(f"{url}/healthz").is_success
        assert {file.name.partition("-")[2] for file in (data / "demo").iterdir()} == {
            "sketch.png", "tone.wav", "clip.mp4", "short-video.mp4",
        }  # fmt: skip
        key = (data / "admin.key").read_text().strip()
        assert sum(key in line for line in said) == 1
        started.interrupt()
        wait_until(lambda: not (data / "server.json").exists(), SECONDS)
    assert (data / "admin.key").exists()


def test_a_server_killed_in_the_middle_of_the_demonstration_finishes_it_after_its_restart(tmp_path: Path) -> None:
    # R104, R153
    with ServerProcess(tmp_path / "data") as first, first.client() as client:
        jobs = {name: client.jobs.submit(name, user="demo", input={"prompt": text}) for name, text in PROMPTS.items()}
        _wait_for_progress(client, jobs["clip"].id)
        first.kill()
    with ServerProcess(tmp_path / "data") as second, second.client() as client:
        _approve(client, jobs["short-video"].id)
        for job in jobs.values():
            assert client.jobs.wait(job.id, SECONDS).completed
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


def test_a_server_that_is_asked_to_stop_loses_no_try(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--concurrency", 1) as first, first.client() as client:
        jobs = [client.jobs.submit("clip", user="demo", input={"prompt": f"sea {n}"}).id for n in range(2)]
        _wait_for_progress(client, jobs[0])
        assert first.stop() == 0
    with ServerProcess(tmp_path / "data") as second, second.client() as client:
        for job_id in jobs:
            assert client.jobs.wait(job_id, SECONDS).completed
            (task,) = client.jobs.tasks(job_id)
            assert task.attempts_counted == 1
            outcomes = [attempt.outcome for attempt in client.jobs.attempts(job_id, task.id)]
            assert set(outcomes[:-1]) <= {"requeued"}
            assert outcomes[-1] == "completed"


def _wait_for_progress(client: Client, job_id: str) -> None:
    """Wait until a worker is in the middle of a job."""
    wait_until(lambda: any(task.progress > 5 for task in client.jobs.tasks(job_id)), SECONDS)


def _approve(client: Client, job_id: str) -> None:
    wait_until(lambda: client.jobs.stages(job_id)[-1].status == "waiting", SECONDS)
    client.jobs.approve(job_id, "render", approver="a person")
