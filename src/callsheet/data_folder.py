"""The data folder: names of its files, private writes, secrets, and the lock of a running server."""

import fcntl
import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from callsheet.core.model.errors import BadInput

DEFAULT_DATA_FOLDER = Path("callsheet-data")
DATABASE_FILE, LOCK_FILE = "callsheet.db", "server.lock"
ADMIN_KEY_FILE, FLEET_KEY_FILE, SECRET_FILE = "admin.key", "fleet.key", "secret.key"
SERVER_FILE, LOG_FILE = "server.json", "callsheet.log"
PRIVATE_FILE_MODE, PRIVATE_FOLDER_MODE = 0o600, 0o700
_SECRET_CHARS_MIN = 32


def write_private(file: Path, text: str, *, overwrite: bool = False) -> None:
    """Write a file atomically, readable by its owner only. An existing file is kept unless `overwrite` is true."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE_MODE), "w") as handle:  # noqa: PTH123 - Path.open takes no file mode
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


def load_or_create_secret(file: Path, generate: Callable[[], str], prefix: str = "") -> str:
    """Return the secret in a file; create the file if it does not exist. Raises `BadInput` for an invalid secret."""
    if not file.exists():
        write_private(file, generate() + "\n")
    try:
        text = file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise BadInput(
            "invalid_secret", f"Cannot read the secret in {file}: make it an ASCII file that this user may read."
        ) from None
    if len(text) < _SECRET_CHARS_MIN or not text.startswith(prefix):
        raise BadInput(
            "invalid_secret", f"The secret in {file} is not valid. Restore the original file, or delete it to create "
            "a new secret.",
        )  # fmt: skip
    with suppress(OSError):  # the file may belong to another user
        file.chmod(PRIVATE_FILE_MODE)
    return text


def load_or_create_signing_secret(file: Path) -> bytes:
    """Return the signing secret in a file; create the file if it does not exist."""
    return load_or_create_secret(file, lambda: secrets.token_hex(32)).encode()


def is_private(folder: Path) -> bool:
    """Return whether only the owner can access a folder."""
    return not folder.stat().st_mode & 0o077


def running(data: Path) -> dict[str, Any] | None:
    """Return the server.json of the server that runs on a data folder, or None.

    A server is running while it holds the lock. The process id and the URL in the file are no proof: another program
    may use them by now.
    """
    try:
        server_info: Any = json.loads((data / SERVER_FILE).read_text())
        with (data / LOCK_FILE).open("a") as file:
            return (
                server_info
                if isinstance(server_info, dict) and "url" in server_info and not try_lock(file, fcntl.LOCK_EX)
                else None
            )
    except (OSError, ValueError, TypeError):
        return None


def try_lock(file: IO[str], operation: int) -> bool:
    """Lock a file and return True, or return False if another process has locked it. Closing the file unlocks it."""
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
