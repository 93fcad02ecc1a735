"""Table metadata as the JSON document that it is.

PyIceberg's models drop fields they do not know and cannot write v3, so Icekeeper never rebuilds a document from
models: it reads what it needs from the JSON and changes only what an update names (Iceberg table specification,
"Table Metadata Fields").  Updates and requirements are the REST catalog's own JSON (``TableUpdate`` and
``TableRequirement`` of the REST specification), so that one commit means the same on every catalog.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from icekeeper.errors import CommitConflict, MetadataUnreadable, PolicyError

__all__ = [
    "JsonObject",
    "Ref",
    "Snapshot",
    "TableMetadata",
    "apply_updates",
    "check_requirements",
    "parse_document",
    "render_document",
]

JsonObject = dict[str, Any]
MAIN = "main"
INITIAL_SEQUENCE_NUMBER = 0
# Java's TableProperties.METADATA_PREVIOUS_VERSIONS_MAX_DEFAULT
PREVIOUS_VERSIONS_MAX_DEFAULT = 100
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot; ``raw`` is its JSON, with every field the writer gave it."""

    raw: Mapping[str, Any]

    @property
    def snapshot_id(self) -> int:
        return int(self.raw["snapshot-id"])

    @property
    def parent_id(self) -> int | None:
        parent = self.raw.get("parent-snapshot-id")
        return None if parent is None else int(parent)

    @property
    def sequence_number(self) -> int:
        """0 for v1 snapshots, which have none."""
        return int(self.raw.get("sequence-number") or INITIAL_SEQUENCE_NUMBER)

    @property
    def timestamp_ms(self) -> int:
        return int(self.raw["timestamp-ms"])

    @property
    def summary(self) -> Mapping[str, str]:
        return self.raw.get("summary") or {}

    @property
    def operation(self) -> str | None:
        return self.summary.get("operation")

    @property
    def manifest_list(self) -> str | None:
        """``None`` for v1 snapshots that list their manifests inline."""
        return self.raw.get("manifest-list")

    @property
    def inline_manifests(self) -> Sequence[str]:
        return self.raw.get("manifests") or ()

    @property
    def schema_id(self) -> int | None:
        return self.raw.get("schema-id")


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or tag; ages in milliseconds."""

    name: str
    type: str
    snapshot_id: int
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None


class TableMetadata:
    """A read-only view of one metadata document; the document itself is never modified."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        missing = [key for key in ("format-version", "location") if key not in document]
        if missing:
            raise MetadataUnreadable(f"table metadata lacks {' and '.join(missing)}; it is not an Iceberg table's")
        self.document = document

    @property
    def format_version(self) -> int:
        return int(self.document["format-version"])

    @property
    def uuid(self) -> str | None:
        """``None`` only for v1 tables whose writer gave none."""
        return self.document.get("table-uuid")

    @property
    def location(self) -> str:
        return str(self.document["location"]).rstrip("/")

    @property
    def last_updated_ms(self) -> int:
        return int(self.document.get("last-updated-ms") or 0)

    @property
    def last_sequence_number(self) -> int:
        return int(self.document.get("last-sequence-number") or INITIAL_SEQUENCE_NUMBER)

    @property
    def properties(self) -> Mapping[str, str]:
        return self.document.get("properties") or {}

    @cached_property
    def schemas(self) -> Mapping[int, JsonObject]:
        """Every schema by id; a v1 document may hold only ``schema``."""
        schemas = self.document.get("schemas") or [self.document["schema"]]
        return {int(schema.get("schema-id", 0)): schema for schema in schemas}

    @property
    def current_schema(self) -> JsonObject:
        current = self.document.get("current-schema-id")
        return self.schemas[int(current)] if current is not None else next(iter(self.schemas.values()))

    @property
    def schemas_current_first(self) -> Sequence[JsonObject]:
        """Every schema, the current one first, then newest to oldest."""
        current = self.current_schema
        others = [self.schemas[i] for i in sorted(self.schemas, reverse=True) if self.schemas[i] is not current]
        return [current, *others]

    @cached_property
    def specs(self) -> Mapping[int, JsonObject]:
        """Every partition spec by id; a v1 document may hold only the fields of ``partition-spec``.

        Field ids that a v1 writer left out are assigned from 1000 up, as the specification says.
        """
        specs = self.document.get("partition-specs")
        if not specs:
            specs = [{"spec-id": 0, "fields": self.document.get("partition-spec") or []}]
        return {
            int(spec["spec-id"]): {
                "spec-id": int(spec["spec-id"]),
                "fields": [{"field-id": 1000 + i, **field} for i, field in enumerate(spec["fields"])],
            }
            for spec in specs
        }

    @property
    def default_spec_id(self) -> int:
        return int(self.document.get("default-spec-id") or 0)

    @cached_property
    def snapshots(self) -> Mapping[int, Snapshot]:
        """Snapshots by id, in the document's order."""
        return {int(raw["snapshot-id"]): Snapshot(raw) for raw in self.document.get("snapshots") or ()}

    @cached_property
    def refs(self) -> Mapping[str, Ref]:
        """Branches and tags by name; ``main`` is derived for documents written without refs (v1)."""
        refs = {
            name: Ref(
                name=name,
                type=str(raw.get("type", "branch")),
                snapshot_id=int(raw["snapshot-id"]),
                min_snapshots_to_keep=raw.get("min-snapshots-to-keep"),
                max_snapshot_age_ms=raw.get("max-snapshot-age-ms"),
                max_ref_age_ms=raw.get("max-ref-age-ms"),
            )
            for name, raw in (self.document.get("refs") or {}).items()
        }
        current = self.document.get("current-snapshot-id")
        if MAIN not in refs and current is not None and int(current) != -1:
            refs[MAIN] = Ref(MAIN, "branch", int(current))
        return refs

    @property
    def current_snapshot(self) -> Snapshot | None:
        """The head of ``main``; ``None`` while the table has no data.

        Raises:
            MetadataUnreadable: the document names a current snapshot that it does not hold.
        """
        return self.head(MAIN)

    def head(self, branch: str) -> Snapshot | None:
        """The snapshot a branch or tag points at, ``None`` when there is no such ref."""
        ref = self.refs.get(branch)
        if ref is None:
            return None
        try:
            return self.snapshots[ref.snapshot_id]
        except KeyError:
            raise MetadataUnreadable(f"ref '{branch}' points at snapshot {ref.snapshot_id}, which is missing") from None

    def ancestors(self, snapshot_id: int) -> Iterable[Snapshot]:
        """The snapshot and its known ancestors, newest first; stops where the history was expired."""
        seen: set[int] = set()
        current: int | None = snapshot_id
        while current is not None and current in self.snapshots and current not in seen:
            seen.add(current)
            snapshot = self.snapshots[current]
            yield snapshot
            current = snapshot.parent_id

    @property
    def metadata_log(self) -> Sequence[Mapping[str, Any]]:
        return self.document.get("metadata-log") or ()

    @property
    def statistics(self) -> Sequence[Mapping[str, Any]]:
        return self.document.get("statistics") or ()

    @property
    def partition_statistics(self) -> Sequence[Mapping[str, Any]]:
        return self.document.get("partition-statistics") or ()

    @property
    def data_location(self) -> str:
        """Where new data files go: ``write.data.path``, its older names, or ``<location>/data``."""
        for key in ("write.data.path", "write.object-storage.path", "write.folder-storage.path"):
            if self.properties.get(key):
                return self.properties[key].rstrip("/")
        return f"{self.location}/data"

    @property
    def metadata_directory(self) -> str:
        """Where new metadata goes: ``write.metadata.path`` or ``<location>/metadata``."""
        return (self.properties.get("write.metadata.path") or f"{self.location}/metadata").rstrip("/")

    def property_flag(self, key: str, default: bool) -> bool:
        """A boolean table property, by Java's rule that only ``true`` (any case) is true."""
        value = self.properties.get(key)
        return default if value is None else value.strip().lower() == "true"

    def property_int(self, key: str, default: int) -> int:
        """An integer table property.

        Raises:
            PolicyError: the property is set to something else.
        """
        value = self.properties.get(key)
        if value is None:
            return default
        try:
            return int(value)
        except ValueError:
            raise PolicyError(f"table property {key} is '{value}', which is not an integer") from None


