"""Manifests and manifest lists of any content are read back unchanged, with bounds for every order of readers."""

from __future__ import annotations

import operator
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from icekeeper.metadata.manifest_read import ListEntries, decode_live_files, decode_manifest, decode_manifest_list
from icekeeper.metadata.manifest_write import encode_manifest_list
from icekeeper.metadata.types import least_decimal, section_of, summarise_partitions, uuid_bounds, uuid_section
from icekeeper.model import EntryStatus, LiveFile, ManifestContent, ManifestFile, PartitionFieldSummary
from support.examples import examples
from support.manifests import COLUMNS, DRAWN_FIELDS, drawn_table, encoded, entries
from support.values import AWKWARD_UUIDS, ORDERS, uuid_values

Value = TypeVar("Value")

# Manifests and manifest lists of any content are read back unchanged, and their counts add up.


def bits(values: Sequence[Any]) -> list[Any]:
    """The values, comparable: NaN equals NaN, and -0.0 does not equal 0.0."""
    return [struct.pack("<d", value) if isinstance(value, float) else value for value in values]


def stored(partition: Sequence[Any]) -> list[Any]:
    """The partition with decimals in as few bytes as they need."""
    return [
        least_decimal(value) if kind.startswith("decimal") else value
        for value, (_, kind, _) in zip(partition, COLUMNS, strict=True)
    ]


@settings(max_examples=examples(15))
@given(st.data())
@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_written_manifests_are_read_back_unchanged(format_version: int, data: st.DataObject) -> None:
    """Only null ids are replaced by the ids that they inherit (rule: carry-entries-explicitly)."""
    made = data.draw(entries(format_version))
    content = data.draw(st.sampled_from(ManifestContent)) if format_version > 1 else ManifestContent.DATA
    metadata = drawn_table(format_version)
    written = encoded(metadata, made, content)
    found = list(decode_manifest(written.data, written.manifest, metadata.specs[0]))
    assert len(found) == len(made)
    number = written.manifest.sequence_number
    for before, after in zip(made, found, strict=True):
        assert after.status is before.status
        assert after.snapshot_id == (42 if before.snapshot_id is None else before.snapshot_id)
        assert after.sequence_number == (number if before.sequence_number is None else before.sequence_number)
        inherited = number if before.file_sequence_number is None else before.file_sequence_number
        assert after.file_sequence_number == inherited
        assert bits(after.file.partition) == bits(stored(before.file.partition))
        # The commit assigns the row ids of an ADDED entry (rule: rows-keep-their-lineage).
        row_id = None if before.status is EntryStatus.ADDED else before.file.first_row_id
        assert replace(after.file, partition=()) == replace(before.file, partition=(), first_row_id=row_id)
    live = [
        LiveFile(*entry.file.key, entry.file.file_size_in_bytes, entry.snapshot_id) for entry in made if entry.is_live
    ]
    assert list(decode_live_files(written.data, "s3://b/m.avro")) == live


def by_section(
    types: Sequence[str], values: Sequence[Value], partition_of: Callable[[Value], Sequence[Any]]
) -> list[list[Value]]:
    """The values that may share a manifest, together."""
    found: dict[Any, list[Value]] = defaultdict(list)
    for value in values:
        found[section_of(types, partition_of(value))].append(value)
    return list(found.values())


