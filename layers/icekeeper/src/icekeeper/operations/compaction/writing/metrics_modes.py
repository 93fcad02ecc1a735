"""Chooses how much a manifest entry tells of each column: ``write.metadata.metrics.*``, inherited as in Java.

Source: Java's ``MetricsConfig`` (1.10).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.compaction.writing.parquet_options import bounded
from icekeeper.rows.arrow_schema import leaf_columns

__all__ = ["metrics_modes", "output_properties"]

# TableProperties.DEFAULT_WRITE_METRICS_MODE_DEFAULT, METRICS_MAX_INFERRED_COLUMN_DEFAULTS_DEFAULT
_DEFAULT_MODE = "truncate(16)"
_MAX_INFERRED_DEFAULT = 100
_PREFIX = "write.metadata.metrics."


def metrics_modes(schema: Mapping[str, Any], properties: Mapping[str, str]) -> dict[int, str]:
    """The mode of every leaf column by field id: ``none``, ``counts``, ``truncate(n)`` or ``full``.

    Without an explicit default only the first ``write.metadata.metrics.max-inferred-column-defaults`` columns are
    measured.  A malformed mode falls back to the default.
    """
    leaves = leaf_columns(schema)
    default = _default_mode(properties, len(leaves))
    modes = {leaf.field_id: default for leaf in leaves}
    if default == "none" and f"{_PREFIX}default" not in properties:
        first = list(_shallow_first(schema["fields"]))[: _limit(properties)]
        modes.update(dict.fromkeys(first, _DEFAULT_MODE))
    for leaf in leaves:
        own = properties.get(f"{_PREFIX}column.{leaf.name}")
        if own is not None:
            modes[leaf.field_id] = _mode(own, default)
    return modes


def output_properties(metadata: TableMetadata) -> dict[str, str]:
    """The table properties that say how files are written (``write.*``), within bounds (:func:`.bounded`).

    Columns that the table is sorted by get bounds even if the default mode has none (Java's
    ``sortedColumnDefaultMode``): here they get a mode of their own.
    """
    properties = bounded({key: value for key, value in metadata.properties.items() if key.startswith("write.")})
    leaves = leaf_columns(metadata.current_schema)
    if _default_mode(properties, len(leaves)) in ("none", "counts"):
        names = {leaf.field_id: leaf.name for leaf in leaves}
        for field_id in _sorted_by(metadata):
            if field_id in names:
                properties.setdefault(f"{_PREFIX}column.{names[field_id]}", _DEFAULT_MODE)
    return properties


def _default_mode(properties: Mapping[str, str], columns: int) -> str:
    explicit = properties.get(f"{_PREFIX}default")
    if explicit is not None:
        return _mode(explicit, _DEFAULT_MODE)
    return _DEFAULT_MODE if columns < _limit(properties) else "none"


def _limit(properties: Mapping[str, str]) -> int:
    text = properties.get(f"{_PREFIX}max-inferred-column-defaults", "")
    return int(text) if text.isdecimal() and len(text) < 10 else _MAX_INFERRED_DEFAULT


def _mode(text: str, default: str) -> str:
    mode = text.strip().lower()
    return mode if mode in ("none", "counts", "full") or re.fullmatch(r"truncate\([1-9][0-9]{0,8}\)", mode) else default


def _shallow_first(fields: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Ids of leaf columns, those of one level before those of the level below (Java's ``limitFieldIds``)."""
    nested = []
    for field in fields:
        if isinstance(field["type"], str):
            yield int(field["id"])
        else:
            nested.append(field["type"])
    for kind in nested:
        if kind["type"] == "struct":
            yield from _shallow_first(kind["fields"])
        else:
            parts = ("element",) if kind["type"] == "list" else ("key", "value")
            yield from _shallow_first([{"id": kind[f"{part}-id"], "type": kind[part]} for part in parts])


def _sorted_by(metadata: TableMetadata) -> Iterator[int]:
    """Ids of the sort order's source columns, except those under ``bucket``, which does not keep the order."""
    chosen = metadata.document.get("default-sort-order-id") or 0
    for order in metadata.document.get("sort-orders") or ():
        if order["order-id"] == chosen:
            for field in order["fields"]:
                if not str(field["transform"]).startswith("bucket"):
                    yield from map(int, field.get("source-ids") or [field["source-id"]])
