"""One PostgreSQL server process of our own, in a temporary directory, on the loopback only.

It can be killed without mercy and started again on the same port and data. PostgreSQL refuses to run as
root, so root hands it to an unprivileged user. Whatever happens to the test process, a watcher that holds
the other end of a pipe stops the server and removes its directory.
"""

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.databases import postgres_binaries
from tests.support.databases.postgres_binaries import Binaries, NoPostgresError
from tests.support.wait import wait_until

SUPERUSER = "postgres"
# Below the ephemeral range, so that no outgoing connection takes the port while the server is down.
PORTS = range(15_000, 32_000)
PORT_TRIES_MAX = 10
START_SECONDS = 60.0
STOP_SECONDS = 30.0
SETTINGS = {"listen_addresses": "127.0.0.1", "fsync": "on", "max_connections": "200"}

WATCHER = """
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" 2>/dev/null
while [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
rm -rf "$1"
"""


class Server:
    """A throwaway server: made on construction, running after start(), gone after close()."""

    def __init__(self, report: Callable[[str], None]) -> None:
        binaries = postgres_binaries.find(report)
        self._account = _unprivileged_account() if os.geteuid() == 0 else None
        self._home = self._make_home()
        self._data = self._home / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", WATCHER, "callsheet-watcher", self._home],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._binaries = self._reachable(binaries)
            self._initialise()
        except BaseException:
            self.close()
            raise
        self.port = 0
        report(f"PostgreSQL {binaries.version} for the tests: {binaries.bin}")

    def _make_home(self) -> Path:
        for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
            if self._account is None or _open_to_all(Path(place)):
                home = Path(tempfile.mkdtemp(prefix="callsheet-postgres-", dir=place))
                if self._account:
                    os.chown(home, self._account.pw_uid, self._account.pw_gid)
                return home
        raise NoPostgresError("no temporary directory is open to an unprivileged user")

    def _reachable(self, binaries: Binaries) -> Binaries:
        if self._account is None or _open_to_all(binaries.bin / "postgres"):
            return binaries
        copied = binaries.copied_to(self._home / "install")
        for path in (copied.tree, *copied.tree.rglob("*")):
            os.chown(path, self._account.pw_uid, self._account.pw_gid, follow_symlinks=False)
        return copied

    def _initialise(self) -> None:
        options = ["--auth=trust", f"--username={SUPERUSER}", "--encoding=UTF8", "--no-locale", "--no-sync"]
        answer = subprocess.run(
            [self._binaries.bin / "initdb", "-D", self._data, *options],
            capture_output=True,
            text=True,
            check=False,
            **self._as_owner(),
        )
        if answer.returncode != 0:
            raise NoPostgresError(f"initdb failed:\n{answer.stdout}{answer.stderr}")

    def _as_owner(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"cwd": self._home, "env": {"PATH": os.defpath, "HOME": str(self._home)}}
        if self._account is None:
            return plain
        return plain | {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start on a free port the first time, and on that same port ever after."""
        for _ in range(PORT_TRIES_MAX):
            port = self.port or _free_port()
            if self._started_on(port):
                self.port = port
                return
        raise NoPostgresError(f"PostgreSQL does not start:\n{self._log()}")

    def _started_on(self, port: int) -> bool:
        settings = SETTINGS | {"port": str(port), "unix_socket_directories": str(self._home)}
        arguments = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [self._binaries.bin / "postgres", "-D", self._data, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as_owner(),
            )
        wait_until(lambda: self._ready() or not self.running, START_SECONDS)
        if self.running:
            return True
        if "Address already in use" not in self._log():
            raise NoPostgresError(f"PostgreSQL does not start:\n{self._log()}")
        return False

    def _ready(self) -> bool:
        """What pg_ctl --wait looks at: the lock file names our process, and its last line says ready."""
        try:
            lines = (self._data / "postmaster.pid").read_text().split()
        except FileNotFoundError:
            return False
        return self._process is not None and lines[:1] == [str(self._process.pid)] and lines[-1] == "ready"

    def _log(self) -> str:
        return (self._home / "log").read_text(errors="replace")

    def kill(self) -> None:
        """The power cut: SIGKILL to the server and all its children, and nothing of it runs on return."""
        if not self.running or self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)  # a stopped parent makes no new children
        children = _children(self._process.pid)
        self._process.kill()
        for pid in children:
            _signal(pid, signal.SIGKILL)
        self._process.wait(STOP_SECONDS)
        wait_until(lambda: not _alive(children), STOP_SECONDS)

    def stop(self) -> None:
        """Immediate shutdown: no checkpoint, so that the next start recovers from the log."""
        if self.running and self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(STOP_SECONDS)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)
        self._watcher.communicate()


def _unprivileged_account() -> pwd.struct_passwd:
    accounts = {account.pw_name: account for account in pwd.getpwall() if account.pw_uid != 0}
    for name in ("postgres", "nobody", *accounts):
        if name in accounts:
            return accounts[name]
    raise NoPostgresError("PostgreSQL does not run as root, and there is no other user here")


def _open_to_all(path: Path) -> bool:
    """Whether any user may reach this path; that a group might be let in is left out of account."""
    real = path.resolve()
    return all(step.stat().st_mode & 0o001 for step in (real, *real.parents))


def _free_port() -> int:
    for _ in range(100):
        port = random.choice(PORTS)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise NoPostgresError("no free port on 127.0.0.1")


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _children(parent: int) -> list[int]:
    return [pid for pid, (ppid, _) in _processes().items() if ppid == parent]


def _alive(pids: list[int]) -> bool:
    """A zombie that nobody reaps has let go of everything, and counts as gone."""
    processes = _processes()
    return any(pid in processes and not processes[pid][1].startswith("Z") for pid in pids)


def _processes() -> dict[int, tuple[int, str]]:
    """Each process's parent and state, from /proc or, where there is none, from ps."""
    if not Path("/proc/self/stat").exists():
        listing = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid=,stat="], text=True)
        rows = (line.split() for line in listing.splitlines())
        return {int(pid): (int(ppid), state) for pid, ppid, state in rows}
    found = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, ppid = file.read_text(errors="replace").rpartition(")")[2].split()[:2]
            found[int(file.parent.name)] = (int(ppid), state)
    return found
