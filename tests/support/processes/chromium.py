"""Finds or installs the browser of the tests: Chromium of this machine, else Debian's package, unpacked in the venv.

Searched in order: CALLSHEET_TEST_CHROMIUM, PATH, and then the Debian package with its missing dependencies. apt
downloads them into a private folder: nothing is installed on the system, and no root rights are needed. It is an error
if no browser is found, so that browser tests are never skipped silently.
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
    """No browser was found."""


class Chromium(NamedTuple):
    """The browser's program and the environment variables that it needs."""

    program: Path
    environment: Mapping[str, str]


def find(report: Callable[[str], None]) -> Chromium:
    chosen = os.environ.get(VARIABLE)
    if chosen:
        if not os.access(chosen, os.X_OK):
            raise NoChromiumError(f"{VARIABLE}={chosen} is not an executable file.")
        return Chromium(Path(chosen), {})
    for name in PROGRAM_NAMES:
        if found := shutil.which(name):
            return Chromium(Path(found), {})
    with file_lock(INSTALL_FOLDER):
        if not INSTALL_FOLDER.exists():
            report("Chromium was not found: unpacking Debian's package for the tests")
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
    """Download Chromium and the dependencies that are not in `status`, and unpack them into a new folder."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise NoChromiumError(f"The tests need Chromium: install it, or set {VARIABLE} to its path.")
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        lists, cache, root = Path(scratch, "lists"), Path(scratch, "cache"), Path(scratch, "root")
        for folder in (lists / "partial", cache / "archives" / "partial", root):
            folder.mkdir(parents=True)
        folders = {"State::lists": lists, "State::status": status, "Cache": cache, "Log": scratch}
        options = [word for name, path in folders.items() for word in ("-o", f"Dir::{name}={path}")]
        options += ["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User="]
        _run("apt-get", *options, "update")
        _run("apt-get", *options, "--yes", "--no-install-recommends", "--download-only", "install", "chromium")
        for package in sorted((cache / "archives").glob("*.deb")):
            _run("dpkg", "--extract", str(package), str(root))
        if not (root / "usr" / "lib" / "chromium" / "chromium").exists():
            raise NoChromiumError(f"Debian's package has no Chromium: install it, or set {VARIABLE} to its path.")
        root.rename(home)


def _run(*words: str) -> None:
    result = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if result.returncode != 0:
        raise NoChromiumError(
            f"The tests need Chromium: install it, or set {VARIABLE} to its path. "
            f"{' '.join(words)} failed:\n{result.stderr}"
        )
