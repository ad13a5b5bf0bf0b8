"""`callsheet worker` as a process that reaches the server over HTTP only."""

import json
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callsheet.client import Client
from tests.support.databases.database_pool import DatabasePool
from tests.support.processes.cli_process import CommandProcess, ServerProcess, run
from tests.support.wait import wait_until

MODULE = '''"""A worker for these tests."""

import time
from pathlib import Path

from callsheet.worker import Context, Worker

worker = Worker("mine")
HERE = Path(__file__).parent


@worker.task("shout")
def shout(ctx: Context) -> str:
    ctx.upload("shout.txt", ctx.input.upper().encode(), "text/plain")
    return ctx.input.upper()


@worker.task("hold")
def hold(ctx: Context) -> str:
    """Run until the file `go` exists or the task is stopped."""
    (ctx.folder / "half").write_text("done")
    while not (HERE / "go").exists():
        ctx.progress(50)
        (HERE / f"held-{ctx.attempt}").touch()
        time.sleep(0.01)
    ctx.upload("late.txt", f"by attempt {ctx.attempt}".encode(), "text/plain")
    return f"by attempt {ctx.attempt}"
'''
END_SECONDS = 60.0


class WorkerSandbox:
    """Workers of one server with their own kinds of tasks, each with its own cache folder."""

    def __init__(self, folder: Path, server: ServerProcess) -> None:
        self.folder = folder
        self.server = server
        self.shout, self.hold = (f"{kind}-{secrets.token_hex(4)}" for kind in ("shout", "hold"))
        text = MODULE.replace('task("shout")', f'task("{self.shout}")').replace('task("hold")', f'task("{self.hold}")')
        (folder / "handlers.py").write_text(text)
        self._running: list[CommandProcess] = []
        self.put(lease_seconds=3)

    def put(self, lease_seconds: int) -> None:
        """Create a workflow for each kind."""
        with self.server.client() as client:
            for kind in (self.shout, self.hold):
                client.workflows.put(kind, {"stages": [{"name": kind, "kind": kind}], "lease_seconds": lease_seconds})

    def start_worker(self, *more: object, machine: str = "a") -> CommandProcess:
        """Start a worker with the cache folder of a machine."""
        server = ["--url", self.server.url, "--fleet-secret-file", self.server.data / "fleet.key"]
        arguments = ["worker", "handlers:worker", *server, "--cache-dir", self.folder / machine, "--json", *more]
        worker = CommandProcess(*arguments, log=self.folder / f"{machine}.log", cwd=self.folder)
        self._running.append(worker)
        return worker

    def wait_until_held(self, attempt: int = 1) -> None:
        """Wait until an attempt of a `hold` task runs."""
        wait_until((self.folder / f"held-{attempt}").exists, END_SECONDS)

    def release(self) -> None:
        """Let `hold` tasks finish."""
        (self.folder / "go").touch()

    def leftover_files(self, machine: str = "a") -> list[Path]:
        """Return the files that tasks left in the cache folder of a machine."""
        return list((self.folder / machine / "tasks").rglob("half"))

    def close(self) -> None:
        for running in reversed(self._running):
            running.kill()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without a worker, shared by the tests of this module."""
    data = tmp_path_factory.mktemp("server") / "data"
    if request.param == "sqlite":
        with ServerProcess(data, command="serve") as started:
            yield started
        return
    database_pool: DatabasePool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    with ServerProcess(data, "--database", url, command="serve") as started:
        yield started
    database_pool.release(url)


@pytest.fixture
def sandbox(server: ServerProcess, tmp_path: Path) -> Iterator[WorkerSandbox]:
    created = WorkerSandbox(tmp_path, server)
    yield created
    created.close()


def read_event(worker: CommandProcess, event: str) -> dict[str, Any]:
    """Read the event lines of a worker up to this event."""
    while True:
        line = worker.line()
        assert line, "the worker exited before the event"
        found: dict[str, Any] = json.loads(line)
        if found["event"] == event:
            return found


def outcomes(client: Client, job_id: str) -> list[str | None]:
    (task,) = client.jobs.tasks(job_id)
    return [attempt.outcome for attempt in client.jobs.attempts(job_id, task.id)]


def test_a_worker_runs_the_handlers_of_a_module(sandbox: WorkerSandbox) -> None:
    with sandbox.server.client() as client:
        job = client.jobs.submit(sandbox.shout, user="ann", input="hello")
        worker = sandbox.start_worker("--kinds", sandbox.shout, "--name", sandbox.shout, "--label", "zone=a",
                            "--capability", "gpu=H100", "--capability", "vram_gb:=80")  # fmt: skip
        registered = read_event(worker, "worker.registered")
        assert (registered["worker"], registered["kinds"], registered["pid"]) == (
            sandbox.shout,
            [sandbox.shout],
            worker.process.pid,
        )
        assert client.jobs.wait(job.id, END_SECONDS).completed
        (output,) = client.jobs.outputs(job.id)
        assert output.output == "HELLO"
        assert [client.files.read(file) for file in output.files] == [b"HELLO"]
        ended = read_event(worker, "task.ended")
        assert (ended["kind"], ended["job_id"], ended["outcome"]) == (sandbox.shout, job.id, "completed")
        here = client.workers.get(sandbox.shout)
        assert (here.labels, here.capabilities) == ({"zone": "a"}, {"gpu": "H100", "vram_gb": 80})
        assert worker.stop() == 0


@pytest.mark.parametrize("cause", ["SIGTERM", "SIGINT", "spot notice"])
def test_a_stopped_worker_requeues_its_task_without_counting_an_attempt(sandbox: WorkerSandbox, cause: str) -> None:
    # R231, H25
    notice = sandbox.folder / "notice"
    with sandbox.server.client() as client:
        first = sandbox.start_worker("--interruption-source", f"file:{notice}")
        name = read_event(first, "worker.registered")["worker"]
        job = client.jobs.submit(sandbox.hold, user="ann")
        sandbox.wait_until_held()
        if cause == "spot notice":
            notice.write_text("the host is reclaimed")
            assert first.process.wait(END_SECONDS) == 0
        else:
            assert first.stop(signal.Signals[cause]) == 0
        (task,) = client.jobs.tasks(job.id)
        assert (task.status, task.attempts_counted, task.requeues) == ("retried", 0, 1)
        (attempt,) = client.jobs.attempts(job.id, task.id)
        assert attempt.error is not None
        assert attempt.error.code == ("spot" if cause == "spot notice" else "shutdown")
        assert client.workers.get(name).status == "offline"
        assert sandbox.leftover_files() == []
        sandbox.release()
        sandbox.start_worker(machine="b")
        assert client.jobs.wait(job.id, END_SECONDS).completed
        assert outcomes(client, job.id) == ["requeued", "completed"]


def test_a_killed_worker_keeps_its_name_after_a_restart_and_its_task_is_requeued(sandbox: WorkerSandbox) -> None:
    """F18: the restarted worker also deletes the folders of old tasks."""
    with sandbox.server.client() as client:
        first = sandbox.start_worker()
        name = read_event(first, "worker.registered")["worker"]
        job = client.jobs.submit(sandbox.hold, user="ann")
        sandbox.wait_until_held()
        first.kill()
        assert len(sandbox.leftover_files()) == 1
        sandbox.release()
        again = sandbox.start_worker()
        assert read_event(again, "worker.registered")["worker"] == name
        assert client.jobs.wait(job.id, END_SECONDS).completed
        assert outcomes(client, job.id) == ["requeued", "completed"]
        read_event(again, "task.ended")
        assert sandbox.leftover_files() == []


def test_a_killed_workers_task_is_reassigned_after_its_lease_and_counts_two_attempts(sandbox: WorkerSandbox) -> None:
    # F18, R151, H25
    with sandbox.server.client() as client:
        first = sandbox.start_worker()
        job = client.jobs.submit(sandbox.hold, user="ann")
        sandbox.wait_until_held()
        first.kill()
        sandbox.release()
        sandbox.start_worker(machine="b")
        assert client.jobs.wait(job.id, END_SECONDS).completed
        assert outcomes(client, job.id) == ["lost", "completed"]
        (task,) = client.jobs.tasks(job.id)
        assert task.attempts_counted == 2


def test_a_worker_that_was_suspended_past_its_lease_changes_nothing_when_it_resumes(sandbox: WorkerSandbox) -> None:
    """F19: what the worker does after it resumes changes nothing."""
    with sandbox.server.client() as client:
        first = sandbox.start_worker()
        job = client.jobs.submit(sandbox.hold, user="ann")
        sandbox.wait_until_held()
        first.process.send_signal(signal.SIGSTOP)
        sandbox.start_worker(machine="b")
        sandbox.wait_until_held(2)
        sandbox.release()
        first.process.send_signal(signal.SIGCONT)
        assert client.jobs.wait(job.id, END_SECONDS).completed
        assert read_event(first, "task.ended")["outcome"] == "lost"
        assert outcomes(client, job.id) == ["lost", "completed"]
        (output,) = client.jobs.outputs(job.id)
        assert (output.output, [client.files.read(file) for file in output.files]) == (
            "by attempt 2",
            [b"by attempt 2"],
        )


def test_workers_survive_a_kill_and_restart_of_their_server(database_url: str, tmp_path: Path) -> None:
    """F16, R432: the server is killed while ten workers run a task each, and restarted on the same port."""
    database = [] if database_url.endswith(".db") else ["--database", database_url]
    with ServerProcess(tmp_path / "data", *database, command="serve") as server:
        sandbox = WorkerSandbox(tmp_path, server)
        sandbox.put(lease_seconds=120)
        workers = [sandbox.start_worker(machine=machine) for machine in "abcdefghij"]
        with server.client() as client:
            jobs = [client.jobs.submit(sandbox.hold, user="ann").id for _ in workers]
        for worker in workers:
            read_event(worker, "task.started")
        server.kill()
        sandbox.release()
        with (
            ServerProcess(
                tmp_path / "data", *database, "--port", server.url.rpartition(":")[2], command="serve"
            ) as again,
            again.client() as client,
        ):
            for job_id in jobs:
                assert client.jobs.wait(job_id, END_SECONDS).completed
                assert outcomes(client, job_id) == ["completed"]
            assert [worker.stop() for worker in workers] == [0] * 10
    verified = run("verify", *(database or ["--data-dir", str(tmp_path / "data")]))
    assert verified.returncode == 0, verified.stdout


def test_of_three_workers_exactly_one_gets_the_task(sandbox: WorkerSandbox) -> None:
    with sandbox.server.client() as client:
        workers = [sandbox.start_worker(machine=machine) for machine in "abc"]
        for worker in workers:
            read_event(worker, "worker.registered")
        sandbox.release()
        job = client.jobs.submit(sandbox.hold, user="ann")
        assert client.jobs.wait(job.id, END_SECONDS).completed
        assert outcomes(client, job.id) == ["completed"]
        for worker in workers:
            os.kill(worker.process.pid, signal.SIGTERM)
        events = [[json.loads(line)["event"] for line in iter(worker.line, "")] for worker in workers]
        assert sorted(lines.count("task.started") for lines in events) == [0, 0, 1]


def test_a_drained_worker_finishes_its_task_and_exits(sandbox: WorkerSandbox) -> None:
    with sandbox.server.client() as client:
        worker = sandbox.start_worker("--name", sandbox.hold)
        job = client.jobs.submit(sandbox.hold, user="ann")
        sandbox.wait_until_held()
        assert (
            run(
                "workers", "drain", sandbox.hold, "--url", sandbox.server.url, "--api-key", sandbox.server.key
            ).returncode
            == 0
        )
        sandbox.release()
        assert worker.process.wait(END_SECONDS) == 0
        assert client.jobs.wait(job.id, END_SECONDS).completed


def test_scale_in_protection_is_on_while_a_task_runs(sandbox: WorkerSandbox) -> None:
    # R232
    log = sandbox.folder / "protected"
    script = sandbox.folder / "protect.sh"
    script.write_text(f'#!/bin/sh\necho "$1" >> {log}\n')
    script.chmod(0o700)
    with sandbox.server.client() as client:
        worker = sandbox.start_worker("--protect-command", script)
        job = client.jobs.submit(sandbox.hold, user="ann")
        wait_until(lambda: log.exists() and log.read_text().endswith("on\n"), END_SECONDS)
        sandbox.release()
        assert client.jobs.wait(job.id, END_SECONDS).completed
        assert worker.stop() == 0
        assert log.read_text().split()[-2:] == ["on", "off"]
