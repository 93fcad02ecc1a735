"""CDC into a table like TPC-H's lineitem: upserts by equality deletes, maintained pass by pass, then scanned once.

    PYTHONPATH=tests python -m benchmarks.cdc_loop [--rows 6000000] [--passes 2] [--commits 30] [--updates 2000]

After OLake's published loop: 85 GB of lineitem, 200,000 updates every two minutes.  By default a hundredth of that, and
a pass an hour: each commit deletes rows all over the table by their key of two columns, and writes them anew.
Contestants get the same commits and settings (v2, zstd, one target size), each in a table of its own:

* Iceberg-Java's ``rewrite_data_files`` of all files, because every file has deletes, which removes dangling deletes;
* Icekeeper rewriting all files;
* Icekeeper converting equality deletes, and compacting what its planner chooses by default.

Prints a table for docs/contributing/simulations.md: CPU seconds of all passes, from loading the table to the commit,
and of one scan of all columns by DuckDB. Every process is started and has done a pass over a small table before. All
tables must have the same rows; with ``--unmaintained`` also one that nobody maintains, whose scan takes DuckDB very
long.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.measure import Contestant
from benchmarks.tables.deleted_rows import delete_file
from benchmarks.tables.event_tables import in_processes
from benchmarks.tables.rows import data_file, schema_of, write_file
from benchmarks.tables.table_writer import TableWriter
from icekeeper.demo.duckdb_child import _scan, connect
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import DataFile, FileContent, ManifestContent

_ROOT = Path(__file__).parents[1]
TARGET_MB = 32
FILES = 4
LINEITEM = schema_of(
    (
        ("l_orderkey", "long"),
        ("l_linenumber", "int"),
        ("l_partkey", "long"),
        ("l_suppkey", "long"),
        ("l_quantity", "decimal(15, 2)"),
        ("l_extendedprice", "decimal(15, 2)"),
        ("l_discount", "decimal(15, 2)"),
        ("l_tax", "decimal(15, 2)"),
        ("l_returnflag", "string"),
        ("l_linestatus", "string"),
        ("l_shipdate", "date"),
        ("l_commitdate", "date"),
        ("l_receiptdate", "date"),
        ("l_shipinstruct", "string"),
        ("l_shipmode", "string"),
        ("l_comment", "string"),
    )
)
KEY = ("l_orderkey", "l_linenumber")
_MONEY = pa.decimal128(15, 2)
_LINES = 4
"""Of an order."""
_WORDS = ("furiously", "quickly", "carefully", "slyly", "regular", "final", "pending", "express", "bold", "even")


@dataclass(frozen=True, slots=True)
class Way:
    """How a table is maintained."""

    title: str
    module: str
    task: dict[str, Any]


_SIZE = {"target_file_size_mb": str(TARGET_MB)}
WAYS = {
    "java": Way(
        "Iceberg-Java 1.10.2, `rewrite_data_files`",
        "iceberg_java",
        {"operation": "compact", "java_options": {"remove-dangling-deletes": "true"}},
    ),
    "rewriting": Way(
        "Icekeeper, rewriting", "icekeeper", {"operation": "compact", "settings": {**_SIZE, "rewrite_all": "true"}}
    ),
    "converting": Way(
        "Icekeeper, converting",
        "icekeeper",
        {
            "operation": "compact",
            "settings": {**_SIZE, "operations": "rewrite_position_deletes,compact", "convert_equality_deletes": "true"},
        },
    ),
}


def _rows(places: Sequence[int] | pa.Array, seed: int) -> pa.Table:
    """The rows at these places of the table, with the values of a seed."""
    rows = len(places)

    def below(limit: int, column: int) -> pa.Array:
        return pc.floor(pc.multiply(pc.random(rows, initializer=seed * 100 + column), limit)).cast(pa.int64())

    def cents(limit: int, column: int) -> pa.Array:
        hundredth = pa.scalar(Decimal("0.01"))
        return pc.multiply(below(limit, column).cast(pa.decimal128(21, 2)), hundredth).cast(_MONEY, safe=False)

    def words(values: Sequence[str], column: int) -> pa.Array:
        return pa.array(values).take(below(len(values), column))

    at = pa.array(places, pa.int64())
    columns = {
        "l_orderkey": pc.add(pc.divide(at, _LINES), 1),
        "l_linenumber": pc.add(pc.subtract(at, pc.multiply(pc.divide(at, _LINES), _LINES)), 1).cast(pa.int32()),
        "l_partkey": below(20_000_000, 1),
        "l_suppkey": below(1_000_000, 2),
        "l_quantity": cents(5_000, 3),
        "l_extendedprice": cents(10_000_000, 4),
        "l_discount": cents(11, 5),
        "l_tax": cents(9, 6),
        "l_returnflag": words(("A", "N", "R"), 7),
        "l_linestatus": words(("F", "O"), 8),
        **{
            name: pc.add(below(2_500, n), 8_000).cast(pa.int32()).cast(pa.date32())
            for n, name in ((9, "l_shipdate"), (10, "l_commitdate"), (11, "l_receiptdate"))
        },
        "l_shipinstruct": words(("COLLECT COD", "DELIVER IN PERSON", "NONE", "TAKE BACK RETURN"), 12),
        "l_shipmode": words(("AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK"), 13),
        "l_comment": pc.binary_join_element_wise(*(words(_WORDS, n) for n in range(14, 18)), " "),
    }
    fields = [
        pa.field(field["name"], columns[field["name"]].type, metadata={b"PARQUET:field_id": str(field["id"]).encode()})
        for field in LINEITEM["fields"]
    ]
    return pa.table([columns[field.name] for field in fields], schema=pa.schema(fields))


def _written(path: Path, rows: pa.Table) -> DataFile:
    write_file(path, rows)
    return data_file(path, LINEITEM, rows)


def _base_file(folder: Path, rows: int, number: int) -> DataFile:
    return _written(folder / f"{number:05d}.parquet", _rows(pa.arange(number * rows, (number + 1) * rows), number + 1))


def _commit_files(folder: Path, number: int, rows: int, updates: int) -> tuple[DataFile, DataFile]:
    """The data file and the equality delete file of a commit."""
    new = _rows(sorted(random.Random(number).sample(range(rows), updates)), 1_000 + number)
    data = _written(folder / f"cdc-{number:05d}.parquet", new)
    path = folder / f"cdc-{number:05d}-deletes.parquet"
    write_file(path, new.select(KEY))
    ids = [field["id"] for field in LINEITEM["fields"] if field["name"] in KEY]
    return data, delete_file(path, FileContent.EQUALITY_DELETES, updates, keys=ids)


class Table:
    """A table with files that it shares, as hard links, with other tables."""

    def __init__(self, folder: Path, base: Sequence[DataFile]) -> None:
        self.folder = folder
        (folder / "data").mkdir(parents=True)
        writer = TableWriter(folder, LINEITEM)
        writer.add_snapshot([self._linked(file) for file in base])
        self.metadata_location, self._version = writer.save(), 1

    def commit(self, data: DataFile, deletes: DataFile) -> None:
        writer = TableWriter.after(self.folder, self.metadata_location)
        writer.add_snapshot([self._linked(data)], [self._linked(deletes)])
        self._version += 1
        self.metadata_location = writer.save(self._version)

    def maintained(self, metadata_location: str) -> None:
        """A pass has left this metadata file."""
        hint = int((self.folder / "metadata" / "version-hint.text").read_text())
        self.metadata_location, self._version = metadata_location, max(self._version, hint)

    def live_deletes(self) -> Counter[FileContent]:
        metadata = TableMetadata(json.loads(Path(self.metadata_location).read_text()))
        reader = TableReader(metadata, lambda path: Path(path).read_bytes())
        assert metadata.current_snapshot is not None
        manifests = reader.manifests(metadata.current_snapshot)
        return Counter(e.file.content for _, e in reader.live_entries(manifests, ManifestContent.DELETES))

    def _linked(self, file: DataFile) -> DataFile:
        path = self.folder / "data" / Path(file.file_path).name
        os.link(file.file_path, path)
        return replace(file, file_path=str(path))


def _contestant(way: Way, log: Path) -> Contestant:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
    }
    return Contestant([sys.executable, "-m", f"benchmarks.peers.{way.module}"], environment, log, timeout_s=3600)


def _pass(way: Way, contestant: Contestant, table: Table, scratch: Path) -> float:
    """CPU seconds of a pass over the table."""
    cost, answer = contestant.run(
        {
            "metadata_location": table.metadata_location,
            "table_folder": str(table.folder),
            "scratch": str(scratch),
            "target_bytes": TARGET_MB * 1024 * 1024,
            **way.task,
        }
    )
    table.maintained(answer["metadata_location"])
    print(
        f"  {way.title}: {cost.cpu_s:.1f} CPU s, {cost.wall_s:.1f} s, {cost.peak_mb:.0f} MB: {answer['summary']}",
        flush=True,
    )
    return cost.cpu_s


def _scanned(metadata_location: str) -> tuple[float, int, str]:
    """CPU seconds, rows and a checksum of one scan of all columns, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.cdc_loop", "--scan", metadata_location]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=_ROOT)
    cpu_s, rows, checksum = json.loads(done.stdout)
    return cpu_s, rows, checksum


