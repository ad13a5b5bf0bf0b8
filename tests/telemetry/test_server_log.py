"""The log of a server: neither a response nor a shutdown waits for it."""

import asyncio
import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from callsheet.app import Callsheet
from callsheet.core.model.commands import Cancel, Claim, Complete, PutTenant, PutWorkflow, Submit
from callsheet.core.model.errors import IllegalTransition
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.engine import Engine
from callsheet.engine.reads.facade import Reads
from callsheet.store.connection import Connection, ConnectionLost, Database
from tests.support.wait import wait_until

_JOIN_SECONDS = 20.0


class NoEventLoopDatabase:
    """A database that fails if it is used on an event loop."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner
        self.name = inner.name
        self.lanes = inner.lanes
        self.clock = inner.clock

    def connect(self, *, reading: bool = False) -> Any:
        return NoEventLoopConnection(self._inner.connect(reading=reading))


class NoEventLoopConnection:
    """A connection that fails if it is used on an event loop."""

    def __init__(self, inner: Connection) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return getattr(self._inner, name)
        raise ConnectionLost("used on an event loop")


class BlockedStream(io.StringIO):
    """A stream whose writes block until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.writing = threading.Event()
        self.released = threading.Event()

    def write(self, text: str, /) -> int:
        self.writing.set()
        self.released.wait(3 * _JOIN_SECONDS)
        return super().write(text)


def completed_job(engine: Engine) -> str:
    engine.execute(PutTenant(tenant="acme"))
    engine.execute(
        PutWorkflow(definition=WorkflowDefinition(name="sketch", stages=[StageSpec(name="draw", kind="draw")]))
    )
    job: str = engine.execute(Submit(tenant="acme", user="ann", workflow="sketch")).job_id
    (leased,) = engine.execute(Claim(worker_id="w1", kinds=("draw",)))
    engine.execute(Complete(lease=leased.lease))
    return job


def cancel_completed_job(engine: Engine, job: str) -> None:
    with pytest.raises(IllegalTransition):
        asyncio.run(engine.aexecute(Cancel(tenant="acme", job_id=job)))


def denied_moves(log: io.StringIO) -> list[dict[str, Any]]:
    written = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line for line in written if line["event"] == "job.transition_denied"]


def test_a_refused_move_is_logged_without_a_database_read_on_the_event_loop(database_url: str, tmp_path: Path) -> None:
    # R26, R96
    log = io.StringIO()
    with Callsheet(database_url, tmp_path) as callsheet:
        job = completed_job(callsheet.engine)
        callsheet.engine.reads.close()
        callsheet.engine.reads = Reads(NoEventLoopDatabase(callsheet.engine.database), callsheet.engine.settings)
        callsheet.engine.reads.start()
        callsheet.start(log)
        cancel_completed_job(callsheet.engine, job)
    (line,) = denied_moves(log)
    assert (line["job_id"], line["from_status"], line["to_status"]) == (job, "completed", "canceled")


def test_neither_a_response_nor_a_shutdown_waits_for_a_blocked_log(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callsheet.app._CLOSE_TIMEOUT_SECONDS", 0.1)
    log = BlockedStream()
    callsheet = Callsheet(database_url, tmp_path)
    job = completed_job(callsheet.engine)
    callsheet.start(log)
    answered = threading.Thread(target=cancel_completed_job, args=(callsheet.engine, job), daemon=True)
    closed = threading.Thread(target=callsheet.close, daemon=True)
    try:
        answered.start()
        answered.join(_JOIN_SECONDS)
        assert not answered.is_alive()
        wait_until(log.writing.is_set)
        closed.start()
        closed.join(_JOIN_SECONDS)
        assert not closed.is_alive()
        assert "Loops that did not stop within 0.1 seconds: " in capsys.readouterr().err
    finally:
        log.released.set()
        closed.join(_JOIN_SECONDS)
