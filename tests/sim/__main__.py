"""`python -m tests.sim --seeds N` runs N simulations; `--seed K --verbose` runs one again and prints every step."""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.sim.simulation import Report, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="number of simulations")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="run only this seed, with all checks at every commit")
    parser.add_argument("--verbose", action="store_true", help="print the trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    options = parser.parse_args()
    started = time.monotonic()
    if options.seed is not None:
        reports: Iterable[Report] = [simulate(options.seed, verify_every=1, verbose=options.verbose)]
    else:
        reports = _simulate_all(range(options.first, options.first + options.seeds), options.jobs)
    runs = failures = 0
    for report in reports:
        runs += 1
        failures += bool(report.failures)
        if report.failures or options.seed is not None:
            _print_report(report)
    print(f"{runs} simulations, {failures} failed, {time.monotonic() - started:.1f} s")
    return 1 if failures else 0


def _simulate_all(seeds: Sequence[int], jobs: int) -> Iterator[Report]:
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(simulate, seeds, chunksize=5)


def _print_report(report: Report) -> None:
    for line in report.trace:
        print(line)
    print(f"seed {report.seed}: {report.commits} commits, trace {report.digest[:16]}")
    for finding in report.failures:
        print(f"  failure: {finding}")
    if report.failures:
        print(f"  run again: python -m tests.sim --seed {report.seed} --verbose")


if __name__ == "__main__":
    sys.exit(main())
