"""The composition root: the one place where a database, a folder for files and an edge are put together."""

import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from callsheet.blobs.base import BlobError
from callsheet.blobs.factory import open_blobs
from callsheet.blobs.s3.store import S3Blobs
from callsheet.config import HttpSettings, Settings
from callsheet.core.model import commands
from callsheet.core.model.errors import BadInput
from callsheet.data_folder import ADMIN_KEY_FILE, FLEET_KEY_FILE, PRIVATE_FILE_MODE, SECRET_FILE, write_private
from callsheet.engine import Engine
from callsheet.engine.gates import Gate
from callsheet.engine.loops.base import Loop
from callsheet.engine.loops.collector import Collector
from callsheet.engine.loops.file_retention import FileRetention
from callsheet.engine.loops.orphan_files import OrphanCollector
from callsheet.engine.loops.relay import Relay
from callsheet.engine.loops.runner import LoopRunner
from callsheet.engine.loops.sweeper import Sweeper
from callsheet.engine.loops.worker_timeouts import WorkerTimeouts
from callsheet.http.auth.authenticator import DEFAULT_TENANT, KEY_PREFIX, Signer, hash_secret, new_secret
from callsheet.http.native import native_apis
from callsheet.http.server.app import App
from callsheet.http.state import AppState
from callsheet.telemetry.json_log import JsonLogWriter

_FAST_LOOP_SECONDS, _SLOW_LOOP_SECONDS = 0.25, 5.0
"""How often loops look whose delay somebody waits for, and those whose delay nobody notices."""
_SECRET_CHARS_MIN = 32
_CLOSE_TIMEOUT_SECONDS = 5.0
"""How long loops may take to end what they are at: one that waits for a storage which hangs would take minutes."""


