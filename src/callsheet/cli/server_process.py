"""`LocalServer`: a complete Callsheet in this process, with the engine, the HTTP server and optionally a worker."""

import fcntl
import ipaddress
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from callsheet.core.model.commands import PutWorkflow
from callsheet.core.model.errors import Refusal
from callsheet.core.model.plural import pluralize
from callsheet.core.model.workflow_definition import WorkflowDefinition
from callsheet.data_folder import (
    DATABASE_FILE,
    LOCK_FILE,
    LOG_FILE,
    PRIVATE_FOLDER_MODE,
    SERVER_FILE,
    is_private,
    running,
    try_lock,
    write_private,
)
from callsheet.embedded_link import EngineLink
from callsheet.engine import Unavailable
from callsheet.engine.database_wait import wait_for_database
from callsheet.engine.engine import database_for
from callsheet.http.listener.connection_limits import RESERVED_FILES
from callsheet.http.listener.host_check import is_loopback
from callsheet.http.listener.process_setup import raise_file_limit
from callsheet.http.listener.uvicorn_server import Server, bind
from callsheet.settings import HttpSettings, Settings
from callsheet.store.connection import StoreError
from callsheet.telemetry.rotating_file import RotatingFile
from callsheet.worker import Worker, WorkerRun

_READY_SECONDS = 30.0
_GRACE_SECONDS = 2.0
_SECRET_BYTES_MIN = 32
_LOCK_ATTEMPTS, _LOCK_RETRY_SECONDS = 5, 0.05


class ServerOptions(Struct, frozen=True, kw_only=True):
    """Options of a local server."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 8787
    health_port: int | None = None
    """A port that only serves health checks and metrics; 0 chooses a free one. None means no such port."""
    database: str | None = None
    public: bool = False
    secret: bytes | None = None
    settings: Settings = Settings()
    http: HttpSettings = HttpSettings()
    create_admin_key: bool = True
    """Whether to create an admin key in the data folder, even if the database has other keys."""


class LocalServer:
    """A server that runs inside a `with` block."""

    def __init__(
        self, options: ServerOptions, log: TextIO | None = None, announce_wait: Callable[[str], None] = lambda _: None
    ) -> None:
        """Open the database, the storage and the port. `announce_wait` is called if the database is away."""
        self._options = options
        self._log = log
        self._ready = threading.Event()
        self._worker_run: WorkerRun | None = None
        with ExitStack() as stack:
            stack.enter_context(lock_directory(options.data, shared=options.database is not None))
            _wait_for_database(options, announce_wait)
            listener = stack.enter_context(_bind_socket(options))
            self.callsheet = stack.enter_context(_open_callsheet(options))
            self.key_file, self.key_is_new = self._ensure_admin_key()
            api_sockets, health_ports = _bind_more_ports(self.callsheet, options)
            self._resources = stack.pop_all()
        _warn_about_open_files(self.callsheet.state.settings.streams_max)
        self._server = Server(
            self.callsheet.app, listener, self.callsheet.state.settings, self._ready.set, api_sockets, health_ports
        )
        self._thread = threading.Thread(target=self._server.serve_on_socket, name="callsheet-http", daemon=True)
        self.url = _local_url(options.host, listener.getsockname()[1])
        self.health_url = _local_url(options.host, health_ports[0]) if health_ports else None

    def __enter__(self) -> Self:
        """Start the background loops and the HTTP server."""
        self.callsheet.start(self._log)
        self._thread.start()
        if not self._ready.wait(_READY_SECONDS):
            raise Failure(f"The server did not start within {_READY_SECONDS:.0f} seconds.")
        server_info = {"url": self.url, "admin_key_file": self.key_file and str(self.key_file), "pid": os.getpid()}
        write_private(self._options.data / SERVER_FILE, json.dumps(server_info) + "\n", overwrite=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Requeue running tasks, stop the HTTP server and close the database."""
        if self._worker_run is not None:
            self._worker_run.stop(_GRACE_SECONDS)
        _remove_server_file(self._options.data)
        self._server.should_exit = True
        self._thread.join()
        self._resources.close()

    def put_workflows(self, definitions: Sequence[WorkflowDefinition]) -> None:
        """Apply workflows before the server starts. An unchanged workflow keeps its version."""
        for definition in definitions:
            self.callsheet.engine.execute(PutWorkflow(definition=definition, requested_by="callsheet"))

    @contextmanager
    def closing_on_failure(self) -> Iterator[None]:
        """Close everything if a step before the start fails, or is interrupted."""
        try:
            yield
        except (Refusal, Unavailable) as error:
            self._resources.close()
            raise Failure(str(error)) from None
        except BaseException:
            self._resources.close()
            raise

    def start_worker(self, worker: Worker, concurrency: int) -> None:
        """Start a worker in this process."""
        state = self.callsheet.state
        name = f"embedded-{secrets.token_hex(3)}"
        state.fleet.embedded_workers.add(name)
        self._worker_run = worker.start(EngineLink(state.engine, state.blobs, name), concurrency)

    def _ensure_admin_key(self) -> tuple[Path | None, bool]:
        """Create the admin key at the first start, unless other servers manage the keys of this database."""
        options = self._options
        has_keys = self.callsheet.has_keys()
        if not is_loopback(options.host) and not has_keys:
            raise Failure(
                f"No API key exists yet, so the server does not listen on {options.host}. Start once without --host, "
                "which creates the admin key, then again with --host and --public."
            )
        if has_keys and not options.create_admin_key:
            return None, False
        try:
            self.callsheet.ensure_fleet_key()
            return self.callsheet.ensure_admin_key()
        except (Refusal, Unavailable) as error:
            raise Failure(str(error)) from None


