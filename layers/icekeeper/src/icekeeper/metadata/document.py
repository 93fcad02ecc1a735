"""Table metadata: a read-only view of its JSON document, and digests of its parts (pure).

PyIceberg's models drop fields that they do not know and cannot write v3.  So Icekeeper never rebuilds a document from
models: it reads what it needs from the JSON, and :mod:`.updates` changes only the fields that an update names
(rule: keep-unknown-metadata, platform: pyiceberg-drops-unknown-fields).
Source: specification, "Table Metadata Fields".
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

from icekeeper.errors import MetadataUnreadable, PolicyError, TableUnsupported

JsonObject = dict[str, Any]
MAIN = "main"
DATA_FOLDER_KEYS = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
"""The properties that name the folder of new data files.  The first that is set counts; the others are older names."""
METADATA_FOLDER_KEY = "write.metadata.path"
NAME_MAPPING = "schema.name-mapping.default"
"""The property with the field ids for data files without ids (specification, "Name Mapping Serialization")."""
STATES_MAY_OVERLAP_MS = 60 * 1000
"""Iceberg-Java's ``TableMetadata`` accepts a state whose time is up to this much before that of the previous state."""
_LONG = 2**63


@dataclass(slots=True, init=False)
class Snapshot:
    """A snapshot; ``raw`` is its JSON with all fields.

    What a walk through the history reads is an attribute: detection walks the snapshots of every table several times.
    """

    raw: Mapping[str, Any]
    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    """0 for v1 snapshots."""
    timestamp_ms: int

    def __init__(self, raw: Mapping[str, Any]) -> None:
        parent_id = raw.get("parent-snapshot-id")
        self.raw = raw
        self.snapshot_id = int(raw["snapshot-id"])
        self.parent_id = None if parent_id is None else int(parent_id)
        self.sequence_number = int(raw.get("sequence-number") or 0)
        self.timestamp_ms = int(raw["timestamp-ms"])

    @property
    def summary(self) -> Mapping[str, str]:
        return self.raw.get("summary") or {}

    @property
    def operation(self) -> str | None:
        return self.summary.get("operation")

    @property
    def manifest_list(self) -> str | None:
        """The path of the manifest list; ``None`` for v1 snapshots that list their manifests inline."""
        return self.raw.get("manifest-list")

    @property
    def inline_manifests(self) -> Sequence[str]:
        return self.raw.get("manifests") or ()

    @property
    def schema_id(self) -> int | None:
        return self.raw.get("schema-id")


