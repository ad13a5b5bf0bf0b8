"""Smoke test of a built wheel: `python -m tools.smoke_test dist/callsheet-0.1.0-py3-none-any.whl`.

The wheel is installed with its demo extra in an empty environment outside the project, so a file that the wheel
lacks is missed here. Then `callsheet --version` and `callsheet up --demo` run once.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-dev.lock"
BOOTSTRAP = ROOT / ".venv-bootstrap"
DEMO_SECONDS_MAX = 300
DEMO_END = "keeps running at"
"""Part of the line that `callsheet up --demo` prints after the demo."""


def create_environment(folder: Path) -> Path:
    """Create an empty virtual environment and return its folder of programs."""
    module, environment = "venv", dict(os.environ)
    if BOOTSTRAP.exists():  # the Makefile put virtualenv there because this Python has no ensurepip
        module, environment["PYTHONPATH"] = "virtualenv", str(BOOTSTRAP)
    subprocess.run([sys.executable, "-m", module, str(folder)], env=environment, check=True)
    return folder / "bin"


def install(programs: Path, wheel: Path) -> None:
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", str(LOCK), f"{wheel}[demo]"], cwd=programs, check=True)


def check_version(programs: Path, wheel: Path) -> None:
    """Compare the version that the program prints with the version in the wheel's name."""
    printed = subprocess.run(
        [str(programs / "callsheet"), "--version"], cwd=programs, capture_output=True, text=True, check=True
    )
    version = wheel.name.split("-")[1]
    if version not in printed.stdout:
        raise SystemExit(f"callsheet --version prints {printed.stdout.strip()!r}; the wheel has version {version}.")


def run_demo(programs: Path, folder: Path) -> None:
    """Run `callsheet up --demo` until the demo has ended, then stop the server."""
    command = [str(programs / "callsheet"), "up", "--demo", "--port", "0", "--data-dir", str(folder / "data")]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        timer = threading.Timer(DEMO_SECONDS_MAX, server.kill)
        timer.start()
        lines = []
        for line in server.stdout or ():
            lines.append(line)
            if DEMO_END in line:
                server.send_signal(signal.SIGINT)
        timer.cancel()
    if server.returncode != 0 or not any(DEMO_END in line for line in lines):
        raise SystemExit(f"callsheet up --demo failed with code {server.returncode}:\n{''.join(lines)}")


def main() -> None:
    wheel = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = create_environment(folder / "environment")
        install(programs, wheel)
        check_version(programs, wheel)
        run_demo(programs, folder)
    sys.stdout.write(f"{wheel.name} works in an empty environment\n")


if __name__ == "__main__":
    main()
