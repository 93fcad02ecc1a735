"""Carries out a history of :mod:`support.cleanup_histories` by Iceberg-Java and us, and remembers what snapshots held.

Nothing here asks our own code what a table needs: rows are read and references followed by Iceberg-Java.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

from icekeeper.administration.loads import stage_load
from icekeeper.errors import StorageError
from icekeeper.metadata.document import MAIN
from icekeeper.model import FileContent
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import Pin
from icekeeper.storage.paths import normalise
from support.cleanup_histories import Act, Cleaning, CleanupHistory, CleanupStep
from support.counted_steps import counted_steps
from support.files_on_disk import local_path
from support.java_writer import JavaTable, JavaTables
from support.maintained_table import NAME
from support.outcomes import outcome_of
from support.shared_table import SharedTable

__all__ = ["CleanupRun", "Killed"]

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
_KEPT_FOR_HOURS = 1
_METADATA = ".metadata.json"


class Killed(BaseException):
    """The process ends here, whatever it was about to tidy up."""


class CleanupRun:
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
        self._held: dict[int, list[str]] = {}
        self._made: dict[str, Any] = {}
        self._version = history.format_version
        self._names = 0
        if history.is_partitioned:
            self.java.repartition(lambda update: update.addField("part"))
        for step in history.steps:
            self.take(step)

    def take(self, step: CleanupStep) -> None:
        """Do one step; one that this table does not allow changes nothing."""
        self.trace.append(repr(step))
        # Java refuses what cannot be: to publish what is published, to go forward to another line.
        with suppress(Py4JJavaError, CapturedException):
            self._ACTS[step.act](self, random.Random(step.seed))
        self.remember()

    def remember(self) -> None:
        """Read every snapshot that is new."""
        for snapshot_id in self.snapshots - self._held.keys():
            self._held[snapshot_id] = self._rows(snapshot_id)

    # -- what is there

    @property
    def snapshots(self) -> set[int]:
        return {snapshot.snapshotId() for snapshot in self.java.table.snapshots()}

    @property
    def refs(self) -> dict[str, int]:
        return {name: ref.snapshotId() for name, ref in dict(self.java.table.refs()).items()}

    def changed_snapshots(self) -> dict[int, tuple[list[str], list[str]]]:
        """Retained ones that read otherwise than when they were new: before and now."""
        found = {i: (self._held[i], self._rows(i)) for i in self.snapshots & self._held.keys()}
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
        """What lies there and nothing needs; metadata files that some catalog may know (rule 97) apart."""
        oldest_ms = min(snapshot.timestampMillis() for snapshot in self.java.table.snapshots())
        found = self.on_disk - self.reachable - self.staged
        return {p for p in found if not (p.endswith(_METADATA) and Path(p).stat().st_mtime * 1000 >= oldest_ms)}

    # -- cleaning

    def expire(self, **settings: str) -> OperationOutcome:
        return self._ours(Operation.EXPIRE_SNAPSHOTS, **settings)

    def sweep(self) -> OperationOutcome:
        self.table.late_ms = _LATER_MS
        try:
            return self._ours(Operation.REMOVE_ORPHANS)
        finally:
            self.table.late_ms = 0

    def clean(self, cleaning: Cleaning) -> OperationOutcome:
        """The last expiry, by a clock at which as many snapshots are young as it says."""
        newest_first = sorted((s.timestampMillis() for s in self.java.table.snapshots()), reverse=True)
        young = newest_first[: cleaning.young]
        oldest_young = young[-1] if young else newest_first[0] + 1
        now_ms = oldest_young + _KEPT_FOR_HOURS * 3_600_000
        self.table.late_ms += now_ms - self.table.runtime.clock()
        settings = {**cleaning.settings, "snapshot_retention_hours": str(_KEPT_FOR_HOURS)}
        if cleaning.crash_at is not None:
            self._killed_at(cleaning.crash_at, lambda: self.expire(**settings))
            self.remember()
        return self.expire(**settings)

    def _ours(self, operation: Operation, **settings: Any) -> OperationOutcome:
        outcome = outcome_of(self.table.maintain(operations=operation.value, **_EAGER, **settings), operation)
        assert outcome.status in (Status.SUCCEEDED, Status.SKIPPED), outcome
        self.trace.append(f"  {outcome.summary}")
        return outcome

    def _killed_at(self, step: int, work: Callable[[], object]) -> None:
        with counted_steps(self.table.catalog, step, Killed) as steps, suppress(Killed):
            work()
        self.trace.append(f"  killed at {steps.where}" if steps.where else "  done before the end came")

    # -- what other engines do

    def _append(self, chance: random.Random) -> None:
        append = self.java.table.newAppend().appendFile(self._file(chance))
        branch = chance.choice((MAIN, *self._branches))
        append.toBranch(branch).commit()
        self.trace.append(f"  to {branch}")

    def _stage(self, chance: random.Random) -> None:
        self.java.table.newAppend().appendFile(self._file(chance)).stageOnly().commit()

    def _publish(self, chance: random.Random) -> None:
        """A staged snapshot, or one of another branch: Java adds its files again, in manifests of their own."""
        self.java.table.manageSnapshots().cherrypick(self._some_snapshot(chance)).commit()

    def _upsert(self, chance: random.Random) -> None:
        data = self._file(chance)
        row = self._row(chance)
        (partition,) = self.java.partitions(self._spec_id, [row])
        delete = self.java.equality_deletes([row], [1], self._spec_id, partition, "parquet")
        self.java.row_delta([data], [delete])

    def _delete_positions(self, chance: random.Random) -> None:
        if (found := self._live_file(chance)) is None:
            return
        path, spec_id, partition = found
        if self._version > 2:
            self.java.delete_by_vectors({path: [0]})
        elif self._version > 1:
            self.java.row_delta(deletes=[self.java.position_deletes({path: [0]}, spec_id, partition, "parquet")])

    def _drop_file(self, chance: random.Random) -> None:
        if (found := self._live_file(chance)) is not None:
            self.java.replace([found[0]])

    def _add_again(self, chance: random.Random) -> None:
        """A live file once more, in a manifest of its own: readers then read its rows twice.  Where there are vectors
        Java reads nothing any more, because they are older than the file."""
        found = self._live_file(chance)
        if found is not None and found[0] in self._made and not self.table.live_deletes():
            self.java.table.newFastAppend().appendFile(self._made[found[0]]).commit()

    def _branch(self, chance: random.Random) -> None:
        name = self._name("b")
        manage = self.java.table.manageSnapshots().createBranch(name, self._some_snapshot(chance))
        if chance.random() < 0.3:
            manage = manage.setMinSnapshotsToKeep(name, chance.randint(1, 3))
        if chance.random() < 0.3:
            manage = manage.setMaxSnapshotAgeMs(name, 1 << 40)
        manage.commit()
        self._age(name, chance)

    def _tag(self, chance: random.Random) -> None:
        name = self._name("t")
        self.java.table.manageSnapshots().createTag(name, self._some_snapshot(chance)).commit()
        self._age(name, chance)

    def _age(self, name: str, chance: random.Random) -> None:
        """Some refs are too old at once."""
        if chance.random() < 0.4:
            age_ms = chance.choice((1, 1 << 40))
            self.java.set_max_ref_age(name, age_ms)
            self.aging |= {name} if age_ms == 1 else set()

    def _fast_forward(self, chance: random.Random) -> None:
        if self._branches:
            self.java.table.manageSnapshots().fastForwardBranch(MAIN, chance.choice(self._branches)).commit()

    def _drop_ref(self, chance: random.Random) -> None:
        names = sorted(self.refs.keys() - {MAIN})
        if names:
            name = chance.choice(names)
            manage = self.java.table.manageSnapshots()
            (manage.removeBranch(name) if name in self._branches else manage.removeTag(name)).commit()

    def _roll_back(self, chance: random.Random) -> None:
        self.java.roll_back(self._some_snapshot(chance))

    def _statistics(self, chance: random.Random) -> None:
        self.java.add_statistics(self._some_snapshot(chance))

    def _partition_statistics(self, chance: random.Random) -> None:
        self.java.add_partition_statistics(self._some_snapshot(chance))

    def _evolve(self, chance: random.Random) -> None:
        name = self._name("c")
        self.java.evolve(lambda update: update.addColumn(name, self.java.type("int")))

    def _repartition(self, chance: random.Random) -> None:
        if self.java.spec["fields"] and self.java.spec["fields"][-1]["transform"] != "void":
            gone = self.java.spec["fields"][-1]["name"]
            self.java.repartition(lambda update: update.removeField(gone))
        else:
            self.java.repartition(lambda update: update.addField("part"))

    def _upgrade(self, chance: random.Random) -> None:
        if self._version < 3:
            self._version += 1
            self.java.set_property("format-version", str(self._version))

    # -- what we do

    def _pin(self, chance: random.Random) -> None:
        loaded = self.table.runtime.catalog.load(NAME)
        snapshot_id = self._some_snapshot(chance)
        identity = TableIdentity("shared", "shared", NAME, loaded.metadata.uuid or "")
        pin = Pin(
            identity=identity,
            name=self._name("pin"),
            snapshot_id=snapshot_id,
            metadata_location=loaded.metadata_location,
            expires_ms=1 << 60,
        )
        self.table.runtime.state.add_pin(pin)
        self.pinned.add(snapshot_id)

    def _stage_load(self, chance: random.Random) -> None:
        """A file of a load that may yet be adopted."""
        path = str(self._file(chance).location())
        handle = self.table.runtime.table(NAME)
        stage_load(handle, self._name("load"), [path], [])
        self.staged.add(normalise(path))

    def _stray(self, chance: random.Random) -> None:
        """What a writer that died leaves behind: data, a manifest, a metadata file that was never swapped in."""
        self._file(chance)
        metadata = local_path(self.java.metadata_location)
        name = self._name("stray")
        (metadata.parent / f"{name}-m0.avro").write_bytes(b"Obj")
        if chance.random() < 0.3:
            (metadata.parent / f"99999-{name}{_METADATA}").write_bytes(metadata.read_bytes())

    def _compact(self, chance: random.Random) -> None:
        self._ours(Operation.COMPACT)

    def _rewrite_manifests(self, chance: random.Random) -> None:
        self._ours(Operation.REWRITE_MANIFESTS)

    def _rewrite_deletes(self, chance: random.Random) -> None:
        self._ours(Operation.REWRITE_POSITION_DELETES)

    def _compute_statistics(self, chance: random.Random) -> None:
        self._ours(Operation.COMPUTE_STATISTICS)

    def _expire(self, chance: random.Random) -> None:
        settings = {"max_snapshots_to_keep": str(chance.randint(1, 4))}
        if chance.random() < 0.5:
            settings["snapshot_expire_limit"] = "1"
        if chance.random() < 0.3:
            settings["clean_expired_metadata"] = "true"
        if chance.random() < 0.3:
            self._expire_named(chance)
        self.expire(**settings)

    def _expire_named(self, chance: random.Random) -> None:
        """By id, out of the middle of a history; what is protected is refused before anything runs."""
        pinned = [s.timestamp_ms for i, s in self.table.reader.metadata.snapshots.items() if i in self.pinned]
        named = self._some_snapshot(chance)
        moment = self.table.reader.metadata.snapshots[named].timestamp_ms
        if named not in self.refs.values() and all(moment < pin for pin in pinned):
            self.expire(snapshot_expire_ids=str(named))

    def _sweep(self, chance: random.Random) -> None:
        self.sweep()

    def _crash(self, chance: random.Random) -> None:
        operation = chance.choice((Operation.COMPACT, Operation.REWRITE_MANIFESTS, Operation.EXPIRE_SNAPSHOTS))
        with suppress(StorageError):
            self._killed_at(chance.randint(1, 40), lambda: self._ours(operation, max_snapshots_to_keep="2"))

    # -- choices

    def _file(self, chance: random.Random) -> Any:
        rows = [self._row(chance) for _ in range(chance.randint(1, 3))]
        if self.java.spec["fields"]:
            rows = [{**row, "2": rows[0]["2"]} for row in rows]
        partition = self.java.partitions(self._spec_id, rows)[0]
        made = self.java.data_file(rows, self._spec_id, partition, "parquet")
        self._made[str(made.location())] = made
        return made

    def _row(self, chance: random.Random) -> dict[str, Any]:
        return {"1": chance.randrange(20), "2": chance.choice("abc")}

    @property
    def _spec_id(self) -> int:
        return int(self.java.spec["spec-id"])

    @property
    def _branches(self) -> list[str]:
        return sorted(n for n, ref in dict(self.java.table.refs()).items() if ref.isBranch() and n != MAIN)

    def _some_snapshot(self, chance: random.Random) -> int:
        there = self.snapshots
        return chance.choice([i for i in self._held if i in there])  # as they were made: ids are random

    def _live_file(self, chance: random.Random) -> tuple[str, int, tuple[Any, ...]] | None:
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

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    _ACTS: Mapping[Act, Callable[[CleanupRun, random.Random], None]] = {
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
