"""`callsheet work` in processes of its own: a module of handlers on a machine that needs nothing but HTTP."""

import json
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callsheet.client import Client
from tests.support.cli_process import CommandProcess, ServerProcess, run
from tests.support.database_pool import DatabasePool
from tests.support.wait import wait_until

MODULE = '''"""A worker of one's own."""

import time
from pathlib import Path

from callsheet.worker import Context, Worker

worker = Worker("mine")
HERE = Path(__file__).parent


@worker.task("shout")
def shout(ctx: Context) -> str:
    ctx.upload("said.txt", ctx.input.upper().encode(), "text/plain")
    return ctx.input.upper()


@worker.task("hold")
def hold(ctx: Context) -> str:
    """Work until a file lets it go, as long as somebody wants it."""
    (ctx.folder / "half").write_text("done")
    while not (HERE / "go").exists():
        ctx.progress(50)
        (HERE / f"held-{ctx.attempt}").touch()
        time.sleep(0.01)
    ctx.upload("late.txt", f"by try {ctx.attempt}".encode(), "text/plain")
    return f"by try {ctx.attempt}"
'''
ENDS = 60.0


class WorkerSandbox:
    """Workers of a server's fleet, with kinds of work of their own, each on a machine (a folder) of its own."""

    def __init__(self, folder: Path, server: ServerProcess) -> None:
        self.folder = folder
        self.server = server
        self.shout, self.hold = (f"{kind}-{secrets.token_hex(4)}" for kind in ("shout", "hold"))
        text = MODULE.replace('task("shout")', f'task("{self.shout}")').replace('task("hold")', f'task("{self.hold}")')
        (folder / "yard.py").write_text(text)
        self._running: list[CommandProcess] = []
        self.put(lease_seconds=3)

    def put(self, lease_seconds: int) -> None:
        """Put a workflow for each kind."""
        with self.server.client() as client:
            for kind in (self.shout, self.hold):
                client.workflows.put(kind, {"stages": [{"name": kind, "kind": kind}], "lease_seconds": lease_seconds})

    def work(self, *more: object, place: str = "a") -> CommandProcess:
        """Start a worker on the machine `place`."""
        house = ["--url", self.server.url, "--fleet-secret-file", self.server.data / "fleet.key"]
        words = ["work", "yard:worker", *house, "--cache", self.folder / place, "--json", *more]
        working = CommandProcess(*words, log=self.folder / f"{place}.log", cwd=self.folder)
        self._running.append(working)
        return working

    def held(self, attempt: int = 1) -> None:
        """Wait until a try of a held task is under way."""
        wait_until((self.folder / f"held-{attempt}").exists, ENDS)

    def go(self) -> None:
        """Let what is held end."""
        (self.folder / "go").touch()

    def left_behind(self, place: str = "a") -> list[Path]:
        """What tasks left on a machine."""
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
def yard(server: ServerProcess, tmp_path: Path) -> Iterator[WorkerSandbox]:
    made = WorkerSandbox(tmp_path, server)
    yield made
    made.close()


def told(working: CommandProcess, event: str) -> dict[str, Any]:
    """Read what a worker tells until it tells this."""
    while True:
        line = working.line()
        assert line, "the worker ended before"
        said: dict[str, Any] = json.loads(line)
        if said["event"] == event:
            return said


def outcomes(client: Client, job_id: str) -> list[str | None]:
    (task,) = client.jobs.tasks(job_id)
    return [attempt.outcome for attempt in client.jobs.attempts(job_id, task.id)]


def test_a_module_of_handlers_works_anywhere(yard: WorkerSandbox) -> None:
    with yard.server.client() as client:
        job = client.jobs.submit(yard.shout, user="ann", input="hello")
        working = yard.work("--kinds", yard.shout, "--name", yard.shout, "--label", "zone=a",
                            "--capability", "gpu=H100", "--capability", "vram_gb:=80")  # fmt: skip
        came = told(working, "worker.registered")
        assert (came["worker"], came["kinds"], came["pid"]) == (yard.shout, [yard.shout], working.process.pid)
        assert client.jobs.wait(job.id, ENDS).completed
        (output,) = client.jobs.outputs(job.id)
        assert output.output == "HELLO"
        assert [client.files.read(file) for file in output.files] == [b"HELLO"]
        ended = told(working, "task.ended")
        assert (ended["kind"], ended["job_id"], ended["outcome"]) == (yard.shout, job.id, "completed")
        here = client.workers.get(yard.shout)
        assert (here.labels, here.capabilities) == ({"zone": "a"}, {"gpu": "H100", "vram_gb": 80})
        assert working.stop() == 0


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "notice"])
def test_a_worker_that_has_to_go_gives_its_work_back_without_a_try_lost(yard: WorkerSandbox, how: str) -> None:
    """R231, H25."""
    notice = yard.folder / "notice"
    with yard.server.client() as client:
        first = yard.work("--spot", f"file:{notice}")
        name = told(first, "worker.registered")["worker"]
        job = client.jobs.submit(yard.hold, user="ann")
        yard.held()
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
        assert client.workers.get(name).status == "gone"
        assert yard.left_behind() == []
        yard.go()
        yard.work(place="b")
        assert client.jobs.wait(job.id, ENDS).completed
        assert outcomes(client, job.id) == ["requeued", "completed"]


