"""Table metadata: a read-only view of its JSON document, commit requirements, and updates (pure).

PyIceberg's models drop fields that they do not know and cannot write v3.  So Icekeeper never rebuilds a document from
models: it reads what it needs from the JSON, and an update changes only the fields that it names
(rule: keep-unknown-metadata, platform: pyiceberg-drops-unknown-fields).
Source: specification, "Table Metadata Fields".
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

from icekeeper.errors import CommitConflict, MetadataUnreadable, PolicyError, TableUnsupported

JsonObject = dict[str, Any]
MAIN = "main"
DATA_FOLDER_KEYS = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
"""The folder of new data files is the first one that is set; the others are older names of the property."""
METADATA_FOLDER_KEY = "write.metadata.path"
NAME_MAPPING = "schema.name-mapping.default"
"""The property with the field ids for data files without ids (specification, "Name Mapping Serialization")."""
STATES_MAY_OVERLAP_MS = 60 * 1000
"""Iceberg-Java's ``TableMetadata`` accepts a state that is dated up to this much before the one it was made from."""
_LONG = 2**63


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot; ``raw`` is its JSON with all fields."""

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
        """0 for v1 snapshots."""
        return int(self.raw.get("sequence-number") or 0)

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
        """The path of the manifest list; ``None`` for v1 snapshots that list their manifests inline
        (rule: v1-tables-have-less)."""
        return self.raw.get("manifest-list")

    @property
    def inline_manifests(self) -> Sequence[str]:
        return self.raw.get("manifests") or ()

    @property
    def schema_id(self) -> int | None:
        return self.raw.get("schema-id")


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or tag (``type``); ages are in milliseconds."""

    name: str
    type: str
    snapshot_id: int
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None


