"""Random histories of tables for cleaning, carried out by Iceberg-Java and us."""

from __future__ import annotations

import enum
import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

from icekeeper.administration.pins import stage_load
from icekeeper.errors import StorageError
from icekeeper.metadata.document import MAIN
from icekeeper.model import CatalogId, FileContent
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import Pin
from icekeeper.storage.paths import normalise
from support.java_table import SharedTable
from support.java_writer import JavaTable, JavaTables
from support.maintained_table import NAME, local_path, outcome_of
from support.scripted_catalog import counted_steps

# What hypothesis draws for cleaning up: tables with branches, tags, rollbacks and crashes, and how they are cleaned.
#
# As in :mod:`support.histories` a step is a verb and a seed, and does what the table that it meets allows.


class Act(enum.Enum):
    """What happens to a table."""

    APPEND = "append"
    UPSERT = "upsert"
    DELETE_POSITIONS = "delete positions"
    DROP_FILE = "drop a file"
    ADD_AGAIN = "add a file again"
    STAGE = "stage"
    PUBLISH = "publish"
    BRANCH = "branch"
    TAG = "tag"
    FAST_FORWARD = "fast forward"
    DROP_REF = "drop a ref"
    ROLL_BACK = "roll back"
    STATISTICS = "statistics"
    PARTITION_STATISTICS = "partition statistics"
    EVOLVE = "evolve"
    REPARTITION = "repartition"
    UPGRADE = "upgrade"
    PIN = "pin"
    STAGE_LOAD = "stage a load"
    STRAY = "leave a stray file"
    COMPACT = "compact"
    REWRITE_MANIFESTS = "rewrite manifests"
    REWRITE_DELETES = "rewrite deletes"
    COMPUTE_STATISTICS = "compute statistics"
    EXPIRE = "expire"
    SWEEP = "sweep"
    CRASH = "crash"


_OFTEN = (*(Act.APPEND,) * 5, *(Act.COMPACT, Act.REWRITE_MANIFESTS, Act.TAG, Act.BRANCH) * 2, Act.CRASH, Act.STAGE)
_WITH_DELETES = (Act.UPSERT, Act.DELETE_POSITIONS, Act.REWRITE_DELETES)


@dataclass(frozen=True, slots=True)
class CleanupStep:
    act: Act
    seed: int

    def __repr__(self) -> str:
        return f"{self.act.value} #{self.seed}"


@dataclass(frozen=True, slots=True)
class Cleaning:
    """Settings of the last expiry; ``crash_at`` kills its first attempt at that step outwards."""

    max_snapshots_to_keep: int
    young: int
    """So many of the newest snapshots are within the retention."""
    expire_limit: int | None
    retain_max: int | None
    crash_at: int | None
    cleans_metadata: bool

    @property
    def settings(self) -> dict[str, str]:
        chosen: dict[str, int | None] = {
            "max_snapshots_to_keep": self.max_snapshots_to_keep,
            "snapshot_expire_limit": self.expire_limit,
            "snapshot_retain_max": self.retain_max,
        }
        settings = {key: str(value) for key, value in chosen.items() if value is not None}
        return {**settings, "clean_expired_metadata": str(self.cleans_metadata).lower()}


@dataclass(frozen=True, slots=True)
class CleanupHistory:
    """A table from its creation on, and how it is cleaned in the end."""

    format_version: int
    is_partitioned: bool
    merges_manifests: bool
    steps: tuple[CleanupStep, ...]
    cleaning: Cleaning


def _history(seed: int) -> CleanupHistory:
    """Five to sixteen steps, the first an append."""
    chance = random.Random(seed)
    version = chance.choice((1, 2, 2, 3, 3))
    acts = [act for act in (*Act, *_OFTEN) if version > 1 or act not in _WITH_DELETES]
    chosen = [Act.APPEND, *(chance.choice(acts) for _ in range(chance.randint(4, 15)))]
    keep = chance.choice((1, 1, 2, 3))
    return CleanupHistory(
        format_version=version,
        is_partitioned=chance.random() < 0.5,
        merges_manifests=chance.random() < 0.5,
        steps=tuple(CleanupStep(act, chance.randrange(10_000)) for act in chosen),
        cleaning=Cleaning(
            max_snapshots_to_keep=keep,
            young=chance.choice((0, 0, 0, 1, 2, 4)),
            expire_limit=chance.choice((None, None, None, 1, 3)),
            retain_max=chance.choice((None, None, keep, keep + 1)),
            crash_at=chance.randint(1, 40) if chance.random() < 0.4 else None,
            cleans_metadata=chance.random() < 0.3,
        ),
    )


