"""Reads table metadata from its JSON document.

PyIceberg's models drop fields they do not know and cannot write v3, so Icekeeper never rebuilds a document from
models: it reads what it needs from the JSON, and :mod:`icekeeper.metadata.updates` changes only what an update names
(Iceberg table specification, "Table Metadata Fields") (rule 42, platform 14).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from icekeeper.errors import MetadataUnreadable, PolicyError
from icekeeper.metadata.new_file_folders import DATA_FOLDER_KEYS, METADATA_FOLDER_KEY

__all__ = [
    "MAIN",
    "NAME_MAPPING",
    "JsonObject",
    "Ref",
    "Snapshot",
    "TableMetadata",
]

JsonObject = dict[str, Any]
MAIN = "main"
NAME_MAPPING = "schema.name-mapping.default"
"""The property with the field ids of columns in files that have none (specification, "Name Mapping Serialization")."""
INITIAL_SEQUENCE_NUMBER = 0
_LONG = 2**63


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot; ``raw`` is its JSON, with every field that its writer set."""

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
        """0 for v1 snapshots, which have no sequence number."""
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
        """The path of the manifest list; ``None`` for v1 snapshots that list their manifests inline (rule 5)."""
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
    """A read-only view of one metadata document; the document itself is never modified."""

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
        """The table UUID; ``None`` only for v1 tables whose writer set none."""
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
    def next_row_id(self) -> int:
        """The lowest row id that was never assigned; 0 below v3, and just after an upgrade to v3."""
        return int(self.document.get("next-row-id") or 0)

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
    def current_schema_id(self) -> int:
        """The id of the current schema; 0 where a v1 writer left it out."""
        return int(self.current_schema.get("schema-id", 0))

    @property
    def schemas_current_first(self) -> Sequence[JsonObject]:
        """Every schema: the current one first, then the others from the highest id down."""
        current = self.current_schema
        others = [self.schemas[i] for i in sorted(self.schemas, reverse=True) if self.schemas[i] is not current]
        return [current, *others]

    @cached_property
    def specs(self) -> Mapping[int, JsonObject]:
        """Every partition spec by id; a v1 document may hold only the fields of ``partition-spec``.

        Field ids that a v1 writer left out are assigned from 1000 up, as the specification says.  A field of several
        columns has a transform that is unknown (rule 178).
        """
        specs = self.document.get("partition-specs")
        if not specs:
            specs = [{"spec-id": 0, "fields": self.document.get("partition-spec") or []}]
        return {
            int(spec["spec-id"]): {
                "spec-id": int(spec["spec-id"]),
                "fields": [{"field-id": 1000 + i, **_of_one_column(f)} for i, f in enumerate(spec["fields"])],
            }
            for spec in specs
        }

    @property
    def default_spec_id(self) -> int:
        return int(self.document.get("default-spec-id") or 0)

    @property
    def default_sort_order_id(self) -> int:
        """The id of the default sort order; 0, which means unsorted, where a v1 writer left it out."""
        return int(self.document.get("default-sort-order-id") or 0)

    @property
    def default_sort_order_fields(self) -> Sequence[Mapping[str, Any]]:
        """The fields of the default sort order; none for an unsorted table (specification, "Sorting": order 0)."""
        orders = self.document.get("sort-orders") or ()
        wanted = self.default_sort_order_id
        return next((order.get("fields") or () for order in orders if int(order["order-id"]) == wanted), ())

    @cached_property
    def snapshots(self) -> Mapping[int, Snapshot]:
        """Snapshots by id, in the document's order."""
        return {int(raw["snapshot-id"]): Snapshot(raw) for raw in self.document.get("snapshots") or ()}

    @cached_property
    def snapshot_times_ms(self) -> Sequence[int]:
        """When each snapshot was made, in the document's order (epoch milliseconds)."""
        return tuple(snapshot.timestamp_ms for snapshot in self.snapshots.values())

    @cached_property
    def refs(self) -> Mapping[str, Ref]:
        """Branches and tags by name; without refs (v1), ``main`` is the current snapshot."""
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
        """The head of ``main``; ``None`` while the table has no snapshot.

        Raises:
            MetadataUnreadable: the document names a current snapshot that it does not hold.
        """
        return self.head(MAIN)

    @property
    def head_ids(self) -> frozenset[int]:
        """The id of main's newest snapshot; of a table without main, those of its branches."""
        refs = self.refs
        wanted = [refs[MAIN]] if MAIN in refs else refs.values()
        return frozenset(ref.snapshot_id for ref in wanted if ref.type == "branch")

    def head(self, branch: str) -> Snapshot | None:
        """The snapshot that a branch or tag points at; ``None``: there is no such ref.

        Raises:
            MetadataUnreadable: the document does not hold that snapshot.
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
        """Every folder in which the table says that it has its files."""
        return (self.location, self.data_location, self.metadata_directory)

    def property_flag(self, key: str, default: bool) -> bool:
        """A boolean table property; as in Java only ``true`` (in any case) is true."""
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


def _of_one_column(field: JsonObject) -> JsonObject:
    sources = field.get("source-ids") or ()
    if "source-id" in field or not sources:
        return field
    named = field["transform"] if len(sources) == 1 else f"multi-argument {field['transform']}"
    return {**field, "source-id": sources[0], "transform": named}
