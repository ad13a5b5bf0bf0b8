"""Where a fetched file goes in a folder: beside what is there, never over it, and not twice."""

import hashlib
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple


class Content(NamedTuple):
    """What bytes are known by."""

    size: int
    sha256: str

    def matches(self, path: Path) -> bool:
        """Say whether a file has these bytes; those of another size are not read."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256


def find_existing(target: Path, content: Content) -> Path | None:
    """Return the file that has these bytes under this name, or under one with a number."""
    for path in _candidate_paths(target):
        if not os.path.lexists(path):
            return None
        if content.matches(path):
            return path
    return None


def save_unique(part: Path, target: Path, content: Content) -> Path:
    """Give a part its name, or one with a number if somebody has that; the same bytes are there once."""
    for path in _candidate_paths(target):
        if content.matches(path):
            part.unlink()
            return path
        try:
            _link_exclusive(part, path)
        except FileExistsError:
            continue
        break
    return path


def _candidate_paths(target: Path) -> Iterator[Path]:
    """Yield a.png, a-2.png, a-3.png."""
    yield target
    for no in count(2):
        yield target.with_name(f"{target.stem}-{no}{target.suffix}")


def _link_exclusive(part: Path, path: Path) -> None:
    """Give a part a name that nobody has: between looking and naming, another download may have taken it."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system on which no file has two names
        path.open("xb").close()
        part.replace(path)
    else:
        part.unlink()
