"""The data folder: names of its files, private writes, and the lock of a running server."""

import fcntl
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

DEFAULT_DATA_FOLDER = Path("callsheet-data")
"""The default data folder."""
DATABASE_FILE, LOCK_FILE = "callsheet.db", "server.lock"
ADMIN_KEY_FILE, FLEET_KEY_FILE, SECRET_FILE = "admin.key", "fleet.key", "secret.key"
SERVER_FILE, LOG_FILE = "server.json", "callsheet.log"
PRIVATE_FILE_MODE, PRIVATE_FOLDER_MODE = 0o600, 0o700


def write_private(file: Path, text: str, *, overwrite: bool = False) -> None:
    """Write a file atomically that only its owner can read; an existing one stays unless `overwrite`."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE_MODE), "w") as handle:  # noqa: PTH123 - with a mode
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        if overwrite:
            temporary.replace(file)
        else:
            with suppress(FileExistsError):  # another server created it first: keep its text
                file.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)


def is_private(folder: Path) -> bool:
    """Return whether only the owner can access a folder."""
    return not folder.stat().st_mode & 0o077


def running(data: Path) -> dict[str, Any] | None:
    """Return the server.json of a running server, or None. A server runs while its lock is held.

    A process id or a URL proves nothing: another program may have taken it.
    """
    try:
        server_info: Any = json.loads((data / SERVER_FILE).read_text())
        with (data / LOCK_FILE).open("a") as file:
            return (
                server_info
                if isinstance(server_info, dict) and "url" in server_info and not held(file, fcntl.LOCK_EX)
                else None
            )
    except (OSError, ValueError, TypeError):
        return None


def held(file: IO[str], operation: int) -> bool:
    """Try to lock a file; closing it releases the lock."""
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