@settings(max_examples=examples(15))
@given(st.data())
@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_the_manifest_list_entry_adds_up(format_version: int, data: st.DataObject) -> None:
    """This covers counts per status, the least sequence number, and summaries over all entries, also deleted entries
    (rule: summaries-hold-for-every-reader)."""
    kinds = [kind for _, kind, _ in COLUMNS]
    made = next(iter(by_section(kinds, data.draw(entries(format_version)), lambda entry: entry.file.partition)), [])
    written = encoded(drawn_table(format_version), made, ManifestContent.DATA)
    manifest = written.manifest
    assert manifest.manifest_length == len(written.data)
    for status, file_count, rows in (
        (EntryStatus.ADDED, manifest.added_files_count, manifest.added_rows_count),
        (EntryStatus.EXISTING, manifest.existing_files_count, manifest.existing_rows_count),
        (EntryStatus.DELETED, manifest.deleted_files_count, manifest.deleted_rows_count),
    ):
        counts = [entry.file.record_count for entry in made if entry.status is status]
        assert (file_count, rows) == (len(counts), sum(counts))
    number = manifest.sequence_number
    least = [number if e.sequence_number is None else e.sequence_number for e in made if e.is_live]
    assert manifest.min_sequence_number == min(least, default=number)
    schema = Schema.model_validate({"type": "struct", "fields": DRAWN_FIELDS})
    assert manifest.partitions is not None
    for index, (summary, (_, kind, _)) in enumerate(zip(manifest.partitions, COLUMNS, strict=True)):
        values = [entry.file.partition[index] for entry in made]
        nans = [value for value in values if isinstance(value, float) and value != value]
        rest = [value for value in values if value is not None and value == value]
        assert summary.contains_null == (None in values)
        assert summary.contains_nan == bool(nans)
        assert (summary.lower_bound is None) == (summary.upper_bound is None) == (not rest)
        if summary.lower_bound is not None and summary.upper_bound is not None:
            field = schema.fields[index].field_type
            assert isinstance(field, PrimitiveType)
            low, high = (plain(from_bytes(field, bound)) for bound in (summary.lower_bound, summary.upper_bound))
            raw = [readable(kind, value) for value in rest]
            if kind == "uuid":  # these bounds are wider, so that they also hold in Java's order
                assert low <= min(raw) <= max(raw) <= high
            else:
                assert (low, high) == (min(raw), max(raw))


def readable(kind: str, value: Any) -> Any:
    """A raw partition value as PyIceberg decodes a bound."""
    if kind.startswith("decimal"):
        return int.from_bytes(value, "big", signed=True)
    return value.encode() if kind == "string" else value


def plain(value: Any) -> Any:
    if hasattr(value, "as_tuple"):
        sign, digits, _ = value.as_tuple()
        return (-1 if sign else 1) * int("".join(map(str, digits)))
    if isinstance(value, str):
        return value.encode()
    return value.bytes if hasattr(value, "bytes") else value


@settings(max_examples=examples(15))  # each example has four manifests
@given(st.data())
@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_manifest_lists_are_read_back_unchanged(format_version: int, data: st.DataObject) -> None:
    made = [
        replace(
            encoded(drawn_table(format_version), data.draw(entries(format_version)), content).manifest, key_metadata=key
        )
        for content in (ManifestContent.DATA, *([ManifestContent.DELETES] if format_version > 1 else []))
        for key in (None, b"key")
    ]
    if format_version > 2:
        made[0] = replace(made[0], first_row_id=12)
    written = encode_manifest_list(
        format_version,
        made,
        snapshot_id=42,
        parent_snapshot_id=None,
        sequence_number=made[0].sequence_number,
        first_row_id=7 if format_version > 2 else None,
    )
    assert decode_manifest_list(written, "s3://b/list.avro") == made


SUMMARIES = [None, (), (PartitionFieldSummary(True, None, None, None),)]
COUNTS: dict[str, Any] = {
    f"{kind}_{of}_count": 1 for kind in ("added", "existing", "deleted") for of in ("files", "rows")
}
FEW_MANIFESTS = [
    ManifestFile(
        manifest_path=path, manifest_length=size, partition_spec_id=0, added_snapshot_id=1, partitions=summary, **COUNTS
    )
    for path in ("s3://b/m1", "s3://b/m10", "s3://b/m2")
    for size in (1, 300)
    for summary in SUMMARIES
]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 3]),
            st.lists(st.sampled_from(FEW_MANIFESTS), max_size=3, unique_by=lambda manifest: manifest.manifest_path),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_lists_decoded_together_have_the_entries_that_each_has_alone(
    lists: list[tuple[int, list[ManifestFile]]],
) -> None:
    """Although they name few manifests, whose other fields differ; equal entries are one object."""
    written = [
        encode_manifest_list(
            version, made, snapshot_id=1, parent_snapshot_id=None, sequence_number=1, first_row_id=version // 3 or None
        )
        for version, made in lists
    ]
    entries = ListEntries()
    assert [entries.decode(data, "l") for data in written] == [decode_manifest_list(data, "l") for data in written]
    first, second = (entries.decode(written[-1], "l") for _ in range(2))
    assert [*map(id, first)] == [*map(id, second)]


