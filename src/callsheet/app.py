"""The composition root: the one module that puts database, file storage, engine, HTTP app and plugins together."""

import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from callsheet.blobs.base import BlobError, Blobs
from callsheet.blobs.factory import open_blobs, parse_blob_location
from callsheet.blobs.s3.store import S3Blobs
from callsheet.core.model import commands
from callsheet.core.model.errors import BadInput
from callsheet.core.model.terminal_text import sanitize_lines
from callsheet.core.policy.signing_secret_and_storage import FILE_STORAGE, SIGNING_SECRET
from callsheet.data_folder import (
    ADMIN_KEY_FILE,
    FLEET_KEY_FILE,
    PRIVATE_FILE_MODE,
    SECRET_FILE,
    load_or_create_secret,
    load_or_create_signing_secret,
)
from callsheet.engine import Engine
from callsheet.engine.gate_plugins import Gate
from callsheet.engine.loops.clock_sync import ClockSync
from callsheet.engine.loops.discarded_outputs import DiscardedOutputDeletion
from callsheet.engine.loops.file_retention import FileRetention
from callsheet.engine.loops.loop_protocol import Loop
from callsheet.engine.loops.loop_thread import LoopRunner
from callsheet.engine.loops.orphan_files import OrphanCollector
from callsheet.engine.loops.provider_collector import Collector, Provider
from callsheet.engine.loops.sink_delivery import DeliveryError, Relay
from callsheet.engine.loops.sweeper import Sweeper
from callsheet.engine.loops.worker_timeouts import WorkerTimeouts
from callsheet.engine.loops.write_check import WriteCheck
from callsheet.engine.reads.synchronous import PositionedEvent
from callsheet.engine.signing_secret_and_storage import Installation, recorded_values
from callsheet.http.auth.authenticator import DEFAULT_TENANT, KEY_PREFIX, Signer, hash_secret, new_secret
from callsheet.http.listener.uvicorn_server import bind
from callsheet.http.native_api import health_api, native_apis
from callsheet.http.server.app import App
from callsheet.http.server.mounted_api import Api
from callsheet.http.server.path_tree import RouteConflictError
from callsheet.http.state import AppState
from callsheet.plugins import Plugins, Sink, load_plugins
from callsheet.queries.events.pages_and_cursors import sink_event_view
from callsheet.settings import HttpSettings, Settings
from callsheet.telemetry.event_log import JsonLogWriter

_FAST_LOOP_SECONDS, _SLOW_LOOP_SECONDS, _STORAGE_CHECK_SECONDS = 0.25, 5.0, 60.0
"""Interval of loops whose delay users notice, of maintenance loops, and of the check of the storage."""
_CLOSE_TIMEOUT_SECONDS = 5.0
"""How long `close` waits for running loops. A loop that is blocked on storage could take minutes."""


