"""Jobs of the workflow `sketch`: submitted by the command line, run by a thread."""

import threading

from callsheet.core.model import commands
from tests.cli.conftest import Run
from tests.support.processes.live_server import LiveServer


def submit_job(run: Run, *more: str) -> str:
    """Submit a sketch for ann, and return its id."""
    done = run("submit", "sketch", "--user", "ann", "--input", "prompt=dunes", "--json", *more)
    assert done.code == 0, done.err
    return str(done.json["id"])


def work_in_thread(live_server: LiveServer, *, fail: bool = False) -> threading.Thread:
    """Run the next sketch, as soon as there is one, in a thread: report progress, then complete or fail."""

    def work() -> None:
        (leased,) = live_server.engine.claim(commands.Claim(worker_id="w1", kinds=("draw",)), wait_seconds=10)
        live_server.engine.execute(commands.Heartbeat(lease=leased.lease, progress=40, message="inking"))
        if fail:
            live_server.engine.execute(
                commands.Fail(lease=leased.lease, code="no_ink", message="No ink.", retryable=False)
            )
        else:
            live_server.engine.execute(commands.Complete(lease=leased.lease))

    thread = threading.Thread(target=work)
    thread.start()
    return thread
