"""The processes of one installation: servers, workers and a database that can be killed and started again."""

import secrets
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Self

import httpx

from callsheet.client import Client
from tests.support.databases.postgres import Cluster
from tests.support.databases.postgres_server import PORTS
from tests.support.processes.cli_process import CommandProcess, run
from tests.support.wait import wait_until

WORKFLOW, PRICE = "shout", 3
LEASE_SECONDS = 2
WAIT_SECONDS = 120.0
HANDLERS = '''"""The handler of the chaos runs: each task stores one file."""

from callsheet.worker import Context, Worker

worker = Worker("chaos")


@worker.task("shout")
def shout(ctx: Context) -> dict[str, str]:
    text = ctx.input["text"].upper()
    ctx.progress(50, "shouting")
    ctx.upload("shout.txt", text.encode(), "text/plain")
    return {"text": text}
'''


Fault = tuple[str, Callable[[], None]]
"""What goes wrong, and the call that makes it happen."""


class Installation:
    """Servers on one database, workers that use them, and the operator's client."""

    def __init__(self, folder: Path, random: Random, *, postgres: bool) -> None:
        self._folder = folder
        self._random = random
        self._stack = ExitStack()
        self._secret = folder / "secret"
        self._secret.write_text(secrets.token_hex(32))
        (folder / "handlers.py").write_text(HANDLERS)
        self._config = folder / "callsheet.toml"
        self._config.write_text(f'[blobs]\nurl = "file://{folder / "files"}"\n')
        self.cluster = self._stack.enter_context(Cluster(report=lambda _: None)) if postgres else None
        self._database_url = self.cluster.create_database() if self.cluster else None
        self.ports = [_free_port() for _ in range(2 if postgres else 1)]
        self._servers: dict[int, CommandProcess] = {}
        self._workers: dict[int, CommandProcess] = {}

    def __enter__(self) -> Self:
        try:
            for no in range(len(self.ports)):
                self.start_server(no)
            for no in range(2):
                self.start_worker(no)
            with self.client() as client:
                definition = {
                    "stages": [{"name": "shout", "kind": "shout"}], "price": PRICE, "lease_seconds": LEASE_SECONDS,
                    "retry": {"attempts_max": 100, "on": "any", "backoff": {"base_seconds": 0.1, "max_seconds": 1}},
                }  # fmt: skip
                client.workflows.put(WORKFLOW, definition)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in (*self._workers.values(), *self._servers.values()):
            process.kill()
        self._stack.close()

    def url(self, no: int) -> str:
        return f"http://127.0.0.1:{self.ports[no]}"

    def client(self, no: int | None = None) -> Client:
        """Return an operator's client of one server, by default of a random one."""
        chosen = self._random.randrange(len(self.ports)) if no is None else no
        return Client(self.url(chosen), (self._data(0) / "admin.key").read_text().strip())

    def verify(self) -> str:
        """Return what `callsheet verify` finds wrong, with all files; empty if nothing."""
        place = ["--database", self._database_url] if self._database_url else ["--data-dir", self._data(0)]
        done = run("verify", *place, "--files", "--config", self._config)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    # -- faults

    def faults(self) -> list[Fault]:
        """Return what can go wrong. Each fault is over, and everything runs again, when its call returns."""
        servers, workers = range(len(self.ports)), self._workers
        faults: list[Fault] = [
            *((f"kill server {no}", partial(self._restart_server, no, signal.SIGKILL)) for no in servers),
            *((f"kill worker {no}", partial(self._restart_worker, no, signal.SIGKILL)) for no in workers),
            ("stop server 0", partial(self._restart_server, 0, signal.SIGTERM)),
            ("stop worker 0", partial(self._restart_worker, 0, signal.SIGTERM)),
            ("freeze worker 1 for longer than its lease", self._freeze_worker),
        ]
        if self.cluster is not None:
            faults.append(("kill PostgreSQL", self._restart_postgres))
        return faults

    def _restart_server(self, no: int, number: signal.Signals) -> None:
        self._servers.pop(no).stop(number)
        self.start_server(no)

    def _restart_worker(self, no: int, number: signal.Signals) -> None:
        self._workers.pop(no).stop(number)
        self.start_worker(no)

    def _freeze_worker(self) -> None:
        process = self._workers[1].process
        process.send_signal(signal.SIGSTOP)
        end = time.monotonic() + 2 * LEASE_SECONDS
        wait_until(lambda: time.monotonic() > end, WAIT_SECONDS)
        process.send_signal(signal.SIGCONT)

    def _restart_postgres(self) -> None:
        assert self.cluster is not None
        self.cluster.kill()
        self.cluster.start()

    # -- processes

    def start_server(self, no: int) -> None:
        place = ["--database", self._database_url] if self._database_url else []
        self._servers[no] = CommandProcess(
            "serve", "--data-dir", self._data(no), "--port", self.ports[no], "--json", "--config", self._config,
            "--signing-secret-file", self._secret, *place, log=self._folder / f"server-{no}.log", read_output=False,
        )  # fmt: skip
        wait_until(lambda: _is_ready(self.url(no)), WAIT_SECONDS)

    def start_worker(self, no: int) -> None:
        """Start a worker with the name and the cache of its predecessor."""
        self._workers[no] = CommandProcess(
            "worker", "handlers:worker", "--url", self.url(no % len(self.ports)), "--concurrency", 4,
            "--fleet-secret-file", self._data(0) / "fleet.key", "--cache-dir", self._folder / f"cache-{no}",
            "--name", f"worker-{no}", log=self._folder / f"worker-{no}.log", cwd=self._folder, read_output=False,
        )  # fmt: skip

    def _data(self, no: int) -> Path:
        return self._folder / f"server-{no}"


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _free_port() -> int:
    """Return a port below the ephemeral range, so that nothing takes it while the server is down."""
    while True:
        port = PORTS[secrets.randbelow(len(PORTS))]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
