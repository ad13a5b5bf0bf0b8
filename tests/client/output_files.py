"""Completes tasks with output files, as a worker does."""

import hashlib
from typing import Any

from callsheet.blobs import object_keys
from callsheet.core.model import commands
from tests.support.processes.live_server import LiveServer


def complete_with_files(
    live_server: LiveServer,
    *files: tuple[str, bytes],
    media_type: str = "image/png",
    digest: str | None = None,
    output: Any = None,
    wait_seconds: float = 0,
) -> None:
    """Claim a task of kind `draw` and complete it with files (name, bytes). `digest` replaces the correct digest."""
    (leased,) = live_server.engine.claim(commands.Claim(worker_id="w1", kinds=("draw",)), wait_seconds=wait_seconds)
    lease, reported = leased.lease, []
    for no, (name, body) in enumerate(files, 1):
        key = object_keys.output_key(leased.tenant, lease.job_id, lease.task_id, lease.attempt, no)
        live_server.callsheet.state.blobs.put(key, body)
        sha256 = digest or hashlib.sha256(body).hexdigest()
        reported.append(commands.OutputFile(no, name, media_type, len(body), sha256))
    live_server.engine.execute(commands.Complete(lease=lease, output=output, files=tuple(reported)))
