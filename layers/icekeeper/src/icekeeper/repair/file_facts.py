"""What a data file says about itself: rows, sizes of columns, row groups and bounds by its footer, or by its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.metadata.types import comparable, decode, encode
from icekeeper.model import DataFile
from icekeeper.rows.arrow_schema import field_id_of
from icekeeper.rows.file_rows import open_rows, read_parquet_footer, reading
from icekeeper.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts of a data file; maps are keyed by field id, and lack the columns that its footer says nothing about."""

    record_count: int
    field_ids: frozenset[int] = frozenset()
    """The primitive columns and variants; empty: the file has no field ids."""
    column_sizes: Mapping[int, int] = field(default_factory=dict)
    value_counts: Mapping[int, int] = field(default_factory=dict)
    """Only of columns outside lists, maps and variants."""
    null_counts: Mapping[int, int] = field(default_factory=dict)
    bounds: Mapping[int, Sequence[tuple[Any, Any]]] = field(default_factory=dict)
    """The raw bounds of each row group, as the footer has them; they may be truncated outwards."""
    row_group_offsets: tuple[int, ...] = ()


def facts_at(path: str, file_format: str, storage: Storage) -> FileFacts:
    """The facts of a file in a store: a Parquet file by its footer, others by their rows.

    Raises:
        FileUnreadable: the file is missing, damaged, or of a format that is not read.
        StorageError: the store failed.
    """
    with reading(path, storage):
        if file_format.upper() == "PARQUET":
            return parquet_facts(read_parquet_footer(path, storage))
        with storage.open_input(path) as stream:
            return facts_of(stream, file_format)


def facts_of(stream: pa.NativeFile, file_format: str) -> FileFacts:
    """The facts of an opened file; raises what :func:`.open_rows` raises."""
    if file_format.upper() == "PARQUET":
        return parquet_facts(pq.read_metadata(stream))
    schema, batches = open_rows(stream, file_format)
    ids = frozenset(i for i, _ in _leaf_ids(schema) if i is not None)
    return FileFacts(sum(batch.num_rows for batch in batches(schema.names)), ids)


def parquet_facts(footer: pq.FileMetaData) -> FileFacts:
    """The facts in a Parquet footer (pure)."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    bounds: dict[int, Sequence[tuple[Any, Any]]] = {}
    for number, (field_id, is_repeated) in enumerate(_leaf_ids(footer.schema.to_arrow_schema())):
        if field_id is None:
            continue
        chunks = [group.column(number) for group in groups]
        sizes[field_id] = sizes.get(field_id, 0) + sum(chunk.total_compressed_size for chunk in chunks)
        if is_repeated:
            continue
        values[field_id] = sum(chunk.num_values for chunk in chunks)
        statistics = [chunk.statistics for chunk in chunks]
        if all(found is not None and found.has_null_count for found in statistics):
            nulls[field_id] = sum(found.null_count for found in statistics)
        ranges = [(found.min_raw, found.max_raw) for found in statistics if found is not None and found.has_min_max]
        if ranges and len(ranges) == len(statistics):
            bounds[field_id] = ranges
    offsets = [_first_offset(group.column(0)) for group in groups if group.num_columns]
    ids = frozenset(i for i, _ in _leaf_ids(footer.schema.to_arrow_schema()) if i is not None)
    return FileFacts(footer.num_rows, ids, sizes, values, nulls, bounds, tuple(sorted(offsets)))


def why_another(entry: DataFile, size: int, facts: FileFacts, kinds: Mapping[int, str]) -> str | None:
    """Why a file is not the one that an entry describes, as the end of a sentence; ``None``: all that both state is
    equal (pure).

    ``kinds``: the type of each primitive column of the table's schemas, by field id.
    """
    if size != entry.file_size_in_bytes:
        return f"has {size} bytes, not {entry.file_size_in_bytes}"
    if facts.record_count != entry.record_count:
        return f"has {facts.record_count} rows, not {entry.record_count}"
    stated = frozenset(entry.column_sizes or ()) | frozenset(entry.value_counts or ())
    if facts.field_ids and not stated <= facts.field_ids:
        return f"lacks the columns with the field ids {sorted(stated - facts.field_ids)}"
    for what, mine, theirs in (
        ("bytes", entry.column_sizes, facts.column_sizes),
        ("values", entry.value_counts, facts.value_counts),
        ("nulls", entry.null_value_counts, facts.null_counts),
    ):
        for field_id, count in (mine or {}).items():
            if field_id in theirs and theirs[field_id] != count:
                return f"has {theirs[field_id]} {what} in the column with field id {field_id}, not {count}"
    if facts.row_group_offsets and entry.split_offsets and entry.split_offsets != facts.row_group_offsets:
        return "has its row groups at other offsets"
    for field_id, ranges in facts.bounds.items():
        kind = kinds.get(field_id)
        if kind is not None and any(excludes(entry, field_id, kind, low, high) for low, high in ranges):
            return f"has values outside of the bounds of the column with field id {field_id}"
    return None


def excludes(entry: DataFile, field_id: int, kind: str, low: Any, high: Any) -> bool:
    """Whether an entry's bounds of a column do not contain these raw values; bounds of another type do not (pure)."""
    lower, upper = (entry.lower_bounds or {}).get(field_id), (entry.upper_bounds or {}).get(field_id)
    try:
        least, most = (
            comparable(kind, decode(kind, encode(kind, value)) if kind in ("string", "boolean") else value)
            for value in (low, high)
        )
        is_above = lower is not None and comparable(kind, decode(kind, lower)) > least
        return is_above or (upper is not None and comparable(kind, decode(kind, upper)) < most)
    except (ValueError, TypeError):
        return True


def _leaf_ids(schema: Iterable[pa.Field]) -> Iterator[tuple[int | None, bool]]:
    """The field id of each primitive column in Parquet's order, and whether it is inside a list, map or variant.

    A struct whose fields have no ids is a variant, and its leaf columns get its id.
    """
    for part in schema:
        yield from _below(part, False)


def _below(part: pa.Field, is_repeated: bool) -> Iterator[tuple[int | None, bool]]:
    kind, own = part.type, field_id_of(part)
    if not pa.types.is_nested(kind):
        yield own, is_repeated
        return
    children = [kind.field(number) for number in range(kind.num_fields)]
    if pa.types.is_struct(kind) and own is not None and all(field_id_of(child) is None for child in children):
        yield from ((own, True) for _ in _leaf_ids(children))
        return
    for child in children:
        yield from _below(child, is_repeated or not pa.types.is_struct(kind))


def _first_offset(chunk: Any) -> int:
    if chunk.has_dictionary_page:
        return min(int(chunk.dictionary_page_offset), int(chunk.data_page_offset))
    return int(chunk.data_page_offset)
