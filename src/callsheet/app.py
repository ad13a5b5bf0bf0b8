"""The composition root: the one place where a database, a folder for files and an edge are put together."""

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from callsheet.blobs.local import LocalBlobs
from callsheet.config import HttpSettings, Settings
from callsheet.core import commands
from callsheet.engine import Engine
from callsheet.engine.gates import Gate
from callsheet.engine.loops import Collector, Loop, Pulse, Relay, Sweeper
from callsheet.http.app import App
from callsheet.http.auth import DEFAULT_TENANT, hashed, new_secret
from callsheet.http.house import House
from callsheet.telemetry.lines import LineWriter

_PRIVATE = 0o600
ADMIN_KEY_FILE = "admin.key"
_SECRET_FILE = "secret.key"  # noqa: S105 - a name, not a secret


class Callsheet:
    """Everything that one server process runs besides its HTTP edge and its workers."""

    def __init__(
        self, place: str | Path, data: Path, settings: Settings | None = None, http: HttpSettings | None = None,
        *, secret: bytes | None = None, gates: Sequence[Gate] = (),
    ) -> None:  # fmt: skip
        data.mkdir(parents=True, exist_ok=True)
        self.data = data
        self.engine = Engine.open(place, settings, gates=gates)
        self.house = House(
            self.engine, LocalBlobs(data / "files"), secret or _kept_secret(data / _SECRET_FILE), http or HttpSettings()
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
        """Return the file with the operator's key, and whether it was made just now."""
        file = self.data / ADMIN_KEY_FILE
        if file.exists():
            return file, False
        secret = new_secret()
        self.engine.execute(commands.PutTenant(tenant=DEFAULT_TENANT, by="callsheet"))
        made = commands.CreateKey(
            tenant="", role="admin", name="first admin", secret_hash=hashed(secret), by="callsheet"
        )
        self.engine.execute(made)
        _write_private(file, secret + "\n")
        return file, True


def _kept_secret(file: Path) -> bytes:
    """Return the secret that signs cursors, quotes and tokens; made at the first start."""
    if not file.exists():
        _write_private(file, secrets.token_hex(32) + "\n")
    return bytes.fromhex(file.read_text().strip())


def _write_private(file: Path, text: str) -> None:
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE), "w") as opened:  # noqa: PTH123 - with a mode
        opened.write(text)


def _complain(loop: Loop, error: Exception) -> None:
    sys.stderr.write(f"The {type(loop).__name__.lower()} stumbled and goes on: {type(error).__name__}: {error}\n")
