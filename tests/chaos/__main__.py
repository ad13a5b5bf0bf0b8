"""`python -m tests.chaos --faults 40` kills servers, workers and PostgreSQL under load and checks every promise."""

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import run_chaos

_SEED_MAX = 10_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=40, help="number of faults on each database")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(_SEED_MAX), help="order of faults and calls")
    parser.add_argument("--database", choices=["sqlite", "postgresql", "both"], default="both")
    options = parser.parse_args()
    databases = ["sqlite", "postgresql"] if options.database == "both" else [options.database]
    failed = False
    for database in databases:
        with tempfile.TemporaryDirectory(prefix="callsheet-chaos-") as folder:
            print(f"{database}, seed {options.seed}")
            found = run_chaos(
                Path(folder), options.seed, options.faults, postgres=database == "postgresql", report=print
            )
        jobs = ", ".join(f"{count} {status}" for status, count in sorted(found.statuses.items()))
        print(f"{database}: {found.acknowledged} calls acknowledged, {len(found.faults)} faults, jobs: {jobs}")
        for problem in found.problems:
            print(f"  problem: {problem}")
        failed = failed or bool(found.problems)
    print("Something was lost." if failed else "Nothing was lost.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
