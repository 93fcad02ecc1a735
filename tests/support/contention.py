"""Contention: eight committers and passes on one table at once, judged by an independent checker.

Six committers use Icekeeper's commit path (two of them give up after a lost swap), two are PyIceberg.  Each commit adds
one row.  In front of a server, two proxies delay and cut answers; Icekeeper's proxy also delivers requests twice.
PyIceberg's does not: PyIceberg takes the second answer, a conflict with its own commit, for a lost commit.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.catalog
from botocore.exceptions import BotoCoreError
from pyiceberg.exceptions import BadRequestError, CommitFailedException, CommitStateUnknownException, ServerError
from requests import RequestException

from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.snapshot import FileReplacement, SnapshotWriter
from icekeeper.commit.transaction import CommitTerms, commit_with_retries
from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import CommitStateUnknown, MaintenanceError
from icekeeper.machine.clock import system_clock
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import TableName
from icekeeper.operation_facts import BuiltIn
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.storage import Storage
from local_stack import moto_s3tables
from local_stack.moto_server import MotoServer
from support.linearizable import KEY, Commit, Outcome, Read, history_of, name_of, violations
from support.plans import data_file
from support.proxies import Troubles, troubled_proxy
from support.readers import duckdb_rows
from support.scripted_rest import scripted_rest

NAME = TableName(("ns",), "t")
LAKE = "lake"
"""The name of the catalog, which separates SQL catalogs in one database."""
SCHEMA = pa.schema([pa.field("id", pa.int64())])
OURS, THEIRS = 6, 2
IMPATIENT = (0, 1)
"""Numbers of Icekeeper's committers that give up after a lost swap."""
PASS = {
    "operations": "compact,rewrite_manifests",
    "min_input_files": "2",
    "min_manifests_to_rewrite": "2",
    # Eight writers never pause.
    "max_commit_retries": "20",
}


# Errors of PyIceberg for an answer that is cut.
_NO_ANSWER = (CommitStateUnknownException, RequestException, ServerError, BotoCoreError)
PROPERTIES = {"commit.retry.min-wait-ms": "20", "write.metadata.previous-versions-max": "5"}


@dataclass
class Arena:
    """A store: how Icekeeper and PyIceberg reach it, and how it is read without the proxies."""

    ours: Mapping[str, str]
    theirs: Mapping[str, str]
    direct: Mapping[str, str]
    folder: Path
    """The folder of the passes' state."""
    s3: Mapping[str, str] | None = None
    """How DuckDB reaches files in an object store."""
    troubles: tuple[Troubles, ...] = ()


@dataclass
class Contest:
    """The results of a run."""

    commits: list[Commit] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    operations: list[OperationOutcome] = field(default_factory=list)
    """The operations of all passes."""
    rows: dict[str, int] = field(default_factory=dict)
    """The row that each commit adds."""
    by: Counter[str] = field(default_factory=Counter)
    """Acknowledged commits of each kind of committer."""
    attempts: int = 0
    """Swaps of Icekeeper's acknowledged commits."""
    seconds: float = 0.0
    passes: int = 0
    troubles: Counter[str] = field(default_factory=Counter)

    def count(self, outcome: Outcome) -> int:
        """The number of commits with this outcome."""
        return sum(commit.outcome is outcome for commit in self.commits)

    def __str__(self) -> str:
        counted = ", ".join(f"{self.count(outcome)} {outcome.value}" for outcome in Outcome)
        statuses = Counter(f"{op.operation.value} {op.status.value} {op.reason or ''}" for op in self.operations)
        return (
            f"{counted} ({dict(self.by)}, {self.attempts} swaps of ours), {len(self.reads)} reads, "
            f"{self.passes} passes ({dict(statuses)}), troubles {dict(self.troubles)}, {self.seconds:.1f} s"
        )