def _scan_here(metadata_location: str) -> None:
    connection = connect(None)
    scan, names = _scan(metadata_location, None), ", ".join(field["name"] for field in LINEITEM["fields"])
    began = os.times()
    rows, total = connection.execute(f"SELECT count(*), sum(hash({names})::HUGEINT) FROM {scan}").fetchone() or (0, 0)
    ended = os.times()
    print(json.dumps([ended.user + ended.system - began.user - began.system, rows, f"{total:x}"]))


def _play(asked: argparse.Namespace, work: Path) -> int:
    shared = work / "shared"
    shared.mkdir()
    base = in_processes(partial(_base_file, shared, asked.rows // FILES), FILES)
    print(f"{asked.rows} rows, {sum(f.file_size_in_bytes for f in base) / 2**20:.0f} MB", flush=True)
    tables = {name: Table(work / name / "ns" / "t", base) for name in WAYS}
    if asked.unmaintained:
        tables["unmaintained"] = Table(work / "unmaintained" / "ns" / "t", base)
    contestants = {name: _contestant(way, work / f"{name}.log") for name, way in WAYS.items()}
    spent = dict.fromkeys(WAYS, 0.0)
    try:
        small = [_written(shared / "warm.parquet", _rows(pa.arange(0, 20_000), 1))]
        warm = {name: Table(work / name / "ns" / "warm", small) for name in WAYS}
        upserts = _commit_files(shared, 99_999, 20_000, 100)
        for name, way in WAYS.items():
            warm[name].commit(*upserts)
            _pass(way, contestants[name], warm[name], work / name)
        for number in range(asked.passes):
            for commit in range(number * asked.commits, (number + 1) * asked.commits):
                files = _commit_files(shared, commit, asked.rows, asked.updates)
                for table in tables.values():
                    table.commit(*files)
            print(f"pass {number + 1}", flush=True)
            for name, way in WAYS.items():
                spent[name] += _pass(way, contestants[name], tables[name], work / name)
    finally:
        for contestant in contestants.values():
            contestant.close()
    return _report(asked, tables, spent)


def _report(asked: argparse.Namespace, tables: dict[str, Table], spent: dict[str, float]) -> int:
    scans = {name: _scanned(table.metadata_location) for name, table in tables.items()}
    peer = spent["java"] + scans["java"][0]
    print(
        f"{asked.rows:,} rows, {asked.passes} passes of {asked.commits} commits of {asked.updates:,} updates\n\n"
        "| table | CPU s of the passes | of one scan | both | of Java's | equality, position deletes left |\n"
        "|---|---|---|---|---|---|"
    )
    for name, table in tables.items():
        title = WAYS[name].title if name in WAYS else "not maintained"
        scan_s, left = scans[name][0], table.live_deletes()
        passes_s = spent.get(name, 0.0)
        both = passes_s + scan_s
        print(
            f"| {title} | {passes_s:.1f} | {scan_s:.1f} | {both:.1f} | {both / peer:.2f} "
            f"| {left[FileContent.EQUALITY_DELETES]}, {left[FileContent.POSITION_DELETES]} |"
        )
    found = {(rows, checksum) for _, rows, checksum in scans.values()}
    is_right = len(found) == 1 and next(iter(found))[0] == asked.rows
    print(f"\nrows {'as expected' if is_right else f'WRONG: {scans}'}")
    return 0 if is_right else 1


def main() -> int:
    """Play, and print the table; 1 if rows differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--commits", type=int, default=30)
    parser.add_argument("--updates", type=int, default=2_000)
    parser.add_argument("--unmaintained", action="store_true")
    parser.add_argument("--scan", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.scan:
        _scan_here(asked.scan)
        return 0
    work = Path(tempfile.mkdtemp(prefix="icekeeper-cdc-"))
    try:
        return _play(asked, work)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
