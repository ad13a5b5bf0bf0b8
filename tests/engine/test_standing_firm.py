"""What one command, one caller or one listener does wrong is theirs: the lane goes on, and the house says why not."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from callsheet.config import Settings
from callsheet.core import commands as c
from callsheet.core.commands import Command
from callsheet.core.limits import Limits
from callsheet.core.recipe import Recipe
from callsheet.core.rows import ApiKey, Tenant
from callsheet.core.working import WorkingSet
from callsheet.engine import Engine, Unavailable
from callsheet.engine.batch import Batch, Done
from callsheet.engine.lane import FULL
from callsheet.store.connection import Clash, Contended
from callsheet.store.sqlite import SqliteConnection, SqliteDatabase
from tests.support.clocked import ClockedConnection
from tests.support.racing import at_once, servers
from tests.support.studio import Studio, stage


def failing_first(patch: pytest.MonkeyPatch, error: Exception, times: int = 1) -> None:
    """Let the next batches fail, as a deadlock or a race does."""
    real, left = Batch.run, [times]

    def run(self: Batch, commands: Sequence[Command], *, again: bool = False) -> Done:
        if left[0]:
            left[0] -= 1
            raise error
        return real(self, commands, again=again)

    patch.setattr(Batch, "run", run)


def asked_for(patch: pytest.MonkeyPatch, name: str) -> list[dict[str, Any]]:
    """Note with what a query is asked from now on."""
    real, asked = ClockedConnection.fetch, list[dict[str, Any]]()

    def fetch(self: ClockedConnection, query: str, /, **given: Any) -> Any:
        if query == name:
            asked.append(given)
        return real(self, query, **given)

    patch.setattr(ClockedConnection, "fetch", fetch)
    return asked


def test_a_workflow_is_put_when_it_is_tried_again(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of the audit log is looked for after the decision, which is then made anew, from the beginning."""
    failing_first(monkeypatch, Contended("deadlock detected"))
    put = c.PutWorkflow(recipe=Recipe(name="sketch", price=7, stages=[stage()]), by="op")
    assert (studio.do(put).version, studio.submit().price) == (2, 7)


def test_two_servers_that_put_workflows_at_once_both_do(place: str) -> None:
    with servers(place, 2) as studios:
        studios[0].tenant()
        studios[0].workflow()
        puts = [c.PutWorkflow(recipe=Recipe(name="sketch", price=n, stages=[stage()])) for n in (6, 7)]
        done = at_once(*[lambda s=s, put=put: s.do(put) for s, put in zip(studios, puts, strict=True)])
        assert sorted(workflow.version for workflow in done) == [2, 3]


def test_two_servers_that_change_a_tenant_at_once_lose_neither_change(place: str) -> None:
    with servers(place, 2) as (one, two):
        one.tenant()
        for weight in range(2, 8):
            changes = (
                lambda weight=weight: one.tenant(weight=weight),
                lambda weight=weight: two.tenant(active_jobs_max=weight),
            )
            at_once(*changes)
            (row,) = one.read.fetch("tenants", ids=["acme"])
            assert (Tenant(*row).weight, Tenant(*row).active_jobs_max) == (weight, weight)


def test_two_servers_that_make_the_same_first_key_have_one(place: str) -> None:
    with servers(place, 2) as studios:
        make = c.CreateKey(tenant="", role="admin", name="first", secret_hash="5" * 64)
        keys = at_once(*[lambda s=s: s.do(make) for s in studios * 4])
        assert len({key.id for key in keys}) == 1
        other = c.CreateKey(tenant="", role="worker", name="first", secret_hash="5" * 64)
        assert studios[0].refused(other).code == "secret_in_use"
        assert len([ApiKey(*row) for row in studios[0].read.fetch("keys_of", tenant="", all=1, after="", count=9)]) == 1