# The bounds of uuids in a manifest list hide no row from any reader, whichever order it compares uuids in.

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def opens(comparison: str, literal: Any, low: Any, high: Any) -> bool:
    """Whether a planner opens a manifest with these bounds (Java's ``ManifestEvaluator``), compared in its order."""
    judged: dict[str, bool] = {
        "=": low <= literal <= high,
        "<": low < literal,
        "<=": low <= literal,
        ">": high > literal,
        ">=": high >= literal,
    }
    return judged[comparison]


@settings(max_examples=examples(300))
@given(st.lists(uuid_values, min_size=1, max_size=8), st.lists(uuid_values, min_size=1, max_size=4))
def test_a_planner_of_either_order_opens_manifests_with_a_match(values: list[bytes], literals: list[bytes]) -> None:
    """This holds for every comparison and for literals of either sign, and so for ``IN``, a list of literals
    (rule: summaries-hold-for-every-reader)."""
    for part in by_section(["uuid"], values, lambda value: (value,)):
        bounds = uuid_bounds(part)
        assert bounds is not None
        for order in ORDERS:
            low, high = map(order, bounds)
            assert all(low <= order(value) <= high for value in part)
            for literal in map(order, [*literals, *values]):
                for name, compares in COMPARISONS.items():
                    if any(compares(order(value), literal) for value in part):
                        assert opens(name, literal, low, high), (name, order)


@settings(max_examples=examples(300))
@given(st.lists(uuid_values, min_size=1, max_size=8))
def test_bounds_of_uuids_are_the_narrowest_that_hold_in_both_orders(values: list[bytes]) -> None:
    bounds, own = uuid_bounds(values), (min(values), max(values))
    if all(order(own[0]) <= order(value) <= order(own[1]) for order in ORDERS for value in values):
        assert bounds == own
    if bounds is None:  # neither an awkward uuid nor a value is a bound
        candidates = [*AWKWARD_UUIDS, *values]

        def holds(compare: Callable[[Any, Any], bool]) -> bool:
            return any(all(compare(o(c), o(v)) for o in ORDERS for v in values) for c in candidates)

        assert not (holds(operator.le) and holds(operator.ge))
    # The plan of a rewrite reads the section from the manifest list.
    for part in by_section(["uuid"], values, lambda value: (value,)):
        found = uuid_bounds(part)
        assert found is not None
        assert {*map(uuid_section, found)} == {*map(uuid_section, part)}


NIL, LOW, HIGH = bytes(16), b"\x12" + bytes(15), b"\xf2" + bytes(15)


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        ([LOW], (LOW, LOW)),
        ([LOW, HIGH], None),
        ([NIL, LOW], (NIL, LOW)),
        # The second halves have both signs, so the bounds widen the first half by one.
        ([LOW, LOW[:8] + HIGH[:8]], (b"\x11" + b"\xff" * 7 + bytes(8), b"\x12" + bytes(6) + b"\x01" + bytes(8))),
        # In both orders, nothing is below a first half of 0.
        ([NIL, bytes(8) + HIGH[:8]], None),
        ([NIL, bytes(8) + LOW[:8]], (NIL, bytes(8) + LOW[:8])),
    ],
)
def test_bounds_of_uuids_by_example(values: Sequence[bytes], bounds: tuple[bytes, bytes] | None) -> None:
    assert uuid_bounds(values) == bounds


def test_a_manifest_with_values_never_lacks_their_bounds() -> None:
    """Readers take missing bounds for "all null" (Java's ``ManifestEvaluator``), so there are no summaries instead."""
    both = summarise_partitions(["long", "uuid"], [(1, LOW), (2, HIGH)])
    assert both is None
    found = summarise_partitions(["long", "uuid"], [(1, None), (2, None)])
    assert found is not None
    assert (found[1].contains_null, found[1].lower_bound) == (True, None)


def test_the_section_of_a_partition_is_that_of_its_uuids() -> None:
    """Nulls belong to the first section; without uuids there is only one section."""
    partitions = [(7, HIGH), (1, None), (2, LOW)]
    assert [section_of(["long", "uuid"], partition) for partition in partitions] == [(2,), (0,), (0,)]
    assert {section_of(["long", "binary"], partition) for partition in partitions} == {()}
