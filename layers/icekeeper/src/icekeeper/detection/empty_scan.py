"""Why a scan of a catalog met no table at all (pure)."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from icekeeper.detection.filters import selects_bucket, selects_table
from icekeeper.model import TableName
from icekeeper.policy import ResolvedPolicy
from icekeeper.policy.patterns import bucket_name

__all__ = ["why_empty"]

_SHOWN = 3
_WILDCARDS = str.maketrans("", "", "*?")


def why_empty(catalog: str, warehouse: str, tables: Collection[TableName], settings: ResolvedPolicy) -> str | None:
    """One sentence that names the filter and what is nearest to it; ``None`` where some table is let through."""
    policy = settings.policy
    if not selects_bucket(policy, warehouse):
        return _unmatched(settings, "bucket_filter", f"warehouse {bucket_name(warehouse)}", [])
    if not tables:
        return f"catalog {catalog} has no tables"
    if any(selects_table(policy, table) for table in tables):
        return None
    total = f"the {len(tables)} table(s) of catalog {catalog}"
    if not any(selects_table(policy.model_copy(update={"table_filter": ()}), table) for table in tables):
        return _unmatched(
            settings, "namespace_filter", f"a namespace of {total}", [".".join(t.namespace) for t in tables]
        )
    return _unmatched(settings, "table_filter", f"any of {total}", [table.name for table in tables])


def _unmatched(settings: ResolvedPolicy, key: str, what: str, names: Collection[str]) -> str:
    patterns = getattr(settings.policy, key)
    wanted = patterns[0].translate(_WILDCARDS)
    nearest = difflib.get_close_matches(wanted, sorted(set(names)), n=_SHOWN, cutoff=0)
    said = f"{key} {','.join(patterns)} (from {settings.sources[key]}) does not match {what}"
    return f"{said}; the nearest: {', '.join(nearest)}" if nearest else said
