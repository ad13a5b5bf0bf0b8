"""Two hundred fixed seeds keep every rule, and a seed can be run again with the same trace."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.simulation import simulate

SEEDS = 200
CHUNK = 20
ROOT = Path(__file__).parents[2]
DIGESTS = "from tests.sim.simulation import simulate; print(*(simulate(seed).digest for seed in range(12)))"


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_seed_keeps_all_rules(first):
    """The state invariants after commits; H1-H8, H10, H12, H16-H21, H23, H25, H27 over the history; V1-V4, V7, V9.

    F18-F21 in virtual time. R24, R27, R34, R36, R54, R57, R64, R73, R88, R194, R195, R201, R203, R208-R212, R308,
    R309, R313, R315, R418, R419, R424, R430, R432.
    """
    failures = {
        report.seed: report.failures[:3] for report in map(simulate, range(first, first + CHUNK)) if report.failures
    }
    commands = "".join(f"\n  python -m tests.sim --seed {seed} --verbose" for seed in failures)
    assert failures == {}, f"run these seeds again, with their traces:{commands}"


def test_the_same_seed_gives_the_same_trace():
    # H24
    first, second = simulate(7, verbose=True), simulate(7, verbose=True)
    assert first.trace == second.trace
    assert first.digest == second.digest
    assert first.digest != simulate(8).digest


def test_a_trace_does_not_depend_on_the_process():
    # H24: sets are ordered by hashes, which differ from process to process
    traces = {_digests(hash_seed) for hash_seed in ("1", "3", "4")}
    assert len(traces) == 1


def _digests(hash_seed: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", DIGESTS],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout
