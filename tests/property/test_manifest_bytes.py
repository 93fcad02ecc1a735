"""Manifests and manifest lists of any content: what is written reads back and adds up."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from icekeeper.metadata.manifest_read import decode_live_files, decode_manifest, decode_manifest_list
from icekeeper.metadata.manifest_write import encode_manifest_list
from icekeeper.metadata.single_value import least_decimal, split_by_section
from icekeeper.model import EntryStatus, LiveFile, ManifestContent
from support.examples import examples
from support.manifests import COLUMNS, DRAWN_FIELDS, drawn_table, encoded, entries


def bits(values: Sequence[Any]) -> list[Any]:
    """NaN equal to NaN, -0.0 not equal to 0.0."""
    return [struct.pack("<d", value) if isinstance(value, float) else value for value in values]


def stored(partition: Sequence[Any]) -> list[Any]:
    """Decimals in as few bytes as they need."""
    return [
        least_decimal(value) if kind.startswith("decimal") else value
        for value, (_, kind, _) in zip(partition, COLUMNS, strict=True)
    ]


@settings(max_examples=examples(25))
@given(st.data())
@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_what_is_written_reads_back(format_version: int, data: st.DataObject) -> None:
    """With everything that a null would have inherited filled in (rule 3)."""
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
        # An ADDED entry's row ids are the commit's to give (rule 19).
        row_id = None if before.status is EntryStatus.ADDED else before.file.first_row_id
        assert replace(after.file, partition=()) == replace(before.file, partition=(), first_row_id=row_id)
    live = [
        LiveFile(*entry.file.key, entry.file.file_size_in_bytes, entry.snapshot_id) for entry in made if entry.is_live
    ]
    assert list(decode_live_files(written.data, "s3://b/m.avro")) == live


@settings(max_examples=examples(25))
@given(st.data())
@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_the_manifest_list_entry_adds_up(format_version: int, data: st.DataObject) -> None:
    """Counts per status, the least sequence number, and summaries over every entry, deleted ones too (rule 35)."""
    kinds = [kind for _, kind, _ in COLUMNS]
    made = next(
        iter(split_by_section(kinds, data.draw(entries(format_version)), lambda entry: entry.file.partition)), []
    )
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
            if kind == "uuid":  # wider, so that they hold in Java's order too: tests/property/test_uuid_order.py
                assert low <= min(raw) <= max(raw) <= high
            else:
                assert (low, high) == (min(raw), max(raw))


def readable(kind: str, value: Any) -> Any:
    """A raw partition value as PyIceberg decodes a bound of it."""
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


@settings(max_examples=examples(15))  # four manifests each
@given(st.data())
@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_manifest_lists_read_back(format_version: int, data: st.DataObject) -> None:
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
