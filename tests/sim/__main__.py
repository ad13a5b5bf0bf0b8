"""`python -m tests.sim --seeds N` lives N lives; `--seed K --verbose` plays one again and tells it step by step."""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.sim.simulation import Report, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many lives")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this one, with all checks at every commit")
    parser.add_argument("--verbose", action="store_true", help="print the trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes")
    options = parser.parse_args()
    began = time.monotonic()
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
    print(f"{runs} lives, {failures} broken, {time.monotonic() - began:.1f} s")
    return 1 if failures else 0


def _simulate_all(seeds: Sequence[int], jobs: int) -> Iterator[Report]:
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(simulate, seeds, chunksize=5)


def _print_report(report: Report) -> None:
    for line in report.trace:
        print(line)
    print(f"seed {report.seed}: {report.commits} commits, trace {report.digest[:16]}")
    for finding in report.failures:
        print(f"  broken: {finding}")
    if report.failures:
        print(f"  again: python -m tests.sim --seed {report.seed} --verbose")


if __name__ == "__main__":
    sys.exit(main())
