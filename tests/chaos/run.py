"""One chaos run: faults under load, then peace, then a check of everything that was acknowledged."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from callsheet.client import Client
from tests.chaos.installation import PRICE, WAIT_SECONDS, Fault, Installation
from tests.chaos.load import USER, Load
from tests.support.wait import wait_until

CALLS_BETWEEN_FAULTS = 30
_OPEN = {"pending", "queued", "running", "paused"}


class ChaosReport(NamedTuple):
    """What a run did, and what it found."""

    acknowledged: int
    faults: list[str]
    statuses: dict[str, int]
    problems: list[str]


def run_chaos(
    folder: Path, seed: int, faults: int, *, postgres: bool, report: Callable[[str], None] = lambda _: None
) -> ChaosReport:
    """Run one installation under load with a number of faults."""
    random = Random(seed)
    injected: list[str] = []
    with Installation(folder, random, postgres=postgres) as installation:
        load = Load(installation, seed)
        try:
            for name, inject in _choose_faults(installation, random, faults):
                load.wait_for_calls(CALLS_BETWEEN_FAULTS)
                report(f"{load.acknowledged} calls acknowledged; {name}")
                injected.append(name)
                inject()
            load.wait_for_calls(CALLS_BETWEEN_FAULTS)
        finally:
            load.stop()
        with installation.client() as client:
            wait_until(lambda: _open_jobs(client) == 0, WAIT_SECONDS)
            problems, statuses = _check(client, load)
        violations = installation.verify()
        problems += [violations] if violations else []
        return ChaosReport(load.acknowledged, injected, statuses, [*load.problems, *problems])


def _choose_faults(installation: Installation, random: Random, count: int) -> list[Fault]:
    """Choose faults: each kind once in random order, then again."""
    chosen: list[Fault] = []
    while len(chosen) < count:
        round_of_faults = installation.faults()
        random.shuffle(round_of_faults)
        chosen += round_of_faults
    return chosen[:count]


def _open_jobs(client: Client) -> int:
    return sum(1 for job in client.jobs.list() if job.status in _OPEN)


def _check(client: Client, load: Load) -> tuple[list[str], dict[str, int]]:
    """Compare the stored jobs, outputs and credits with what was acknowledged."""
    problems: list[str] = []
    statuses: dict[str, int] = {}
    stored: dict[str, Any] = {job.id: job for job in client.jobs.list()}
    if len(stored) != len(load.jobs):
        problems.append(f"{len(load.jobs)} jobs were acknowledged, {len(stored)} are stored")
    for key, job_id in load.jobs.items():
        status = stored[job_id].status if job_id in stored else "lost"
        statuses[status] = statuses.get(status, 0) + 1
        if status not in {"completed", "canceled"}:
            problems.append(f"the job of {key!r} is {status}")
        elif status == "completed":
            problems += _check_output(client, key, job_id)
    wallet = client.wallets.get(USER)
    expected = load.topped_up - PRICE * statuses.get("completed", 0)
    if (wallet.balance, wallet.reserved) != (expected, 0):
        problems.append(f"the wallet has {wallet.balance} credits and {wallet.reserved} reserved, not {expected} and 0")
    return problems, statuses


def _check_output(client: Client, key: str, job_id: str) -> list[str]:
    outputs = list(client.jobs.outputs(job_id))
    texts = [client.files.read(file) for output in outputs for file in output.files]
    if [output.output for output in outputs] != [{"text": key.upper()}] or texts != [key.upper().encode()]:
        return [f"the output of {key!r} is {outputs}, {texts}"]
    return []
