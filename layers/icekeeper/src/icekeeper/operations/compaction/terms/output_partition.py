"""Find the partition of the current spec to which all rows of a file of an older spec belong, if any (pure).

After partition evolution old files keep their spec (specification, "Partition Evolution"), and merging spec by spec
leaves more files than before (iceberg 15465, 16189, 16514).  A file moves if its old partition or its column bounds
show that all its rows belong to a single partition of the current spec.  The rows of other files may be divided among
partitions (``rewrite.PartitionRouter``).  Nothing moves while live equality deletes exist: a writer may still write
deletes under the old spec, which would not apply to moved rows (rule: rows-stay-in-reach-of-deletes).  A file whose
columns differ from its identity partition does not move either (rule: leave-identity-only-with-equal-values).
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import TypeAdapter

from icekeeper.metadata.delete_scope import decode_bound, partition_key
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.transforms import applies
from icekeeper.metadata.types import INTEGER_BITS, UNITS_PER_DAY, decimal_of, decimal_unscaled, encode, is_utf8
from icekeeper.model import DataFile, PartitionValue
from icekeeper.operations.compaction.terms.output_names import civil_date
from icekeeper.rows.arrow_schema import leaf_columns

# PyIceberg's transforms take a tenth of the start of a command, and few tables need them.
if TYPE_CHECKING:
    from pyiceberg.transforms import Transform
    from pyiceberg.types import IcebergType

_CONTEXT = decimal.Context(prec=76)


Destination: TypeAlias = tuple[int, tuple[PartitionValue, ...]]
"""The spec id and partition (raw values) of a file's rows after a rewrite."""


class OutputPartitions:
    """Finds the destinations of a table's files."""

    def __init__(self, metadata: TableMetadata, *, keep: bool) -> None:
        """With ``keep`` every file stays in its own spec and partition."""
        self._specs = metadata.specs
        self._types = {
            leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(metadata.current_schema) if not leaf.repeated
        }
        self._spec_id = metadata.default_spec_id
        spec = metadata.specs[metadata.default_spec_id]
        self._fields = None if keep else target_fields(spec, self._types)
        self._fixed = None if keep else _fixed_field(spec, self._types)
        self._identities = {} if keep else {i: self._identity_fields(spec) for i, spec in self._specs.items()}

    def _identity_fields(self, spec: Mapping[str, Any]) -> list[tuple[int, TargetField]]:
        """The positions of a spec's identity fields whose column the table still has, and the fields."""
        found = []
        for position, field in enumerate(spec["fields"]):
            kind = self._types.get(int(field["source-id"]))
            if field["transform"] == "identity" and kind is not None:
                found.append((position, TargetField(int(field["source-id"]), "identity", kind, lambda raw: raw)))
        return found

    def destination(self, file: DataFile, spec_id: int) -> Destination:
        """The file's partition under the current spec if all its rows share it, else its own spec and partition."""
        own = spec_id, file.partition
        if self._fields is None or spec_id == self._spec_id or spec_id not in self._specs:
            return own
        old = {
            (int(field["source-id"]), str(field["transform"])): value
            for field, value in zip(self._specs[spec_id]["fields"], file.partition, strict=True)
        }
        values = []
        for field in self._fields:
            known, value = field.value(file, old)
            if not known:
                return own
            values.append(value)
        return own if self._differs(file, spec_id) else (self._spec_id, tuple(values))

    def _differs(self, file: DataFile, spec_id: int) -> bool:
        """Whether the file's entry shows column values that differ from its identity partition."""
        return any(field.differs(file, file.partition[position]) for position, field in self._identities[spec_id])

    def why_kept(self, file: DataFile, spec_id: int) -> str:
        """Why a file's rows must not move to the current spec, as words that follow its path; empty if they may
        move."""
        if spec_id == self._spec_id or spec_id not in self._identities:
            return ""
        if self._fixed is not None:
            return f"because Iceberg-Java cannot read partitions by the fixed bytes of {self._fixed}"
        return "whose columns differ from its partition, so readers disagree" if self._differs(file, spec_id) else ""

    def may_deal_out(self, spec_id: int) -> bool:
        """Whether rows of files of that spec may be divided among partitions of the current spec."""
        return self._fields is not None and spec_id != self._spec_id and spec_id in self._specs


def _fixed_field(spec: Mapping[str, Any], types: Mapping[int, str]) -> str | None:
    """The first field of a spec whose partition values are fixed bytes; ``None`` if there is no such field."""
    fixed = (field for field in spec["fields"] if field["transform"] == "identity")
    return next((f["name"] for f in fixed if types.get(int(f["source-id"]), "").startswith("fixed")), None)


def target_fields(spec: Mapping[str, Any], types: Mapping[int, str]) -> list[TargetField] | None:
    """The fields of a spec; ``types`` maps column ids to Iceberg types.

    ``None``: the spec cannot be written, because of a transform that is unknown or not for the type of its column
    (rule: rows-match-their-partition), a source column that is not in the schema, or fixed bytes
    (platform: java-misreads-fixed-partitions).
    """
    if _fixed_field(spec, types) is not None:
        return None
    if not spec["fields"]:
        return []
    from pyiceberg.transforms import VoidTransform, parse_transform

    fields = []
    for field in spec["fields"]:
        source_id, name = int(field["source-id"]), str(field["transform"])
        transform, kind = parse_transform(name), types.get(source_id)
        if isinstance(transform, VoidTransform):
            fields.append(TargetField(source_id, name, kind or "", _nothing))
        elif kind is None or not applies(name, kind):
            return None
        else:
            fields.append(TargetField(source_id, name, kind, _function(transform, kind)))
    return fields