class Callsheet:
    """Everything that one server process runs besides its HTTP edge and its workers."""

    def __init__(
        self, database: str | Path, data: Path, settings: Settings | None = None, http: HttpSettings | None = None,
        *, secret: bytes | None = None, gates: Sequence[Gate] = (),
    ) -> None:  # fmt: skip
        data.mkdir(parents=True, exist_ok=True)
        self.data = data
        if isinstance(database, Path):
            database.touch(PRIVATE_FILE_MODE)  # what SQLite puts beside it is as private as the database
        secret = secret or _load_or_create_secret(data / SECRET_FILE, lambda: secrets.token_hex(32)).encode()
        settings = settings or Settings()
        blobs = open_blobs(settings.blobs, data, Signer(secret), file_bytes_max=settings.limits.file_bytes_max)
        self.engine = Engine.open(database, settings, gates=gates)
        self.state = AppState(self.engine, blobs, secret, http or HttpSettings())
        self.app = App(self.state, native_apis(self.state.settings))
        self._loops: list[LoopRunner] = []
        self._writer: JsonLogWriter | None = None

    def start(self, log: TextIO | None = None) -> None:
        """Start the loops; `log` gets a line of JSON for every fact."""
        engine = self.engine
        loops: list[Loop] = [Sweeper(engine), Collector(engine, {})]
        if log is not None:
            self._writer = JsonLogWriter(log, _local_now)
            engine.refusal_listeners.append(self._writer.record_refusal)
            loops.append(Relay(engine, "log", secrets.token_hex(8), self._writer.events))
        intervals = [(loop, _FAST_LOOP_SECONDS) for loop in loops] + self._maintenance_loops()
        self._loops = [LoopRunner(loop, engine.reads.now, seconds, _report_loop_error) for loop, seconds in intervals]
        if self._writer is not None:
            self._loops.append(LoopRunner(self._writer, _local_now, _FAST_LOOP_SECONDS, _report_loop_error))
        for loop in self._loops:
            loop.start()
        self.state.broadcaster.start()
        if isinstance(self.state.blobs, S3Blobs):
            threading.Thread(
                target=_probe_storage, args=(self.state.blobs,), name="callsheet-probe", daemon=True
            ).start()

    def _maintenance_loops(self) -> list[tuple[Loop, float]]:
        """Return the loops that tidy up, and how often they look."""
        blobs, settings = self.state.blobs, self.engine.settings.blobs
        worker_timeouts = WorkerTimeouts(self.engine, self.engine.settings.limits.worker_timeout_seconds)
        loops: list[tuple[Loop, float]] = [
            (FileRetention(self.engine, blobs), _SLOW_LOOP_SECONDS),
            (worker_timeouts, _SLOW_LOOP_SECONDS),
        ]
        if settings.orphan_scan_seconds:
            orphans = OrphanCollector(self.engine.reads, blobs, settings.orphan_grace_seconds)
            loops.append((orphans, settings.orphan_scan_seconds))
        return loops

    def close(self) -> None:
        """Let the loops end, and leave one behind that does not; then let go of the database and the storage."""
        self.state.broadcaster.stop()
        for loop in self._loops:
            loop.request_stop()
        deadline = time.monotonic() + _CLOSE_TIMEOUT_SECONDS
        busy = [loop.name for loop in self._loops if not loop.stop(max(deadline - time.monotonic(), 0))]
        if busy:
            sys.stderr.write(
                f"Still busy after {_CLOSE_TIMEOUT_SECONDS:g} seconds, and left behind: {', '.join(busy)}.\n"
            )
        elif self._writer is not None:
            self._writer.run_once(_local_now())
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
        """Return the file with the operator's key, and whether it was made just now.

        The file comes first: a start that was cut in the middle leaves no key that nobody knows.
        """
        file = self.data / ADMIN_KEY_FILE
        new = not file.exists()
        secret_hash = hash_secret(_load_or_create_secret(file, new_secret, KEY_PREFIX))
        if not self.engine.reads.fetch("api_key_by_hash", key=secret_hash):
            if not self.engine.reads.fetch("tenants", ids=[DEFAULT_TENANT]):
                self.engine.execute(commands.PutTenant(tenant=DEFAULT_TENANT, by="callsheet"))
            command = commands.CreateKey(
                tenant="", role="admin", name="first admin", secret_hash=secret_hash, by="callsheet"
            )
            self.engine.execute(command)
        return file, new

    def ensure_fleet_key(self) -> Path:
        """Return the file with a secret for the fleet, made at the first start."""
        file = self.data / FLEET_KEY_FILE
        secret_hash = hash_secret(_load_or_create_secret(file, new_secret, KEY_PREFIX))
        if not self.engine.reads.fetch("api_key_by_hash", key=secret_hash):
            command = commands.CreateKey(
                tenant="", role="worker", name="first fleet", secret_hash=secret_hash, by="callsheet"
            )
            self.engine.execute(command)
        return file

    def has_keys(self) -> bool:
        """Say whether somebody holds a key that has not been revoked."""
        return bool(self.engine.reads.fetch("any_active_api_key"))


def _load_or_create_secret(file: Path, generate: Callable[[], str], prefix: str = "") -> str:
    """Return the secret in a file, made at the first start; one that is none, or easily guessed, opens no house."""
    if not file.exists():
        write_private(file, generate() + "\n")
    try:
        text = file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise BadInput("invalid_secret", f"The secret in {file} cannot be read.") from None
    if len(text) < _SECRET_CHARS_MIN or not text.startswith(prefix):
        raise BadInput(
            "invalid_secret", f"The secret in {file} is none of ours: put the right one back, or remove the file, and "
            "another is made.",
        )  # fmt: skip
    with suppress(OSError):  # it may be somebody else's to keep private
        file.chmod(PRIVATE_FILE_MODE)
    return text


def _local_now() -> int:
    """Tell this machine's time, where nobody may wait for the database's."""
    return time.time_ns() // 1_000


def _probe_storage(blobs: S3Blobs) -> None:
    """Say once which of S3's promises the storage does not keep; what it says is not believed then, but read."""
    explanations = {
        "digest": "takes bytes with another digest than was signed",
        "write_once": "lets a file be written twice",
    }
    try:
        for weakness in blobs.weaknesses():
            sys.stderr.write(
                f"The storage {explanations[weakness]}: files are read again to be sure, which takes longer.\n"
            )
    except (BlobError, RuntimeError) as error:  # it does not answer, or the server has closed it meanwhile
        sys.stderr.write(f"The storage could not be tried: {error}\n")


def _report_loop_error(loop: Loop, error: Exception) -> None:
    sys.stderr.write(f"The {type(loop).__name__.lower()} stumbled and goes on: {type(error).__name__}: {error}\n")
