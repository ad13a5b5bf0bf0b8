"""Where the suite's browser comes from: this machine if it has one, else Debian's package, unpacked beside the venv.

Searched in order: CALLSHEET_TEST_CHROMIUM, PATH, and then the package with what it needs and this machine lacks,
fetched by apt into folders of our own: nothing is installed, and no rights are needed. Finding none is an error, so
that no test in a browser is ever left out in silence.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.databases.file_lock import file_lock

VARIABLE = "CALLSHEET_TEST_CHROMIUM"
PROGRAM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
INSTALL_FOLDER = Path(sys.prefix) / "chromium"
FLAGS = (
    "--disable-background-networking", "--disable-component-update", "--disable-gpu", "--disable-quic",
    "--disable-sync", "--no-first-run", "--no-sandbox",
)  # fmt: skip


class NoChromiumError(RuntimeError):
    """There is no browser to test in."""


class Chromium(NamedTuple):
    """A program, and what it wants in its environment."""

    program: Path
    environment: Mapping[str, str]


def find(report: Callable[[str], None]) -> Chromium:
    chosen = os.environ.get(VARIABLE)
    if chosen:
        if not os.access(chosen, os.X_OK):
            raise NoChromiumError(f"{VARIABLE}={chosen}: no program there")
        return Chromium(Path(chosen), {})
    for name in PROGRAM_NAMES:
        if found := shutil.which(name):
            return Chromium(Path(found), {})
    with file_lock(INSTALL_FOLDER):
        if not INSTALL_FOLDER.exists():
            report("no Chromium here: unpacking Debian's for the tests")
            unpack(INSTALL_FOLDER)
    return unpacked(INSTALL_FOLDER)


def unpacked(home: Path) -> Chromium:
    """Return the program in a folder that packages were unpacked into."""
    # PulseAudio's private library is found by an absolute path when it is installed, and by this one when unpacked.
    patterns = ("usr/lib/*-linux-gnu*", "usr/lib/*-linux-gnu*/pulseaudio")
    libraries = [str(path) for pattern in patterns for path in sorted(home.glob(pattern))]
    fonts = {} if Path("/etc/fonts/fonts.conf").exists() else {"FONTCONFIG_PATH": str(home / "etc" / "fonts")}
    return Chromium(home / "usr" / "lib" / "chromium" / "chromium", {"LD_LIBRARY_PATH": ":".join(libraries), **fonts})


def unpack(home: Path, status: Path = Path("/var/lib/dpkg/status")) -> None:
    """Fetch what a machine with these packages lacks of Chromium, and unpack it into a new folder."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise NoChromiumError(f"The tests need Chromium: install it, or name it in {VARIABLE}.")
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        lists, cache, root = Path(scratch, "lists"), Path(scratch, "cache"), Path(scratch, "root")
        for folder in (lists / "partial", cache / "archives" / "partial", root):
            folder.mkdir(parents=True)
        places = {"State::lists": lists, "State::status": status, "Cache": cache, "Log": scratch}
        options = [word for name, place in places.items() for word in ("-o", f"Dir::{name}={place}")]
        options += ["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User="]
        _run("apt-get", *options, "update")
        _run("apt-get", *options, "--yes", "--no-install-recommends", "--download-only", "install", "chromium")
        for package in sorted((cache / "archives").glob("*.deb")):
            _run("dpkg", "--extract", str(package), str(root))
        if not (root / "usr" / "lib" / "chromium" / "chromium").exists():
            raise NoChromiumError(f"Debian's package brought no Chromium: install it, or name it in {VARIABLE}.")
        root.rename(home)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if done.returncode != 0:
        raise NoChromiumError(
            f"The tests need Chromium: install it, or name it in {VARIABLE}. {' '.join(words)} failed:\n{done.stderr}"
        )
