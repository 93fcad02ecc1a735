"""The decoding path of compaction beside bare pyarrow, which reads and writes the same rows in the same layout.

    python -m benchmarks.decoding [--files 40] [--rows 230000] [--rounds 3] [--only append] [--dictionaries]

One process, no engine, so that nothing but the work unit is measured.  The bare side gives what ours wrote: the same
files, row groups, codec and level, page index and statistics, without any check, metric or proof.  It knows beforehand
which rows are deleted, and how rows are cut into row groups.  Kinds: ``append`` (as the rows come), ``positions`` (1 %
of the rows deleted by deletion vectors, evenly spread), ``clustered`` (the same number, all in a tenth of the files),
``equality`` (20 delete files of 10,000 keys), ``sort`` and ``zorder`` (two columns).

Prints medians of wall and CPU seconds, the peak of this process's resident set, and the medians of ours / bare, round
by round.  The claim it checks: rewriting costs at most 1.15 times what bare pyarrow does.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.decoding_cases import KINDS, Case, cases
from benchmarks.merge import SCHEMA, make_file
from icekeeper.operations.compaction.terms.rewrite_task import RewriteTask
from icekeeper.operations.compaction.terms.write_properties import writer_options
from icekeeper.operations.compaction.work import sort_files as clustering
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from icekeeper.rows.arrow_schema import leaf_columns

BATCH_ROWS = 128 * 1024


class Cost(NamedTuple):
    """Seconds by the clock and of CPU, all threads of the process, and the peak of its memory in MB."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def timed(work: Callable[[], object]) -> Cost:
    """The cost of the work; memory as reported by Linux."""
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return Cost(wall, cpu, int(found[1]) / 1024 if found else 0.0)


class Layout(NamedTuple):
    """How ours wrote a file."""

    groups: Sequence[int]
    """The rows of each row group."""
    plain: frozenset[int]
    """Ids of the columns without a dictionary."""

    @classmethod
    def of(cls, path: str) -> Layout:
        footer = pq.read_metadata(path)
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        chunks = enumerate(leaf_columns(SCHEMA))
        plain = frozenset(leaf.field_id for i, leaf in chunks if not groups[0].column(i).has_dictionary_page)
        return cls([group.num_rows for group in groups], plain)


def bare(case: Case, layouts: Sequence[Layout], folder: Path) -> int:
    """What ours wrote, again, by pyarrow alone; returns the number of rows."""
    rows = _Cut(_bare_rows(case))
    leaves = leaf_columns(SCHEMA)
    written = 0
    for number, (groups, plain) in enumerate(layouts):
        options = writer_options(case.task.table_properties, leaves, groups[0], (), plain)
        schema = pq.read_schema(case.task.inputs[0].path)
        with pq.ParquetWriter(folder / f"bare-{number}.parquet", schema, **options) as writer:
            for count in groups:
                table = pa.Table.from_batches(rows.next(count), schema)
                writer.write_table(table, row_group_size=count)
                written += table.num_rows
    return written


def _bare_rows(case: Case) -> Iterator[pa.RecordBatch]:
    live = _live_rows(case)
    if case.order is None:
        yield from live
        return
    table = pa.Table.from_batches(live).combine_chunks()
    order = case.order(table)
    (whole,) = table.to_batches()
    for start in range(0, len(order), BATCH_ROWS):
        yield whole.take(order.slice(start, BATCH_ROWS))


def _live_rows(case: Case) -> Iterator[pa.RecordBatch]:
    for source, deleted in zip(case.task.inputs, case.deleted, strict=True):
        first = 0
        for batch in pq.ParquetFile(source.path).iter_batches(batch_size=BATCH_ROWS, use_threads=False):
            rows = batch.num_rows
            if deleted is not None:
                mask = pc.is_in(pa.arange(first, first + rows), value_set=deleted)
                batch = batch.filter(pc.invert(mask))
            first += rows
            yield batch


class _Cut:
    """Batches, cut at any row."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._left: pa.RecordBatch | None = None

    def next(self, count: int) -> list[pa.RecordBatch]:
        """The next ``count`` rows."""
        taken: list[pa.RecordBatch] = []
        while count:
            batch = self._left if self._left is not None else next(self._batches)
            self._left = batch.slice(count) if batch.num_rows > count else None
            taken.append(batch.slice(0, count))
            count -= taken[-1].num_rows
        return taken


def ours(task: RewriteTask) -> list[Layout]:
    """Rewrite; how each file was written."""
    result = rewrite_group(task)
    if result.error is not None or result.too_large:
        raise SystemExit(result.error or "too large to be sorted by one worker")
    return [Layout.of(file.file_path) for file in result.written]


def main() -> int:
    """Measure and print; 1 when a side wrote another number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--rows", type=int, default=230_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=KINDS, nargs="*", default=KINDS)
    parser.add_argument(
        "--dictionaries", action="store_true", help="the bare side puts every column into a dictionary, as Arrow does"
    )
    options = parser.parse_args()
    # One worker sorts what fits into its memory; here it shall sort everything.
    clustering.PIECE_BYTES = 2**40
    with tempfile.TemporaryDirectory(prefix="icekeeper-bench-") as name:
        folder = Path(name)
        files = [folder / f"in-{number}.parquet" for number in range(options.files)]
        for number, path in enumerate(files):
            make_file(path, number, options.rows)
        size = sum(path.stat().st_size for path in files)
        print(f"{len(files)} files, {size / 1e6:.0f} MB, {options.files * options.rows:,} rows")
        head = f"{'wall':>9} {'cpu':>7} {'peak':>8}"
        print(f"{'ours':>15}{head[5:]}   {'bare':>4}{head[4:]}   ours / bare")
        for kind, case in cases(files, options.rows, folder).items():
            if kind in options.only and not measured(
                kind, case, folder, rounds=options.rounds, dictionaries=options.dictionaries
            ):
                return 1
    return 0


def measured(kind: str, case: Case, folder: Path, *, rounds: int, dictionaries: bool) -> bool:
    """Measure and print a kind of work; return whether both sides wrote the same number of rows."""
    layouts = ours(case.task)  # warm, as the bare side is
    if dictionaries:
        layouts = [layout._replace(plain=frozenset()) for layout in layouts]
    total = sum(sum(layout.groups) for layout in layouts)
    costs: tuple[list[Cost], list[Cost]] = ([], [])
    for _ in range(rounds):
        costs[0].append(timed(lambda: ours(case.task)))
        counts: list[int] = []
        costs[1].append(timed(lambda: counts.append(bare(case, layouts, folder))))  # noqa: B023 - called at once
        if counts != [total]:
            print(f"{kind}: {counts} rows instead of {total}", file=sys.stderr)
            return False
    medians = [[statistics.median(getattr(c, part) for c in side) for part in Cost._fields] for side in costs]
    ratios = [
        statistics.median(getattr(o, part) / getattr(b, part) for o, b in zip(*costs, strict=True))
        for part in ("wall_s", "cpu_s")
    ]
    (ow, oc, om), (bw, bc, bm) = medians
    print(
        f"{kind:10} {ow:8.2f}s {oc:6.2f}s {om:5.0f} MB   {bw:8.2f}s {bc:6.2f}s {bm:5.0f} MB   "
        f"wall {ratios[0]:.2f}, CPU {ratios[1]:.2f}",
        flush=True,
    )
    return True


if __name__ == "__main__":
    sys.exit(main())
