"""Helpers that create workflows, jobs and leases on a live server, for tests of jobs over HTTP."""

import hashlib
from typing import Any

from callsheet.blobs import object_keys
from callsheet.core.model import commands
from callsheet.core.model.commands import Lease, OutputFile
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.support.processes.live_server import TENANT, LiveServer

PNG = b"\x89PNG\r\n\x1a\n and then some pixels"
FILM = [StageSpec(name="script", kind="script"), StageSpec(name="cut", kind="cut", approval=True, tasks=2)]
UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"


def workflow(live_server: LiveServer, name: str, kind: str = "", provider: str = "", **fields: Any) -> str:
    """Store a free workflow with one task, whose kind has the name of the workflow by default."""
    fields.setdefault("stages", [StageSpec(name="draw", kind=kind or name, provider=provider)])
    live_server.engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name=name, **fields)))
    return name


def submit_job(live_server: LiveServer, name: str, role: str = "client", **more: Any) -> str:
    return str(live_server.submit(role, workflow=name, **more)["id"])


def claim_lease(live_server: LiveServer, kind: str, worker: str = "w1") -> Lease:
    (leased,) = live_server.engine.execute(commands.Claim(worker_id=worker, kinds=(kind,)))
    lease: Lease = leased.lease
    return lease


def get_json(live_server: LiveServer, path: str, role: str = "client") -> Any:
    return live_server.client(role).get(path).raise_for_status().json()


def complete_with_files(
    live_server: LiveServer, lease: Lease, *files: tuple[str, str, bytes], output: Any = None
) -> None:
    """Store bytes where a worker would, and complete the task with them."""
    made = []
    for no, (name, media_type, body) in enumerate(files, 1):
        live_server.blobs.put(object_keys.output_key(TENANT, lease.job_id, lease.task_id, lease.attempt, no), body)
        made.append(OutputFile(no, name, media_type, len(body), hashlib.sha256(body).hexdigest()))
    live_server.engine.execute(commands.Complete(lease=lease, output=output, files=tuple(made)))
