"""The data folder: the names of its files, and how one is written that only its owner reads."""

import fcntl
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

DEFAULT_DATA_FOLDER = Path("callsheet-data")
"""Where it is if nobody says otherwise."""
DATABASE_FILE, LOCK_FILE = "callsheet.db", "server.lock"
ADMIN_KEY_FILE, FLEET_KEY_FILE, SECRET_FILE = "admin.key", "fleet.key", "secret.key"
SERVER_FILE, LOG_FILE = "server.json", "callsheet.log"
PRIVATE_FILE_MODE, PRIVATE_FOLDER_MODE = 0o600, 0o700


def write_private(file: Path, text: str, *, overwrite: bool = False) -> None:
    """Make a file that only its owner reads: whole or absent; in place of one that is there only if `over`."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE_MODE), "w") as handle:  # noqa: PTH123 - with a mode
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        if overwrite:
            temporary.replace(file)
        else:
            with suppress(FileExistsError):  # another server on this folder was faster, and its text counts
                file.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)


def is_private(folder: Path) -> bool:
    """Say whether only its owner gets into a folder."""
    return not folder.stat().st_mode & 0o077


def running(data: Path) -> dict[str, Any] | None:
    """Return what the folder's server wrote about itself, if it lives: if somebody holds the folder.

    A number of a process proves nothing, nor does an address: another program may have got it since.
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
    """Try to hold a file; whoever closes it lets go."""
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