def cleanup_histories() -> st.SearchStrategy[CleanupHistory]:
    """One number each: hypothesis, left to draw every step, draws short histories that hardly differ."""
    return st.integers(0, 2**63).map(_history)


# A table that Iceberg-Java makes and we clean, which remembers what its snapshots held.
#
# Nothing here asks our own code what a table needs: rows are read and references followed by Iceberg-Java.

_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": True},
        {"id": 2, "name": "part", "type": "string", "required": False},
    ],
}
_EAGER: dict[str, Any] = {"min_input_files": "2", "min_manifests_to_rewrite": "2"}
_LATER_MS = 100 * 3_600_000
_METADATA = ".metadata.json"


class Killed(BaseException):
    """The process ends here, whatever it was about to tidy up."""


class CleanupTable:
    """A table being made and cleaned; ``trace`` tells what every step came to."""

    def __init__(self, history: CleanupHistory, tables: JavaTables, folder: Path) -> None:
        properties = {
            "format-version": str(history.format_version),
            "commit.manifest-merge.enabled": str(history.merges_manifests).lower(),
            "commit.manifest.min-count-to-merge": "3",
        }
        self.folder = folder / "table"
        self.java: JavaTable = tables.create(_SCHEMA, {"spec-id": 0, "fields": []}, properties, self.folder)
        self.table = SharedTable(self.java, folder)
        self.trace: list[str] = []
        self.pinned: set[int] = set()
        self.aging: set[str] = set()
        """Refs that are too old a millisecond after their snapshot."""
        self.staged: set[str] = set()
        """Files that a load still waits for."""
        self.held: dict[int, list[str]] = {}
        self.made: dict[str, Any] = {}
        self.format_version = history.format_version
        self._names = 0

    def remember(self) -> None:
        """Read every snapshot that is new."""
        for snapshot_id in self.snapshots - self.held.keys():
            self.held[snapshot_id] = self._rows(snapshot_id)

    # -- what is there

    @property
    def snapshots(self) -> set[int]:
        return {snapshot.snapshotId() for snapshot in self.java.table.snapshots()}

    @property
    def refs(self) -> dict[str, int]:
        return {name: ref.snapshotId() for name, ref in dict(self.java.table.refs()).items()}

    def changed_snapshots(self) -> dict[int, tuple[list[str], list[str]]]:
        """Retained ones that read otherwise than when they were new: before and now."""
        found = {i: (self.held[i], self._rows(i)) for i in self.snapshots & self.held.keys()}
        return {i: rows for i, rows in found.items() if rows[0] != rows[1]}

    def _rows(self, snapshot_id: int) -> list[str]:
        return sorted(json.dumps(row) for row in json.loads(self.java.rows_of(snapshot_id)))

    @property
    def on_disk(self) -> set[str]:
        return {str(path) for path in self.folder.rglob("*") if path.is_file()}

    @property
    def reachable(self) -> set[str]:
        return {normalise(path) for path in self.java.reachable()}

    def left_over(self) -> set[str]:
        """What lies there and nothing needs; metadata files that some catalog may know
        (rule: keep-young-metadata-files) apart."""
        oldest_ms = min(snapshot.timestampMillis() for snapshot in self.java.table.snapshots())
        found = self.on_disk - self.reachable - self.staged
        return {p for p in found if not (p.endswith(_METADATA) and Path(p).stat().st_mtime * 1000 >= oldest_ms)}

    # -- cleaning

    def expire(self, **settings: str) -> OperationOutcome:
        return self.ours(Operation.EXPIRE_SNAPSHOTS, **settings)

    def sweep(self) -> OperationOutcome:
        self.table.late_ms = _LATER_MS
        try:
            return self.ours(Operation.REMOVE_ORPHANS)
        finally:
            self.table.late_ms = 0

    def ours(self, operation: Operation, **settings: Any) -> OperationOutcome:
        """One operation of ours, which must not fail."""
        outcome = outcome_of(self.table.maintain(operations=operation.value, **_EAGER, **settings), operation)
        assert outcome.status in (Status.SUCCEEDED, Status.SKIPPED), outcome
        self.trace.append(f"  {outcome.summary}")
        return outcome

    def killed_at(self, step: int, work: Callable[[], object]) -> None:
        """Do work in a process that ends at its n-th step outwards."""
        with counted_steps(self.table.catalog, step, Killed) as steps, suppress(Killed):
            work()
        self.trace.append(f"  killed at {steps.where}" if steps.where else "  done before the end came")

    # -- choices

    def new_file(self, chance: random.Random) -> Any:
        rows = [self.new_row(chance) for _ in range(chance.randint(1, 3))]
        if self.java.spec["fields"]:
            rows = [{**row, "2": rows[0]["2"]} for row in rows]
        partition = self.java.partitions(self.spec_id, rows)[0]
        made = self.java.data_file(rows, self.spec_id, partition, "parquet")
        self.made[str(made.location())] = made
        return made

    def new_row(self, chance: random.Random) -> dict[str, Any]:
        return {"1": chance.randrange(20), "2": chance.choice("abc")}

    @property
    def spec_id(self) -> int:
        return int(self.java.spec["spec-id"])

    @property
    def branches(self) -> list[str]:
        return sorted(n for n, ref in dict(self.java.table.refs()).items() if ref.isBranch() and n != MAIN)

    def some_snapshot(self, chance: random.Random) -> int:
        there = self.snapshots
        return chance.choice([i for i in self.held if i in there])  # as they were made: ids are random

    def live_file(self, chance: random.Random) -> tuple[str, int, tuple[Any, ...]] | None:
        """A data file of the current snapshot: path, spec, partition."""
        reader = self.table.reader
        head = reader.metadata.current_snapshot
        assert head is not None
        found = [
            (entry.file.file_path, manifest.partition_spec_id, entry.file.partition)
            for manifest, entries in reader.entries(reader.manifests(head))
            for entry in entries
            if entry.is_live and entry.file.content is FileContent.DATA
        ]
        return chance.choice(sorted(found)) if found else None

    def new_name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"


