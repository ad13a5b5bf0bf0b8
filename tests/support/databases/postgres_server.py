"""A temporary PostgreSQL server process, in a temporary directory, on the loopback interface only.

It can be killed and started again with the same port and data. PostgreSQL refuses to run as root, so root starts it as
an unprivileged user. If the test process dies, a watcher at the other end of a pipe stops the server and removes its
directory.
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
PORT_ATTEMPTS_MAX = 10
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
    """A temporary server: created by the constructor, running after start(), removed by close()."""

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

    def start(self, *, standby: bool = False) -> None:
        """Start on a free port the first time, and on the same port afterwards. A standby is read-only."""
        if standby:
            (self._data / "standby.signal").touch()  # PostgreSQL deletes it when it is promoted
        for _ in range(PORT_ATTEMPTS_MAX):
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
        """Return whether the lock file names our process and its last line says so, as `pg_ctl --wait` checks it."""
        try:
            lines = (self._data / "postmaster.pid").read_text().split()
        except FileNotFoundError:
            return False
        return self._process is not None and lines[:1] == [str(self._process.pid)] and lines[-1] in {"ready", "standby"}

    def _log(self) -> str:
        return (self._home / "log").read_text(errors="replace")

    def kill(self) -> None:
        """Send SIGKILL to the server and its children, as in a power failure, and wait until all have ended."""
        if not self.running or self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)  # a stopped parent starts no new children
        children = _children(self._process.pid)
        self._process.kill()
        for pid in children:
            _signal(pid, signal.SIGKILL)
        self._process.wait(STOP_SECONDS)
        wait_until(lambda: not _alive(children), STOP_SECONDS)

    def stop(self) -> None:
        """Shut down immediately, without a checkpoint, so that the next start recovers from the log."""
        if self.running and self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(STOP_SECONDS)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)
        self._watcher.communicate()


def _unprivileged_account() -> pwd.struct_passwd:
    """Return the account postgres or, without it, the one with the highest id, which by convention owns nothing."""
    accounts = [account for account in pwd.getpwall() if account.pw_uid != 0]
    if not accounts:
        raise NoPostgresError("PostgreSQL does not run as root, and there is no other user here")
    return max(accounts, key=lambda account: (account.pw_name == SUPERUSER, account.pw_uid))


def _open_to_all(path: Path) -> bool:
    """Return whether every user can reach this path; permissions of a group are ignored."""
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
    """Return whether one of these processes runs; a zombie holds no resources and counts as ended."""
    processes = _processes()
    return any(pid in processes and not processes[pid][1].startswith("Z") for pid in pids)


def _processes() -> dict[int, tuple[int, str]]:
    """Return the parent and the state of each process, from /proc or, without it, from ps."""
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
