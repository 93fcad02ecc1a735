"""Changes of a table metadata document: the requirements of a commit, and its updates (pure).

Both are objects of the REST specification (``TableRequirement``, ``TableUpdate``), so that a commit means the same on
every catalog.  An update changes only the fields that it names (rule: keep-unknown-metadata).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from icekeeper.errors import CommitConflict
from icekeeper.metadata.document import MAIN, JsonObject, TableMetadata


def same_table(metadata: TableMetadata) -> list[dict[str, Any]]:
    """The requirement that the table still has this UUID; empty for a v1 table without UUID."""
    return [] if metadata.uuid is None else [{"type": "assert-table-uuid", "uuid": metadata.uuid}]


def ref_at(name: str, snapshot_id: int | None) -> dict[str, Any]:
    """The requirement that a ref points at a snapshot; with ``None``, that there is no such ref."""
    return {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": snapshot_id}


def check_requirements(metadata: TableMetadata, requirements: Iterable[Mapping[str, Any]]) -> None:
    """Check requirements against a document.

    Raises:
        CommitConflict: a requirement is not met.
        ValueError: a requirement is of an unknown kind.
    """
    for requirement in requirements:
        kind = requirement["type"]
        if kind == "assert-table-uuid":
            if metadata.uuid != requirement["uuid"]:
                raise CommitConflict(f"the table was replaced: its UUID is {metadata.uuid}, not {requirement['uuid']}")
        elif kind == "assert-ref-snapshot-id":
            ref = metadata.refs.get(requirement["ref"])
            found = None if ref is None else ref.snapshot_id
            if found != requirement["snapshot-id"]:
                raise CommitConflict(
                    f"ref '{requirement['ref']}' is at snapshot {found}, not at {requirement['snapshot-id']}"
                )
        elif kind == "assert-default-spec-id":
            if metadata.default_spec_id != requirement["default-spec-id"]:
                raise CommitConflict(f"the default partition spec is now {metadata.default_spec_id}")
        elif kind == "assert-current-schema-id":
            if metadata.current_schema_id != requirement["current-schema-id"]:
                raise CommitConflict(f"the current schema is now {metadata.current_schema_id}")
        else:
            raise ValueError(f"unknown requirement {kind}")


# Java's TableProperties.METADATA_PREVIOUS_VERSIONS_MAX_DEFAULT
PREVIOUS_VERSIONS_MAX_DEFAULT = 100


def apply_updates(
    metadata: TableMetadata, updates: Iterable[Mapping[str, Any]], *, metadata_location: str | None, now_ms: int
) -> TableMetadata:
    """Apply updates to a copy of the document.

    ``metadata_location``, the path of the base document, is appended to the metadata log.  The log is then cut to
    ``write.metadata.previous-versions-max`` entries.  The times of the result (epoch milliseconds) are never before
    those of the base document.

    Raises:
        CommitConflict: an update does not fit the document, for example a sequence number that is already used.
        PolicyError: ``write.metadata.previous-versions-max`` is malformed.
        ValueError: an update of an unknown kind.
    """
    document = copy.deepcopy(dict(metadata.document))
    previous_update_ms = metadata.last_updated_ms
    updated_ms = max(now_ms, previous_update_ms)
    added: set[int] = set()
    for update in _joined(updates):
        if update["action"] == "add-snapshot":
            _add_snapshot(document, dict(update["snapshot"]))
            added.add(update["snapshot"]["snapshot-id"])
        elif update["action"] == "set-snapshot-ref":
            _set_snapshot_ref(document, update, added, updated_ms)
        else:
            _apply(document, update)
    newest_snapshot_ms = max((int(s["timestamp-ms"]) for s in document.get("snapshots") or ()), default=0)
    document["last-updated-ms"] = max(updated_ms, newest_snapshot_ms)
    if metadata_location is not None:
        log = [*(document.get("metadata-log") or ())]
        log.append({"timestamp-ms": previous_update_ms, "metadata-file": metadata_location})
        result = TableMetadata(document)
        keep = max(1, result.property_int("write.metadata.previous-versions-max", PREVIOUS_VERSIONS_MAX_DEFAULT))
        document["metadata-log"] = log[-keep:]
    return TableMetadata(document)


def _joined(updates: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The updates; consecutive updates that remove statistics are merged, because an expiry has one per snapshot."""
    for action, run in groupby(updates, key=lambda update: update["action"]):
        if action in ("remove-statistics", "remove-partition-statistics"):
            yield {"action": action, "snapshot-ids": {update["snapshot-id"] for update in run}}
        else:
            yield from run


