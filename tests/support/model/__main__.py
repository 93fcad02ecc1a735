"""Run random histories: ``python -m support.model --histories 1000 --seed 7``.

At a given commit, the history with number ``n`` of seed ``s`` is always the same: its steps, how many requests a pass
makes before another process acts, faults, the answers of the catalog and their order, and the hours that pass.  A
failure names the call that repeats it (``--seed s --only n``); it is shortened and printed as code, for ``FOUND`` in
``tests/property/test_table_under_fire.py``.  With ``--record``, the run is added to ``ran.csv``, and its seed is the
next number there.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import logging
import subprocess
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from support.duckdb_session import shared_duckdb
from support.model.history import History, random_history, run_history
from support.model.run import Counts

_RAN = Path(__file__).with_name("ran.csv")


def failure_of(history: History, counts: Counts) -> BaseException | None:
    """The error of a history at any of its steps, if any."""
    try:
        run_history(history, shared_duckdb(), counts)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    return None


def shortened(history: History) -> History:
    """The history without steps that its failure does not need."""
    for number in reversed(range(len(history.steps))):
        fewer = replace(history, steps=history.steps[:number] + history.steps[number + 1 :])
        if failure_of(fewer, Counts()) is not None:
            history = fewer
    return history


def ran() -> list[dict[str, str]]:
    """The runs so far."""
    with _RAN.open(newline="") as source:
        return list(csv.DictReader(source))


def run_all(seed: int, numbers: Sequence[int]) -> tuple[Counts, int]:
    """Run the histories of a seed with these numbers; return counts and the number of failures."""
    counts, began, failures = Counts(), time.monotonic(), 0
    for number in numbers:
        history = random_history(f"{seed}:{number}")
        error = failure_of(history, counts)
        if error is not None:
            failures += 1
            print(f"FAILED {seed}:{number}: {type(error).__name__}: {str(error)[:500]}", flush=True)
            print(f"  again: PYTHONPATH=tests python -m support.model --seed {seed} --only {number}", flush=True)
            again = failure_of(shortened(history), Counts()) or error
            traceback.print_exception(again)
        if (number + 1) % 100 == 0:
            print(f"seed {seed}: {number + 1} histories, {time.monotonic() - began:.0f} s", flush=True)
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser(description="Run random histories of a table under fire.")
    parser.add_argument("--histories", type=int, default=100)
    parser.add_argument("--seed", type=int, help="the next one that was not recorded, unless named")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="run this history of the seed alone")
    parser.add_argument("--record", action="store_true", help="add the run to ran.csv")
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # each failure of a store logs a warning
    seed = given.seed if given.seed is not None else 1 + max(int(row["seed"]) for row in ran())
    numbers = range(given.histories) if given.only is None else [given.only]
    counts, failures = run_all(seed, numbers)
    for what, times in sorted(counts.done.items()):
        print(f"  {what}: {times}")
    if given.record:
        asks = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(asks, cwd=_RAN.parent, capture_output=True, text=True, check=False).stdout.strip()
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        with _RAN.open("a", newline="") as sink:
            row = today, commit, seed, len(numbers), failures
            csv.writer(sink, lineterminator="\n").writerow(row)
    total = sum(int(row["histories"]) for row in ran())
    print(f"seed {seed}: {len(numbers)} histories, {counts.steps} steps, {failures} failed; {total} recorded so far")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