def parse_document(data: bytes, location: str) -> TableMetadata:
    """Parse a metadata file, plain or gzip-compressed.

    Raises:
        MetadataUnreadable: the bytes are truncated or not table metadata.
    """
    try:
        plain = gzip.decompress(data) if data[:2] == GZIP_MAGIC else data
        document = json.loads(plain)
    except (OSError, EOFError, ValueError) as error:
        raise MetadataUnreadable(f"metadata file {location} cannot be parsed: {error}") from error
    if not isinstance(document, dict):
        raise MetadataUnreadable(f"metadata file {location} does not hold a JSON object")
    return TableMetadata(document)


def render_document(metadata: TableMetadata, *, compress: bool = False) -> bytes:
    """Serialise a document, gzip-compressed when asked (``write.metadata.compression-codec``)."""
    plain = json.dumps(metadata.document, separators=(",", ":")).encode()
    return gzip.compress(plain) if compress else plain


def check_requirements(metadata: TableMetadata, requirements: Iterable[Mapping[str, Any]]) -> None:
    """Check REST ``TableRequirement`` objects against a document.

    Raises:
        CommitConflict: one of them does not hold.
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
        else:
            raise ValueError(f"unknown requirement {kind}")


def apply_updates(
    metadata: TableMetadata,
    updates: Iterable[Mapping[str, Any]],
    *,
    metadata_location: str | None,
    now_ms: int,
) -> TableMetadata:
    """Apply REST ``TableUpdate`` objects to a copy of the document, as the specification says.

    ``metadata_location`` is where the base document lives; it is appended to the metadata log, which is then cut
    to ``write.metadata.previous-versions-max`` entries.  ``now_ms`` is epoch milliseconds; time never runs
    backwards in the result.

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
    updated_ms: int
    added: set[int] = field(default_factory=set)
    """Snapshots that this commit adds."""


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
        next_row_id, first_row_id = int(document.get("next-row-id") or 0), int(snapshot["first-row-id"])
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
        # A rollback is logged at its own time, not at its snapshot's: readers want the log in order of time.
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
    gone = {int(snapshot_id) for snapshot_id in update["snapshot-ids"]}
    document["snapshots"] = [s for s in document.get("snapshots") or () if int(s["snapshot-id"]) not in gone]
    for key in ("statistics", "partition-statistics"):
        if key in document:
            document[key] = [s for s in document[key] if int(s["snapshot-id"]) not in gone]
    for name in [n for n, ref in (document.get("refs") or {}).items() if int(ref["snapshot-id"]) in gone]:
        _remove_snapshot_ref(document, {"ref-name": name}, commit)
    if document.get("current-snapshot-id") in gone:  # a v1 document has no refs
        _remove_snapshot_ref(document, {"ref-name": MAIN}, commit)
    # "If a snapshot was expired, all earlier entries are removed too" (specification, snapshot-log).
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
    document.setdefault("properties", {}).update(update["updates"])


def _remove_properties(document: JsonObject, update: Mapping[str, Any], commit: _Commit) -> None:
    for key in update["removals"]:
        document.setdefault("properties", {}).pop(key, None)


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
}
