"""Advice across tables: keys that several tables are bucketed by, with different numbers of buckets (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from icekeeper.advice.partitioning import LEAST_BUCKET_BYTES
from icekeeper.advice.sql import replace_field
from icekeeper.advice.summary import Advice, PartitionField, TableSummary

__all__ = ["shared_key_advice"]


def shared_key_advice(tables: Sequence[TableSummary]) -> Iterator[tuple[str, Advice]]:
    """The table to change and the advice: equal keys, bucketed by different N, cannot be joined bucket by bucket.

    A key is equal where column name and type are.  The smaller table is changed, and only if its buckets keep 100 MB.
    """
    by_key: defaultdict[tuple[str, str], list[tuple[TableSummary, PartitionField]]] = defaultdict(list)
    for table in tables:
        for field in table.fields:
            if field.buckets is not None:
                by_key[field.column, field.type].append((table, field))
    for (column, _), group in by_key.items():
        largest, model = max(group, key=lambda pair: (pair[0].size, pair[0].table))
        for table, field in group:
            buckets, wanted = field.buckets or 0, model.buckets or 0
            if table.table == largest.table or buckets == wanted or table.size < wanted * LEAST_BUCKET_BYTES:
                continue
            yield (
                table.table,
                Advice(
                    "unequal_buckets",
                    f"{column} is bucketed by {buckets} here and by {wanted} in {largest.table}: joins by it shuffle "
                    "both tables",
                    {"buckets": buckets, "other_buckets": wanted, "other_table": largest.table, "bytes": table.size},
                    "joins bucket by bucket without a shuffle (storage-partitioned joins)",
                    replace_field(table.table, field.name, column, "bucket", wanted),
                ),
            )
