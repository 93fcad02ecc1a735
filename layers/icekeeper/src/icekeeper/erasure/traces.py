"""Values that metadata store: bounds and partition values in manifest entries, values in names and texts (pure).

A trace is certain if the values that are stored show a row that matches.  Truncated bounds, and values that may be of
different rows, are traces only while the file that they describe is not known to be free of matching rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Any
from urllib.parse import unquote

from icekeeper.erasure.row_filter import RowFilter, point
from icekeeper.errors import TableUnsupported
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.types import decimal_unscaled, decode, encode, raw_from_json, truncated_upper
from icekeeper.model import DataFile, ManifestFile, PartitionValue
from icekeeper.operations.compaction.plan.value_ranges import Column, Values, bound_value, within_partition

_TRUNCATED = re.compile(r"truncate\((\d+)\)")
_DEFAULT_LENGTH = 16
_METRICS = "write.metadata.metrics."
_PAIR = re.compile(r"""([\w.]+)\s*=\s*(?:'([^']*)'|"([^"]*)"|([^\s/,;&'"]+))""")


class Trace(IntEnum):
    """Whether values of a row that matches are stored."""

    NONE = 0
    POSSIBLE = 1
    CERTAIN = 2


def shortest_bound(metadata: TableMetadata) -> int:
    """The length from which a bound of text may be truncated, by the table's properties and Iceberg's default."""
    modes = (value for key, value in metadata.properties.items() if key.startswith(_METRICS))
    found = (match for mode in modes if (match := _TRUNCATED.fullmatch(mode.strip().lower())))
    return min([_DEFAULT_LENGTH, *(int(match[1]) for match in found)])


def entry_trace(filter_: RowFilter, file: DataFile, spec: Mapping[str, Any], shortest: int) -> Trace:
    """What a manifest entry, of any status, stores of a row that matches; ``shortest``: :func:`shortest_bound`."""
    exact: dict[int, list[Values]] = {}
    ranges: dict[int, list[Values]] = {}
    for column in filter_.columns:
        found = [*_bounds(column, file, shortest), *_in_partition(column, spec, file.partition)]
        ranges[column.field_id] = found
        exact[column.field_id] = [values for values in found if values.is_one or not values.has_values]
    if len(filter_.columns) == 1 and filter_.is_stored(exact):
        return Trace.CERTAIN
    return Trace.POSSIBLE if filter_.is_stored(ranges) else Trace.NONE


def summary_trace(filter_: RowFilter, manifest: ManifestFile, spec: Mapping[str, Any]) -> bool:
    """Whether the bounds of partitions in a manifest list are values of a row that matches a filter of a column."""
    if len(filter_.columns) != 1:  # the values would be of different partitions
        return False
    column, stored = filter_.columns[0], list[Values]()
    for field, summary in zip(spec["fields"], manifest.partitions or (), strict=False):
        if int(field["source-id"]) == column.field_id and field["transform"] == "identity":
            bounds = (bound_value(column.kind, end) for end in (summary.lower_bound, summary.upper_bound))
            stored += [point(value) for value in bounds if value is not None]
    return filter_.is_stored({column.field_id: stored})


def _bounds(column: Column, file: DataFile, shortest: int) -> Iterator[Values]:
    for bounds, is_upper in ((file.lower_bounds, False), (file.upper_bounds, True)):
        value = bound_value(column.kind, (bounds or {}).get(column.field_id))
        if value is None:
            continue
        yield point(value)
        if column.kind in ("string", "binary") and len(value) >= shortest:
            yield _truncated(column.kind, value, is_upper=is_upper)


def _truncated(kind: str, bound: Any, *, is_upper: bool) -> Values:
    """The values of which a bound may be the beginning: upper bounds are rounded up in their last place."""
    if not is_upper:
        after = truncated_upper(kind, encode(kind, bound) + b"\0", len(bound))
        return Values(bound, None if after is None else decode(kind, after), is_open=after is not None, has_nulls=False)
    last = bound[-1] if kind == "binary" else ord(bound[-1])
    before = bound[:-1]
    if last:
        before += bytes([last - 1]) if kind == "binary" else chr(last - 1 if last != 0xE000 else 0xD7FF)
    return Values(before, bound, has_nulls=False)


def _in_partition(column: Column, spec: Mapping[str, Any], partition: tuple[PartitionValue, ...]) -> Iterator[Values]:
    fields = [
        (str(field["transform"]), value)
        for field, value in zip(spec["fields"], partition, strict=False)
        if int(field["source-id"]) == column.field_id and not str(field["transform"]).startswith("bucket")
    ]
    if fields and (values := within_partition(column, fields)).is_one:
        yield replace(values, parts=())
    elif any(transform == "identity" and value is None for transform, value in fields):
        yield point(None)


def partition_names(metadata: TableMetadata, filter_: RowFilter) -> Mapping[str, Column]:
    """The filter's columns by their names, and by the names of their identity partition fields."""
    by_id = {column.field_id: column for column in filter_.columns}
    names = {column.name: column for column in filter_.columns}
    for spec in metadata.specs.values():
        for field in spec["fields"]:
            if field["transform"] == "identity" and int(field["source-id"]) in by_id:
                names[str(field["name"])] = by_id[int(field["source-id"])]
    return names


def text_trace(filter_: RowFilter, names: Mapping[str, Column], text: str) -> bool:
    """Whether a text, such as a path or a value of a summary, has ``NAME=VALUE`` for all columns, of a row that
    matches."""
    if "=" not in text and "%3D" not in text:
        return False
    stored: dict[int, list[Values]] = {}
    for name, *values in _PAIR.findall(unquote(text)):
        column = names.get(name) or names.get(name.removeprefix("partitions."))
        value = None if column is None else _parsed(column.kind, next((v for v in values if v), ""))
        if column is not None and value is not None:
            stored.setdefault(column.field_id, []).append(point(value))
    return len(stored) == len(filter_.columns) and filter_.is_stored(stored)


def _parsed(kind: str, text: str) -> Any:
    """A value as text in its raw form; ``None``: it is not a value of the type."""
    try:
        if kind in ("int", "long"):
            return int(text)
        if kind == "boolean":
            return {"true": True, "false": False}.get(text.lower())
        value = raw_from_json(kind, text.replace(" ", "T") if kind.startswith("timestamp") else text)
    except (TableUnsupported, ValueError):
        return None
    return decimal_unscaled(value) if kind.startswith("decimal") and isinstance(value, bytes | int) else value


def texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value; of an object, its keys with their values, because summaries name partitions so."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, below in value.items():
            yield key
            yield from texts(below)
    elif isinstance(value, Iterable):
        for below in value:
            yield from texts(below)