class _Run:
    def __init__(self, arena: Arena, commits: int) -> None:
        self.arena, self.commits = arena, commits
        self.contest = Contest()
        self.lock = threading.Lock()
        self.at_work = OURS + THEIRS + 1
        """The number of threads that still work: committers, and the passes."""
        self.failures: list[BaseException] = []

    def thread(self, act: Callable[[int], None], number: int) -> threading.Thread:
        def guarded() -> None:
            try:
                act(number)
            except BaseException as error:
                self.failures.append(error)
            with self.lock:
                self.at_work -= 1

        return threading.Thread(target=guarded)

    def new(self, number: int) -> tuple[str, int]:
        """The name and row of a new commit."""
        with self.lock:
            row = len(self.contest.rows) + 1
            name = f"{number}-{row}"
            self.contest.rows[name] = row
        return name, row

    def note(self, commit: Commit, kind: str, swaps: int = 0) -> bool:
        """Record a commit; return whether it was acknowledged."""
        with self.lock:
            self.contest.commits.append(commit)
            if commit.outcome is Outcome.ACKNOWLEDGED:
                self.contest.by[kind] += 1
                self.contest.attempts += swaps
        return commit.outcome is Outcome.ACKNOWLEDGED

    def note_read(self, head: Any, began_s: float) -> None:
        """Record a read of the table; ``head`` is its current snapshot, of either library."""
        self.contest.reads.append(Read(name_of(head.snapshot_id, head.summary), began_s, time.monotonic()))

    def ours(self, number: int) -> None:
        """Make a committer's commits through Icekeeper's commit path."""
        impatient, made = number in IMPATIENT, 0
        share = self.commits // 7
        catalog = open_catalog(LAKE, dict(self.arena.ours))
        try:
            while made < share and not self.failures:
                name, row = self.new(number)
                made += self._ours(catalog, name, row, impatient=impatient)
        finally:
            catalog.close()  # type: ignore[attr-defined]

    def _ours(self, catalog: Catalog, name: str, row: int, *, impatient: bool) -> bool:
        began_s = time.monotonic()
        try:
            head = catalog.load(NAME)
        except MaintenanceError:
            return False  # the answer was cut: there was no attempt to commit
        self.note_read(head.metadata.current_snapshot, began_s)
        storage = Storage(head.io_properties)
        path = f"{head.metadata.data_location}/{name}.parquet"
        sink = pa.BufferOutputStream()
        with_id = pa.schema([SCHEMA.field(0).with_metadata({b"PARQUET:field_id": b"1"})])
        pq.write_table(pa.table({"id": [row]}, schema=with_id), sink)
        data = sink.getvalue().to_pybytes()
        storage.write(path, data)
        added = FileReplacement(frozenset(), ((0, data_file(path, len(data), records=1)),), None, noted={KEY: name})

        def discard(paths: Sequence[str]) -> None:
            storage.delete(paths)

        def prepare(base: Any) -> PreparedCommit:
            reader = TableReader(base.metadata, storage.read)
            writer = SnapshotWriter(base.metadata, reader, storage.write, discard, "main", "committer", system_clock())
            return writer.replace_files(added, reader.manifests(writer.head), (), "append")

        terms = CommitTerms(
            max_retries=0 if impatient else 8,
            patience_s=0 if impatient else 120,
            discard=discard,
            pinned_metadata=tuple,
        )
        outcome, swaps, began_s = Outcome.REFUSED, 0, time.monotonic()
        try:
            swaps = commit_with_retries(catalog, head, prepare, terms).attempts  # type: ignore[union-attr]
            outcome = Outcome.ACKNOWLEDGED
        except CommitStateUnknown:
            outcome = Outcome.UNKNOWN
        except MaintenanceError:
            pass  # every other error class means that nothing changed
        return self.note(Commit(name, began_s, time.monotonic(), outcome), "ours", swaps)

    def theirs(self, number: int) -> None:
        """Make a committer's commits with PyIceberg."""
        client, made = _opened(self.arena.theirs), 0
        share = self.commits // 14  # its attempts take longest: with a whole share it would be alone at the end
        try:
            while made < share and not self.failures:
                name, row = self.new(number)
                made += self._theirs(client, name, row)
        finally:
            client.close()

    def _theirs(self, client: pyiceberg.catalog.Catalog, name: str, row: int) -> bool:
        began_s = time.monotonic()
        try:
            table = client.load_table("ns.t")
        except _NO_ANSWER:
            return False
        self.note_read(table.current_snapshot(), began_s)
        outcome, began_s = Outcome.UNKNOWN, time.monotonic()
        try:
            table.append(pa.table({"id": [row]}, schema=SCHEMA), snapshot_properties={KEY: name})
            outcome = Outcome.ACKNOWLEDGED
        except (CommitFailedException, BadRequestError):  # SeaweedFS answers 400 (platform: seaweedfs-conflict-is-400)
            outcome = Outcome.REFUSED
        except _NO_ANSWER:
            pass
        return self.note(Commit(name, began_s, time.monotonic(), outcome), "PyIceberg")

    def passes(self, number: int) -> None:
        """Compact and rewrite manifests until all committers are done."""
        runtime = Runtime(
            open_catalog(LAKE, dict(self.arena.ours)),
            SqliteStateStore(self.arena.folder / "state.db"),
            environment={"ICEKEEPER_TABLE_SETTINGS": "all"},
        )
        while self.at_work > 1 and not self.failures:
            outcome = runtime.maintain(NAME, PASS, LocalEngine(1), unsafe=True)
            self.contest.operations += outcome.operations
            self.contest.passes += 1
            time.sleep(0.5)
        runtime.catalog.close()  # type: ignore[attr-defined]