# What may happen to a table between two cleanings: what other engines do, and what we do.
#
# Each act draws what it does from ``chance``; one that the table does not allow raises or changes nothing.


def _append(table: CleanupTable, chance: random.Random) -> None:
    append = table.java.table.newAppend().appendFile(table.new_file(chance))
    branch = chance.choice((MAIN, *table.branches))
    append.toBranch(branch).commit()
    table.trace.append(f"  to {branch}")


def _stage(table: CleanupTable, chance: random.Random) -> None:
    table.java.table.newAppend().appendFile(table.new_file(chance)).stageOnly().commit()


def _publish(table: CleanupTable, chance: random.Random) -> None:
    """A staged snapshot, or one of another branch: Java adds its files again, in manifests of their own."""
    table.java.table.manageSnapshots().cherrypick(table.some_snapshot(chance)).commit()


def _upsert(table: CleanupTable, chance: random.Random) -> None:
    data = table.new_file(chance)
    row = table.new_row(chance)
    (partition,) = table.java.partitions(table.spec_id, [row])
    delete = table.java.equality_deletes([row], [1], table.spec_id, partition, "parquet")
    table.java.row_delta([data], [delete])


def _delete_positions(table: CleanupTable, chance: random.Random) -> None:
    if (found := table.live_file(chance)) is None:
        return
    path, spec_id, partition = found
    if table.format_version > 2:
        table.java.delete_by_vectors({path: [0]})
    elif table.format_version > 1:
        table.java.row_delta(deletes=[table.java.position_deletes({path: [0]}, spec_id, partition, "parquet")])


def _drop_file(table: CleanupTable, chance: random.Random) -> None:
    if (found := table.live_file(chance)) is not None:
        table.java.replace([found[0]])


def _add_again(table: CleanupTable, chance: random.Random) -> None:
    """A live file once more, in a manifest of its own: readers then read its rows twice.  Where there are vectors
    Java reads nothing any more, because they are older than the file."""
    found = table.live_file(chance)
    if found is not None and found[0] in table.made and not table.table.live_deletes():
        table.java.table.newFastAppend().appendFile(table.made[found[0]]).commit()


def _branch(table: CleanupTable, chance: random.Random) -> None:
    name = table.new_name("b")
    manage = table.java.table.manageSnapshots().createBranch(name, table.some_snapshot(chance))
    if chance.random() < 0.3:
        manage = manage.setMinSnapshotsToKeep(name, chance.randint(1, 3))
    if chance.random() < 0.3:
        manage = manage.setMaxSnapshotAgeMs(name, 1 << 40)
    manage.commit()
    _age(table, name, chance)


