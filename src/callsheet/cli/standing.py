"""A whole Callsheet standing in this process: the house, its edge behind a socket, and a crew that works in it."""

import fcntl
import ipaddress
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from errno import EACCES, EADDRINUSE
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TextIO

from msgspec import Struct
from msgspec.structs import replace

from callsheet.app import Callsheet
from callsheet.blobs.base import BlobError
from callsheet.cli.output import Failure
from callsheet.config import HttpSettings, Settings
from callsheet.core.commands import PutWorkflow
from callsheet.core.counting import counted
from callsheet.core.errors import Refusal
from callsheet.core.recipe import Recipe
from callsheet.embedded import EngineLink
from callsheet.folder import (
    DATABASE_FILE,
    LOCK_FILE,
    LOG_FILE,
    PRIVATE_FOLDER,
    SERVER_FILE,
    held,
    is_private,
    running,
    write_private,
)
from callsheet.http.connection import SPARE_FILES
from callsheet.http.server import Server, bind, open_files
from callsheet.store.connection import StoreError
from callsheet.telemetry.rolled import RolledFile
from callsheet.worker import Shift, Worker

_READY_SECONDS = 30.0
_GRACE_SECONDS = 2.0
_SECRET_BYTES_MIN = 32
_HOLD_TRIES, _HOLD_SECONDS = 5, 0.05


class Plan(Struct, frozen=True, kw_only=True):
    """What shall stand where."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 8787
    database: str | None = None
    public: bool = False
    secret: bytes | None = None
    settings: Settings = Settings()
    http: HttpSettings = HttpSettings()
    own_key: bool = True
    """Make an admin key here, even if others exist."""


class Standing:
    """A server that answers for as long as the `with` lasts."""

    def __init__(self, plan: Plan, log: TextIO | None = None) -> None:
        self._plan = plan
        self._log = log
        self._ready = threading.Event()
        self._shift: Shift | None = None
        with ExitStack() as stack:
            stack.enter_context(locked(plan.data, shared=plan.database is not None))
            bound = stack.enter_context(_bound(plan))
            self.callsheet = stack.enter_context(_opened(plan))
            self.key_file, self.key_new = self._keys()
            self._held = stack.pop_all()
        _look_at_room(self.callsheet.house.settings.streams_max)
        self._server = Server(self.callsheet.app, bound, self.callsheet.house.settings, self._ready.set)
        self._thread = threading.Thread(target=self._server.serve_here, name="callsheet-http", daemon=True)
        self.url = _url(plan.host, bound.getsockname()[1])

    def __enter__(self) -> Self:
        """Begin to answer."""
        self.callsheet.start(self._log)
        self._thread.start()
        if not self._ready.wait(_READY_SECONDS):
            raise Failure("The server did not begin to answer.")
        note = {"url": self.url, "admin_key_file": self.key_file and str(self.key_file), "pid": os.getpid()}
        write_private(self._plan.data / SERVER_FILE, json.dumps(note) + "\n", over=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give back what is being worked on, hang up, let go of the database."""
        if self._shift is not None:
            self._shift.stop(_GRACE_SECONDS)
        _forget_server(self._plan.data)
        self._server.should_exit = True
        self._thread.join()
        self._held.close()

    def put(self, recipes: Sequence[Recipe]) -> None:
        """Put workflows before anybody may ask for them; an equal one changes nothing."""
        try:
            for recipe in recipes:
                self.callsheet.engine.execute(PutWorkflow(recipe=recipe, by="callsheet"))
        except Refusal as error:
            self._held.close()
            raise Failure(str(error)) from None

    def work(self, worker: Worker, concurrency: int) -> None:
        """Let a worker work in this process."""
        house = self.callsheet.house
        name = f"embedded-{secrets.token_hex(3)}"
        self._shift = worker.start(EngineLink(house.engine, house.blobs, name), concurrency)

    def _keys(self) -> tuple[Path | None, bool]:
        """Make the admin key at the first start; where others are the door's keepers, make none."""
        plan = self._plan
        has_keys = self.callsheet.has_keys()
        if not is_loopback(plan.host) and not has_keys:
            raise Failure(
                f"Nobody has a key yet, so {plan.host} stays closed to other machines: start once without --host, "
                "which makes the admin key, then again with --host and --public."
            )
        if has_keys and not plan.own_key:
            return None, False
        try:
            self.callsheet.fleet_secret()
            return self.callsheet.admin_key()
        except Refusal as error:
            raise Failure(str(error)) from None


