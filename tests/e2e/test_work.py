"""`callsheet worker` as a separate process that reaches the server over HTTP only."""

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
ENDS = 60.0


class WorkerSandbox:
    """Workers of a server's fleet, with kinds of work of their own, each on a machine (a folder) of its own."""

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

    def work(self, *more: object, place: str = "a") -> CommandProcess:
        """Start a worker on the machine `place`."""
        server = ["--url", self.server.url, "--fleet-secret-file", self.server.data / "fleet.key"]
        arguments = ["worker", "handlers:worker", *server, "--cache-dir", self.folder / place, "--json", *more]
        working = CommandProcess(*arguments, log=self.folder / f"{place}.log", cwd=self.folder)
        self._running.append(working)
        return working

    def held(self, attempt: int = 1) -> None:
        """Wait until an attempt of a held task runs."""
        wait_until((self.folder / f"held-{attempt}").exists, ENDS)

    def go(self) -> None:
        """Let held tasks finish."""
        (self.folder / "go").touch()

    def left_behind(self, place: str = "a") -> list[Path]:
        """Files that tasks left behind on a machine."""
        return list((self.folder / place / "tasks").rglob("half"))

    def close(self) -> None:
        for running in reversed(self._running):
            running.kill()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without a worker, shared by the tests of this module."""
    data = tmp_path_factory.mktemp("server") / "data"
    if request.param == "sqlite":
        with ServerProcess(data, command="serve") as made:
            yield made
        return
    database_pool: DatabasePool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    with ServerProcess(data, "--database", url, command="serve") as made:
        yield made
    database_pool.release(url)


@pytest.fixture
def sandbox(server: ServerProcess, tmp_path: Path) -> Iterator[WorkerSandbox]:
    made = WorkerSandbox(tmp_path, server)
    yield made
    made.close()


def read_event(working: CommandProcess, event: str) -> dict[str, Any]:
    """Read the event lines of a worker until this event."""
    while True:
        line = working.line()
        assert line, "the worker ended before"
        found: dict[str, Any] = json.loads(line)
        if found["event"] == event:
            return found


def outcomes(client: Client, job_id: str) -> list[str | None]:
    (task,) = client.jobs.tasks(job_id)
    return [attempt.outcome for attempt in client.jobs.attempts(job_id, task.id)]


def test_a_worker_runs_the_handlers_of_a_module(sandbox: WorkerSandbox) -> None:
    with sandbox.server.client() as client:
        job = client.jobs.submit(sandbox.shout, user="ann", input="hello")
        working = sandbox.work("--kinds", sandbox.shout, "--name", sandbox.shout, "--label", "zone=a",
                            "--capability", "gpu=H100", "--capability", "vram_gb:=80")  # fmt: skip
        registered = read_event(working, "worker.registered")
        assert (registered["worker"], registered["kinds"], registered["pid"]) == (
            sandbox.shout,
            [sandbox.shout],
            working.process.pid,
        )
        assert client.jobs.wait(job.id, ENDS).completed
        (output,) = client.jobs.outputs(job.id)
        assert output.output == "HELLO"
        assert [client.files.read(file) for file in output.files] == [b"HELLO"]
        ended = read_event(working, "task.ended")
        assert (ended["kind"], ended["job_id"], ended["outcome"]) == (sandbox.shout, job.id, "completed")
        here = client.workers.get(sandbox.shout)
        assert (here.labels, here.capabilities) == ({"zone": "a"}, {"gpu": "H100", "vram_gb": 80})
        assert working.stop() == 0


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "notice"])
def test_a_stopped_worker_requeues_its_task_without_counting_an_attempt(sandbox: WorkerSandbox, how: str) -> None:
    """R231, H25."""
    notice = sandbox.folder / "notice"
    with sandbox.server.client() as client:
        first = sandbox.work("--interruption-source", f"file:{notice}")
        name = read_event(first, "worker.registered")["worker"]
        job = client.jobs.submit(sandbox.hold, user="ann")
        sandbox.held()
        if how == "notice":
            notice.write_text("the host is taken away")
            assert first.process.wait(ENDS) == 0
        else:
            assert first.stop(signal.Signals[how]) == 0
        (task,) = client.jobs.tasks(job.id)
        assert (task.status, task.attempts_counted, task.requeues) == ("retried", 0, 1)
        (attempt,) = client.jobs.attempts(job.id, task.id)
        assert attempt.error is not None
        assert attempt.error.code == ("spot" if how == "notice" else "shutdown")
        assert client.workers.get(name).status == "offline"
        assert sandbox.left_behind() == []
        sandbox.go()
        sandbox.work(place="b")
        assert client.jobs.wait(job.id, ENDS).completed
        assert outcomes(client, job.id) == ["requeued", "completed"]


def test_a_killed_worker_keeps_its_name_after_a_restart_and_its_task_is_requeued(sandbox: WorkerSandbox) -> None:
    """F18; weak point 16: the restarted worker has the same name, requeues its task and deletes old folders."""
    with sandbox.server.client() as client:
        first = sandbox.work()
        name = read_event(first, "worker.registered")["worker"]
        job = client.jobs.submit(sandbox.hold, user="ann")
        sandbox.held()
        first.kill()
        assert len(sandbox.left_behind()) == 1
        sandbox.go()
        again = sandbox.work()
        assert read_event(again, "worker.registered")["worker"] == name
        assert client.jobs.wait(job.id, ENDS).completed
        assert outcomes(client, job.id) == ["requeued", "completed"]
        read_event(again, "task.ended")
        assert sandbox.left_behind() == []


def test_a_killed_workers_task_is_finished_by_another(sandbox: WorkerSandbox) -> None:
    """R432."""
    with sandbox.server.client() as client:
        first = sandbox.work()
        job = client.jobs.submit(sandbox.hold, user="ann")
        sandbox.held()
        first.kill()
        sandbox.go()
        sandbox.work(place="b")
        assert client.jobs.wait(job.id, ENDS).completed
        assert outcomes(client, job.id) == ["lost", "completed"]


def test_a_worker_that_was_suspended_past_its_lease_is_fenced_off(sandbox: WorkerSandbox) -> None:
    """F19: what it still does afterwards changes nothing."""
    with sandbox.server.client() as client:
        first = sandbox.work()
        job = client.jobs.submit(sandbox.hold, user="ann")
        sandbox.held()
        first.process.send_signal(signal.SIGSTOP)
        sandbox.work(place="b")
        sandbox.held(2)
        sandbox.go()
        first.process.send_signal(signal.SIGCONT)
        assert client.jobs.wait(job.id, ENDS).completed
        assert read_event(first, "task.ended")["outcome"] == "lost"
        assert outcomes(client, job.id) == ["lost", "completed"]
        (output,) = client.jobs.outputs(job.id)
        assert (output.output, [client.files.read(file) for file in output.files]) == (
            "by attempt 2",
            [b"by attempt 2"],
        )


def test_workers_outlive_their_server(database_url: str, tmp_path: Path) -> None:
    """R432: the server is killed while ten workers run a task each, and restarted on the same port."""
    database = [] if database_url.endswith(".db") else ["--database", database_url]
    with ServerProcess(tmp_path / "data", *database, command="serve") as server:
        sandbox = WorkerSandbox(tmp_path, server)
        sandbox.put(lease_seconds=120)
        workers = [sandbox.work(place=place) for place in "abcdefghij"]
        with server.client() as client:
            jobs = [client.jobs.submit(sandbox.hold, user="ann").id for _ in workers]
        for working in workers:
            read_event(working, "task.started")
        server.kill()
        sandbox.go()
        with (
            ServerProcess(
                tmp_path / "data", *database, "--port", server.url.rpartition(":")[2], command="serve"
            ) as again,
            again.client() as client,
        ):
            for job_id in jobs:
                assert client.jobs.wait(job_id, ENDS).completed
                assert outcomes(client, job_id) == ["completed"]
            assert [working.stop() for working in workers] == [0] * 10


def test_of_three_workers_exactly_one_gets_the_task(sandbox: WorkerSandbox) -> None:
    with sandbox.server.client() as client:
        workers = [sandbox.work(place=place) for place in "abc"]
        for working in workers:
            read_event(working, "worker.registered")
        sandbox.go()
        job = client.jobs.submit(sandbox.hold, user="ann")
        assert client.jobs.wait(job.id, ENDS).completed
        assert outcomes(client, job.id) == ["completed"]
        for working in workers:
            os.kill(working.process.pid, signal.SIGTERM)
        events = [[json.loads(line)["event"] for line in iter(working.line, "")] for working in workers]
        assert sorted(lines.count("task.started") for lines in events) == [0, 0, 1]


def test_a_drained_worker_finishes_its_task_and_exits(sandbox: WorkerSandbox) -> None:
    with sandbox.server.client() as client:
        working = sandbox.work("--name", sandbox.hold)
        job = client.jobs.submit(sandbox.hold, user="ann")
        sandbox.held()
        assert (
            run(
                "workers", "drain", sandbox.hold, "--url", sandbox.server.url, "--api-key", sandbox.server.key
            ).returncode
            == 0
        )
        sandbox.go()
        assert working.process.wait(ENDS) == 0
        assert client.jobs.wait(job.id, ENDS).completed


def test_scale_in_protection_is_on_while_a_task_runs(sandbox: WorkerSandbox) -> None:
    """R232."""
    log = sandbox.folder / "protected"
    script = sandbox.folder / "protect.sh"
    script.write_text(f'#!/bin/sh\necho "$1" >> {log}\n')
    script.chmod(0o700)
    with sandbox.server.client() as client:
        working = sandbox.work("--protect-command", script)
        job = client.jobs.submit(sandbox.hold, user="ann")
        wait_until(lambda: log.exists() and log.read_text().endswith("on\n"), ENDS)
        sandbox.go()
        assert client.jobs.wait(job.id, ENDS).completed
        assert working.stop() == 0
        assert log.read_text().split()[-2:] == ["on", "off"]
