"""What people read of a sweep over a bucket: a sentence is not repeated table by table."""

from __future__ import annotations

import io

from rich.console import Console

from icekeeper.policy import Operation
from icekeeper.report.outcome import BucketOutcome, Outside, succeeded
from icekeeper.report.terminal import print_bucket


def test_a_sentence_is_not_repeated_table_by_table() -> None:
    removed = {"ns.a": 0, "ns.b": 0, "ns.c": 2}
    tables = {
        name: succeeded(Operation.REMOVE_ORPHANS, f"removed {count} orphan file(s)") for name, count in removed.items()
    }
    outcome = BucketOutcome(
        catalog="C", bucket="b", run_id="r", dry_run=False, tables=tables, outside=Outside(), foreign=()
    )
    stream = io.StringIO()
    print_bucket(Console(file=stream, width=200), outcome)
    assert stream.getvalue().splitlines() == [
        "b: succeeded",
        "ns.a  succeeded  removed 0 orphan file(s)",
        "ns.b  succeeded  as above",
        "ns.c  succeeded  removed 2 orphan file(s)",
    ]
