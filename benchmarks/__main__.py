"""The suite's command: ``python -m benchmarks [ROW]… [--quick] [--scale 1/4] [--growth] [--record]``."""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

from benchmarks.contestants import CONTESTANTS, without_before
from benchmarks.growth import SCALES, growth, growth_lines
from benchmarks.peers.environment import make_environment
from benchmarks.peers.rest_catalog import RestCatalogServer
from benchmarks.record import last_results, record
from benchmarks.report import as_json, beside_last, contest_table, target_lines
from benchmarks.row import Row
from benchmarks.run_rows import Ways, run_row
from benchmarks.run_store_rows import run_store_row
from benchmarks.suite import rows_named

WORK = Path(__file__).parents[1] / "build" / "benchmarks"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows by their key; all unless given")
    parser.add_argument("--quick", action="store_true", help="small tables, only the rows that have a quick scale")
    parser.add_argument("--scale", type=Fraction, help="share of the full size, such as 1/4")
    parser.add_argument("--growth", action="store_true", help="only Icekeeper, at 1/16, 1/4 and 1 of the full size")
    parser.add_argument("--rounds", type=int, help="five of short rows and three of others, unless given")
    parser.add_argument("--without", action="append", default=[], metavar="CONTESTANT", choices=list(CONTESTANTS))
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="also measure another commit, without record")
    parser.add_argument("--record", action="store_true", help="write what was measured into docs/performance.*")
    parser.add_argument("--work", type=Path, default=WORK, help="keeps tables and the peers' environment")
    options = parser.parse_args(arguments)
    if options.beside and options.growth:
        parser.error("--growth measures one commit: leave --beside out")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows, print them, keep them as JSON.

    Raises:
        SystemExit: another measurement uses the folder.
    """
    options = _options(arguments)
    # As on Ctrl-C: contestants are ended, tables set back.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    work: Path = options.work.resolve()
    (work / "results").mkdir(parents=True, exist_ok=True)
    with _held(work):
        return _measure(options, work)


def _held(work: Path) -> IO[str]:
    """A file that keeps the folder for this process until it is closed: two would set back each other's tables.

    Raises:
        SystemExit: another process has it.
    """
    held = (work / "lock").open("w")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.close()
        raise SystemExit(f"another measurement uses {work}: wait for its end, or give --work another folder") from None
    return held


def _measure(options: argparse.Namespace, work: Path) -> int:
    mode = "growth" if options.growth else "quick" if options.quick else "full"
    output = work / "results" / f"{mode}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    ways = Ways(
        work,
        make_environment(work),
        RestCatalogServer(work / "rest"),
        options.rounds,
        frozenset(options.without),
        options.beside and options.beside.resolve(),
        lambda line: print(line, flush=True),
    )
    for package, why in ways.peers.missing.items():
        print(f"{package} cannot be installed: {why}")
    rows: dict[str, Any] = {}
    try:
        for row in rows_named(options.rows):
            if options.quick and row.quick_scale is None:
                continue
            if options.growth:
                rows[row.key] = growth([_measured(_ours(row), float(scale), ways) for scale in SCALES])
            else:
                scale = float(options.scale or (row.quick_scale if options.quick else 1) or 1)
                rows[row.key] = _measured(row, scale, ways)
            output.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    finally:
        ways.close()
        ways.rest.close()
        shutil.rmtree(work / "spark", ignore_errors=True)  # a JVM that is killed leaves its blocks: gigabytes
    if options.growth:
        print("\n".join(growth_lines(rows)))
    else:
        print("\n".join(target_lines(rows)), "\n")
        print("\n".join(beside_last(rows, last_results(mode))))
    print(f"\nall figures are in {output}")
    if options.record:
        record(mode, rows if options.growth else {key: without_before(row) for key, row in rows.items()})
    return 0


def _ours(row: Row) -> Row:
    """The row without others, and without targets."""
    return replace(row, entrants=[name for name in row.entrants if name.startswith("icekeeper")], targets=())


def _measured(row: Row, scale: float, ways: Ways) -> dict[str, Any]:
    print(f"{row.title} ({row.key}, scale {scale:g})", flush=True)
    run = run_row if row.store_delay_ms is None else run_store_row
    found = as_json(run(row, scale, ways))
    print("\n".join(["", *contest_table(found), ""]), flush=True)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
