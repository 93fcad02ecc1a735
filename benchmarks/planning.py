"""Planning compaction of a table with many live data files, whose metadata lies on this disk.

    PYTHONPATH=tests python -m benchmarks.planning [--files 62500,250000,1000000] [--small 0.1] [--columns 10]
        [--rounds 3] [--profile]

One table of 1,000 partitions, as hourly commits leave it: manifests of 5,000 files in 50 partitions each, with
statistics of so many columns (numbers, times, text), written by our own writer.  Data files do not exist: nobody looks
at them.  ``--small`` is the share of files below the target size; the others are left alone.  *reading* decodes every
live entry, *planning* is all that ``compact`` does before it reads rows, reading included, *workers* does it in so many
processes, and *committing* is a whole pass whose 36 workers write nothing and answer at once.  Prints the medians of
wall and CPU seconds, workers included, and of the peak memory of the planning process, each measured in a process of
its own, and what a planned file adds to the peak from one size to the next.  One worker is the planning process itself.
The claims: a million files within 60 s and 1 GB, in linear time, and 400 bytes a file.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

from icekeeper.engines.engine import total_input_bytes
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.maintenance.pass_steps import run_operation
from icekeeper.metadata.avro_files import open_avro
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.entry_columns import STORED, StoredFile
from icekeeper.metadata.manifest_read import decode_manifest
from icekeeper.metadata.manifest_write import avro_block, container_of, encode_manifest, encode_manifest_list
from icekeeper.metadata.table_reader import TableReader, delete_index
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeeper.operations.compaction.plan.candidates import TableState
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan, plan_compaction
from icekeeper.operations.compaction.plan.plan_on_workers import plan_on_workers
from icekeeper.operations.compaction.terms.rewrite_task import RewriteResult, RewriteTask
from icekeeper.operations.compaction.work.rewrite import rewrite_batch, rewrite_group
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.storage.storage import Storage
from support.maintained_table import registered_table
from support.plans import policy
from support.tables import new_document, snapshot

CHILD = "--child"
PER_MANIFEST = 5000
PARTITIONS, PARTITIONS_PER_MANIFEST = 1000, 50
REPEATED = PARTITIONS // PARTITIONS_PER_MANIFEST
"""Manifests whose numbers differ by a multiple of this have the same partitions."""
SNAPSHOT, MADE_MS = 4_000_000_000, 1_700_000_000_000
_KINDS = ("date", "long", "long", "int", "double", "timestamptz", "string", "string", "string", "boolean")
WIDTHS = {"date": 4, "int": 4, "long": 8, "double": 8, "timestamptz": 8, "string": 16, "boolean": 1}


def kinds(columns: int) -> list[str]:
    """The types of the columns."""
    return [*islice(cycle(_KINDS), columns)]


def document(folder: str, columns: int) -> dict[str, Any]:
    """A table that is partitioned by its first column."""
    fields = [{"id": n, "name": f"c{n}", "required": False, "type": kind} for n, kind in enumerate(kinds(columns), 1)]
    spec = [{"name": "c1", "transform": "identity", "source-id": 1, "field-id": 1000}]
    return new_document(folder, 2) | {
        "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
        "partition-specs": [{"spec-id": 0, "fields": spec}],
        "last-column-id": len(fields),
    }


def with_metrics(folder: str, columns: int, chance: random.Random) -> list[StoredFile]:
    """A few files with metrics of all columns, encoded: that takes as long as all the rest."""
    every = range(1, columns + 1)
    made = []
    for number in range(PER_MANIFEST * 5 // max(5, columns)):
        rows = chance.randrange(50_000, 90_000)
        file = DataFile(
            content=FileContent.DATA,
            file_path=str(number),
            file_format="PARQUET",
            partition=(0,),
            record_count=rows,
            file_size_in_bytes=1,
            column_sizes={c: chance.randrange(10**4, 10**6) for c in every},
            value_counts=dict.fromkeys(every, rows),
            null_value_counts={c: chance.randrange(100) if c % 4 == 0 else 0 for c in every},
            nan_value_counts={5: 0},
            lower_bounds={c: chance.randbytes(WIDTHS[kind]) for c, kind in enumerate(kinds(columns), 1)},
            upper_bounds={c: chance.randbytes(WIDTHS[kind]) for c, kind in enumerate(kinds(columns), 1)},
            split_offsets=(4, 134_217_728, 268_435_456),
        )
        made.append(ManifestEntry(EntryStatus.ADDED, SNAPSHOT, None, None, file))
    table = TableMetadata(document(folder, columns))
    encoded = encode_manifest(
        table, spec_id=0, content=ManifestContent.DATA, entries=made, path="m", snapshot_id=SNAPSHOT, sequence_number=1
    )
    read = decode_manifest(encoded.data, encoded.manifest, table.specs[0])
    return [entry.file for entry in read if isinstance(entry.file, StoredFile)]


def files(folder: str, manifest: int, small: float, columns: int) -> Iterator[DataFile]:
    """The files that one manifest adds."""
    chance = random.Random(manifest)
    first = manifest * PARTITIONS_PER_MANIFEST
    measured = with_metrics(folder, columns, chance)
    for number in range(PER_MANIFEST):
        day, rows = (first + number % PARTITIONS_PER_MANIFEST) % PARTITIONS, chance.randrange(50_000, 90_000)
        size = chance.randrange(10**6, 10**7) if chance.random() < small else chance.randrange(4 * 10**8, 6 * 10**8)
        one = measured[number % len(measured)]
        values = {name: getattr(one, name) for name in STORED} | {
            "file_path": f"{folder}/data/c1={day}/{manifest:05}-{number:05}-{chance.getrandbits(128):032x}.parquet",
            "partition": (day,),
            "record_count": rows,
            "file_size_in_bytes": size,
            "sort_order_id": 0,
        }
        yield from StoredFile.of([[values[name]] for name in STORED], one._reader, [one._stretch])


def write_manifests(folder: str, small: float, columns: int, numbers: Sequence[int]) -> list[ManifestFile]:
    """Manifests of the same partitions: the first is encoded, and the others are its copies, with their own numbers in
    all paths."""
    first = encode_manifest(
        TableMetadata(document(folder, columns)),
        spec_id=0,
        content=ManifestContent.DATA,
        entries=[
            ManifestEntry(EntryStatus.ADDED, SNAPSHOT, None, None, file)
            for file in files(folder, numbers[0], small, columns)
        ],
        path="m",
        snapshot_id=SNAPSHOT,
        sequence_number=1,
    )
    found, written = open_avro(first.data, "m"), []
    blocks = list(found.unpacked_blocks())
    for number in numbers:
        own = [(count, data.replace(b"/%05d-" % numbers[0], b"/%05d-" % number)) for count, data in blocks]
        packed = [avro_block([data, *[b""] * (count - 1)]) for count, data in own]
        data, path = (
            container_of(first.data[: found.blocks_at], packed),
            Path(folder, "metadata", f"m-{number:05}.avro"),
        )
        path.write_bytes(data)
        written.append(replace(first.manifest, manifest_path=str(path), manifest_length=len(data)))
    return written


def make_table(folder: Path, count: int, small: float, columns: int) -> None:
    """With so many live files, rounded to whole manifests."""
    (folder / "metadata").mkdir(parents=True)
    with ProcessPoolExecutor(2) as pool:
        manifests = max(1, round(count / PER_MANIFEST))
        numbers = [range(first, manifests, REPEATED) for first in range(min(REPEATED, manifests))]
        found = pool.map(partial(write_manifests, str(folder), small, columns), numbers)
        listed = sorted((one for some in found for one in some), key=lambda one: one.manifest_path)
    path = folder / "metadata" / f"snap-{SNAPSHOT}.avro"
    path.write_bytes(encode_manifest_list(2, listed, snapshot_id=SNAPSHOT, parent_snapshot_id=None, sequence_number=1))
    raw = snapshot(SNAPSHOT, format_version=2, timestamp_ms=MADE_MS) | {"manifest-list": str(path)}
    made = document(str(folder), columns) | {
        "snapshots": [raw],
        "current-snapshot-id": SNAPSHOT,
        "refs": {"main": {"type": "branch", "snapshot-id": SNAPSHOT}},
        "last-sequence-number": 1,
    }
    (folder / "table.json").write_text(json.dumps(made))


def read_all(reader: TableReader) -> str:
    """Every live entry, once."""
    head = reader.metadata.current_snapshot
    assert head is not None
    found = sum(1 for _ in reader.live_entries(reader.manifests(head), ManifestContent.DATA))
    return f"{found} files"


def plan_all(reader: TableReader) -> str:
    """As ``compact`` plans, by the default policy."""
    head = reader.metadata.current_snapshot
    assert head is not None
    manifests = reader.manifests(head)
    entries = reader.live_entries(manifests, ManifestContent.DATA)
    state = TableState(reader.metadata, head, manifests, entries, delete_index(reader, manifests))
    plan = plan_compaction(state, policy(), now_ms=MADE_MS)
    assert isinstance(plan, CompactionPlan)
    return f"{len(plan.input_files)} of {plan.files_considered} files in {len(plan.groups)} groups"


def plan_there(reader: TableReader, processes: int) -> str:
    """As ``compact`` plans large tables: this process holds a line a group."""
    head = reader.metadata.current_snapshot
    assert head is not None
    state = TableState(reader.metadata, head, reader.manifests(head))
    engine = LocalEngine(processes)
    plan = plan_on_workers(engine, state, policy(), now_ms=MADE_MS, cuts=False, io_properties={})
    assert isinstance(plan, CompactionPlan)
    count = sum(len(group.files) for group in plan.groups)
    return f"{count} of {plan.files_considered} files in {len(plan.groups)} groups"


# What 36 cores rewrite in a second (``wave.MB_PER_CPU_SECOND``).
_BYTES_PER_SECOND = 36 * 45 * 2**20


class InstantWorkers(LocalEngine):
    """Plans in two processes, and answers at once for 36 workers that write nothing."""

    def __init__(self) -> None:
        super().__init__(2)
        self.work_s = 0.0
        """The seconds that the workers would have taken: commits are rare if they take long beside them."""

    @property
    def slots(self) -> int:
        return 36

    def map(self, function: Any, tasks: Any, on_done: Callable[[int], None]) -> Any:
        if function not in (rewrite_group, rewrite_batch):
            return super().map(function, tasks, on_done)
        self.work_s += (total_input_bytes(tasks) or 0) / _BYTES_PER_SECOND
        if function is rewrite_group:
            return [_written(task) for task in tasks]
        return [[_written(task) for task in batch.tasks] for batch in tasks]


def _written(task: RewriteTask) -> RewriteResult:
    """The files that a worker would write, with metrics of all columns."""
    leaves, count = leaf_columns(task.schema), task.output_count
    rows = sum(file.record_count for file in task.inputs)
    every = range(1, len(leaves) + 1)
    bounds = {n: bytes(WIDTHS[leaf.iceberg_type]) for n, leaf in enumerate(leaves, 1)}
    files = [
        DataFile(
            content=FileContent.DATA,
            file_path=task.outputs.file(number).path(0),
            file_format="PARQUET",
            partition=task.partition,
            record_count=rows * (number + 1) // count - rows * number // count,
            file_size_in_bytes=task.file_bytes // count,
            column_sizes=dict.fromkeys(every, 10**6),
            value_counts=dict.fromkeys(every, rows // count),
            null_value_counts=dict.fromkeys(every, 0),
            lower_bounds=bounds,
            upper_bounds=bounds,
            split_offsets=(4, 134_217_728, 268_435_456),
        )
        for number in range(count)
    ]
    return RewriteResult(group_id=task.group_id, written=tuple(files), rows_read=rows)


def commit_there(reader: TableReader) -> str:
    """A pass of ``compact``, in a new catalog."""
    with tempfile.TemporaryDirectory(prefix="icekeeper-bench-") as scratch:
        at = Path(scratch, "metadata", "00000.metadata.json")
        at.parent.mkdir()
        at.write_text(json.dumps(reader.metadata.document))
        table = registered_table(str(at), Path(scratch))
        table.runtime = table.runtime_with(clock=lambda: MADE_MS)
        resolved = table.runtime.policy(table.loaded, {"operations": "compact"})
        engine = InstantWorkers()
        context = table.runtime.context(table.loaded, resolved, engine)
        context = replace(context, monotonic_s=lambda: time.monotonic() + engine.work_s)
        outcome = run_operation(Operation.COMPACT, context)
        assert outcome.status is Status.SUCCEEDED, outcome.summary
        files, groups, commits = (outcome.metrics[f"compact.{what}"] for what in ("files_merged", "bins", "commits"))
        return f"{files} files in {groups} groups and {commits} commits"


PARTS: dict[str, Callable[[TableReader], str]] = {
    "reading": read_all,
    "planning": plan_all,
    "1 worker": partial(plan_there, processes=1),
    "2 workers": partial(plan_there, processes=2),
    "committing": commit_there,
}


def cpu_seconds() -> float:
    """Of this process and of its workers that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def measure(folder: Path, part: str, profile: bool) -> dict[str, Any]:
    """What one part costs this process."""
    reader = TableReader(TableMetadata(json.loads((folder / "table.json").read_text())), Storage({}).read)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    wall, cpu = time.perf_counter(), cpu_seconds()
    summary = PARTS[part](reader)
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    if profile:
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"summary": summary, "wall": wall, "cpu": cpu, "mb": peak / 1024, "mb_before": before / 1024}


