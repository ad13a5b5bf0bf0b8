"""Choose the path of a downloaded file in a directory. Existing files are never overwritten or duplicated."""

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from callsheet.transport.sha256 import digest_file


class Content(NamedTuple):
    """The size and digest of a file's content."""

    size: int
    sha256: str

    def matches(self, path: Path) -> bool:
        """Return whether a file has this content. A file of another size is not read."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        return digest_file(path) == self.sha256


def find_existing(target: Path, content: Content) -> Path | None:
    """Return the existing file with this content, under the name or a numbered one."""
    for path in _candidate_paths(target):
        if not os.path.lexists(path):
            return None
        if content.matches(path):
            return path
    return None


def save_unique(part: Path, target: Path, content: Content) -> Path:
    """Move a temporary file to its name, or a numbered one if the name is taken. Equal content is kept once."""
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
    for number in count(2):
        yield target.with_name(f"{target.stem}-{number}{target.suffix}")


def _link_exclusive(part: Path, path: Path) -> None:
    """Move a temporary file to a name, and fail if the name is taken, also by a concurrent download."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        path.open("xb").close()
        part.replace(path)
    else:
        part.unlink()