def _tag(table: CleanupTable, chance: random.Random) -> None:
    name = table.new_name("t")
    table.java.table.manageSnapshots().createTag(name, table.some_snapshot(chance)).commit()
    _age(table, name, chance)


def _age(table: CleanupTable, name: str, chance: random.Random) -> None:
    """Some refs are too old at once."""
    if chance.random() < 0.4:
        age_ms = chance.choice((1, 1 << 40))
        table.java.set_max_ref_age(name, age_ms)
        table.aging |= {name} if age_ms == 1 else set()


def _fast_forward(table: CleanupTable, chance: random.Random) -> None:
    if table.branches:
        table.java.table.manageSnapshots().fastForwardBranch(MAIN, chance.choice(table.branches)).commit()


def _drop_ref(table: CleanupTable, chance: random.Random) -> None:
    names = sorted(table.refs.keys() - {MAIN})
    if names:
        name = chance.choice(names)
        manage = table.java.table.manageSnapshots()
        (manage.removeBranch(name) if name in table.branches else manage.removeTag(name)).commit()


def _roll_back(table: CleanupTable, chance: random.Random) -> None:
    table.java.roll_back(table.some_snapshot(chance))


def _statistics(table: CleanupTable, chance: random.Random) -> None:
    table.java.add_statistics(table.some_snapshot(chance))


def _partition_statistics(table: CleanupTable, chance: random.Random) -> None:
    table.java.add_partition_statistics(table.some_snapshot(chance))


def _evolve(table: CleanupTable, chance: random.Random) -> None:
    name = table.new_name("c")
    table.java.evolve(lambda update: update.addColumn(name, table.java.type("int")))


def _repartition(table: CleanupTable, chance: random.Random) -> None:
    if table.java.spec["fields"] and table.java.spec["fields"][-1]["transform"] != "void":
        gone = table.java.spec["fields"][-1]["name"]
        table.java.repartition(lambda update: update.removeField(gone))
    else:
        table.java.repartition(lambda update: update.addField("part"))


def _upgrade(table: CleanupTable, chance: random.Random) -> None:
    if table.format_version < 3:
        table.format_version += 1
        table.java.set_property("format-version", str(table.format_version))


def _pin(table: CleanupTable, chance: random.Random) -> None:
    loaded = table.table.runtime.catalog.load(NAME)
    snapshot_id = table.some_snapshot(chance)
    identity = TableIdentity(CatalogId("shared", "shared"), NAME, loaded.metadata.uuid or "")
    pin = Pin(
        identity=identity,
        name=table.new_name("pin"),
        snapshot_id=snapshot_id,
        metadata_location=loaded.metadata_location,
        expires_ms=1 << 60,
    )
    table.table.runtime.state.add_pin(pin)
    table.pinned.add(snapshot_id)


def _stage_load(table: CleanupTable, chance: random.Random) -> None:
    """A file of a load that may yet be adopted."""
    path = str(table.new_file(chance).location())
    handle = table.table.runtime.table(NAME)
    stage_load(handle, table.new_name("load"), [path], [])
    table.staged.add(normalise(path))


def _stray(table: CleanupTable, chance: random.Random) -> None:
    """What a writer that died leaves behind: data, a manifest, a metadata file that was never swapped in."""
    table.new_file(chance)
    metadata = local_path(table.java.metadata_location)
    name = table.new_name("stray")
    (metadata.parent / f"{name}-m0.avro").write_bytes(b"Obj")
    if chance.random() < 0.3:
        (metadata.parent / f"99999-{name}{_METADATA}").write_bytes(metadata.read_bytes())


def _compact(table: CleanupTable, chance: random.Random) -> None:
    table.ours(Operation.COMPACT)


def _rewrite_manifests(table: CleanupTable, chance: random.Random) -> None:
    table.ours(Operation.REWRITE_MANIFESTS)


def _rewrite_deletes(table: CleanupTable, chance: random.Random) -> None:
    table.ours(Operation.REWRITE_POSITION_DELETES)


def _compute_statistics(table: CleanupTable, chance: random.Random) -> None:
    table.ours(Operation.COMPUTE_STATISTICS)