def main() -> None:
    """Every size in turn."""
    if sys.argv[1:2] == [CHILD]:
        print(json.dumps(measure(Path(sys.argv[2]), sys.argv[3], "--profile" in sys.argv)))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", default="62500,250000,1000000")
    parser.add_argument("--small", type=float, default=0.1)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--parts", default="", help=f"only these of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--folder", type=Path, help="where the tables are kept for a next time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="icekeeper-bench-") as scratch:
        sizes: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for count in map(int, options.files.split(",")):
            folder = (options.folder or Path(scratch)).resolve() / f"{count}-{options.small}-{options.columns}"
            if not folder.exists():
                make_table(folder, count, options.small, options.columns)
            for part in options.parts.split(",") if options.parts else PARTS:
                command = [sys.executable, __file__, CHILD, str(folder), part, *["--profile"] * options.profile]
                runs = []
                for _ in range(1 if options.profile else options.rounds):
                    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                    runs.append(json.loads(done.stdout))
                wall, cpu, mb = (statistics.median(run[key] for run in runs) for key in ("wall", "cpu", "mb"))
                print(f"{part:9} {wall:7.1f} s wall {cpu:7.1f} s CPU {mb:7.0f} MB   {runs[0]['summary']}", flush=True)
                sizes[part].append((int(runs[0]["summary"].split()[0]), mb))
        for part, found in sizes.items():
            for (files_before, mb_before), (files_after, mb_after) in pairwise(found):
                each = (mb_after - mb_before) * 2**20 / max(1, files_after - files_before)
                print(f"{part}, from {files_before} to {files_after} planned files: {each:.0f} bytes a file")


if __name__ == "__main__":
    main()
