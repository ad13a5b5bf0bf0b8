"""A process exits even if one of its threads hangs."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("hangs", [True, False])
def test_a_process_exits_although_a_thread_hangs(hangs: bool) -> None:
    """Python waits for the threads of a pool, and one may wait for storage that does not answer."""
    program = (
        "import threading; from callsheet.cli import shutdown; shutdown._EXIT_WAIT_SECONDS = 0.05\n"
        f"threading.Thread(target=threading.Event().wait, args=({None if hangs else 0},)).start()\n"
        "print('closed'); shutdown.exit_despite_hanging_threads()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "closed\n")