def _expire(table: CleanupTable, chance: random.Random) -> None:
    settings = {"max_snapshots_to_keep": str(chance.randint(1, 4))}
    if chance.random() < 0.5:
        settings["snapshot_expire_limit"] = "1"
    if chance.random() < 0.3:
        settings["clean_expired_metadata"] = "true"
    if chance.random() < 0.3:
        _expire_named(table, chance)
    table.expire(**settings)


def _expire_named(table: CleanupTable, chance: random.Random) -> None:
    """By id, out of the middle of a history; what is protected is refused before anything runs."""
    pinned = [s.timestamp_ms for i, s in table.table.reader.metadata.snapshots.items() if i in table.pinned]
    named = table.some_snapshot(chance)
    moment = table.table.reader.metadata.snapshots[named].timestamp_ms
    if named not in table.refs.values() and all(moment < pin for pin in pinned):
        table.expire(snapshot_expire_ids=str(named))


def _sweep(table: CleanupTable, chance: random.Random) -> None:
    table.sweep()


def _crash(table: CleanupTable, chance: random.Random) -> None:
    operation = chance.choice((Operation.COMPACT, Operation.REWRITE_MANIFESTS, Operation.EXPIRE_SNAPSHOTS))
    with suppress(StorageError):
        table.killed_at(chance.randint(1, 40), lambda: table.ours(operation, max_snapshots_to_keep="2"))


ACTS: Mapping[Act, Callable[[CleanupTable, random.Random], None]] = {
    Act.APPEND: _append,
    Act.UPSERT: _upsert,
    Act.DELETE_POSITIONS: _delete_positions,
    Act.DROP_FILE: _drop_file,
    Act.ADD_AGAIN: _add_again,
    Act.STAGE: _stage,
    Act.PUBLISH: _publish,
    Act.BRANCH: _branch,
    Act.TAG: _tag,
    Act.FAST_FORWARD: _fast_forward,
    Act.DROP_REF: _drop_ref,
    Act.ROLL_BACK: _roll_back,
    Act.STATISTICS: _statistics,
    Act.PARTITION_STATISTICS: _partition_statistics,
    Act.EVOLVE: _evolve,
    Act.REPARTITION: _repartition,
    Act.UPGRADE: _upgrade,
    Act.PIN: _pin,
    Act.STAGE_LOAD: _stage_load,
    Act.STRAY: _stray,
    Act.COMPACT: _compact,
    Act.REWRITE_MANIFESTS: _rewrite_manifests,
    Act.REWRITE_DELETES: _rewrite_deletes,
    Act.COMPUTE_STATISTICS: _compute_statistics,
    Act.EXPIRE: _expire,
    Act.SWEEP: _sweep,
    Act.CRASH: _crash,
}


# Carries out a history of :mod:`support.cleanup_histories` by Iceberg-Java and us.

_KEPT_FOR_HOURS = 1


class CleanupRun(CleanupTable):
    """Takes the steps of a history one by one."""

    def __init__(self, history: CleanupHistory, tables: JavaTables, folder: Path) -> None:
        super().__init__(history, tables, folder)
        if history.is_partitioned:
            self.java.repartition(lambda update: update.addField("part"))
        for step in history.steps:
            self.take(step)

    def take(self, step: CleanupStep) -> None:
        """Do one step; one that this table does not allow changes nothing."""
        self.trace.append(repr(step))
        # Java refuses what cannot be: to publish what is published, to go forward to another line.
        with suppress(Py4JJavaError, CapturedException):
            ACTS[step.act](self, random.Random(step.seed))
        self.remember()

    def clean(self, cleaning: Cleaning) -> OperationOutcome:
        """The last expiry, by a clock at which as many snapshots are young as it says."""
        newest_first = sorted((s.timestampMillis() for s in self.java.table.snapshots()), reverse=True)
        young = newest_first[: cleaning.young]
        oldest_young = young[-1] if young else newest_first[0] + 1
        now_ms = oldest_young + _KEPT_FOR_HOURS * 3_600_000
        self.table.late_ms += now_ms - self.table.runtime.clock()
        settings = {**cleaning.settings, "snapshot_retention_hours": str(_KEPT_FOR_HOURS)}
        if cleaning.crash_at is not None:
            self.killed_at(cleaning.crash_at, lambda: self.expire(**settings))
            self.remember()
        return self.expire(**settings)
