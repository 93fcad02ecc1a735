"""Which statistics a snapshot lacks, and the fewest files that must be read for them.  Reads no files itself.

A sketch is valid for all later snapshots while only ``replace`` snapshots follow, because those keep the rows
(specification, "Snapshots": operation).  If only files were added since, reading these files completes it: a union of
sketches is the sketch of all rows.  After any other change, or if the history has expired, the column is read
again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from icekeeper.errors import PolicyError
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.puffin import THETA_SKETCH
from icekeeper.metadata.statistics import BlobMetadata, StatisticsFile, statistics_by_snapshot
from icekeeper.model import ManifestEntry, Nothing, PartitionValue
from icekeeper.operations.statistics.column_sketch import can_sketch


def statistics_columns(metadata: TableMetadata, named: Sequence[str]) -> Mapping[int, str]:
    """The columns that the policy key ``statistics_columns`` names (``named``; dots lead into structs), with types.

    By default these are the primitive columns at the top level, as in Iceberg-Java's ``compute_table_stats``.

    Raises:
        PolicyError: a column does not exist, or its type has no statistics.
    """
    fields = metadata.current_schema["fields"]
    if not named:
        return {int(field["id"]): str(field["type"]) for field in fields if can_sketch(field["type"])}
    known = dict(_by_name(fields, ""))
    types: dict[int, str] = {}
    for name in named:
        if name not in known:
            raise PolicyError(
                f"policy key statistics_columns names '{name}', which is not a column of this table; columns are: "
                f"{', '.join(known)}"
            )
        field = known[name]
        kind = field["type"]
        if not can_sketch(kind):
            raise PolicyError(
                f"policy key statistics_columns names '{name}', which is of type "
                f"{kind if isinstance(kind, str) else kind['type']}, for which there are no statistics"
            )
        types[int(field["id"])] = kind
    return types


def _by_name(fields: Sequence[Mapping[str, Any]], above: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for field in fields:
        name = f"{above}{field['name']}"
        yield name, field
        kind = field["type"]
        if isinstance(kind, Mapping) and kind["type"] == "struct":
            yield from _by_name(kind["fields"], f"{name}.")


NO_SNAPSHOT = "no current snapshot"
NO_COLUMNS = "no column has a type with statistics"
UP_TO_DATE = "statistics are up to date"

TYPE_KEY = "icekeeper.type"
"""Property of our blobs: the type whose bytes were hashed.

Only a sketch with the column's type can be united with ours, because other writers hash differently (Spark hashes a
uuid as text), and a column may be promoted."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """A data file whose rows are counted, and the delete entries that apply to it."""

    file_path: str
    file_format: str
    partition: tuple[PartitionValue, ...]
    record_count: int
    file_size_in_bytes: int
    first_row_id: int | None
    spec_id: int
    sequence_number: int
    deletes: tuple[ManifestEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob of the statistics file that is registered for a snapshot."""

    path: str
    blob: BlobMetadata
    registered_for: int

    @property
    def holds_for(self) -> int:
        """The newest snapshot whose rows the blob is certain to describe.

        We register a blob only for a snapshot that it describes.  A blob of another writer describes the snapshot from
        which it was computed.
        """
        return self.blob.snapshot_id if self.blob.get(TYPE_KEY) is None else self.registered_for


@dataclass(frozen=True, slots=True)
class Reading:
    """Columns (field id → type) to read from some files; ``base``: field id → the sketch of all earlier rows."""

    types: Mapping[int, str]
    files: tuple[RowFile, ...]
    base: Mapping[int, StoredBlob]


@dataclass(frozen=True, slots=True)
class StatisticsPlan:
    """What to write for a snapshot."""

    snapshot_id: int
    sequence_number: int
    carried: tuple[StoredBlob, ...]
    """Existing blobs that still describe the snapshot's rows."""
    readings: tuple[Reading, ...]
    partitions: bool
    """Whether to write a partition statistics file."""

    @property
    def blobs(self) -> int:
        return len(self.carried) + sum(len(reading.types) for reading in self.readings)

    @property
    def files(self) -> tuple[RowFile, ...]:
        """The data files to read, each once."""
        return tuple({f.file_path: f for reading in self.readings for f in reading.files}.values())


class _State(IntEnum):
    """What happened to the rows since a blob was computed."""

    SAME = 0
    APPENDED = 1
    CHANGED = 2


Appended = Callable[[Sequence[Snapshot]], Sequence[RowFile] | None]
"""The files that append snapshots added; ``None``: a snapshot did more than append."""


