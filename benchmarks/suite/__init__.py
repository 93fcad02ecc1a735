"""The rows of the suite and their targets: what is measured, on which table, between whom, and what is wanted.

A target compares a figure of ours with the same figure of another contestant in the same run, or with a limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.row import Row
from benchmarks.suite.commands import COMMANDS
from benchmarks.suite.metadata import METADATA
from benchmarks.suite.rewrites import REWRITES
from benchmarks.suite.stores import STORES

__all__ = ["ROWS", "rows_named"]

ROWS: Sequence[Row] = (*REWRITES, *STORES, *METADATA, *COMMANDS)


def rows_named(keys: Sequence[str]) -> list[Row]:
    """The rows with these keys, all of them where there are none.

    Raises:
        SystemExit: there is no such row.
    """
    known = {row.key: row for row in ROWS}
    unknown = [key for key in keys if key not in known]
    if unknown:
        raise SystemExit(f"there is no row {', '.join(unknown)}; rows are {', '.join(known)}")
    return [known[key] for key in keys] if keys else list(ROWS)
