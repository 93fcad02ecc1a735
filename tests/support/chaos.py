"""Chaos: writers commit to a table, passes over it are killed at random moments, and every row is counted.

``make chaos`` runs it for fifteen minutes (``python -m support.chaos --seconds 900``), ``make nightly`` for two.
Writers append (PyIceberg), upsert (Iceberg-Java), delete by position, vector and key, tag, and change the schema.
Passes are real processes of the command; SIGKILL ends most of them while they hold the lease.  On SeaweedFS, the
server is killed and restarted during the run, and a proxy delays answers, cuts them and sends requests twice.  At the
end, DuckDB must find exactly the acknowledged rows, and ``verify`` no problem.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
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
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import BadRequestError, CommitFailedException, RESTError, ValidationException
from pyiceberg.types import StringType
from requests import RequestException

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import CommitConflict, CommitStateUnknown, MetadataUnreadable, StorageError
from icekeeper.model import FileContent
from support import v3
from support.chaos_stores import Store, store_of
from support.deletes import commit_deletes, equality_delete, position_delete, rows_of
from support.iceberg_java import start_spark
from support.java_writer import JavaTables
from support.maintained_table import MaintainedTable
from support.readers import duckdb_rows

REGIONS = ("us", "eu")
ORDERS: tuple[dict[str, str], ...] = ({}, {"strategy": "sort", "sort_order": "id desc"}, {"partial_progress": "1"})
RUNS = (("sql", 2), ("sql", 3), ("seaweedfs", 2))
TROUBLES = 0.01, 0.003, 0.003
"""Shares of requests that are delayed, cut, and doubled."""
PASS = {
    "min_input_files": "2",
    "snapshot_retention_hours": "0.005",
    "max_snapshots_to_keep": "3",
    "min_manifests_to_rewrite": "2",
    "convert_equality_deletes": "true",
    "proof": "full",
}
# Errors of a writer whose head has moved, or whose old files have expired.  SeaweedFS answers 400
# (platform: seaweedfs-conflict-is-400).
_LOST = (
    CommitConflict,
    CommitFailedException,
    ValidationException,
    MetadataUnreadable,
    FileNotFoundError,
    BadRequestError,
)
# Errors of a writer whose answer was cut, or whose server is down: the commit may have landed.
_UNSURE = (CommitStateUnknown, StorageError, RequestException, RESTError, OSError)
_PATIENCE_S = 300
_MOST_FILES = 120
"""Data and delete files after the last pass; a table of kilobytes keeps many small files
(docs/contributing/simulations.md)."""


@dataclass
class Phase:
    """The work of writers before the first pass, or beside passes."""

    seconds: float = 0.0
    commits: Counter[str] = field(default_factory=Counter)
    """Acknowledged commits by kind."""

    @property
    def rate(self) -> float:
        """Commits per second."""
        return self.commits.total() / self.seconds


@dataclass
class Figures:
    """Counts of the work of writers and passes."""

    alone: Phase = field(default_factory=Phase)
    beside: Phase = field(default_factory=Phase)
    passes: Counter[str] = field(default_factory=Counter)
    """Outcomes of passes, including ``killed``."""
    failed: Counter[str] = field(default_factory=Counter)
    """Failed operations, which the server's troubles allow."""
    troubles: Counter[str] = field(default_factory=Counter)
    """Troubles of the server and its proxy."""

    @property
    def commits(self) -> Counter[str]:
        """Acknowledged commits by kind."""
        return self.alone.commits + self.beside.commits

    def __str__(self) -> str:
        alone, beside = self.alone.rate, self.beside.rate
        lines = [
            f"commits acknowledged   {self.commits.total()}: {_listed(self.commits)}",
            f"commits a second       {alone:.1f} alone, {beside:.1f} beside passes: {beside / alone:.0%}",
            f"passes                 {_listed(self.passes)}",
        ]
        if self.troubles:
            lines.append(f"troubles               {_listed(self.troubles)}; operations failed: {_listed(self.failed)}")
        return "\n".join(lines)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "none"


