"""Passes over a table from which a writer deletes single rows all the time.

    PYTHONPATH=tests python -m benchmarks.under_fire [--version 2] [--rate 1] [--order sort]

The table has 48 files in 12 partitions.  Each commit of the writer deletes one row in each of two files, by position
delete files (v2) or deletion vectors (v3), as many times a second as asked.  Every pass rewrites all files and commits
at the end.  Prints what was dropped, what was forwarded, the most delete files after a pass and what the writer had to
repeat; DuckDB must find exactly the rows that are left.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from icekeeper.demo.duckdb_child import _scan, connect
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import CommitConflict, MetadataUnreadable
from icekeeper.model import DataFile, FileContent
from icekeeper.policy import Operation
from support import v3
from support.chaos import AtOneHead
from support.deletes import commit_deletes, position_delete
from support.maintained_table import MaintainedTable, local_path, maintained_table, outcome_of

FILES, PARTITIONS = 48, 12
ORDERS: dict[str, dict[str, str]] = {
    "binpack": {"min_row_group_copy_bytes": "none"},
    "copy": {},
    "sort": {"strategy": "sort", "sort_order": "x"},
    "zorder": {"strategy": "zorder", "sort_order": "x,y"},
}


def fill(table: MaintainedTable, rows: int) -> None:
    """Write the files, of so many rows each."""
    fields = (("id", LongType()), ("part", LongType()), ("x", DoubleType()), ("y", DoubleType()), ("s", StringType()))
    schema = Schema(*(NestedField(n, name, kind) for n, (name, kind) in enumerate(fields, start=1)))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    made = table.create(schema, partition_spec=spec, properties={"format-version": "2"})
    for number in range(FILES):
        ids = pa.array(range(number * rows, (number + 1) * rows), pa.int64())
        columns = {
            "id": ids,
            "part": pa.repeat(pa.scalar(number % PARTITIONS, pa.int64()), rows),
            "x": pc.random(rows),
            "y": pc.random(rows),
            "s": pc.binary_join_element_wise("row", ids.cast(pa.string()), "-"),
        }
        made.append(pa.table(columns))


class Writer(Thread):
    """Deletes rows until it is stopped."""

    def __init__(self, table: MaintainedTable, rate: float) -> None:
        super().__init__()
        self.table, self.rate = table, rate
        self.gone: set[int] = set()
        """The ids that were deleted."""
        self.landed = self.repeated = 0
        self.enough = Event()

    def run(self) -> None:
        chance, at_s = random.Random(7), time.monotonic()
        while not self.enough.is_set():
            at_s += 1 / self.rate
            time.sleep(max(0.0, at_s - time.monotonic()))
            while True:
                try:
                    self.gone |= self._delete_rows(chance)
                    self.landed += 1
                    break
                except (CommitConflict, MetadataUnreadable, FileNotFoundError):
                    self.repeated += 1

    def _delete_rows(self, chance: random.Random) -> set[int]:
        table = AtOneHead(self.table)
        files = [file for file in table.data_files() if file.content is FileContent.DATA]
        chosen: dict[str, tuple[DataFile, int]] = {}
        ids = set[int]()
        for file in chance.sample(files, min(2, len(files))):
            place = chance.randrange(file.record_count)
            column = pq.read_table(local_path(file.file_path), columns=["id"], partitioning=None).column("id")
            chosen[file.file_path] = file, place
            ids.add(column[place].as_py())
        if table.metadata.format_version == 3:
            v3.delete_positions(table, {path: [place] for path, (_, place) in chosen.items()})
        else:
            deletes = [(file, position_delete(path, place, "")) for path, (file, place) in chosen.items()]
            commit_deletes(table, [(content, {**more, "partition": f.partition}) for f, (content, more) in deletes])
        return ids


def main() -> int:
    """Run, print one line a pass and the sums; 1 if a row is missing or too many."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", type=int, choices=(2, 3), default=2)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--order", choices=ORDERS, default="binpack")
    parser.add_argument("--rows", type=int, default=150_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="icekeeper-fire-"))
    try:
        with maintained_table(folder) as table:
            fill(table, asked.rows)
            if asked.version == 3:
                v3.upgrade(table)
            return _run(table, asked)
    finally:
        shutil.rmtree(folder)


def _run(table: MaintainedTable, asked: argparse.Namespace) -> int:
    writer = Writer(table, asked.rate)
    writer.start()
    while not writer.landed:  # a table that was never deleted from gets no row maps
        time.sleep(0.1)
    passes = dropped = bins = forwarded = most_deletes = 0
    longest_s, until_s = 0.0, time.monotonic() + asked.seconds
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        settings: dict[str, Any] = {"rewrite_all": "true", **ORDERS[asked.order]}
        outcome = outcome_of(table.maintain("compact", engine=LocalEngine(2), **settings), Operation.COMPACT)
        longest_s, passes = max(longest_s, time.monotonic() - began_s), passes + 1
        print(f"  {time.monotonic() - began_s:.1f} s: {outcome.summary}", flush=True)
        bins += int(outcome.metrics.get("compact.bins", 0))
        dropped += int(outcome.metrics.get("compact.bins_dropped", 0))
        forwarded += int(outcome.metrics.get("compact.rows_forwarded", 0))
        most_deletes = max(most_deletes, sum(table.live_deletes().values()))
    writer.enough.set()
    writer.join()
    table.assert_sound()
    total = FILES * asked.rows
    left = total - len(writer.gone), total * (total - 1) // 2 - sum(writer.gone)
    scan = _scan(table.metadata_location, None)
    found = connect(None).execute(f"SELECT count(*), sum(id) FROM {scan}").fetchone()
    print(
        f"v{asked.version} {asked.order}, {asked.rate:g} commits a second: {passes} passes of up to {longest_s:.1f} s, "
        f"{bins} groups committed, {dropped} dropped, {forwarded} rows forwarded, at most {most_deletes} delete files "
        f"after a pass; {writer.landed} commits of the writer landed, {writer.repeated} were repeated; "
        f"rows {'as expected' if found == left else f'WRONG: {found} for {left}'}"
    )
    return 0 if found == left else 1


if __name__ == "__main__":
    sys.exit(main())