def _opened(properties: Mapping[str, str]) -> pyiceberg.catalog.Catalog:
    """Open a PyIceberg catalog, which sends a request whose answer may be cut; retry until it succeeds."""
    while True:
        with suppress(*_NO_ANSWER):
            return pyiceberg.catalog.load_catalog(LAKE, **properties)


def contend(arena: Arena, commits: int) -> Contest:
    """Let committers commit so many times in all, a multiple of 14, and check the result.

    Raises:
        AssertionError: the history is not linearizable, or rows, passes or versions are wrong.
    """
    run = _Run(arena, commits)
    began_s = time.monotonic()
    threads = [run.thread(run.ours, number) for number in range(OURS)]
    threads += [run.thread(run.theirs, number) for number in range(OURS, OURS + THEIRS)]
    threads.append(run.thread(run.passes, OURS + THEIRS))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if run.failures:
        raise run.failures[0]
    contest = run.contest
    contest.seconds = time.monotonic() - began_s
    contest.troubles = sum((trouble.counts for trouble in arena.troubles), Counter())
    catalog = open_catalog(LAKE, dict(arena.direct))
    table = catalog.load(NAME)
    catalog.close()  # type: ignore[attr-defined]
    contest.history = history_of(table.metadata.document)
    wrong = violations(contest.history, contest.commits, contest.reads)
    assert not wrong, (wrong, str(contest))
    found = sorted(row["id"] for row in duckdb_rows(table.metadata_location, s3=arena.s3))
    assert found == sorted([0, *(contest.rows[name] for name in contest.history if name in contest.rows)])
    failed = [part.summary for part in contest.operations if part.status not in (Status.SUCCEEDED, Status.SKIPPED)]
    # On a busy machine, an operation may lose every swap and change nothing.
    lost = [summary for summary in failed if summary.startswith("CommitConflict")]
    landed = {f"{snapshot_id}" for part in contest.operations for snapshot_id in part.snapshot_ids}
    assert landed <= set(contest.history)
    assert lost == failed, (failed, str(contest))
    assert len(lost) <= len(landed) / 10 + 1, (failed, str(contest))
    return contest


# The stores.

STORES = ("sql", "rest", "seaweedfs", "s3tables")


