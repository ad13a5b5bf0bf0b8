"""Runs the benchmarks, prints one table, and writes results.json and docs/design/performance.md."""

import argparse
import time
from collections.abc import Callable
from typing import Any

from bench.databases import Databases
from bench.engine import backlog, cpu, latency, limits, profile, size, throughput, verification
from bench.http import api, overload, streams, streams_under_load, worker_protocol
from bench.peers import comparison
from bench.table import PAGE, Row, format_table, replace_figures, save

PARTS: dict[str, Callable[..., list[Row]]] = {
    "throughput": throughput.measure,
    "peers": comparison.measure,
    "backlog": backlog.measure,
    "size": size.measure,
    "limits": limits.measure,
    "latency": latency.measure,
    "cpu": cpu.measure,
    "verify": verification.measure,
    "web": api.measure,
    "streams": streams.measure,
    "busy-streams": streams_under_load.measure,
    "fleet": worker_protocol.measure,
    "overload": overload.measure,
}


def main() -> None:
    options = _parse_arguments()
    rows: list[Row] = []
    start = time.perf_counter()
    with Databases() as databases:
        if options.profile:
            profile.report(databases)
            return
        for name in options.only or PARTS:
            print(f"{name}:", flush=True)
            rows.extend(PARTS[name](databases, quick=options.quick))
    print()
    print(format_table(rows))
    print(f"\n{time.perf_counter() - start:.0f} seconds")
    if not options.only and not options.quick:
        save(rows)
        PAGE.write_text(replace_figures(rows, PAGE.read_text()))


def _parse_arguments() -> Any:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--profile", action="store_true", help="only profile bulk calls on SQLite")
    parser.add_argument(
        "--quick", action="store_true", help="smaller loads; like --only, it does not write results.json"
    )
    parser.add_argument("--only", action="append", choices=list(PARTS), help="run this part only (repeatable)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