def plan_statistics(
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    columns: Mapping[int, str],
    live: Callable[[], Sequence[RowFile]],
    appended: Appended,
    *,
    unreadable: Collection[str] = (),
) -> StatisticsPlan | Nothing:
    """Plan for the head of a branch.

    ``columns``: field id → Iceberg type; ``live`` returns the head's data files and is called only if they must be
    read; ``unreadable``: paths of unusable statistics files.
    """
    if snapshot is None:
        return Nothing(NO_SNAPSHOT)
    wants_partitions = wants_partition_statistics(metadata)
    if not columns and not wants_partitions:
        return Nothing(NO_COLUMNS)
    has_partitions = any(int(s["snapshot-id"]) == snapshot.snapshot_id for s in metadata.partition_statistics)
    history = list(metadata.ancestors(snapshot.snapshot_id))
    stored = registered_blobs(metadata, history, unreadable)
    here = [s for s in stored if s.registered_for == snapshot.snapshot_id]
    states = _states(history)
    holding = _first_by_content([s for s in stored if states.get(s.holds_for) is _State.SAME])
    missing = {i: kind for i, kind in columns.items() if (THETA_SKETCH, (i,)) not in holding}
    readings: tuple[Reading, ...] = ()
    carried: tuple[StoredBlob, ...] = ()
    if missing or any(holding[THETA_SKETCH, (i,)] not in here for i in columns):
        bases = [s for s in stored if states.get(s.holds_for) is _State.APPENDED]
        readings = tuple(_readings(history, missing, bases, live, appended))
        # Other blobs that are registered for this snapshot must stay there.
        kept = _first_by_content([*holding.values(), *here])
        carried = tuple(s for key, s in kept.items() if key[0] != THETA_SKETCH or not set(key[1]) & missing.keys())
    elif has_partitions or not wants_partitions:
        return Nothing(UP_TO_DATE)
    return StatisticsPlan(
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number,
        carried=carried,
        readings=readings,
        partitions=wants_partitions and not has_partitions,
    )


def wants_partition_statistics(metadata: TableMetadata) -> bool:
    """Whether the table is or was partitioned."""
    return any(spec["fields"] for spec in metadata.specs.values())


def registered_blobs(
    metadata: TableMetadata, history: Sequence[Snapshot], unreadable: Collection[str] = ()
) -> list[StoredBlob]:
    """The blobs of the history's statistics files, newest snapshot first."""
    files: Mapping[int, StatisticsFile] = statistics_by_snapshot(metadata)
    known = (files[s.snapshot_id] for s in history if s.snapshot_id in files)
    return [
        StoredBlob(file.path, blob, file.snapshot_id)
        for file in known
        if file.path not in unreadable
        for blob in file.blobs
    ]


def _states(history: Sequence[Snapshot]) -> Mapping[int, _State]:
    """What happened to the rows since each snapshot of a history, which is newest first."""
    states: dict[int, _State] = {}
    state = _State.SAME
    for snapshot in history:
        states[snapshot.snapshot_id] = state
        if snapshot.operation != "replace":
            state = max(state, _State.APPENDED if snapshot.operation == "append" else _State.CHANGED)
    return states


def _first_by_content(stored: Sequence[StoredBlob]) -> dict[tuple[str, tuple[int, ...]], StoredBlob]:
    first: dict[tuple[str, tuple[int, ...]], StoredBlob] = {}
    for found in stored:
        first.setdefault((found.blob.type, found.blob.fields), found)
    return first


def _readings(
    history: Sequence[Snapshot],
    missing: Mapping[int, str],
    bases: Sequence[StoredBlob],
    live: Callable[[], Sequence[RowFile]],
    appended: Appended,
) -> list[Reading]:
    """Columns with an older sketch read the files added since; all other columns read all files."""
    completable: dict[int, dict[int, StoredBlob]] = defaultdict(dict)
    reread = dict(missing)
    for field_id, kind in missing.items():
        ours = (s for s in bases if (s.blob.type, s.blob.fields) == (THETA_SKETCH, (field_id,)))
        base = next((s for s in ours if s.blob.get(TYPE_KEY) == kind), None)
        if base is not None:
            completable[base.holds_for][field_id] = base
    readings = []
    ids = [snapshot.snapshot_id for snapshot in history]
    for snapshot_id, base_sketches in completable.items():
        since = history[: ids.index(snapshot_id)]
        files = appended([s for s in since if s.operation == "append"])
        if files is not None:
            types = {field_id: reread.pop(field_id) for field_id in base_sketches}
            readings.append(Reading(types, tuple(files), base_sketches))
    if reread:
        readings.append(Reading(reread, tuple(live()), {}))
    return readings
