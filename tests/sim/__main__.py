"""`python -m tests.sim --seeds N` lives N lives; `--seed K --verbose` plays one again and tells it step by step."""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.sim.life import Report, live


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
        reports: Iterable[Report] = [live(options.seed, verify_every=1, verbose=options.verbose)]
    else:
        reports = _lived(range(options.first, options.first + options.seeds), options.jobs)
    lives = broken = 0
    for report in reports:
        lives += 1
        broken += bool(report.broken)
        if report.broken or options.seed is not None:
            _tell(report)
    print(f"{lives} lives, {broken} broken, {time.monotonic() - began:.1f} s")
    return 1 if broken else 0


def _lived(seeds: Sequence[int], jobs: int) -> Iterator[Report]:
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(live, seeds, chunksize=5)


def _tell(report: Report) -> None:
    for line in report.trace:
        print(line)
    print(f"seed {report.seed}: {report.commits} commits, trace {report.digest[:16]}")
    for finding in report.broken:
        print(f"  broken: {finding}")
    if report.broken:
        print(f"  again: python -m tests.sim --seed {report.seed} --verbose")


if __name__ == "__main__":
    sys.exit(main())
