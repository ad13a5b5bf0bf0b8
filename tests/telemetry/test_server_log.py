"""The log of a server: no answer waits for it, and no end."""

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


class NotFromALoop:
    """A database that does not answer whoever asks from an event loop."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner
        self.name = inner.name
        self.lanes = inner.lanes

    def connect(self, *, reading: bool = False) -> Any:
        return NotHere(self._inner.connect(reading=reading))


class NotHere:
    """One of its connections."""

    def __init__(self, inner: Connection) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return getattr(self._inner, name)
        raise ConnectionLost("asked from an event loop")


class Hanging(io.StringIO):
    """A stream that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.writing = threading.Event()
        self.let_go = threading.Event()

    def write(self, text: str, /) -> int:
        self.writing.set()
        self.let_go.wait(3 * _JOIN_SECONDS)
        return super().write(text)


def ended_job(engine: Engine) -> str:
    engine.execute(PutTenant(tenant="acme"))
    engine.execute(
        PutWorkflow(definition=WorkflowDefinition(name="sketch", stages=[StageSpec(name="draw", kind="draw")]))
    )
    job: str = engine.execute(Submit(tenant="acme", user="ann", workflow="sketch")).job_id
    (leased,) = engine.execute(Claim(worker_id="w1", kinds=("draw",)))
    engine.execute(Complete(lease=leased.lease))
    return job


def refused(engine: Engine, job: str) -> None:
    with pytest.raises(IllegalTransition):
        asyncio.run(engine.aexecute(Cancel(tenant="acme", job_id=job)))


def refusal_listeners(log: io.StringIO) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line for line in told if line["event"] == "job.transition_denied"]


def test_a_refused_move_is_written_down_and_asks_no_database_on_the_event_loop(
    database_url: str, tmp_path: Path
) -> None:
    # R26, R96
    log = io.StringIO()
    with Callsheet(database_url, tmp_path) as house:
        job = ended_job(house.engine)
        house.engine.reads.close()
        house.engine.reads = Reads(NotFromALoop(house.engine.database), house.engine.settings)
        house.engine.reads.start()
        house.start(log)
        refused(house.engine, job)
    (line,) = refusal_listeners(log)
    assert (line["job_id"], line["from_status"], line["to_status"]) == (job, "completed", "canceled")


def test_nobody_waits_for_a_log_that_takes_nothing_neither_an_answer_nor_the_end(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callsheet.app._CLOSE_TIMEOUT_SECONDS", 0.1)
    log = Hanging()
    house = Callsheet(database_url, tmp_path)
    job = ended_job(house.engine)
    house.start(log)
    answered = threading.Thread(target=refused, args=(house.engine, job), daemon=True)
    closed = threading.Thread(target=house.close, daemon=True)
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
        log.let_go.set()
        closed.join(_JOIN_SECONDS)
