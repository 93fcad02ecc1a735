"""Applies updates to a table metadata document, as the specification says.

Updates are ``TableUpdate`` objects of the REST specification, so that one commit means the same on every catalog.
Everything that an update does not name is preserved.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from icekeeper.errors import CommitConflict
from icekeeper.metadata.document import MAIN, JsonObject, TableMetadata

__all__ = ["PREVIOUS_VERSIONS_MAX_DEFAULT", "apply_updates"]

# Java's TableProperties.METADATA_PREVIOUS_VERSIONS_MAX_DEFAULT
PREVIOUS_VERSIONS_MAX_DEFAULT = 100


def apply_updates(
    metadata: TableMetadata,
    updates: Iterable[Mapping[str, Any]],
    *,
    metadata_location: str | None,
    now_ms: int,
) -> TableMetadata:
    """The document with updates applied to a copy of it.

    ``metadata_location`` is the path of the base document; it is appended to the metadata log, which is then cut to
    ``write.metadata.previous-versions-max`` entries.  ``now_ms`` is epoch milliseconds; the result never has a time
    before those of the base document (rule 45).

    Raises:
        CommitConflict: an update does not fit the document: an overtaken sequence number or row id, a ref to a
            snapshot that is not there.
        PolicyError: a table property that steers the commit is malformed.
        ValueError: an update of an unknown kind.
    """
    document = copy.deepcopy(dict(metadata.document))
    previous_update_ms = metadata.last_updated_ms
    updated_ms = max(now_ms, previous_update_ms)
    commit = _Commit(updated_ms)
    for update in updates:
        if update["action"] not in _APPLY:
            raise ValueError(f"unknown update {update['action']}")
        _APPLY[update["action"]](document, update, commit)
    newest_snapshot_ms = max((int(s["timestamp-ms"]) for s in document.get("snapshots") or ()), default=0)
    document["last-updated-ms"] = max(updated_ms, newest_snapshot_ms)
    if metadata_location is not None:
        log = [*(document.get("metadata-log") or ())]
        log.append({"timestamp-ms": previous_update_ms, "metadata-file": metadata_location})
        result = TableMetadata(document)
        keep = max(1, result.property_int("write.metadata.previous-versions-max", PREVIOUS_VERSIONS_MAX_DEFAULT))
        document["metadata-log"] = log[-keep:]
    return TableMetadata(document)


@dataclass(frozen=True, slots=True)
class _Commit:
    """What updates of one commit have to know of each other."""

    updated_ms: int
    """The time of the commit, epoch milliseconds."""
    added: set[int] = field(default_factory=set)
    """Ids of the snapshots that this commit adds."""


def _add_snapshot(document: JsonObject, update: Mapping[str, Any], commit: _Commit) -> None:
    # The checks are those of Iceberg-Java's TableMetadata.Builder.addSnapshot and of REST servers.
    snapshot = dict(update["snapshot"])
    snapshot_id, version = snapshot["snapshot-id"], int(document["format-version"])
    if any(s["snapshot-id"] == snapshot_id for s in document.get("snapshots") or ()):
        raise CommitConflict(f"snapshot {snapshot_id} is already in the table")
    if "sequence-number" in snapshot:
        last, number = int(document.get("last-sequence-number") or 0), int(snapshot["sequence-number"])
        if version > 1 and number <= last and snapshot.get("parent-snapshot-id") is not None:
            raise CommitConflict(f"snapshot {snapshot_id} has sequence number {number}, the table is at {last} already")
        document["last-sequence-number"] = max(last, number)
    if version > 2:
        next_row_id, first_row_id = TableMetadata(document).next_row_id, int(snapshot["first-row-id"])
        if first_row_id < next_row_id:
            raise CommitConflict(
                f"snapshot {snapshot_id} starts at row id {first_row_id}, the table is at {next_row_id}"
            )
        # Every row that the snapshot's manifests were assigned (specification, "Row Lineage").
        document["next-row-id"] = first_row_id + int(snapshot["added-rows"])
    document["snapshots"] = [*(document.get("snapshots") or ()), snapshot]
    commit.added.add(snapshot_id)


def _set_snapshot_ref(document: JsonObject, update: Mapping[str, Any], commit: _Commit) -> None:
    name, snapshot_id = update["ref-name"], update["snapshot-id"]
    snapshot = next((s for s in document.get("snapshots") or () if s["snapshot-id"] == snapshot_id), None)
    if snapshot is None:
        raise CommitConflict(f"ref '{name}' cannot point at snapshot {snapshot_id}, which is not in the table")
    ref = {key: value for key, value in update.items() if key not in ("action", "ref-name") and value is not None}
    refs = document.get("refs") or {}
    if refs.get(name) == ref:
        return
    if int(document["format-version"]) > 1 or refs or name != MAIN:
        document["refs"] = {**refs, name: ref}
    if name == MAIN:
        document["current-snapshot-id"] = snapshot_id
        # A rollback is logged at its own time, not at that of its snapshot: readers want the log in order of time.
        logged_ms = int(snapshot["timestamp-ms"]) if snapshot_id in commit.added else commit.updated_ms
        entry = {"timestamp-ms": logged_ms, "snapshot-id": snapshot_id}
        document["snapshot-log"] = [*(document.get("snapshot-log") or ()), entry]


def _remove_snapshot_ref(document: JsonObject, update: Mapping[str, Any], commit: _Commit) -> None:
    name = update["ref-name"]
    (document.get("refs") or {}).pop(name, None)
    if name == MAIN:
        # Java writes "no current snapshot" as null from v3 on.
        document["current-snapshot-id"] = -1 if int(document["format-version"]) < 3 else None
        document["snapshot-log"] = []


def _set_statistics(document: JsonObject, update: Mapping[str, Any], commit: _Commit, key: str = "statistics") -> None:
    statistics = dict(update[key])
    _remove_statistics(document, statistics, commit, key)
    document[key].append(statistics)


def _set_partition_statistics(document: JsonObject, update: Mapping[str, Any], commit: _Commit) -> None:
    _set_statistics(document, update, commit, "partition-statistics")


def _remove_snapshots(document: JsonObject, update: Mapping[str, Any], commit: _Commit) -> None:
    gone = {int(snapshot_id) for snapshot_id in update["snapshot-ids"]}  # and their statistics (rule 43)
    document["snapshots"] = [s for s in document.get("snapshots") or () if int(s["snapshot-id"]) not in gone]
    for key in ("statistics", "partition-statistics"):
        if document.get(key):
            document[key] = [s for s in document[key] if int(s["snapshot-id"]) not in gone]
    for name in [n for n, ref in (document.get("refs") or {}).items() if int(ref["snapshot-id"]) in gone]:
        _remove_snapshot_ref(document, {"ref-name": name}, commit)
    if document.get("current-snapshot-id") in gone:  # a v1 document has no refs
        _remove_snapshot_ref(document, {"ref-name": MAIN}, commit)
    # With the entry of an expired snapshot go all entries before it (rule 44).
    log = document.get("snapshot-log") or []
    last_gone = max((i for i, entry in enumerate(log) if int(entry["snapshot-id"]) in gone), default=-1)
    if last_gone >= 0:
        document["snapshot-log"] = log[last_gone + 1 :]


def _remove_statistics(
    document: JsonObject, update: Mapping[str, Any], commit: _Commit, key: str = "statistics"
) -> None:
    snapshot_id = int(update["snapshot-id"])
    document[key] = [s for s in document.get(key) or () if int(s["snapshot-id"]) != snapshot_id]


def _remove_partition_statistics(document: JsonObject, update: Mapping[str, Any], commit: _Commit) -> None:
    _remove_statistics(document, update, commit, "partition-statistics")


def _set_properties(document: JsonObject, update: Mapping[str, Any], commit: _Commit) -> None:
    document["properties"] = {**(document.get("properties") or {}), **update["updates"]}


def _remove_properties(document: JsonObject, update: Mapping[str, Any], commit: _Commit) -> None:
    gone = set(update["removals"])
    document["properties"] = {
        key: value for key, value in (document.get("properties") or {}).items() if key not in gone
    }


def _remove_partition_specs(document: JsonObject, update: Mapping[str, Any], commit: _Commit) -> None:
    gone = set(update["spec-ids"])
    if TableMetadata(document).default_spec_id in gone:
        raise CommitConflict("the default partition spec cannot be removed")
    if document.get("partition-specs"):
        document["partition-specs"] = [s for s in document["partition-specs"] if int(s["spec-id"]) not in gone]


def _remove_schemas(document: JsonObject, update: Mapping[str, Any], commit: _Commit) -> None:
    gone = set(update["schema-ids"])
    if TableMetadata(document).current_schema_id in gone:
        raise CommitConflict("the current schema cannot be removed")
    if "schemas" in document:
        document["schemas"] = [s for s in document["schemas"] if int(s.get("schema-id", 0)) not in gone]


_APPLY: Mapping[str, Callable[[JsonObject, Mapping[str, Any], _Commit], None]] = {
    "add-snapshot": _add_snapshot,
    "set-snapshot-ref": _set_snapshot_ref,
    "remove-snapshot-ref": _remove_snapshot_ref,
    "remove-snapshots": _remove_snapshots,
    "set-statistics": _set_statistics,
    "set-partition-statistics": _set_partition_statistics,
    "remove-statistics": _remove_statistics,
    "remove-partition-statistics": _remove_partition_statistics,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "remove-partition-specs": _remove_partition_specs,
    "remove-schemas": _remove_schemas,
}
