"""Runs the parts, prints one table and writes results.json."""

import argparse
import time
from collections.abc import Callable
from typing import Any

from bench import backlog, cpu, http_api, latency, peer_comparison, profile, streams, throughput, worker_protocol
from bench.databases import Databases
from bench.table import PAGE, Row, format_table, replace_figures, save

PARTS: dict[str, Callable[..., list[Row]]] = {
    "throughput": throughput.measure,
    "peers": peer_comparison.measure,
    "backlog": backlog.measure,
    "latency": latency.measure,
    "cpu": cpu.measure,
    "web": http_api.measure,
    "streams": streams.measure,
    "fleet": worker_protocol.measure,
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
    parser.add_argument("--profile", action="store_true", help="only tell where the time of bulk calls on SQLite goes")
    parser.add_argument("--quick", action="store_true", help="smaller loads; like --only, it leaves results.json alone")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="run this part (may be given again)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