_RECENCY = attrgetter("timestamp_ms", "sequence_number")


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
    """A read-only view of a metadata document."""

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
        """``None`` only for v1 tables whose writer set no UUID."""
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
        """Whether a snapshot was ever committed: the table has snapshots, a snapshot log, or a sequence number."""
        return bool(self.snapshots or self.document.get("snapshot-log")) or self.last_sequence_number > 0

    @property
    def next_row_id(self) -> int:
        """The lowest row id that was never assigned; 0 below v3 and directly after an upgrade to v3."""
        return int(self.document.get("next-row-id") or 0)

    @property
    def properties(self) -> Mapping[str, str]:
        return self.document.get("properties") or {}

    @cached_property
    def schemas(self) -> Mapping[int, JsonObject]:
        """Every schema by id; a v1 document may contain only ``schema``."""
        schemas = self.document.get("schemas") or [self.document["schema"]]
        return {int(schema.get("schema-id") or 0): schema for schema in schemas}

    @property
    def current_schema(self) -> JsonObject:
        current = self.document.get("current-schema-id")
        return self.schemas[int(current)] if current is not None else next(iter(self.schemas.values()))

    @property
    def current_schema_id(self) -> int:
        """The id of the current schema; 0 if a v1 writer omitted it."""
        return int(self.current_schema.get("schema-id") or 0)

    @property
    def schemas_current_first(self) -> Sequence[JsonObject]:
        """The current schema, then the others from the highest id down."""
        current = self.current_schema
        others = [self.schemas[i] for i in sorted(self.schemas, reverse=True) if self.schemas[i] is not current]
        return [current, *others]

    @cached_property
    def specs(self) -> Mapping[int, JsonObject]:
        """Every partition spec by id; a v1 document may contain only the fields of ``partition-spec``.

        Field ids that a v1 writer omitted are counted from 1000, as the specification says.  A field with several
        source columns gets an unknown transform.
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
        """0 if a v1 writer omitted the list of specs; as in Java, ``default-spec-id`` is then ignored."""
        return int(self.document.get("default-spec-id") or 0) if self.document.get("partition-specs") else 0

    @property
    def default_sort_order_id(self) -> int:
        """0 (unsorted) if a v1 writer omitted it."""
        return int(self.document.get("default-sort-order-id") or 0)

    @property
    def default_sort_order_fields(self) -> Sequence[Mapping[str, Any]]:
        """Empty for an unsorted table (specification, "Sorting": order 0)."""
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
    def oldest_ms(self) -> int | None:
        """The oldest time in the metadata, from the snapshots and both logs; ``None``: no time is known."""
        logged = (*self.metadata_log, *(self.document.get("snapshot-log") or ()))
        logged_ms = [entry.get("timestamp-ms") or 0 for entry in logged]
        times = (self.last_updated_ms, *self.snapshot_times_ms, *logged_ms)
        return min([time for time in times if time > 0], default=None)

    @cached_property
    def in_commit_order(self) -> Sequence[Snapshot]:
        """The snapshots, oldest first: by sequence number, then parents before children, then by time."""
        by_number = {snapshot.sequence_number: snapshot for snapshot in self.snapshots.values()}
        if len(by_number) == len(self.snapshots):
            return [by_number[number] for number in sorted(by_number)]
        snapshots: dict[int | None, Snapshot] = dict(self.snapshots.items())
        place: dict[int | None, tuple[int, int, int]] = {}
        for newest in self.snapshots:
            line: list[Snapshot] = []
            at: int | None = newest
            while at in snapshots and at not in place:
                place[at] = 0, 0, 0
                line.append(snapshots[at])
                at = line[-1].parent_id
            for snapshot in reversed(line):
                _, latest_ms, length = place.get(at, (0, 0, 0))
                at = snapshot.snapshot_id
                place[at] = snapshot.sequence_number, max(latest_ms, snapshot.timestamp_ms), length + 1
        return [self.snapshots[i] for i in sorted(self.snapshots, key=place.__getitem__)]

    @cached_property
    def by_recency(self) -> Sequence[Snapshot]:
        """The snapshots by time and sequence number, oldest first; a child may have an earlier time than its parent."""
        return sorted(self.in_commit_order, key=_RECENCY)

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
        """The snapshot id of ``main``; without ``main``, the snapshot ids of all branches."""
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
        """The snapshot and its ancestors that have not expired, newest first."""
        snapshots, seen = self.snapshots, set[int]()
        current: int | None = snapshot_id
        while current is not None and current not in seen and (snapshot := snapshots.get(current)) is not None:
            seen.add(current)
            yield snapshot
            current = snapshot.parent_id

    def behind(self, pinned: Iterable[int]) -> set[int]:
        """The snapshots at or above the oldest of the ``pinned`` ids (rule: pin-is-a-horizon): the pinned snapshots,
        those with a later time or an equal or higher sequence number, and all their descendants."""
        snapshots, behind, found = self.snapshots, set[int](), list(pinned)
        if not found:
            return behind
        there = [snapshots[i] for i in found if i in snapshots]
        if there:
            since, sequence_number = min(map(_RECENCY, there)), max(1, min(s.sequence_number for s in there))
            found += (i for i, s in snapshots.items() if _RECENCY(s) >= since or s.sequence_number >= sequence_number)
        children: dict[int | None, list[int]] = defaultdict(list)
        for child in snapshots.values():
            children[child.parent_id].append(child.snapshot_id)
        while found:
            if (above := found.pop()) not in behind:
                behind.add(above)
                found += children[above]
        return behind & snapshots.keys()

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
        """A boolean table property; as in Java, only the word ``true``, in upper or lower case, is true."""
        value = self.properties.get(key)
        return default if value is None else value.strip().lower() == "true"

    def property_int(self, key: str, default: int) -> int:
        """An integer table property, of 64 bits as in Java.

        Raises:
            PolicyError: the value is not such an integer.
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
    """The head of the branch that a policy names; ``None``: the branch is ``main``, which has no snapshot yet.

    Raises:
        PolicyError: there is no such branch.
    """
    ref = metadata.refs.get(branch)
    if (ref is None and branch != MAIN) or (ref is not None and ref.type != "branch"):
        kind = "a tag" if ref is not None else "not a branch of this table"
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
        TableUnsupported: the format version is newer, other readers would not find new
            files, or readers disagree on the head (rule: refuse-ambiguous-tables).
    """
    if metadata.format_version not in MAINTAINED_FORMAT_VERSIONS:
        raise TableUnsupported(
            f"format version {metadata.format_version} is not maintained by this version of Icekeeper; "
            "the table was left alone"
        )
    # A relative path is a different folder for every process, and a local path is a different folder on every machine.
    # If a rewrite committed files there, no other reader would find them, and expiry would delete the replaced files.
    location, properties = metadata.location, metadata.properties
    data = next((key for key in DATA_FOLDER_KEYS if properties.get(key)), None)
    for key in (data, METADATA_FOLDER_KEY):
        folder = properties.get(key or "") or location
        is_whole = folder.startswith("/") or _SCHEME.match(folder) is not None
        if folder != location and _is_local(folder) and not (is_whole and _is_local(location)):
            raise TableUnsupported(
                f"table property {key} is '{folder}', which is a different folder on every machine; set it to an "
                f"absolute address like the table's location, {location}; the table was left alone"
            )
    current, main = metadata.document.get("current-snapshot-id"), metadata.refs.get(MAIN)
    if main is not None and main.snapshot_id != current:
        raise TableUnsupported(
            f"current-snapshot-id is {current}, but ref 'main' points at {main.snapshot_id}: it is unknown which of "
            "them is the table's head; set main to the right snapshot; the table was left alone"
        )
    if metadata.last_sequence_number >= _LONG - 1:
        raise TableUnsupported(
            f"last-sequence-number is {metadata.last_sequence_number}, which is the largest possible; the table was "
            "left alone"
        )


def require_known_layout(properties: Mapping[str, str]) -> None:
    """Raises TableUnsupported if a Java class, which only Java can load, chooses the paths of data files."""
    provider = properties.get(_CUSTOM_PROVIDER)
    if provider:
        raise TableUnsupported(
            f"table property {_CUSTOM_PROVIDER} names the Java class {provider}, which chooses the paths of data files "
            "and cannot be called from here; the table was left alone"
        )


def _is_local(path: str) -> bool:
    """Whether a path has no scheme, or the scheme of local files."""
    found = _SCHEME.match(path)
    return found is None or found[1].lower() == "file"


_SETTINGS = ("format-version", "current-schema-id", "default-spec-id", "default-sort-order-id", "properties")


def table_digest(metadata: TableMetadata) -> str:
    """A digest of what plans depend on besides snapshots: format version, schema, spec, sort order, properties."""
    found = {key: metadata.document.get(key) for key in _SETTINGS}
    # If a v1 writer omitted the ids, these are the current schema and spec.
    if found["current-schema-id"] is None:
        found |= {key: metadata.document.get(key) for key in ("schema", "partition-spec")}
    return _digest(found)


def schema_digest(metadata: TableMetadata) -> str:
    """A digest of what decides how data files are read: current schema and name mapping."""
    return _digest({"schema": metadata.current_schema, "mapping": metadata.properties.get(NAME_MAPPING)})


def history_digest(metadata: TableMetadata, snapshot_ids: Iterable[int]) -> str:
    """A digest of the snapshots among ``snapshot_ids`` that the table still has, and of the refs on them.

    The main branch does not count, because each commit moves it.
    """
    refs = sorted((ref.snapshot_id, ref.name) for ref in metadata.refs.values() if ref.name != MAIN)
    known = [i for i in snapshot_ids if i in metadata.snapshots]
    return _digest([known, [ref for ref in refs if ref[0] in known]])


def _digest(found: Any) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()[:16]