class TableMetadata:
    """A read-only view of one metadata document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        missing = [key for key in ("format-version", "location") if key not in document]
        if missing:
            raise MetadataUnreadable(f"table metadata lacks {' and '.join(missing)}")
        self.document = document

    @property
    def format_version(self) -> int:
        return int(self.document["format-version"])

    @property
    def uuid(self) -> str | None:
        """``None`` only for v1 tables whose writer set none."""
        return self.document.get("table-uuid")

    @property
    def location(self) -> str:
        return str(self.document["location"]).rstrip("/")

    @property
    def last_updated_ms(self) -> int:
        return int(self.document.get("last-updated-ms") or 0)

    @property
    def last_sequence_number(self) -> int:
        return int(self.document.get("last-sequence-number") or 0)

    @property
    def has_history(self) -> bool:
        """Whether a snapshot was ever committed: the table has snapshots, a log of them, or a sequence number."""
        return bool(self.snapshots or self.document.get("snapshot-log")) or self.last_sequence_number > 0

    @property
    def next_row_id(self) -> int:
        """The lowest row id that was never assigned; 0 below v3 and just after an upgrade to v3."""
        return int(self.document.get("next-row-id") or 0)

    @property
    def properties(self) -> Mapping[str, str]:
        return self.document.get("properties") or {}

    @cached_property
    def schemas(self) -> Mapping[int, JsonObject]:
        """Every schema by id; a v1 document may hold only ``schema``."""
        schemas = self.document.get("schemas") or [self.document["schema"]]
        return {int(schema.get("schema-id") or 0): schema for schema in schemas}

    @property
    def current_schema(self) -> JsonObject:
        current = self.document.get("current-schema-id")
        return self.schemas[int(current)] if current is not None else next(iter(self.schemas.values()))

    @property
    def current_schema_id(self) -> int:
        """The id of the current schema; 0 where a v1 writer left it out."""
        return int(self.current_schema.get("schema-id") or 0)

    @property
    def schemas_current_first(self) -> Sequence[JsonObject]:
        """The current schema, then the others from the highest id down."""
        current = self.current_schema
        others = [self.schemas[i] for i in sorted(self.schemas, reverse=True) if self.schemas[i] is not current]
        return [current, *others]

    @cached_property
    def specs(self) -> Mapping[int, JsonObject]:
        """Every partition spec by id; a v1 document may hold only the fields of ``partition-spec``.

        Field ids that a v1 writer left out are counted from 1000, as the specification says.  A field with several
        source columns gets an unknown transform (rule: multi-column-transforms-unknown).
        """
        specs = self.document.get("partition-specs")
        if not specs:
            specs = [{"spec-id": 0, "fields": self.document.get("partition-spec") or []}]
        return {
            int(spec["spec-id"]): {
                "spec-id": int(spec["spec-id"]),
                "fields": [_of_one_column(f, 1000 + i) for i, f in enumerate(spec["fields"])],
            }
            for spec in specs
        }

    @property
    def default_spec_id(self) -> int:
        """0 where a v1 writer left the list of specs out; as in Java, ``default-spec-id`` then means nothing."""
        return int(self.document.get("default-spec-id") or 0) if self.document.get("partition-specs") else 0

    @property
    def default_sort_order_id(self) -> int:
        """0 (unsorted) where a v1 writer left it out."""
        return int(self.document.get("default-sort-order-id") or 0)

    @property
    def default_sort_order_fields(self) -> Sequence[Mapping[str, Any]]:
        """None for an unsorted table (specification, "Sorting": order 0)."""
        orders = self.document.get("sort-orders") or ()
        wanted = self.default_sort_order_id
        return next((order.get("fields") or () for order in orders if int(order["order-id"]) == wanted), ())

    @cached_property
    def snapshots(self) -> Mapping[int, Snapshot]:
        """By id, in the document's order."""
        return {int(raw["snapshot-id"]): Snapshot(raw) for raw in self.document.get("snapshots") or ()}

    @cached_property
    def snapshot_times_ms(self) -> Sequence[int]:
        """The timestamp of each snapshot, in the document's order."""
        return tuple(snapshot.timestamp_ms for snapshot in self.snapshots.values())

    @cached_property
    def in_commit_order(self) -> Sequence[Snapshot]:
        """The snapshots, oldest first: by sequence number; then parents before children; times decide the rest
        (rule: order-by-ancestry-not-time)."""
        snapshots: dict[int | None, Snapshot] = dict(self.snapshots.items())
        place: dict[int | None, tuple[int, int, int]] = {}
        for newest in self.snapshots:
            line: list[Snapshot] = []
            at: int | None = newest
            while at in snapshots and at not in place:
                place[at] = 0, 0, 0
                line.append(snapshots[at])
                at = line[-1].parent_id
            for one in reversed(line):
                _, latest_ms, length = place.get(at, (0, 0, 0))
                at = one.snapshot_id
                place[at] = one.sequence_number, max(latest_ms, one.timestamp_ms), length + 1
        return [self.snapshots[i] for i in sorted(self.snapshots, key=place.__getitem__)]

    @cached_property
    def refs(self) -> Mapping[str, Ref]:
        """Branches and tags by name; in a v1 document without refs, ``main`` is the current snapshot."""
        refs = {
            name: Ref(
                name=name,
                type=str(raw.get("type") or "branch"),
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
        """The head of ``main``; ``None`` while the table has no snapshot.

        Raises:
            MetadataUnreadable: the document does not contain its current snapshot.
        """
        return self.head(MAIN)

    @property
    def head_ids(self) -> frozenset[int]:
        """The snapshot id of ``main``; without ``main``, those of all branches."""
        refs = self.refs
        wanted = [refs[MAIN]] if MAIN in refs else refs.values()
        return frozenset(ref.snapshot_id for ref in wanted if ref.type == "branch")

    def head(self, branch: str) -> Snapshot | None:
        """The snapshot that a branch or tag points at; ``None``: there is no such ref.

        Raises:
            MetadataUnreadable: the document does not contain that snapshot.
        """
        ref = self.refs.get(branch)
        if ref is None:
            return None
        try:
            return self.snapshots[ref.snapshot_id]
        except KeyError:
            raise MetadataUnreadable(f"ref '{branch}' points at snapshot {ref.snapshot_id}, which is missing") from None

    def ancestors(self, snapshot_id: int) -> Iterable[Snapshot]:
        """The snapshot and its ancestors, newest first, back to where history was expired."""
        snapshots, seen = self.snapshots, set[int]()
        current: int | None = snapshot_id
        while current is not None and current not in seen and (snapshot := snapshots.get(current)) is not None:
            seen.add(current)
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
        """The folder of new data files: ``write.data.path``, its older names, or ``<location>/data``."""
        for key in DATA_FOLDER_KEYS:
            if self.properties.get(key):
                return self.properties[key].rstrip("/")
        return f"{self.location}/data"

    @property
    def metadata_directory(self) -> str:
        """The folder of new metadata files: ``write.metadata.path`` or ``<location>/metadata``."""
        return (self.properties.get(METADATA_FOLDER_KEY) or f"{self.location}/metadata").rstrip("/")

    @property
    def locations(self) -> tuple[str, ...]:
        """Every folder that the metadata names for the table's files."""
        return (self.location, self.data_location, self.metadata_directory)

    def property_flag(self, key: str, default: bool) -> bool:
        """A boolean table property; as in Java, only ``true`` in any case is true."""
        value = self.properties.get(key)
        return default if value is None else value.strip().lower() == "true"

    def property_int(self, key: str, default: int) -> int:
        """An integer table property, of 64 bits as in Java.

        Raises:
            PolicyError: the property is set to something else.
        """
        value = self.properties.get(key)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            number = _LONG
        if not -_LONG <= number < _LONG:
            raise PolicyError(f"table property {key} is '{value}', which is not an integer") from None
        return number


def _of_one_column(field: JsonObject, default_id: int) -> JsonObject:
    if field.get("field-id") is None:
        field = {**field, "field-id": default_id}
    sources = field.get("source-ids") or ()
    if field.get("source-id") is not None or not sources:
        return field
    named = field["transform"] if len(sources) == 1 else f"multi-argument {field['transform']}"
    return {**field, "source-id": sources[0], "transform": named}


def branch_head(metadata: TableMetadata, branch: str) -> Snapshot | None:
    """The head of the branch that a policy names; ``None``: it is ``main``, which has no snapshot yet.

    Raises:
        PolicyError: there is no such branch.
    """
    ref = metadata.refs.get(branch)
    if (ref is None and branch != MAIN) or (ref is not None and ref.type != "branch"):
        kind = "a tag" if ref is not None else "no branch of this table"
        branches = sorted(name for name, known in metadata.refs.items() if known.type == "branch")
        raise PolicyError(
            f"policy key branch names '{branch}', which is {kind}; branches are: {', '.join(branches) or 'none yet'}"
        )
    return metadata.head(branch)


# Which tables Icekeeper may write to.

MAINTAINED_FORMAT_VERSIONS = frozenset({1, 2, 3})
_CUSTOM_PROVIDER = "write.location-provider.impl"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def require_writable(metadata: TableMetadata) -> None:
    """Check that this version of Icekeeper may write to the table.

    Raises:
        TableUnsupported: the format version is newer (rule: leave-newer-formats), other readers would not find new
            files (rule: write-where-readers-find), or readers disagree on the head (rule: refuse-ambiguous-tables).
    """
    if metadata.format_version not in MAINTAINED_FORMAT_VERSIONS:
        raise TableUnsupported(
            f"format version {metadata.format_version} is not maintained by this version of Icekeeper; "
            "the table was left alone"
        )
    # A relative path is another folder for every process, and a local path another one on every machine.  If a rewrite
    # committed files there, no other reader would find them, and expiry would delete the files that they replaced.
    location, properties = metadata.location, metadata.properties
    data = next((key for key in DATA_FOLDER_KEYS if properties.get(key)), None)
    for key in (data, METADATA_FOLDER_KEY):
        folder = properties.get(key or "") or location
        is_whole = folder.startswith("/") or _SCHEME.match(folder) is not None
        if folder != location and _is_local(folder) and not (is_whole and _is_local(location)):
            raise TableUnsupported(
                f"table property {key} is '{folder}', which is another folder on every machine; set it to a whole "
                f"address, as the table's location {location} is one; the table was left alone"
            )
    current, main = metadata.document.get("current-snapshot-id"), metadata.refs.get(MAIN)
    if main is not None and main.snapshot_id != current:
        raise TableUnsupported(
            f"current-snapshot-id is {current}, ref 'main' points at {main.snapshot_id}: which of them holds the "
            "table's rows is not known; set main to the right one; the table was left alone"
        )
    if metadata.last_sequence_number >= _LONG - 1:
        raise TableUnsupported(
            f"last-sequence-number is {metadata.last_sequence_number}, after which there is none; the table was left "
            "alone"
        )


def require_known_layout(properties: Mapping[str, str]) -> None:
    """Raises TableUnsupported when a Java class decides where data files go: only Java can load it."""
    provider = properties.get(_CUSTOM_PROVIDER)
    if provider:
        raise TableUnsupported(
            f"table property {_CUSTOM_PROVIDER} names the Java class {provider}, which decides where data files go and "
            "cannot be asked; the table was left alone"
        )


def _is_local(path: str) -> bool:
    """Whether a path has no scheme, or that of local files."""
    found = _SCHEME.match(path)
    return found is None or found[1].lower() == "file"


# Requirements that the table must still meet at commit: ``TableRequirement`` objects of the REST specification.


def same_table(metadata: TableMetadata) -> list[dict[str, Any]]:
    """The requirement that the table still has this UUID; none for a v1 table without UUID."""
    return [] if metadata.uuid is None else [{"type": "assert-table-uuid", "uuid": metadata.uuid}]


def ref_at(name: str, snapshot_id: int | None) -> dict[str, Any]:
    """The requirement that a ref points at a snapshot; with ``None``, that there is no such ref."""
    return {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": snapshot_id}


def check_requirements(metadata: TableMetadata, requirements: Iterable[Mapping[str, Any]]) -> None:
    """Check requirements against a document.

    Raises:
        CommitConflict: one is not met.
        ValueError: one is of an unknown kind.
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
                raise CommitConflict(f"the default partition spec is {metadata.default_spec_id} by now")
        elif kind == "assert-current-schema-id":
            if metadata.current_schema_id != requirement["current-schema-id"]:
                raise CommitConflict(f"the current schema is {metadata.current_schema_id} by now")
        else:
            raise ValueError(f"unknown requirement {kind}")


# Updates are ``TableUpdate`` objects of the REST specification, so that a commit means the same on every catalog.

# Java's TableProperties.METADATA_PREVIOUS_VERSIONS_MAX_DEFAULT
PREVIOUS_VERSIONS_MAX_DEFAULT = 100


def apply_updates(
    metadata: TableMetadata,
    updates: Iterable[Mapping[str, Any]],
    *,
    metadata_location: str | None,
    now_ms: int,
) -> TableMetadata:
    """Apply updates to a copy of the document.

    ``metadata_location``, the path of the base document, is appended to the metadata log.  The log is then cut to
    ``write.metadata.previous-versions-max`` entries.  The times of the result (epoch milliseconds) are never before
    those of the base document (rule: time-never-runs-backwards).

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
    """The updates, with neighbours that remove statistics as one: an expiry has one for each snapshot."""
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
            raise CommitConflict(f"snapshot {snapshot_id} has sequence number {number}, the table is at {last} already")
        document["last-sequence-number"] = max(last, number)
    if version > 2:
        next_row_id, first_row_id = TableMetadata(document).next_row_id, int(snapshot["first-row-id"])
        if first_row_id < next_row_id:
            raise CommitConflict(
                f"snapshot {snapshot_id} starts at row id {first_row_id}, the table is at {next_row_id}"
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
    for key in ("statistics", "partition-statistics"):  # (rule: statistics-leave-with-snapshot)
        if document.get(key):
            document[key] = _without(document[key], "snapshot-id", gone)
    for name in [n for n, ref in (document.get("refs") or {}).items() if int(ref["snapshot-id"]) in gone]:
        _remove_snapshot_ref(document, name)
    if document.get("current-snapshot-id") in gone:  # a v1 document has no refs
        _remove_snapshot_ref(document, MAIN)
    # The log loses its entries up to the last one of a removed snapshot (rule: keep-metadata-logs).
    log = document.get("snapshot-log") or []
    last_gone = max((i for i, entry in enumerate(log) if int(entry["snapshot-id"]) in gone), default=-1)
    if last_gone >= 0:
        document["snapshot-log"] = log[last_gone + 1 :]


def _without(entries: Iterable[JsonObject] | None, id_key: str, gone: Collection[int]) -> list[JsonObject]:
    return [entry for entry in entries or () if int(entry.get(id_key) or 0) not in gone]


_SETTINGS = ("format-version", "current-schema-id", "default-spec-id", "default-sort-order-id", "properties")


def table_digest(metadata: TableMetadata) -> str:
    """A digest of what plans depend on besides snapshots: format version, schema, spec, sort order, properties."""
    found = {key: metadata.document.get(key) for key in _SETTINGS}
    # Where a v1 writer left the ids out, these are the current ones.
    if found["current-schema-id"] is None:
        found |= {key: metadata.document.get(key) for key in ("schema", "partition-spec")}
    return _digest(found)


def schema_digest(metadata: TableMetadata) -> str:
    """A digest of what decides how data files are read: the current schema and the name mapping."""
    return _digest({"schema": metadata.current_schema, "mapping": metadata.properties.get(NAME_MAPPING)})


def history_digest(metadata: TableMetadata, snapshot_ids: Iterable[int]) -> str:
    """A digest of which of these snapshots the table has, and of the refs on them.

    The main branch does not count: each commit moves it.
    """
    refs = sorted((ref.snapshot_id, ref.name) for ref in metadata.refs.values() if ref.name != MAIN)
    known = [i for i in snapshot_ids if i in metadata.snapshots]
    return _digest([known, [ref for ref in refs if ref[0] in known]])


def _digest(found: Any) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()[:16]


# The marks in snapshot summaries by which streaming writers find their last commit (rule: carry-streaming-marks).
#
# After a restart such a writer walks from the head of its branch over the parents until it finds its mark, and
# continues after that commit.  If a parent is missing, it finds no mark and commits everything again: duplicates.  So a
# snapshot that adds no rows copies its parent's marks, and expiry keeps all snapshots from the head to the newest mark.
#
# These marks are known:
#
# * Flink, ``SinkUtil.getMaxCommittedCheckpointId``: the checkpoint id of a job and, since 1.0, of an operator.
# * Kafka Connect, ``Coordinator.lastCommittedOffsetsForTable``: the offsets of the control topic and group that the key
#   names.  Other keys hold commit id, task id and the time up to which the table is complete.
# * Spark Structured Streaming, ``SparkWrite.findLastCommittedEpochId``: the epoch of a query.
# * Redpanda, ``get_iceberg_committed_offset``: the offset of a cluster, as JSON.
# * Tiering services (Fluss, Modak) look for the last snapshot of their ``commit-user``, and use that snapshot's id.  A
#   copy would give them the wrong id, so this mark is never copied.
#
# ``wap.id`` and ``published-wap-id`` are no marks: they describe one staged or published snapshot (Iceberg-Java,
# ``WapUtil``), so a copy would be wrong.

COMMITTED_KEY = "icekeeper.writer-marks-committed-ms"
"""Stored with copied marks: when the writer committed them, in epoch milliseconds."""

# A key of every mark contains one of these.
_WORDS = ("flink.job-id", "kafka.connect.", "spark.sql.streaming.queryId", "redpanda.commit-metadata", "commit-user")
# Prefixes of keys; the second is that of the sink's first versions, by Tabular.
_OFFSETS = ("kafka.connect.offsets.", "kafka.connect.control.offsets.")


def marks_of(snapshot: Snapshot) -> dict[str, int]:
    """The marks in a snapshot's summary: each writer in words, and when it committed, in epoch milliseconds.

    Copied marks keep the time of the writer's commit.
    """
    if not _may_hold_marks(tuple(snapshot.summary.keys())):
        return {}
    writers = [writer for writer, _ in _writers(snapshot.summary)]
    return dict.fromkeys(writers, _committed_ms(snapshot)) if writers else {}


@lru_cache(maxsize=1024)
def _may_hold_marks(keys: tuple[str, ...]) -> bool:
    """Whether a summary with these keys may hold marks.

    Detection reads the summaries of all snapshots.  Most have no marks, and one writer's have the same keys.
    """
    names = " ".join(keys)
    return any(word in names for word in _WORDS)


def carried_marks(parent: Snapshot) -> dict[str, str]:
    """The summary entries that a snapshot without new rows copies unchanged from its parent."""
    beginnings = tuple(start for _, starts in _writers(parent.summary) for start in starts)
    carried = {key: value for key, value in parent.summary.items() if key.startswith(beginnings)}
    return {**carried, COMMITTED_KEY: str(_committed_ms(parent))} if carried else {}


def _committed_ms(snapshot: Snapshot) -> int:
    carried = snapshot.summary.get(COMMITTED_KEY, "")
    return int(carried) if carried.isdecimal() else snapshot.timestamp_ms


def _writers(summary: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each writer with a mark, in words, and the prefixes of the keys to copy; none: the mark is never copied."""
    job = summary.get("flink.job-id")
    if job is not None and "flink.max-committed-checkpoint-id" in summary:
        operator = summary.get("flink.operator-id")
        writer = f"Flink job {job}" if operator is None else f"Flink job {job}, operator {operator}"
        # Whole keys: a job may set properties of its own under the same prefix.
        yield writer, ("flink.max-committed-checkpoint-id", "flink.job-id", "flink.operator-id")
    for key in summary:
        for beginning in _OFFSETS:
            if key.startswith(beginning):
                # The names differ by version: "commit-id" was "commitId", "valid-through-ts" was "vtts".
                yield f"Kafka Connect sink {key.removeprefix(beginning)}", ("kafka.connect.",)
    query = summary.get("spark.sql.streaming.queryId")
    if query is not None and "spark.sql.streaming.epochId" in summary:
        yield f"Spark query {query}", ("spark.sql.streaming.queryId", "spark.sql.streaming.epochId")
    mark = summary.get("redpanda.commit-metadata")
    if mark is not None:
        try:
            cluster = json.loads(mark).get("cluster")
        except (ValueError, AttributeError, RecursionError):
            cluster = None
        writer = "Redpanda" if cluster is None else f"Redpanda cluster {cluster}"
        yield writer, ("redpanda.commit-metadata",)
    user = summary.get("commit-user")
    if user is not None:
        yield f"commit user {user}", ()