class Callsheet:
    """One server process, without its HTTP sockets and workers: database, storage, engine, app and background loops.

    `gates`, `sinks`, `providers` and `apis` are plugins, in addition to those of `settings.plugins` and of installed
    packages. Sinks are keyed by a stable name, providers by the name that workflows use.
    """

    def __init__(  # noqa: PLR0913 - the composition root takes every part
        self, database: str | Path, data: Path, settings: Settings | None = None, http: HttpSettings | None = None,
        *, secret: bytes | None = None, gates: Sequence[Gate] = (), sinks: Mapping[str, Sink] | None = None,
        providers: Mapping[str, Provider] | None = None, apis: Sequence[Api] = (),
    ) -> None:  # fmt: skip
        settings, http = settings or Settings(), http or HttpSettings()
        arguments = Plugins(tuple(gates), sinks or {}, providers or {}, tuple(apis))
        self.plugins = load_plugins(arguments, settings.plugins)
        data.mkdir(parents=True, exist_ok=True)
        self.data = data
        if isinstance(database, Path):
            database.touch(PRIVATE_FILE_MODE)  # SQLite creates its other files with the same mode
        parse_blob_location(settings.blobs, settings.limits.file_bytes_max)  # refuse a wrong setting before all else
        self._loops: list[LoopRunner] = []
        self._writer: JsonLogWriter | None = None
        self._api_sockets: list[socket.socket] = []
        self.engine = Engine.open(database, settings, gates=self.plugins.gates)
        with ExitStack() as on_failure:
            on_failure.callback(self.engine.close)
            installation = Installation(self.engine)
            secret, fingerprint = _confirm_secret(installation, secret, data / SECRET_FILE)
            blobs = open_blobs(settings.blobs, data, Signer(secret), file_bytes_max=settings.limits.file_bytes_max)
            if isinstance(blobs, S3Blobs):
                on_failure.callback(blobs.close)
            shared = {SIGNING_SECRET: fingerprint, FILE_STORAGE: self._confirm_storage(installation, blobs)}
            self.state = AppState(self.engine, blobs, secret, http, shared)
            try:
                self.app = App(self.state, (*native_apis(http, self.plugins.apis), *self.plugins.apis))
            except RouteConflictError as error:
                raise BadInput("route_conflict", str(error)) from None
            on_failure.pop_all()

    def _confirm_storage(self, installation: Installation, blobs: Blobs) -> str:
        """Return the id of the storage. If a known storage does not answer, it is checked later."""
        try:
            return installation.confirm_storage(blobs)
        except BlobError as error:
            recorded = recorded_values(self.engine.reads).get(FILE_STORAGE)
            if recorded is None:
                raise
            sys.stderr.write(sanitize_lines(f"The file storage could not be checked: {error}\n"))
            return recorded

    def bind_api_ports(self, host: str) -> list[socket.socket]:
        """Bind the ports of APIs that have their own; pass the sockets to `Server`."""
        for api in self.plugins.apis:
            if api.port is not None:
                bound = bind(host, api.port)
                self._api_sockets.append(bound)
                self.app.serve_at_root(api, bound.getsockname()[1])
        return self._api_sockets

    def bind_health_port(self, host: str, port: int) -> int:
        """Bind a port that only serves health checks and metrics. Return the port; pass it to `Server`."""
        bound = bind(host, port)
        self._api_sockets.append(bound)
        health_port = int(bound.getsockname()[1])
        self.app.serve_at_root(health_api(), health_port)
        return health_port

    def start(self, log: TextIO | None = None) -> None:
        """Start the background loops. Each event is written to `log` as one line of JSON."""
        engine = self.engine
        loops: list[Loop] = [Sweeper(engine), Collector(engine, self.plugins.providers)]
        if log is not None:
            self._writer = JsonLogWriter(log, _local_now)
            engine.refusal_listeners.append(self._writer.record_refusal)
            loops.append(Relay(engine, "log", secrets.token_hex(8), self._writer.events))
        for name, sink in self.plugins.sinks.items():
            loops.append(Relay(engine, f"sink {name}", secrets.token_hex(8), self._event_renderer(sink)))
        intervals = [(loop, _FAST_LOOP_SECONDS) for loop in loops] + self._maintenance_loops()
        self._loops = [LoopRunner(loop, engine.reads.now, seconds, _report_loop_error) for loop, seconds in intervals]
        local: list[tuple[Loop, float]] = [
            (WriteCheck(engine), engine.settings.write_check_seconds),
            (self.state.storage_check, _STORAGE_CHECK_SECONDS),
        ]
        if self._writer is not None:
            local.append((self._writer, _FAST_LOOP_SECONDS))
        self._loops += [LoopRunner(loop, _local_now, seconds, _report_loop_error) for loop, seconds in local]
        for loop in self._loops:
            loop.start()
        self.state.broadcaster.start()
        if isinstance(self.state.blobs, S3Blobs):
            threading.Thread(
                target=_probe_storage, args=(self.state.blobs,), name="callsheet-probe", daemon=True
            ).start()

    def _event_renderer(self, sink: Sink) -> Callable[[Sequence[PositionedEvent]], None]:
        """Return a function that passes events to a sink in the form of the API."""
        return lambda events: sink([sink_event_view(self.state.queries, positioned) for positioned in events])

    def _maintenance_loops(self) -> list[tuple[Loop, float]]:
        """Return the maintenance loops with their intervals."""
        blobs, settings = self.state.blobs, self.engine.settings.blobs
        worker_timeouts = WorkerTimeouts(self.engine, self.engine.settings.limits.worker_timeout_seconds)
        loops: list[tuple[Loop, float]] = [
            (ClockSync(self.engine), _SLOW_LOOP_SECONDS),
            (FileRetention(self.engine, blobs), _SLOW_LOOP_SECONDS),
            (DiscardedOutputDeletion(self.engine.discarded_outputs, blobs), _FAST_LOOP_SECONDS),
            (worker_timeouts, _SLOW_LOOP_SECONDS),
        ]
        if settings.orphan_scan:
            orphans = OrphanCollector(self.engine.reads, blobs, settings.orphan_grace_seconds)
            loops.append((orphans, settings.orphan_scan_seconds))
        return loops

    def close(self) -> None:
        """Stop the loops, then close sockets, database and storage. A loop that does not stop in time is abandoned."""
        self.state.broadcaster.stop()
        for loop in self._loops:
            loop.request_stop()
        deadline = time.monotonic() + _CLOSE_TIMEOUT_SECONDS
        busy = [loop.name for loop in self._loops if not loop.stop(max(deadline - time.monotonic(), 0))]
        if busy:
            sys.stderr.write(f"Loops that did not stop within {_CLOSE_TIMEOUT_SECONDS:g} seconds: {', '.join(busy)}.\n")
        elif self._writer is not None:
            self._writer.run_once(_local_now())
        for bound in self._api_sockets:
            bound.close()
        self.engine.close()
        if isinstance(self.state.blobs, S3Blobs):
            self.state.blobs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ensure_admin_key(self) -> tuple[Path, bool]:
        """Return the file with the operator's key, and whether this call created it.

        The file is written before the row, so an interrupted start leaves no key whose secret is lost.
        """
        file = self.data / ADMIN_KEY_FILE
        new = not file.exists()
        secret_hash = hash_secret(load_or_create_secret(file, new_secret, KEY_PREFIX))
        if not self.engine.reads.fetch("api_key_by_hash", key=secret_hash):
            if not self.engine.reads.fetch("tenants", ids=[DEFAULT_TENANT]):
                self.engine.execute(commands.PutTenant(tenant=DEFAULT_TENANT, requested_by="callsheet"))
            command = commands.CreateKey(
                tenant="", role="admin", name="first admin", secret_hash=secret_hash, requested_by="callsheet"
            )
            self.engine.execute(command)
        return file, new

    def ensure_fleet_key(self) -> Path:
        """Return the file with the fleet key, created at the first start."""
        file = self.data / FLEET_KEY_FILE
        secret_hash = hash_secret(load_or_create_secret(file, new_secret, KEY_PREFIX))
        if not self.engine.reads.fetch("api_key_by_hash", key=secret_hash):
            command = commands.CreateKey(
                tenant="", role="worker", name="first fleet", secret_hash=secret_hash, requested_by="callsheet"
            )
            self.engine.execute(command)
        return file

    def has_keys(self) -> bool:
        """Return whether any active key exists."""
        return bool(self.engine.reads.fetch("any_active_api_key"))