def arena_of(store: str, folder: Path, seed: int, server: Callable[[str], Any]) -> AbstractContextManager[Arena]:
    """The arena of a store of :data:`STORES`; ``server`` returns the server of a pytest fixture."""
    if store == "sql":
        return sql_arena(folder)
    if store == "rest":
        return rest_arena(folder, seed)
    if store == "seaweedfs":
        return seaweedfs_arena(server("seaweedfs"), folder, seed)
    return s3tables_arena(server("moto_server"), folder, seed)


@contextmanager
def sql_arena(folder: Path) -> Iterator[Arena]:
    """A SQLite database, which every committer opens itself, without a proxy."""
    yield _in_sql(folder)


def _in_sql(folder: Path) -> Arena:
    (folder / "warehouse").mkdir()
    address = {"uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": (folder / "warehouse").as_uri()}
    properties = {"type": "sql", **address}
    client = pyiceberg.catalog.load_catalog(LAKE, **properties)
    _create(client)
    client.close()
    return Arena(properties, properties, properties, folder)


@contextmanager
def rest_arena(folder: Path, seed: int) -> Iterator[Arena]:
    """A REST catalog that serves one request at a time."""
    inner = open_catalog(LAKE, dict(_in_sql(folder).ours))
    with scripted_rest(inner) as server:
        properties = {"type": "rest", "uri": server.url, "warehouse": inner.id.warehouse}
        with _troubled(properties, "uri", folder, seed) as arena:
            yield arena


@contextmanager
def seaweedfs_arena(server: SeaweedFSServer, folder: Path, seed: int) -> Iterator[Arena]:
    """A new table bucket on a SeaweedFS server, reached through its REST catalog."""
    bucket = f"contention-{uuid.uuid4()}"
    server.create_table_bucket(bucket)
    properties = server.catalog_properties(bucket)
    client = pyiceberg.catalog.load_catalog(LAKE, **properties)
    _create(client)
    client.close()
    with _troubled(properties, "uri", folder, seed) as arena:
        yield replace(arena, s3=properties)


@contextmanager
def s3tables_arena(server: MotoServer, folder: Path, seed: int) -> Iterator[Arena]:
    """A table bucket that moto emulates, with swaps by S3 Tables' version token."""
    arn = server.client("s3tables").create_table_bucket(name=f"contention-{uuid.uuid4()}")["arn"]
    # Otherwise every pass would leave compaction to the bucket.
    moto_s3tables.ANSWERS[arn, "ns", "t"] = {BuiltIn.COMPACTION.value: {"status": "disabled"}}
    shared = {"warehouse": arn, "s3tables.endpoint": server.endpoint, **server.s3_properties}
    theirs = {
        **shared,
        "py-catalog-impl": "support.aws_table_bucket.TableBucketCatalog",
        "py-io-impl": "support.aws_table_bucket.BlindFileIO",
    }
    client = pyiceberg.catalog.load_catalog(LAKE, **theirs)
    _create(client)
    client.close()
    with _troubled({**shared, "type": "s3tables"}, "s3tables.endpoint", folder, seed) as arena:
        yield replace(arena, theirs=theirs, s3=server.s3_properties)


@contextmanager
def _troubled(properties: Mapping[str, str], key: str, folder: Path, seed: int) -> Iterator[Arena]:
    """The server of the property ``key``, behind a proxy for Icekeeper and another proxy for PyIceberg."""
    ours = Troubles(random.Random(f"{seed}-ours"), delayed=0.02, cut=0.01, doubled=0.01)
    theirs = Troubles(random.Random(f"{seed}-theirs"), delayed=0.02, cut=0.01)
    with troubled_proxy(properties[key], ours) as first, troubled_proxy(properties[key], theirs) as second:
        by_ours, by_theirs = {**properties, key: first}, {**properties, key: second}
        yield Arena(by_ours, by_theirs, properties, folder, troubles=(ours, theirs))


def _create(client: pyiceberg.catalog.Catalog) -> None:
    """Create ``ns.t`` with one row, whose commit has no name."""
    client.create_namespace("ns")
    table = client.create_table("ns.t", SCHEMA, properties=PROPERTIES)
    table.append(pa.table({"id": [0]}, schema=SCHEMA))
