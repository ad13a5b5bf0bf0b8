"""Runs the parts, prints one table and writes results.json."""

import argparse
import time
from collections.abc import Callable
from typing import Any

from bench import backlog, cpu, fleet, latency, profile, streams, throughput, versus, web
from bench.places import Places
from bench.table import PAGE, Row, on_page, save, shown

PARTS: dict[str, Callable[..., list[Row]]] = {
    "throughput": throughput.measure,
    "peers": versus.measure,
    "backlog": backlog.measure,
    "latency": latency.measure,
    "cpu": cpu.measure,
    "web": web.measure,
    "streams": streams.measure,
    "fleet": fleet.measure,
}


def main() -> None:
    asked = _arguments()
    rows: list[Row] = []
    start = time.perf_counter()
    with Places() as places:
        if asked.profile:
            profile.report(places)
            return
        for name in asked.only or PARTS:
            print(f"{name}:", flush=True)
            rows.extend(PARTS[name](places, quick=asked.quick))
    print()
    print(shown(rows))
    print(f"\n{time.perf_counter() - start:.0f} seconds")
    if not asked.only and not asked.quick:
        save(rows)
        PAGE.write_text(on_page(rows, PAGE.read_text()))


def _arguments() -> Any:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--profile", action="store_true", help="only tell where the time of bulk calls on SQLite goes")
    parser.add_argument("--quick", action="store_true", help="smaller loads; like --only, it leaves results.json alone")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="run this part (may be given again)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