def _function(transform: Transform[Any, Any], kind: str) -> Callable[[Any], Any]:
    """A transform of columns of a type as a function from raw values to raw values."""
    from pyiceberg.transforms import IdentityTransform, MonthTransform, TruncateTransform, YearTransform

    if isinstance(transform, IdentityTransform):
        return lambda raw: raw
    if isinstance(transform, YearTransform | MonthTransform):
        divisor = 12 if isinstance(transform, YearTransform) else 1
        return lambda raw: _months(kind, raw) // divisor
    function = transform.transform(pyiceberg_type(kind))
    if isinstance(transform, TruncateTransform) and kind in INTEGER_BITS:
        least, count = -(1 << INTEGER_BITS[kind] - 1), 1 << INTEGER_BITS[kind]
        # It overflows as Java's integers do: the lowest numbers truncate to high numbers.
        return lambda raw: (int(function(raw) or 0) - least) % count + least
    return lambda raw: _raw(function(_python(kind, raw)))


@dataclass(frozen=True, slots=True)
class TargetField:
    """A field of a partition spec, which computes its partition values."""

    source_id: int
    name: str
    """The transform as in the specification, such as ``bucket[16]``."""
    kind: str
    """The Iceberg type of the source column; may be empty for a void transform."""
    apply: Callable[[Any], Any]
    """The transform as a function from raw values to raw values."""

    def value(self, file: DataFile, old: Mapping[tuple[int, str], PartitionValue]) -> tuple[bool, PartitionValue]:
        """Whether all rows of the file have the same value of this field, and that value.

        ``old`` are the file's partition values by source column id and transform.
        """
        if self.apply is _nothing:
            return True, None
        if (self.source_id, self.name) in old:
            return True, old[self.source_id, self.name]
        if (self.source_id, "identity") in old:
            source = old[self.source_id, "identity"]
            return True, None if source is None else self.apply(source)
        return self._by_bounds(file)

    def differs(self, file: DataFile, value: PartitionValue) -> bool:
        """Whether the file's entry shows that rows have another value in the column.

        Equal bounds are exact, because a truncated upper bound is above its value.
        """
        nulls = (file.null_value_counts or {}).get(self.source_id)
        if nulls is None:  # no metrics, or the file lacks the column
            return False
        if value is None or nulls:
            return value is not None or nulls < file.record_count
        known, found = self._by_bounds(file)
        return known and _python(self.kind, found) != _python(self.kind, value)

    def _by_bounds(self, file: DataFile) -> tuple[bool, PartitionValue]:
        """As :meth:`value`, by column bounds.

        All rows have the same value if the bounds are equal, or if both bounds have the same value under a transform
        that keeps the order.
        """
        nulls = (file.null_value_counts or {}).get(self.source_id)
        if nulls is None or (file.nan_value_counts or {}).get(self.source_id, 0):
            return False, None
        if nulls and nulls == file.record_count:
            return True, None
        ends = [(bounds or {}).get(self.source_id) for bounds in (file.lower_bounds, file.upper_bounds)]
        if nulls or None in ends or (self.kind in ("float", "double") and file.nan_value_counts is None):
            return False, None
        low, high = (self._decoded(end) for end in ends if end is not None)
        if low is None or high is None:
            return False, None
        are_equal = ends[0] == ends[1]
        if not are_equal and self.name.startswith("bucket"):
            return False, None
        values = [self.apply(low), self.apply(high)]
        if partition_key(0, (values[0],)) != partition_key(0, (values[1],)):
            return False, None
        return True, values[0]

    def _decoded(self, bound: bytes) -> Any:
        if self.kind in ("float", "double", "uuid"):
            return None  # promoted floats keep their old width, and Java orders uuids differently
        if self.kind == "string":
            return bound.decode() if is_utf8(bound) else None
        return decode_bound(self.kind, bound)


def _nothing(raw: Any) -> None:
    return None


def _months(kind: str, raw: int) -> int:
    """Months since 1970-01 of a raw date or timestamp of any year; PyIceberg's transform only handles Python's
    years."""
    year, month, _ = civil_date(raw // UNITS_PER_DAY[kind])
    return (year - 1970) * 12 + month - 1


def pyiceberg_type(kind: str) -> IcebergType:
    """PyIceberg's object for a primitive type."""
    from pyiceberg.types import DecimalType, IcebergType

    found = decimal_of(kind)
    return TypeAdapter(IcebergType).validate_python(kind) if found is None else DecimalType(*found)


def _python(kind: str, raw: Any) -> Any:
    """A raw value as PyIceberg's transforms take it: decimals as ``Decimal``."""
    if found := decimal_of(kind):
        return decimal.Decimal(decimal_unscaled(raw)).scaleb(-found[1], _CONTEXT)
    return raw


def _raw(value: Any) -> Any:
    """A result of PyIceberg's transforms as a raw value: the inverse of :func:`_python`."""
    if isinstance(value, decimal.Decimal):
        digits, exponent = value.as_tuple().digits, value.as_tuple().exponent
        unscaled = int("".join(map(str, digits))) * (-1 if value.is_signed() else 1)
        return encode(f"decimal(38, {-int(exponent)})", unscaled)
    return value