def test_a_killed_worker_comes_back_under_its_name_and_its_work_goes_on(yard: WorkerSandbox) -> None:
    """F18; weak point 16: the restart is the same worker, gives back at once what it held, and sweeps up."""
    with yard.server.client() as client:
        first = yard.work()
        name = told(first, "worker.registered")["worker"]
        job = client.jobs.submit(yard.hold, user="ann")
        yard.held()
        first.kill()
        assert len(yard.left_behind()) == 1
        yard.go()
        again = yard.work()
        assert told(again, "worker.registered")["worker"] == name
        assert client.jobs.wait(job.id, ENDS).completed
        assert outcomes(client, job.id) == ["requeued", "completed"]
        told(again, "task.ended")
        assert yard.left_behind() == []


def test_a_killed_workers_task_is_finished_by_another(yard: WorkerSandbox) -> None:
    """R432."""
    with yard.server.client() as client:
        first = yard.work()
        job = client.jobs.submit(yard.hold, user="ann")
        yard.held()
        first.kill()
        yard.go()
        yard.work(place="b")
        assert client.jobs.wait(job.id, ENDS).completed
        assert outcomes(client, job.id) == ["lost", "completed"]


def test_a_worker_that_stood_still_past_its_lease_is_fenced_off(yard: WorkerSandbox) -> None:
    """F19: what it still does afterwards changes nothing."""
    with yard.server.client() as client:
        first = yard.work()
        job = client.jobs.submit(yard.hold, user="ann")
        yard.held()
        first.process.send_signal(signal.SIGSTOP)
        yard.work(place="b")
        yard.held(2)
        yard.go()
        first.process.send_signal(signal.SIGCONT)
        assert client.jobs.wait(job.id, ENDS).completed
        assert told(first, "task.ended")["outcome"] == "lost"
        assert outcomes(client, job.id) == ["lost", "completed"]
        (output,) = client.jobs.outputs(job.id)
        assert (output.output, [client.files.read(file) for file in output.files]) == ("by try 2", [b"by try 2"])


def test_workers_outlive_their_server(place: str, tmp_path: Path) -> None:
    """R432: the server is killed while ten workers have a task in hand, and started again where it was."""
    database = [] if place.endswith(".db") else ["--database", place]
    with ServerProcess(tmp_path / "data", *database, command="serve") as server:
        yard = WorkerSandbox(tmp_path, server)
        yard.put(lease_seconds=120)
        workers = [yard.work(place=place) for place in "abcdefghij"]
        with server.client() as client:
            jobs = [client.jobs.submit(yard.hold, user="ann").id for _ in workers]
        for working in workers:
            told(working, "task.started")
        server.kill()
        yard.go()
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


def test_three_workers_race_for_one_task_and_one_has_it(yard: WorkerSandbox) -> None:
    with yard.server.client() as client:
        workers = [yard.work(place=place) for place in "abc"]
        for working in workers:
            told(working, "worker.registered")
        yard.go()
        job = client.jobs.submit(yard.hold, user="ann")
        assert client.jobs.wait(job.id, ENDS).completed
        assert outcomes(client, job.id) == ["completed"]
        for working in workers:
            os.kill(working.process.pid, signal.SIGTERM)
        said = [[json.loads(line)["event"] for line in iter(working.line, "")] for working in workers]
        assert sorted(lines.count("task.started") for lines in said) == [0, 0, 1]


def test_a_drained_worker_ends_its_work_and_exits(yard: WorkerSandbox) -> None:
    with yard.server.client() as client:
        working = yard.work("--name", yard.hold)
        job = client.jobs.submit(yard.hold, user="ann")
        yard.held()
        assert run("workers", "drain", yard.hold, "--url", yard.server.url, "--key", yard.server.key).returncode == 0
        yard.go()
        assert working.process.wait(ENDS) == 0
        assert client.jobs.wait(job.id, ENDS).completed


def test_protection_is_on_while_there_is_work(yard: WorkerSandbox) -> None:
    """R232."""
    log = yard.folder / "protected"
    script = yard.folder / "protect.sh"
    script.write_text(f'#!/bin/sh\necho "$1" >> {log}\n')
    script.chmod(0o700)
    with yard.server.client() as client:
        working = yard.work("--protect", script)
        job = client.jobs.submit(yard.hold, user="ann")
        wait_until(lambda: log.exists() and log.read_text().endswith("on\n"), ENDS)
        yard.go()
        assert client.jobs.wait(job.id, ENDS).completed
        assert working.stop() == 0
        assert log.read_text().split()[-2:] == ["on", "off"]