def _confirm_secret(installation: Installation, configured: bytes | None, file: Path) -> tuple[bytes, str]:
    """Return the signing secret and its fingerprint. The file is created only for a database without a secret."""
    if configured is None and not file.exists():
        installation.require_recorded_secret()
    secret = configured or load_or_create_signing_secret(file)
    return secret, installation.confirm_secret(secret)


def _local_now() -> int:
    """Return the time of the local clock in microseconds, for code that must not wait for the database's clock."""
    return time.time_ns() // 1_000


def _probe_storage(blobs: S3Blobs) -> None:
    """Warn about S3 guarantees that the storage does not have. Files are then verified by reading them."""
    explanations = {
        "digest": "accepts bytes with another digest than was signed",
        "write_once": "allows a file to be overwritten",
    }
    try:
        for weakness in blobs.weaknesses():
            sys.stderr.write(
                f"The storage {explanations[weakness]}: files are read again to verify them, which is slower.\n"
            )
    except (BlobError, RuntimeError) as error:  # unreachable, or closed in the meantime
        sys.stderr.write(sanitize_lines(f"The storage could not be checked: {error}\n"))


def _report_loop_error(loop: Loop, error: Exception) -> None:
    if isinstance(error, DeliveryError):
        message = f"Delivering events failed: {error}\n"
    else:
        message = f"The {type(loop).__name__.lower()} failed and will retry: {type(error).__name__}: {error}\n"
    sys.stderr.write(sanitize_lines(message))