# -- sockets


def _bind_socket(options: ServerOptions) -> socket.socket:
    if not is_loopback(options.host) and not options.public:
        raise Failure(f"{options.host} can be reached from other machines. Pass --public to allow that.")
    try:
        return bind(options.host, options.port)
    except OSError as error:
        hint = " Pass it with --port; 0 picks a free one." if error.errno in {EADDRINUSE, EACCES} else ""
        raise Failure(f"{error.strerror}{hint}") from None


def _bind_more_ports(callsheet: Callsheet, options: ServerOptions) -> tuple[list[socket.socket], list[int]]:
    """Bind the ports of mounted APIs and of health checks. Return all sockets, and the port of health checks."""
    try:
        sockets = callsheet.bind_api_ports(options.host)
    except OSError as error:
        raise Failure(f"A mounted API cannot listen on its own port. {error.strerror}") from None
    if options.health_port is None:
        return sockets, []
    try:
        return sockets, [callsheet.bind_health_port(options.host, options.health_port)]
    except OSError as error:
        raise Failure(f"Health checks cannot have a port of their own. {error.strerror}") from None


def _local_url(host: str, port: int) -> str:
    """Return the URL at which this machine reaches the server."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        return f"http://127.0.0.1:{port}" if address.version == 4 else f"http://[::1]:{port}"  # noqa: PLR2004 - IPv4
    return f"http://{host}:{port}" if address.version == 4 else f"http://[{host}]:{port}"  # noqa: PLR2004 - IPv4


def _warn_about_open_files(streams: int) -> None:
    """Warn if the limit of open files allows fewer connections than streams_max."""
    connections_max = raise_file_limit() - RESERVED_FILES
    if connections_max < streams:
        sys.stderr.write(
            f"callsheet: This process may open {connections_max} connections, fewer than streams_max ({streams}). "
            "Raise the limit of open files (ulimit -n).\n"
        )


# -- data folder


def prepare_directory(options: ServerOptions) -> ServerOptions:
    """Create the data folder. A new folder is created only if the server can listen on its port."""
    options = replace(options, host=options.host.removeprefix("[").removesuffix("]"))
    if not options.data.exists():
        _bind_socket(options).close()
    return replace(options, data=create_data_folder(options.data))


def create_data_folder(data: Path) -> Path:
    """Create a data folder if it does not exist, and return its absolute path. Fails if it is not writable."""
    try:
        data.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER_MODE)
    except OSError as error:
        raise Failure(f"Cannot create the folder {data}: {error.strerror}. Choose another with --data-dir.") from None
    if not os.access(data, os.W_OK | os.X_OK):
        raise Failure(f"The folder {data} is not writable. Choose another with --data-dir.")
    if not is_private(data):
        warning = Failure(f"Other users of this machine can read {data}. Run chmod 700 {data}.")
        sys.stderr.write(f"{warning.line()}\n")
    return data.resolve()


def lock_directory(data: Path, *, shared: bool = False) -> IO[str]:
    """Lock the folder for this process. The system releases the lock even if the process is killed.

    With SQLite, only one server may run on a folder. Servers on the same PostgreSQL may share it: their lock only shows
    that one is running.
    """
    file = (data / LOCK_FILE).open("a")
    for _ in range(_LOCK_ATTEMPTS):
        if try_lock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            return file
        time.sleep(_LOCK_RETRY_SECONDS)  # another process may hold it briefly to check for a running server
    file.close()
    server_info = running(data)
    location = f" at {server_info['url']}" if server_info else ""
    raise Failure(
        f"A server already runs on {data}{location}. Other commands in this folder use it, such as `callsheet status`. "
        "Stop it before you start another one, or start that one with another --data-dir and --port."
    )


def open_log(options: ServerOptions, *, quiet: bool) -> TextIO:
    """Return the log's stream: rotating files in the data folder if `quiet`, else standard error."""
    if not quiet:
        return sys.stderr
    log_file = RotatingFile(options.data / LOG_FILE, options.settings.log_bytes_max, options.settings.log_files_max)
    return TextIOWrapper(log_file, encoding="utf-8", write_through=True)


