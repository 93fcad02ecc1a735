"""Chaos: writers commit to a table all the time, passes over it are killed at any moment, and every row is counted.

``make chaos`` runs it for ten minutes (``python -m support.chaos --seconds 600``), a test for some seconds.  Writers
append (PyIceberg), delete by position, vector and key, tag, and change the schema.  Passes are real processes of the
command; most are killed by SIGKILL while they hold the lease.  At the end DuckDB must find exactly the rows that were
acknowledged, ``verify`` no problem, and the writers' figures are compared with those before the first pass.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread

import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.types import StringType

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import CommitConflict, MetadataUnreadable
from icekeeper.model import FileContent
from support import v3
from support.deletes import commit_deletes, equality_delete, position_delete, rows_of
from support.maintained_table import MaintainedTable, local_path
from support.readers import duckdb_rows

REGIONS = ("us", "eu")
ORDERS: tuple[dict[str, str], ...] = ({}, {"strategy": "sort", "sort_order": "id desc"}, {"partial_progress": "1"})
PASS = {
    "min_input_files": "2",
    "snapshot_retention_hours": "0.005",
    "max_snapshots_to_keep": "3",
    "min_manifests_to_rewrite": "2",
    "convert_equality_deletes": "true",
    "proof": "full",
}
# What a writer sees whose head has moved, or whose old files have expired meanwhile.
_LOST = (CommitConflict, CommitFailedException, ValidationException, MetadataUnreadable, FileNotFoundError)
_PATIENCE_S = 300


@dataclass
class Figures:
    """What writers and passes did."""

    commits: Counter[str] = field(default_factory=Counter)
    """Acknowledged, by kind."""
    lost_swaps: int = 0
    """Commits that a writer had to repeat."""
    passes: Counter[str] = field(default_factory=Counter)
    """How passes ended; ``killed`` among them."""
    metrics: Counter[str] = field(default_factory=Counter)
    """Sums over the passes that ended."""
    rate_alone: float = 0.0
    """Commits a second of the writers before the first pass."""
    rate: float = 0.0
    """The same beside passes."""
    files: tuple[int, int] = 0, 0
    """Data and delete files at the end."""

    def __str__(self) -> str:
        lines = [
            f"commits acknowledged   {self.commits.total()}: "
            + ", ".join(f"{count} {kind}" for kind, count in sorted(self.commits.items())),
            f"repeated by writers    {self.lost_swaps}",
            "passes                 " + ", ".join(f"{count} {how}" for how, count in sorted(self.passes.items())),
            f"commits a second       {self.rate_alone:.1f} alone, {self.rate:.1f} beside passes",
            f"rows forwarded         {self.metrics['compact.rows_forwarded']}",
            f"keys converted         {self.metrics['rewrite_position_deletes.rows_converted']} rows",
            f"bytes rewritten        {self.metrics['compact.bytes_read']}, "
            f"in vain {self.metrics['compact.bytes_dropped']}",
            f"files at the end       {self.files[0]} data, {self.files[1]} delete",
        ]
        return "\n".join(lines)


class AtOneHead(MaintainedTable):
    """The table as one load of its catalog shows it: what is committed from it lands there or not at all."""

    def __init__(self, table: MaintainedTable) -> None:
        vars(self).update(vars(table))
        self._held = table.loaded

    @property
    def loaded(self) -> LoadedTable:
        return self._held


class Chaos:
    """One table, its writers and the killer of its passes."""

    def __init__(self, table: MaintainedTable, folder: Path, seed: int) -> None:
        self.table, self.folder, self.seed = table, folder, seed
        self.version = table.metadata.format_version
        self.figures = Figures()
        self.live: dict[int, str] = {row["id"]: row["region"] for row in duckdb_rows(table.metadata_location)}
        """Acknowledged rows: id → region."""
        self._taken: set[int] = set()
        self._next = 10_000
        self._lock, self._stop = Lock(), Event()
        self.failures: list[BaseException] = []

    def run(self, seconds: float) -> Figures:
        """Write, maintain and kill for so many seconds; then finish, and prove every row."""
        kinds: list[tuple[str, Callable[[random.Random], bool]]] = [
            ("appends", self._append),
            ("position deletes", self._delete_by_position),
            ("equality deletes", self._delete_by_key),
        ]
        if self.version == 2:
            kinds.append(("tags and schema changes", self._evolve))
        writers = [Thread(target=self._write, args=(kind, act, n)) for n, (kind, act) in enumerate(kinds)]
        for writer in writers:
            writer.start()
        self.figures.rate_alone = self._rate(seconds / 5)
        began, before = time.monotonic(), self.figures.commits.total()
        chance = random.Random(self.seed)
        while time.monotonic() < began + seconds * 4 / 5 and not self.failures:
            self._pass(chance)
        self.figures.rate = (self.figures.commits.total() - before) / (time.monotonic() - began)
        self._stop.set()
        for writer in writers:
            writer.join()
        if self.failures:
            raise self.failures[0]
        self._finish()
        return self.figures

    def _rate(self, seconds: float) -> float:
        before = self.figures.commits.total()
        time.sleep(seconds)
        return (self.figures.commits.total() - before) / seconds

    # -- writers

    def _write(self, kind: str, act: Callable[[random.Random], bool], number: int) -> None:
        chance = random.Random(f"{self.seed}-{number}")
        try:
            while not self._stop.is_set():
                if act(chance):
                    with self._lock:
                        self.figures.commits[kind] += 1
                time.sleep(chance.uniform(0.02, 0.2))
        except BaseException as error:
            self.failures.append(error)

    def _until_it_lands(self, commit: Callable[[], object]) -> None:
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                commit()
                return
            except _LOST:
                if time.monotonic() > until_s:
                    raise
                with self._lock:
                    self.figures.lost_swaps += 1

    def _append(self, chance: random.Random) -> bool:
        region, count = chance.choice(REGIONS), chance.randint(1, 30)
        with self._lock:
            first, self._next = self._next, self._next + count
        rows = rows_of(first, count, region)
        if self.version == 2:
            self._until_it_lands(lambda: self.table.table.append(rows))
        else:
            self._until_it_lands(lambda: v3.append(AtOneHead(self.table), first, count, region))
        with self._lock:
            self.live |= dict.fromkeys(range(first, first + count), region)
        return True

    @contextmanager
    def _some(self, chance: random.Random, most: int) -> Iterator[list[int]]:
        """Rows that nobody else deletes meanwhile; they are deleted once the block ends."""
        with self._lock:
            free = [row for row in self.live if row not in self._taken]
            chosen = chance.sample(free, min(len(free), chance.randint(1, most)))
            self._taken.update(chosen)
        yield chosen
        with self._lock:
            for row in chosen:
                del self.live[row]
            self._taken.difference_update(chosen)

    def _delete_by_position(self, chance: random.Random) -> bool:
        with self._some(chance, 4) as rows:
            self._until_it_lands(lambda: self._delete_at(rows))
        return bool(rows)

    def _delete_at(self, rows: list[int]) -> None:
        table, found = AtOneHead(self.table), dict[str, list[int]]()
        files = {f.file_path: f for f in table.data_files() if f.content is FileContent.DATA}
        for path in files:
            ids = pq.read_table(local_path(path), columns=["id"], partitioning=None).column("id").to_pylist()
            if places := [place for place, row in enumerate(ids) if row in rows]:
                found[path] = places
        if self.version == 3:
            v3.delete_positions(table, found)
            return
        deletes = [
            (content, {**more, "partition": files[path].partition})
            for path, places in found.items()
            for content, more in [position_delete(path, place, "") for place in places]
        ]
        commit_deletes(table, deletes)

    def _delete_by_key(self, chance: random.Random) -> bool:
        with self._some(chance, 3) as rows:
            deletes = [equality_delete(row, self.live[row]) for row in rows]
            if self.version == 2:
                self._until_it_lands(lambda: commit_deletes(AtOneHead(self.table), deletes))
            else:
                self._until_it_lands(lambda: v3.commit_keys(AtOneHead(self.table), deletes))
        return bool(rows)

    def _evolve(self, chance: random.Random) -> bool:
        name = f"c{chance.randrange(10**9)}"

        def change() -> None:
            table = self.table.table
            if chance.random() < 0.8:
                head = table.current_snapshot()
                assert head is not None
                table.manage_snapshots().create_tag(head.snapshot_id, name, max_ref_age_ms=1000).commit()
            elif len(table.schema().fields) < 6:
                with table.update_schema() as update:
                    update.add_column(name, StringType())

        self._until_it_lands(change)
        return True

    # -- passes

    def _environment(self) -> dict[str, str]:
        catalog = "PYICEBERG_CATALOG__LOCAL__"
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYICEBERG_", "ICEKEEPER_"))},
            f"{catalog}TYPE": "sql",
            f"{catalog}URI": f"sqlite:///{self.folder / 'catalog.db'}",
            f"{catalog}WAREHOUSE": (self.folder / "warehouse").as_uri(),
            "ICEKEEPER_STATE": str(self.folder / "state.db"),
        }

    def _call(self, order: dict[str, str]) -> list[str]:
        settings = [part for key, value in {**PASS, **order}.items() for part in ("--set", f"{key}={value}")]
        icekeeper = str(Path(sys.executable).parent / "icekeeper")
        return [
            icekeeper,
            "maintain",
            "ns.t",
            "--catalog",
            "local",
            "--unsafe",
            "--engine",
            "local",
            "--json",
            *settings,
        ]

    def _pass(self, chance: random.Random) -> None:
        with subprocess.Popen(
            self._call(chance.choice(ORDERS)),
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            patience = chance.choice((0.5, 0.8, 1.2, 2.0, 60.0))
            try:
                out, _ = process.communicate(timeout=patience)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                self.figures.passes["killed"] += 1
                return
        self._note(out)

    def _note(self, out: bytes) -> None:
        document = json.loads(out)
        if "error" in document and "operations" not in document:
            self.figures.passes[document["error"]["type"]] += 1
            return
        self.figures.passes[document["status"]] += 1
        for operation in document["operations"]:
            self.figures.metrics.update(operation["metrics"])
            assert operation["status"] in ("succeeded", "skipped") or "overtaken" in operation["summary"], operation

    def _finish(self) -> None:
        """One whole pass, and every row."""
        done = subprocess.run(self._call({}), env=self._environment(), capture_output=True, timeout=600, check=False)
        self._note(done.stdout)
        found = Counter((row["id"], row["region"]) for row in duckdb_rows(self.table.metadata_location))
        assert found == Counter(self.live.items())
        self.table.assert_sound()
        contents = Counter(entry.file.content is FileContent.DATA for entry in self.table.entries())
        self.figures.files = contents[True], contents[False]


@contextmanager
def chaos(folder: Path, version: int, seed: int) -> Iterator[Chaos]:
    """A table of 80 rows in two partitions, about to be written to."""
    with v3.table_of_version(folder, version) as table:
        yield Chaos(table, folder, seed)


def main() -> None:
    """Run with each format version, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    asked = parser.parse_args()
    for version in (2, 3):
        folder = Path(tempfile.mkdtemp(prefix="icekeeper-chaos-"))
        sys.stdout.write(f"format v{version}, {asked.seconds / 2:g} s, seed {asked.seed}\n")
        sys.stdout.flush()
        with chaos(folder, version, asked.seed) as run:
            sys.stdout.write(f"{run.run(asked.seconds / 2)}\nevery acknowledged row is there, and no other\n\n")
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
