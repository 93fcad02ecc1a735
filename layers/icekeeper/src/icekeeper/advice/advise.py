"""All rules over one table or over all tables of a catalog (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from icekeeper.advice.layout import bloom_advice, sort_advice
from icekeeper.advice.partitioning import bucket_advice, partition_advice
from icekeeper.advice.shared_keys import shared_key_advice
from icekeeper.advice.summary import Advice, TableSummary
from icekeeper.advice.upkeep import delete_advice, format_advice, metadata_advice, statistics_advice

__all__ = ["advise", "advise_all"]

_RULES: Sequence[Callable[[TableSummary], Iterator[Advice]]] = (
    partition_advice,
    sort_advice,
    bloom_advice,
    delete_advice,
    metadata_advice,
    statistics_advice,
    format_advice,
)


def advise(table: TableSummary) -> list[Advice]:
    """What to change about one table; empty where the numbers carry nothing."""
    buckets = list(bucket_advice(table))
    # Fewer buckets may be all that the partitions need.
    rules = _RULES[1:] if any(a.kind == "bucket_count" for a in buckets) else _RULES
    return buckets + [advice for rule in rules for advice in rule(table)]


def advise_all(tables: Sequence[TableSummary]) -> Mapping[str, list[Advice]]:
    """Table → what to change about it, also for what tables have in common."""
    found: defaultdict[str, list[Advice]] = defaultdict(list)
    for table in tables:
        found[table.table] = advise(table)
    for name, advice in shared_key_advice(tables):
        # A table whose number of buckets is wrong by itself is told one number only.
        if not any(other.kind == "bucket_count" for other in found[name]):
            found[name].append(advice)
    return found
