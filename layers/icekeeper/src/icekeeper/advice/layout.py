"""Advice on the order of rows: columns worth sorting by, clustering that wore off, bloom filters (pure)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from icekeeper.advice.sql import order_by, set_properties
from icekeeper.advice.summary import Advice, ColumnFacts, TableSummary

__all__ = ["bloom_advice", "sort_advice"]

# So many files opened per lookup are worth one sort of the table.
DEEP = 8
# In tiers, the limit is passed on the way; three times the limit is what a pass would not leave.
WORN = 3
# A z-order curve serves so many columns well; with more each gets too few bits.
MOST_CURVE_COLUMNS = 4
# Sketches: below, dictionaries of the row groups do what a bloom filter would.
MANY_VALUES, DISTINCT_SHARE = 100_000, 0.1
# A value is looked for in nearly every file, so that bounds skip none.
COVERING_SHARE = 0.9
# Longer values are texts, which nobody looks up.
LONGEST_VALUE = 64
_NO_BLOOM = frozenset({"boolean", "float", "double", "variant", "geometry", "geography", "unknown"})


def sort_advice(table: TableSummary) -> Iterator[Advice]:
    """Sort by keys that lookups go by, or sort anew what a pass of these settings would not leave so."""
    if table.clustered_by:
        yield from _worn(table)
        return
    keys = [c for c in table.columns if c.is_key and c.depth is not None and c.depth.point >= DEEP]
    keys.sort(key=lambda c: -(c.depth.point if c.depth else 0.0))
    keys = keys[:MOST_CURVE_COLUMNS]
    if not keys or keys[0].depth is None:
        return
    names = [c.name for c in keys]
    opened = keys[0].depth.point
    listed = ", ".join(names)
    statement = order_by(table.table, names[0])
    if len(names) > 1:
        settings = ("strategy=zorder", f"zorder_columns={','.join(names)}")
        statement = shlex.join(("icekeeper", "policy", "set", table.table, *settings))
    yield Advice(
        "sort_order" if len(names) == 1 else "z_order",
        f"rows are looked up by {listed}, and a lookup opens {opened:.1f} files of a partition on average",
        {"columns": ",".join(names), "files_per_lookup": round(opened, 1), "files": table.files},
        f"a lookup opens {table.depth_limit} files or fewer, as soon as passes sort by {listed}",
        statement,
    )


def _worn(table: TableSummary) -> Iterator[Advice]:
    first = next((c for c in table.columns if c.name == table.clustered_by[0]), None)
    if len(table.clustered_by) > 1 or first is None or first.depth is None:
        return  # on a curve files overlap in every single column
    if first.depth.point <= WORN * table.depth_limit:
        return
    yield Advice(
        "worn_clustering",
        f"a lookup by {first.name} opens {first.depth.point:.1f} files of a partition on average, although the table "
        "is sorted by it",
        {"column": first.name, "files_per_lookup": round(first.depth.point, 1), "limit": table.depth_limit},
        f"at most {table.depth_limit} sorted runs over one value, or fewer than the tier factor of each size",
        shlex.join(("icekeeper", "maintain", table.table, "--operations", "compact")),
    )


def bloom_advice(table: TableSummary) -> Iterator[Advice]:
    """Bloom filters on columns of very many values whose bounds skip no file."""
    sorted_by = table.clustered_by[:1]
    for column in table.columns:
        if column.name not in sorted_by and not column.has_bloom_filter and _wants_bloom(table, column):
            assert column.depth is not None
            yield Advice(
                "bloom_filter",
                f"{column.name} has about {column.distinct} distinct values, and bounds leave "
                f"{column.depth.point:.1f} of {table.files_per_partition:.1f} files of a partition to open for one",
                {
                    "column": column.name,
                    "distinct_values": column.distinct or 0,
                    "files_per_lookup": round(column.depth.point, 1),
                    "files_per_partition": round(table.files_per_partition, 1),
                },
                "a lookup of one value reads the filters, and the one file that holds it",
                set_properties(table.table, {f"write.parquet.bloom-filter-enabled.column.{column.name}": "true"}),
            )


def _wants_bloom(table: TableSummary, column: ColumnFacts) -> bool:
    if column.depth is None or column.distinct is None or column.type in _NO_BLOOM:
        return False
    has_many = column.distinct >= MANY_VALUES and column.distinct >= DISTINCT_SHARE * table.records
    covers_all = column.depth.point >= COVERING_SHARE * table.files_per_partition
    is_text = column.value_bytes is not None and column.value_bytes > LONGEST_VALUE
    return has_many and covers_all and table.files_per_partition >= DEEP and not is_text
