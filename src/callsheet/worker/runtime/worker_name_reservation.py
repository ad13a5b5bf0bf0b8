"""The name of a worker on its machine. It stays the same after a restart, so that the server recognizes the worker.

Names are stored in numbered files of one folder. A worker takes the first file that no running worker has locked. The
operating system releases the lock even after a kill.
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
    """Another worker on this machine uses this name, or no name is free."""


@contextmanager
def hold_worker_name(folder: Path, requested: str | None = None) -> Iterator[str]:
    """Reserve the requested name, or the first free one, within the `with` block."""
    folder.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    if requested is not None:
        if not NAME.match(requested):
            raise ValueError(f"{requested!r} is not a worker name: only letters, digits and . _ : - are allowed.")
        lock = _try_lock(folder / f"given-{requested}")
        if lock is None:
            raise NameTakenError(f"A worker named {requested!r} already runs on this machine. Choose another name.")
        with lock:
            yield requested
        return
    for number in range(1, _NAMES_MAX):
        lock = _try_lock(folder / str(number))
        if lock is not None:
            with lock:
                yield _read_or_create_name(lock)
            return
    raise NameTakenError(f"All {_NAMES_MAX - 1} worker names of this machine are in use. Pass another name.")


def _try_lock(file: Path) -> IO[str] | None:
    opened = file.open("a+")
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        opened.close()
        return None
    return opened


def _read_or_create_name(file: IO[str]) -> str:
    """Return the name in a file; if it is empty, create one from the host name and a random suffix."""
    file.seek(0)
    name = file.read().strip()
    if not name:
        host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0])[:_HOST_CHARS_MAX].strip("-")
        name = f"{host or 'worker'}-{secrets.token_hex(3)}"
        file.write(name + "\n")
        file.flush()
    return name
