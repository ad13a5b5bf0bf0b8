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
from callsheet.blobs.opening import blobs_of
from callsheet.blobs.s3 import S3Blobs
from callsheet.config import HttpSettings, Settings
from callsheet.core import commands
from callsheet.core.errors import BadInput
from callsheet.engine import Engine
from callsheet.engine.filekeeping import Keeper, Orphans
from callsheet.engine.gates import Gate
from callsheet.engine.loops import Collector, Loop, Pulse, Relay, Rollcall, Sweeper
from callsheet.folder import ADMIN_KEY_FILE, FLEET_KEY_FILE, PRIVATE, SECRET_FILE, write_private
from callsheet.http.app import App
from callsheet.http.auth import DEFAULT_TENANT, KEY_PREFIX, Signed, hashed, new_secret
from callsheet.http.house import House
from callsheet.telemetry.lines import LineWriter

_OFTEN_SECONDS, _SELDOM_SECONDS = 0.25, 5.0
"""How often loops look whose delay somebody waits for, and those whose delay nobody notices."""
_SECRET_CHARS_MIN = 32
_CLOSE_SECONDS = 5.0
"""How long loops may take to end what they are at: one that waits for a storage which hangs would take minutes."""


class Callsheet:
    """Everything that one server process runs besides its HTTP edge and its workers."""

    def __init__(
        self, place: str | Path, data: Path, settings: Settings | None = None, http: HttpSettings | None = None,
        *, secret: bytes | None = None, gates: Sequence[Gate] = (),
    ) -> None:  # fmt: skip
        data.mkdir(parents=True, exist_ok=True)
        self.data = data
        if isinstance(place, Path):
            place.touch(PRIVATE)  # what SQLite puts beside it is as private as the database
        secret = secret or _kept(data / SECRET_FILE, lambda: secrets.token_hex(32)).encode()
        settings = settings or Settings()
        blobs = blobs_of(settings.blobs, data, Signed(secret), file_bytes_max=settings.limits.file_bytes_max)
        self.engine = Engine.open(place, settings, gates=gates)
        self.house = House(self.engine, blobs, secret, http or HttpSettings())
        self.app = App(self.house)
        self._loops: list[Pulse] = []
        self._writer: LineWriter | None = None

    def start(self, log: TextIO | None = None) -> None:
        """Start the loops; `log` gets a line of JSON for every fact."""
        engine = self.engine
        loops: list[Loop] = [Sweeper(engine), Collector(engine, {})]
        if log is not None:
            self._writer = LineWriter(log, _machine_now)
            engine.denials.append(self._writer.denial)
            loops.append(Relay(engine, "log", secrets.token_hex(8), self._writer.events))
        pulses = [(loop, _OFTEN_SECONDS) for loop in loops] + self._tidying()
        self._loops = [Pulse(loop, engine.read.now, seconds, _complain) for loop, seconds in pulses]
        if self._writer is not None:
            self._loops.append(Pulse(self._writer, _machine_now, _OFTEN_SECONDS, _complain))
        for loop in self._loops:
            loop.start()
        self.house.hub.start()
        if isinstance(self.house.blobs, S3Blobs):
            threading.Thread(target=_probe, args=(self.house.blobs,), name="callsheet-probe", daemon=True).start()

    def _tidying(self) -> list[tuple[Loop, float]]:
        """Return the loops that tidy up, and how often they look."""
        blobs, settings = self.house.blobs, self.engine.settings.blobs
        rollcall = Rollcall(self.engine, self.engine.settings.limits.worker_silence_seconds)
        tidying: list[tuple[Loop, float]] = [(Keeper(self.engine, blobs), _SELDOM_SECONDS), (rollcall, _SELDOM_SECONDS)]
        if settings.orphan_seconds:
            orphans = Orphans(self.engine.read, blobs, settings.orphan_grace_seconds)
            tidying.append((orphans, settings.orphan_seconds))
        return tidying

    def close(self) -> None:
        """Let the loops end, and leave one behind that does not; then let go of the database and the storage."""
        self.house.hub.stop()
        for loop in self._loops:
            loop.ask_to_stop()
        end = time.monotonic() + _CLOSE_SECONDS
        busy = [loop.name for loop in self._loops if not loop.stop(max(end - time.monotonic(), 0))]
        if busy:
            sys.stderr.write(f"Still busy after {_CLOSE_SECONDS:g} seconds, and left behind: {', '.join(busy)}.\n")
        elif self._writer is not None:
            self._writer.run_once(_machine_now())
        self.engine.close()
        if isinstance(self.house.blobs, S3Blobs):
            self.house.blobs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def admin_key(self) -> tuple[Path, bool]:
        """Return the file with the operator's key, and whether it was made just now.

        The file comes first: a start that was cut in the middle leaves no key that nobody knows.
        """
        file = self.data / ADMIN_KEY_FILE
        new = not file.exists()
        mark = hashed(_kept(file, new_secret, KEY_PREFIX))
        if not self.engine.read.fetch("api_key_by_hash", mark=mark):
            if not self.engine.read.fetch("tenants", ids=[DEFAULT_TENANT]):
                self.engine.execute(commands.PutTenant(tenant=DEFAULT_TENANT, by="callsheet"))
            made = commands.CreateKey(tenant="", role="admin", name="first admin", secret_hash=mark, by="callsheet")
            self.engine.execute(made)
        return file, new

    def fleet_secret(self) -> Path:
        """Return the file with a secret for the fleet, made at the first start."""
        file = self.data / FLEET_KEY_FILE
        mark = hashed(_kept(file, new_secret, KEY_PREFIX))
        if not self.engine.read.fetch("api_key_by_hash", mark=mark):
            made = commands.CreateKey(tenant="", role="worker", name="first fleet", secret_hash=mark, by="callsheet")
            self.engine.execute(made)
        return file

    def has_keys(self) -> bool:
        """Say whether somebody holds a key that has not been revoked."""
        return bool(self.engine.read.fetch("key_in_use"))


def _kept(file: Path, make: Callable[[], str], prefix: str = "") -> str:
    """Return the secret in a file, made at the first start; one that is none, or easily guessed, opens no house."""
    if not file.exists():
        write_private(file, make() + "\n")
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
        file.chmod(PRIVATE)
    return text


def _machine_now() -> int:
    """Tell this machine's time, where nobody may wait for the database's."""
    return time.time_ns() // 1_000


def _probe(blobs: S3Blobs) -> None:
    """Say once which of S3's promises the storage does not keep; what it says is not believed then, but read."""
    words = {"digest": "takes bytes with another digest than was signed", "write_once": "lets a file be written twice"}
    try:
        for weakness in blobs.weaknesses():
            sys.stderr.write(f"The storage {words[weakness]}: files are read again to be sure, which takes longer.\n")
    except (BlobError, RuntimeError) as error:  # it does not answer, or the server has closed it meanwhile
        sys.stderr.write(f"The storage could not be tried: {error}\n")


def _complain(loop: Loop, error: Exception) -> None:
    sys.stderr.write(f"The {type(loop).__name__.lower()} stumbled and goes on: {type(error).__name__}: {error}\n")
