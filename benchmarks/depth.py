"""What clustering costs and leaves over a thousand rounds of new data, by limit and tier factor; plans only, no bytes.

    python -m benchmarks.depth [--appends 1000]

Each round appends one sorted run of 1,000 rows and plans as a pass does.  Keys: random (every run covers everything),
in order (as of time), in order with late rows, and hot (most runs over few keys).  Printed: rows written per row
appended, and the formula's ``1 + log_T(runs)``; runs over the worst key at the end of a round, greatest and on average.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Sequence

from icekeeper.operations.compaction.plan.plan_clustering import Piece, run_depth, runs_to_merge

ROWS, OUTPUT_ROWS = 1000, 10_000
KEYS: dict[str, Callable[[random.Random, int], tuple[float, float]]] = {
    "random": lambda rng, n: (rng.random(), 100 - rng.random()),
    "in order": lambda rng, n: (10 * n, 10 * n + 12),
    "late": lambda rng, n: (10 * n - rng.expovariate(1 / 50), 10 * n + 12),
    "very late": lambda rng, n: (10 * n - rng.expovariate(1 / 3000), 10 * n + 12),
    "hot": lambda rng, n: ((c := 1000 * rng.random() ** 4) - 50 * rng.random(), c + 200 * rng.random()),
}
SETTINGS = ((1, 4), (4, 2), (4, 4), (4, 8), (8, 4), (8, 8), (4, 10))


def piece(run: int, low: float, high: float, rows: int) -> Piece:
    """A file of a run."""
    return Piece(run, (((low,), (high,)),), rows)


def merged(pieces: Sequence[Piece], group: Sequence[int], run: int) -> list[Piece]:
    """The files of one run that holds the rows of a group, cut where their ends lie."""
    ends = sorted(end[0] for n in group for end in pieces[n].ranges[0])
    rows = sum(pieces[n].rows for n in group)
    count = max(1, min(round(rows / OUTPUT_ROWS), len(ends) - 1))
    cuts = [ends[round(i * (len(ends) - 1) / count)] for i in range(count + 1)]
    return [piece(run, cuts[i], cuts[i + 1], rows * (i + 1) // count - rows * i // count) for i in range(count)]


def main() -> int:
    """Play every kind of keys under every setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--appends", type=int, default=1000)
    appends = parser.parse_args().appends
    print(f"{'keys':10} {'limit':>5} {'factor':>6} {'written':>8} {'formula':>8} {'deepest':>8} {'mean':>6}")
    for keys, make in KEYS.items():
        for limit, factor in SETTINGS:
            rng = random.Random(7)
            pieces: list[Piece] = []
            written, run = 0, 0
            depths = []
            for n in range(appends):
                run += 1
                pieces.append(piece(run, *make(rng, n), ROWS))
                written += ROWS
                groups = runs_to_merge(pieces, limit=limit, factor=factor)
                gone = {m for group in groups for m in group}
                written += sum(pieces[m].rows for m in gone)
                kept = [p for m, p in enumerate(pieces) if m not in gone]
                for group in groups:
                    run += 1
                    kept += merged(pieces, group, run)
                pieces = kept
                depths.append(run_depth(pieces))
            ratio, formula = written / (ROWS * appends), 1 + math.log(appends, factor)
            mean = sum(depths) / len(depths)
            print(f"{keys:10} {limit:5} {factor:6} {ratio:8.2f} {formula:8.2f} {max(depths):8} {mean:6.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