def test_a_command_that_clashes_for_ever_hears_so_and_holds_up_nobody(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patience is for a database that is away, not for what no patience helps."""
    failing_first(monkeypatch, Clash("the same key"), times=6)
    (result,) = studio.engine.execute_many([studio.submission()])
    assert isinstance(result, Clash)
    assert studio.submit().status == "queued"


def test_a_race_for_a_key_is_tried_again(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_first(monkeypatch, Clash("the same key"), times=3)
    assert studio.submit().status == "queued"


def test_a_claim_for_too_much_reads_no_more_than_the_most(open_studio: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    studio: Studio = open_studio(Settings(patience_seconds=5, limits=Limits(claim_max=2)))
    for _ in range(4):
        studio.ask()
    asked = asked_for(monkeypatch, "candidates")
    assert studio.refused(c.Claim(worker_id="w", kinds=("draw",), count=10**9)).code == "out_of_range"
    assert [given["count"] for given in asked] == [2]


def test_a_batch_locks_the_queues_of_all_its_claims_once(open_studio: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers that lock one after the other, in turns, would wait for each other for ever."""
    studio: Studio = open_studio(Settings(limits=Limits(kind_running_max={"draw": 3, "cut": 3})))
    studio.workflow("film", stages=[stage("cut")])
    studio.ask()
    studio.ask("film")
    asked = asked_for(monkeypatch, "lock_queues")
    claims = [c.Claim(worker_id="w", kinds=(kind,)) for kind in ("draw", "cut")]
    assert [len(leased) for leased in studio.engine.execute_many(claims)] == [1, 1]
    assert asked == [{"ids": ["cut/film", "draw/sketch"]}]


def test_a_user_announces_no_more_files_than_he_may_however_many_ask_at_once(place: str) -> None:
    with servers(place, 2, Settings(limits=Limits(uploads_awaited_max=1))) as studios:
        studios[0].tenant()
        ask = c.AskUpload(tenant="acme", user="ada", name="a.png", media_type="image/png", bytes=1, sha256="0" * 64)
        answers = at_once(*[lambda s=s: s.do(ask) for s in studios * 4])
        assert sum(not isinstance(answer, Exception) for answer in answers) == 1


@pytest.mark.parametrize("change", ["suspended", "off"])
def test_a_retry_opens_no_run_that_a_submit_could_not(studio: Studio, change: str) -> None:
    job = studio.ask()
    studio.fail(studio.take())
    if change == "suspended":
        studio.tenant(status="suspended")
    else:
        studio.workflow(enabled=False)
    code = {"suspended": "tenant_suspended", "off": "workflow_disabled"}[change]
    before = studio.snapshot()
    assert studio.refused(c.Retry(tenant="acme", job_id=job)).code == code
    assert studio.refused(studio.submission()).code == code
    assert studio.snapshot() == before


def test_a_listener_that_breaks_undoes_nothing_and_keeps_nobody_from_hearing(
    studio: Studio, caplog: pytest.LogCaptureFixture
) -> None:
    heard = threading.Event()

    def broken() -> None:
        raise RuntimeError("the loop is closed")

    studio.engine.watchers[:] = [broken, heard.set]
    mark = studio.engine.hints.mark(("draw",))
    studio.engine.hints.subscribe(("draw",), mark, broken)
    job = studio.ask()
    assert (studio.status(job), heard.is_set()) == ("queued", True)
    assert studio.events(job) == ["job.created"]
    assert [record.exc_text is not None for record in caplog.records] == [True, True]


# -- SQLite's own


def test_what_strangers_asked_for_in_vain_is_not_kept() -> None:
    """A SQLite lane keeps rows from batch to batch; names that do not exist are whatever somebody sent."""
    first = WorkingSet(0, Limits())
    first.load(Tenant, [Tenant("acme", 1, "active", 0, 0, 0)], ["acme", "x" * 900_000])
    for name, recipe in (("sketch", Recipe(name="sketch", stages=[stage()])), ("y" * 900_000, None)):
        first.facts |= {
            ("current_recipe", name): recipe, ("current_version", name): int(recipe is not None),
            ("validator", name): None,
        }  # fmt: skip
    then = WorkingSet(0, Limits(), kept=first)
    assert (then.knows(Tenant, "acme"), then.knows(Tenant, "x" * 900_000)) == (True, False)
    assert then.has("validator", "sketch")
    assert not any(then.has(name, "y" * 900_000) for name in ("current_recipe", "current_version", "validator"))
    assert len(then) == 4


def test_a_stop_leaves_the_database_in_one_file(tmp_path: Path) -> None:
    """Who copies it then copies everything."""
    place = tmp_path / "studio.db"
    with Engine.open(place) as engine:
        engine.execute(c.PutTenant(tenant="acme"))
        assert engine.read.fetch("tenants", ids=["acme"])
    assert [file.name for file in tmp_path.iterdir()] == ["studio.db"]


def test_a_full_disk_is_said_at_once_and_is_over_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = SqliteDatabase.connect, [1]

    def connect(self: SqliteDatabase, *, reading: bool = False) -> SqliteConnection:
        made = real(self, reading=reading)
        made.run(f"PRAGMA max_page_count = {room[0]}")  # at the least as many as there are
        return made

    place = str(tmp_path / "studio.db")
    with Studio(place) as studio:
        studio.tenant()
        studio.workflow(price=0)
    monkeypatch.setattr(SqliteDatabase, "connect", connect)
    with Engine.open(place, Settings(patience_seconds=3_600)) as engine:
        large = studio.submission(input={"prompt": "x" * 100_000})
        (refused,) = engine.execute_many([large])
        assert (type(refused), str(refused), engine.trouble) == (Unavailable, FULL, FULL)
        room[0] = 2**30
        assert (engine.execute(large).status, engine.trouble) == ("queued", None)
