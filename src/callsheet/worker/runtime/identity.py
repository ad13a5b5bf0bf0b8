"""A worker's name on its machine: the same after a restart, so that the house takes it for the same worker.

The first worker of a machine has the first name that is kept in a folder, the second the second: whoever is started
takes the first that nobody holds. A name is held by a lock, which the system lets go of even after a kill.
"""

import fcntl
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from callsheet.core.model.workflow_definition import NAME

_NAMES_MAX = 1_000
_HOST_CHARS_MAX = 60
_PRIVATE = 0o700


class NameTakenError(Exception):
    """A worker of this name runs on this machine."""


@contextmanager
def hold_worker_name(folder: Path, requested: str | None = None) -> Iterator[str]:
    """Hold the given name, or the first of this machine's that is free, for as long as the `with` lasts."""
    folder.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    if requested is not None:
        if not NAME.match(requested):
            raise ValueError("A worker's name has letters, digits and . _ : - only.")
        lock = _try_lock(folder / f"given-{requested}")
        if lock is None:
            raise NameTakenError(f"A worker named {requested!r} already runs on this machine.")
        with lock:
            yield requested
        return
    for number in range(1, _NAMES_MAX):
        lock = _try_lock(folder / str(number))
        if lock is not None:
            with lock:
                yield _read_or_create_name(lock)
            return
    raise NameTakenError(f"{_NAMES_MAX} workers run on this machine already.")


def _try_lock(file: Path) -> IO[str] | None:
    opened = file.open("a+")
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        opened.close()
        return None
    return opened


def _read_or_create_name(file: IO[str]) -> str:
    """Return the name in a file; a new one is the machine's with something that no other machine has."""
    file.seek(0)
    name = file.read().strip()
    if not name:
        host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0])[:_HOST_CHARS_MAX].strip("-")
        name = f"{host or 'worker'}-{secrets.token_hex(3)}"
        file.write(name + "\n")
        file.flush()
    return name
