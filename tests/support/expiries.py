"""A table of six appends, and expiries of its snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome
from support.maintained_table import MaintainedTable, maintained_table, outcome_of

ROWS = pa.table({"id": [1, 2, 3]})
EXPIRE: dict[str, Any] = {"operations": "expire_snapshots"}


@contextmanager
def six_appends(folder: Path) -> Iterator[MaintainedTable]:
    """The same three rows, six times."""
    with maintained_table(folder) as made:
        written = made.create(ROWS.schema)
        for _ in range(6):
            written.append(ROWS)
        yield made


def expired(table: MaintainedTable, **overrides: Any) -> OperationOutcome:
    return outcome_of(table.maintain(**EXPIRE, **overrides), Operation.EXPIRE_SNAPSHOTS)