def _apply(document: JsonObject, update: Mapping[str, Any]) -> None:
    match update["action"]:
        case "remove-snapshot-ref":
            _remove_snapshot_ref(document, update["ref-name"])
        case "remove-snapshots":
            _remove_snapshots(document, update["snapshot-ids"])
        case "set-statistics" | "set-partition-statistics" as action:
            key = action.removeprefix("set-")
            others = _without(document.get(key), "snapshot-id", [update[key]["snapshot-id"]])
            document[key] = [*others, dict(update[key])]
        case "remove-statistics" | "remove-partition-statistics" as action:
            key = action.removeprefix("remove-")
            document[key] = _without(document.get(key), "snapshot-id", update["snapshot-ids"])
        case "set-properties":
            document["properties"] = {**(document.get("properties") or {}), **update["updates"]}
        case "remove-properties":
            properties, gone = document.get("properties") or {}, set(update["removals"])
            document["properties"] = {key: value for key, value in properties.items() if key not in gone}
        case "remove-partition-specs":
            if TableMetadata(document).default_spec_id in update["spec-ids"]:
                raise CommitConflict("the default partition spec cannot be removed")
            if document.get("partition-specs"):
                document["partition-specs"] = _without(document["partition-specs"], "spec-id", update["spec-ids"])
        case "remove-schemas":
            if TableMetadata(document).current_schema_id in update["schema-ids"]:
                raise CommitConflict("the current schema cannot be removed")
            if "schemas" in document:
                document["schemas"] = _without(document["schemas"], "schema-id", update["schema-ids"])
        case action:
            raise ValueError(f"unknown update {action}")


def _add_snapshot(document: JsonObject, snapshot: JsonObject) -> None:
    # The checks of Iceberg-Java's TableMetadata.Builder.addSnapshot and of REST servers.
    snapshot_id, version = snapshot["snapshot-id"], int(document["format-version"])
    if any(s["snapshot-id"] == snapshot_id for s in document.get("snapshots") or ()):
        raise CommitConflict(f"snapshot {snapshot_id} is already in the table")
    if "sequence-number" in snapshot:
        last, number = int(document.get("last-sequence-number") or 0), int(snapshot["sequence-number"])
        if version > 1 and number <= last and snapshot.get("parent-snapshot-id") is not None:
            raise CommitConflict(f"snapshot {snapshot_id} has sequence number {number}, but the table is at {last}")
        document["last-sequence-number"] = max(last, number)
    if version > 2:
        next_row_id, first_row_id = TableMetadata(document).next_row_id, int(snapshot["first-row-id"])
        if first_row_id < next_row_id:
            raise CommitConflict(
                f"snapshot {snapshot_id} starts at row id {first_row_id}, but the table is at {next_row_id}"
            )
        # Specification, "Row Lineage".
        document["next-row-id"] = first_row_id + int(snapshot["added-rows"])
    document["snapshots"] = [*(document.get("snapshots") or ()), snapshot]


def _set_snapshot_ref(document: JsonObject, update: Mapping[str, Any], added: Collection[int], updated_ms: int) -> None:
    """``added``: the ids of the snapshots that this commit adds; ``updated_ms``: the time of the commit."""
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
        # A rollback is logged with the time of its commit, so that the log stays in order of time.
        logged_ms = int(snapshot["timestamp-ms"]) if snapshot_id in added else updated_ms
        entry = {"timestamp-ms": logged_ms, "snapshot-id": snapshot_id}
        document["snapshot-log"] = [*(document.get("snapshot-log") or ()), entry]


def _remove_snapshot_ref(document: JsonObject, name: str) -> None:
    (document.get("refs") or {}).pop(name, None)
    if name == MAIN:
        # Java writes "no current snapshot" as null from v3 on.
        document["current-snapshot-id"] = -1 if int(document["format-version"]) < 3 else None
        document["snapshot-log"] = []


def _remove_snapshots(document: JsonObject, snapshot_ids: Iterable[int]) -> None:
    gone = set(map(int, snapshot_ids))
    document["snapshots"] = _without(document.get("snapshots"), "snapshot-id", gone)
    for key in ("statistics", "partition-statistics"):
        if document.get(key):
            document[key] = _without(document[key], "snapshot-id", gone)
    for name in [n for n, ref in (document.get("refs") or {}).items() if int(ref["snapshot-id"]) in gone]:
        _remove_snapshot_ref(document, name)
    if document.get("current-snapshot-id") in gone:  # a v1 document has no refs
        _remove_snapshot_ref(document, MAIN)
    # The log loses all entries up to the last entry of a removed snapshot.
    log = document.get("snapshot-log") or []
    last_gone = max((i for i, entry in enumerate(log) if int(entry["snapshot-id"]) in gone), default=-1)
    if last_gone >= 0:
        document["snapshot-log"] = log[last_gone + 1 :]


def _without(entries: Iterable[JsonObject] | None, id_key: str, gone: Collection[int]) -> list[JsonObject]:
    return [entry for entry in entries or () if int(entry.get(id_key) or 0) not in gone]
