"""The composition root: the one place where a database, a folder for files and an edge are put together."""

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from callsheet.blobs.local import LocalBlobs
from callsheet.config import HttpSettings, Settings
from callsheet.core import commands
from callsheet.core.rows import ApiKey
from callsheet.engine import Engine
from callsheet.engine.gates import Gate
from callsheet.engine.loops import Collector, Loop, Pulse, Relay, Sweeper
from callsheet.folder import ADMIN_KEY_FILE, PRIVATE, SECRET_FILE, write_private
from callsheet.http.app import App
from callsheet.http.auth import DEFAULT_TENANT, hashed, new_secret
from callsheet.http.house import House
from callsheet.telemetry.lines import LineWriter

_KEYS_SEEN_MAX = 1_000


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
        self.engine = Engine.open(place, settings, gates=gates)
        self.house = House(
            self.engine, LocalBlobs(data / "files"), secret or _kept_secret(data / SECRET_FILE), http or HttpSettings()
        )
        self.app = App(self.house)
        self._loops: list[Pulse] = []

    def start(self, log: TextIO | None = None) -> None:
        """Start the loops; `log` gets a line of JSON for every fact."""
        engine = self.engine
        loops: list[Loop] = [Sweeper(engine), Collector(engine, {})]
        if log is not None:
            writer = LineWriter(log, engine.read.now)
            engine.denials.append(writer.denial)
            loops.append(Relay(engine, "log", secrets.token_hex(8), writer.events))
        self._loops = [Pulse(loop, engine.read.now, 0.25, _complain) for loop in loops]
        for loop in self._loops:
            loop.start()
        self.house.hub.start()

    def close(self) -> None:
        self.house.hub.stop()
        for loop in self._loops:
            loop.stop()
        self.engine.close()

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
        if new:
            write_private(file, new_secret() + "\n")
        mark = hashed(file.read_text().strip())
        if not self.engine.read.fetch("api_key_by_hash", hash=mark):
            if not self.engine.read.fetch("tenants", ids=[DEFAULT_TENANT]):
                self.engine.execute(commands.PutTenant(tenant=DEFAULT_TENANT, by="callsheet"))
            made = commands.CreateKey(tenant="", role="admin", name="first admin", secret_hash=mark, by="callsheet")
            self.engine.execute(made)
        return file, new

    def has_keys(self) -> bool:
        """Say whether somebody holds a key that has not been revoked."""
        rows = self.engine.read.fetch("keys_of", tenant="", all=1, after="", count=_KEYS_SEEN_MAX)
        return any(ApiKey(*row).revoked_at is None for row in rows)


def _kept_secret(file: Path) -> bytes:
    """Return the secret that signs cursors, quotes and tokens; made at the first start."""
    if not file.exists():
        write_private(file, secrets.token_hex(32) + "\n")
    return file.read_text().strip().encode()


def _complain(loop: Loop, error: Exception) -> None:
    sys.stderr.write(f"The {type(loop).__name__.lower()} stumbled and goes on: {type(error).__name__}: {error}\n")