# -- addresses


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bound(plan: Plan) -> socket.socket:
    if not is_loopback(plan.host) and not plan.public:
        raise Failure(f"{plan.host} can be reached from other machines: say --public if that is what you want.")
    try:
        return bind(plan.host, plan.port)
    except OSError as error:
        how = " Name it with --port; 0 takes a free one." if error.errno in {EADDRINUSE, EACCES} else ""
        raise Failure(f"{error.strerror}{how}") from None


def _url(host: str, port: int) -> str:
    """Return where this machine reaches the server."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        return f"http://127.0.0.1:{port}" if address.version == 4 else f"http://[::1]:{port}"  # noqa: PLR2004 - of IP
    return f"http://{host}:{port}" if address.version == 4 else f"http://[{host}]:{port}"  # noqa: PLR2004 - the same


def _look_at_room(streams: int) -> None:
    """Say if the system lets this process have fewer connections than it would have streams."""
    most = open_files() - SPARE_FILES
    if most < streams:
        sys.stderr.write(
            f"callsheet: The system allows this process {most} connections, fewer than streams_max, {streams}: raise "
            "its limit of open files (ulimit -n).\n"
        )


# -- the folder


def placed(plan: Plan) -> Plan:
    """Make the folder of a plan; a new one is made only for a server that can have its address."""
    plan = replace(plan, host=plan.host.removeprefix("[").removesuffix("]"))
    if not plan.data.exists():
        _bound(plan).close()
    return replace(plan, data=folder(plan.data))


def folder(data: Path) -> Path:
    """Make the folder, or say why it cannot be used."""
    try:
        data.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
    except OSError as error:
        raise Failure(f"The folder {data} cannot be made: {error.strerror}.") from None
    if not os.access(data, os.W_OK | os.X_OK):
        raise Failure(f"The folder {data} cannot be written to: choose another with --data.")
    if not is_private(data):
        sys.stderr.write(f"callsheet: Others on this machine may look into {data}: chmod 700 {data} keeps them out.\n")
    return data.resolve()


def locked(data: Path, *, shared: bool = False) -> IO[str]:
    """Hold the folder for this process; the system lets go of it even if the process is killed.

    SQLite has one server. Servers on one PostgreSQL may share the folder; their hold only shows that somebody lives.
    """
    file = (data / LOCK_FILE).open("a")
    for _ in range(_HOLD_TRIES):
        if held(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            return file
        time.sleep(_HOLD_SECONDS)  # it may be held for a moment by somebody who only looks
    file.close()
    note = running(data)
    where = f" at {note['url']}" if note else ""
    raise Failure(f"A server already runs on {data}{where}: use it, or choose another --data.")


def log_of(plan: Plan, *, quiet: bool) -> TextIO:
    """Return where log lines go: quiet, into files of the folder; else to standard error."""
    if not quiet:
        return sys.stderr
    rolled = RolledFile(plan.data / LOG_FILE, plan.settings.log_bytes_max, plan.settings.log_files_max)
    return TextIOWrapper(rolled, encoding="utf-8", write_through=True)


def secret_of(file: Path | None, given: str | None) -> bytes | None:
    """Return the secret that several servers share, from a file or the environment; None is the folder's own."""
    try:
        text = file.read_text() if file is not None else given
    except OSError as error:
        raise Failure(f"The secret file {file} cannot be read: {error.strerror}.") from None
    if text is None:
        return None
    secret = text.strip().encode()
    if len(secret) < _SECRET_BYTES_MIN:
        raise Failure(f"The signing secret has {counted(len(secret), 'byte')}; it needs at least {_SECRET_BYTES_MIN}.")
    return secret


def _opened(plan: Plan) -> Callsheet:
    try:
        place = plan.database or plan.data / DATABASE_FILE
        return Callsheet(place, plan.data, plan.settings, plan.http, secret=plan.secret)
    except (StoreError, Refusal, BlobError) as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise Failure(f"The folder {plan.data} cannot be used: {error.strerror}.") from None


def _forget_server(data: Path) -> None:
    note = running(data)
    if note is not None and note.get("pid") == os.getpid():
        (data / SERVER_FILE).unlink(missing_ok=True)


def demo_is_installed() -> bool:
    """Say whether the demonstration has what it draws and films with."""
    return all(find_spec(name) for name in ("av", "numpy"))