class AtOneHead(MaintainedTable):
    """The table as a single load returned it: a commit lands on this head or fails."""

    def __init__(self, table: MaintainedTable) -> None:
        vars(self).update(vars(table))
        self._held = table.loaded

    @property
    def loaded(self) -> LoadedTable:
        return self._held

    @property
    def head_id(self) -> int | None:
        """The id of the current snapshot."""
        head = self.metadata.current_snapshot
        return None if head is None else head.snapshot_id


class Chaos:
    """A table, its writers, and passes that are killed."""

    def __init__(self, store: Store, seed: int, *, nice: int = 0) -> None:
        self.store, self.table, self.seed, self.nice = store, store.table, seed, nice
        self.version = self.table.metadata.format_version
        self.figures = Figures()
        self.phase = self.figures.alone
        self.live: dict[int, str] = {row["id"]: row["region"] for row in self._found()}
        """Acknowledged rows: id → region."""
        self._known: dict[str, list[int]] = {}
        """The ids in each data file."""
        self._taken: set[int] = set()
        self._next = 10_000
        self._lock, self._stop = Lock(), Event()
        self.failures: list[BaseException] = []

    def run(self, seconds: float) -> Figures:
        """Write, maintain and kill for so many seconds; then run a last pass and check every row."""
        kinds: list[tuple[str, Callable[[random.Random], bool]]] = [
            ("appends", self._append),
            ("position deletes", self._delete_by_position),
            ("equality deletes", self._delete_by_key),
        ]
        if self.version == 2:
            kinds.append(("tags and schema changes", self._evolve))
        if self.store.upserts is not None:
            kinds.append(("Java's upserts", self._upsert))
        troubles = self.store.troubles
        if self.store.restart is not None:
            troubles.delayed, troubles.cut, troubles.doubled = TROUBLES
        writers = [Thread(target=self._write, args=(kind, act, n)) for n, (kind, act) in enumerate(kinds)]
        began = time.monotonic()
        for writer in writers:
            writer.start()
        time.sleep(seconds / 5)
        self.figures.alone.seconds = time.monotonic() - began
        self.phase, began = self.figures.beside, time.monotonic()
        chance, restart = random.Random(self.seed), self.store.restart
        while (restart is not None or time.monotonic() < began + seconds * 4 / 5) and not self.failures:
            if restart is not None and time.monotonic() > began + seconds * 2 / 5:
                self._pass(chance, restart)
                restart = None
            else:
                self._pass(chance)
        self.figures.beside.seconds = time.monotonic() - began
        self._stop.set()
        for writer in writers:
            writer.join()
        if self.failures:
            raise self.failures[0]
        troubles.delayed = troubles.cut = troubles.doubled = 0
        self.figures.troubles.update(troubles.counts)
        self._finish()
        return self.figures

    def _found(self) -> list[dict[str, Any]]:
        return duckdb_rows(self.table.metadata_location, s3=self.store.s3)

    # -- writers

    def _write(self, kind: str, act: Callable[[random.Random], bool], number: int) -> None:
        chance = random.Random(f"{self.seed}-{number}")
        try:
            while not self._stop.is_set():
                if act(chance):
                    with self._lock:
                        self.phase.commits[kind] += 1
                time.sleep(chance.uniform(*self.store.pause_s))
        except BaseException as error:
            self.failures.append(error)

    def _until_it_lands(self, commit: Callable[[bool], object]) -> None:
        """Call ``commit`` until it succeeds, with whether an earlier attempt may have landed."""
        until_s, may_have_landed = time.monotonic() + _PATIENCE_S, False
        while True:
            try:
                commit(may_have_landed)
                return
            except (*_LOST, *_UNSURE) as error:
                if time.monotonic() > until_s:
                    raise
                is_lost = isinstance(error, _LOST)
                # Behind the proxy, the conflict may be with the writer's own commit, which arrived twice.
                may_have_landed = may_have_landed or not is_lost or self.store.restart is not None
                time.sleep(0 if is_lost else 0.1)

    def _append(self, chance: random.Random) -> bool:
        region, count = chance.choice(REGIONS), chance.randint(1, 30)
        with self._lock:
            first, self._next = self._next, self._next + count

        def append(may_have_landed: bool) -> None:
            held = AtOneHead(self.table) if self.version == 3 or may_have_landed else None
            # No writer deletes these rows before they are acknowledged.
            if may_have_landed and held and any(first in ids for ids in self._ids(held).values()):
                return
            if self.version == 3 and held:
                v3.append(held, first, count, region)
                return
            table = self.table.table
            if held and table.metadata.current_snapshot_id != held.head_id:
                raise CommitConflict("the head moved between two looks")
            table.append(rows_of(first, count, region))

        self._until_it_lands(append)
        with self._lock:
            self.live |= dict.fromkeys(range(first, first + count), region)
        return True

    def _ids(self, table: MaintainedTable) -> dict[str, list[int]]:
        """The column ``id`` of each data file, including deleted rows."""
        paths = [file.file_path for file in table.data_files() if file.content is FileContent.DATA]
        # Files never change, and a writer that read them at each attempt would lose every swap.
        before, storage = self._known, table.storage
        known = {path: before[path] for path in paths if path in before}
        for path in paths:
            if path not in known:
                content = pa.BufferReader(storage.read(path))
                known[path] = pq.read_table(content, columns=["id"]).column("id").to_pylist()
        self._known = known
        return known

    @contextmanager
    def _some(self, chance: random.Random, most: int, *, stay: bool = False) -> Iterator[list[int]]:
        """Rows that no other writer changes now; unless they ``stay``, the block must delete them."""
        with self._lock:
            free = [row for row in self.live if row not in self._taken]
            chosen = chance.sample(free, min(len(free), chance.randint(1, most)))
            self._taken.update(chosen)
        yield chosen
        with self._lock:
            for row in () if stay else chosen:
                del self.live[row]
            self._taken.difference_update(chosen)

    def _delete_by_position(self, chance: random.Random) -> bool:
        with self._some(chance, 4) as rows:
            self._until_it_lands(lambda _: self._delete_at(rows))
        return bool(rows)

    def _delete_at(self, rows: list[int]) -> None:
        table, found = AtOneHead(self.table), dict[str, list[int]]()
        for path, ids in self._ids(table).items():
            if places := [place for place, row in enumerate(ids) if row in rows]:
                found[path] = places
        if not found:
            return  # an earlier attempt landed, and its rows have been rewritten
        if self.version == 3:
            v3.delete_positions(table, found)
            return
        partitions = {file.file_path: file.partition for file in table.data_files()}
        deletes = [
            (content, {**more, "partition": partitions[path]})
            for path, places in found.items()
            for content, more in [position_delete(path, place, "") for place in places]
        ]
        commit_deletes(table, deletes)

    def _delete_by_key(self, chance: random.Random) -> bool:
        with self._some(chance, 3) as rows:
            deletes = [equality_delete(row, self.live[row]) for row in rows]
            commit = commit_deletes if self.version == 2 else v3.commit_keys
            self._until_it_lands(lambda _: commit(AtOneHead(self.table), deletes))
        return bool(rows)

    def _upsert(self, chance: random.Random) -> bool:
        assert self.store.upserts is not None
        upsert = self.store.upserts.upsert
        with self._some(chance, 3, stay=True) as rows:
            regions = {row: self.live[row] for row in rows}
            self._until_it_lands(lambda _: upsert(self.table, regions))
        return bool(rows)

    def _evolve(self, chance: random.Random) -> bool:
        name, is_tag = f"c{chance.randrange(10**9)}", chance.random() < 0.8

        def change(may_have_landed: bool) -> None:
            table = self.table.table
            if is_tag and name not in table.refs():
                head = table.current_snapshot()
                assert head is not None
                table.manage_snapshots().create_tag(head.snapshot_id, name, max_ref_age_ms=1000).commit()
            elif not is_tag and name not in table.schema().column_names and len(table.schema().fields) < 6:
                with table.update_schema() as update:
                    update.add_column(name, StringType())

        self._until_it_lands(change)
        return True

    # -- passes

    def _call(self, order: dict[str, str]) -> list[str]:
        settings = [part for key, value in {**PASS, **order}.items() for part in ("--set", f"{key}={value}")]
        icekeeper = str(Path(sys.executable).parent / "icekeeper")
        options = ["--catalog", "local", "--unsafe", "--engine", "local", "--json"]
        return ["nice", f"-n{self.nice}", icekeeper, "maintain", "ns.t", *options, *settings]

    def _pass(self, chance: random.Random, restart: Callable[[], None] | None = None) -> None:
        """Run a pass, which may be killed; call ``restart``, if given, during the pass."""
        with subprocess.Popen(
            self._call(chance.choice(ORDERS)),
            env=self.store.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            patience = chance.choice((0.5, 0.8, 1.2, 2.0, 60.0))
            try:
                if restart is not None:
                    time.sleep(min(patience, 1))
                    restart()
                    self.figures.troubles["restarts"] += 1
                out, _ = process.communicate(timeout=patience)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                self.figures.passes["killed"] += 1
                return
        self._note(out)

    def _note(self, out: bytes, *, at_the_end: bool = False) -> None:
        document = json.loads(out)
        if "error" in document and "operations" not in document:
            self.figures.passes[document["error"]["type"]] += 1
            return
        self.figures.passes[document["status"]] += 1
        may_fail = self.store.restart is not None and not at_the_end
        for operation in document["operations"]:
            if operation["status"] in ("succeeded", "skipped") or "overtaken" in operation["summary"]:
                continue
            assert may_fail, operation
            self.figures.failed[operation["operation"]] += 1

    def _finish(self) -> None:
        """Run a complete pass and check every row."""
        done = subprocess.run(self._call({}), env=self.store.environment, capture_output=True, timeout=600, check=False)
        self._note(done.stdout, at_the_end=True)
        assert Counter((row["id"], row["region"]) for row in self._found()) == Counter(self.live.items())
        self.table.assert_sound()
        assert len(self.table.entries()) <= _MOST_FILES


@contextmanager
def chaos(
    folder: Path, store: str, version: int, seed: int, *, nice: int = 0, java: JavaTables | None = None
) -> Iterator[Chaos]:
    """A table of 80 rows in two partitions, before the run; ``nice`` is the priority of passes."""
    with store_of(store, folder, version, seed, java) as made:
        yield Chaos(made, seed, nice=nice)


def main() -> None:
    """Run on each store and with each format version, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=900.0, help="of all runs together")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--store", choices=sorted({store for store, _ in RUNS}), help="only this one")
    parser.add_argument("--version", type=int, choices=(2, 3), help="only this format version")
    parser.add_argument("--nice", type=int, default=0, help="let passes run at this priority")
    parser.add_argument("--without-java", action="store_true", help="start no JVM: without upserts")
    options = parser.parse_args()
    for retries in ("pyiceberg", "urllib3"):
        logging.getLogger(retries).setLevel(logging.ERROR)
    runs = [(s, v) for s, v in RUNS if options.store in (None, s) and options.version in (None, v)]
    with tempfile.TemporaryDirectory(prefix="icekeeper-chaos-") as scratch:
        needs_java = not options.without_java and any(store == "sql" for store, _ in runs)
        java = JavaTables(start_spark(Path(scratch))) if needs_java else None
        for number, (store, version) in enumerate(runs):
            seconds = options.seconds / len(runs)
            sys.stdout.write(f"{store}, format v{version}, {seconds:g} s, seed {options.seed}\n")
            sys.stdout.flush()
            folder = Path(scratch) / str(number)
            folder.mkdir()
            with chaos(folder, store, version, options.seed, nice=options.nice, java=java) as run:
                sys.stdout.write(f"{run.run(seconds)}\nevery acknowledged row is there, and no other\n\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