def load_signing_secret(file: Path | None, configured: str | None) -> bytes | None:
    """Return the signing secret from a file or the environment; None to use the one in the data folder."""
    try:
        text = file.read_text() if file is not None else configured
    except OSError as error:
        raise Failure(f"Cannot read the signing secret from {file}: {error.strerror}.") from None
    if text is None:
        return None
    secret = text.strip().encode()
    if len(secret) < _SECRET_BYTES_MIN:
        raise Failure(
            f"The signing secret has {pluralize(len(secret), 'byte')}; at least {_SECRET_BYTES_MIN} are required. "
            "Use a longer random text."
        )
    return secret


def _wait_for_database(options: ServerOptions, announce_wait: Callable[[str], None]) -> None:
    """Wait until PostgreSQL answers. SQLite is a file, which is there or not."""
    if options.database is None:
        return
    seconds = options.settings.database_start_seconds
    try:
        wait_for_database(
            database_for(options.database, options.settings),
            seconds,
            lambda reason: announce_wait(f"{reason} Waiting up to {pluralize(seconds, 'second')} for PostgreSQL."),
        )
    except StoreError as error:
        raise Failure(str(error)) from None


def _open_callsheet(options: ServerOptions) -> Callsheet:
    try:
        database = options.database or options.data / DATABASE_FILE
        return Callsheet(database, options.data, options.settings, options.http, secret=options.secret)
    except (StoreError, Refusal, BlobError, Unavailable) as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise Failure(f"Cannot use the folder {options.data}: {error.strerror}.") from None


def _remove_server_file(data: Path) -> None:
    server_info = running(data)
    if server_info is not None and server_info.get("pid") == os.getpid():
        (data / SERVER_FILE).unlink(missing_ok=True)


def demo_is_installed() -> bool:
    """Return whether the packages that the demo needs are installed."""
    return all(find_spec(name) for name in ("av", "numpy"))
