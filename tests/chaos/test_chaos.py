"""A short chaos run on each database, and proof that its checks find what is lost. `make chaos` runs longer."""

from pathlib import Path

import pytest

from tests.chaos.load import Load
from tests.chaos.run import run_chaos

SEED = 1


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_nothing_acknowledged_is_lost_when_processes_are_killed(tmp_path: Path, database: str) -> None:
    found = run_chaos(tmp_path, SEED, faults=5, postgres=database == "postgresql")
    assert found.problems == []
    assert len(found.faults) == 5
    assert found.statuses["completed"] > 0


def test_a_lost_job_and_a_lost_credit_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Load.stop

    def stop_and_remember_too_much(self: Load) -> None:
        stop(self)
        self.jobs["never sent"] = "0197f3a0-0000-7000-8000-000000000001"
        self.topped_up += 1

    monkeypatch.setattr(Load, "stop", stop_and_remember_too_much)
    found = run_chaos(tmp_path, SEED, faults=0, postgres=False)
    assert [problem.partition(" ")[2].partition(" ")[0] for problem in found.problems] == ["jobs", "job", "wallet"]
    assert "the job of 'never sent' is lost" in found.problems
