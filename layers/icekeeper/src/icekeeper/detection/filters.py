"""Which buckets, namespaces and tables a deployment's filters let through (pure)."""

from __future__ import annotations

from icekeeper.model import TableName
from icekeeper.policy import Policy
from icekeeper.policy.patterns import bucket_name, matches

__all__ = ["selects_bucket", "selects_table"]


def selects_bucket(settings: Policy, warehouse: str) -> bool:
    """Whether ``bucket_filter`` lets a warehouse through: a bucket's address or ARN, or a folder, by its name."""
    return matches(bucket_name(warehouse), settings.bucket_filter)


def selects_table(settings: Policy, table: TableName) -> bool:
    """Whether ``namespace_filter`` and ``table_filter`` let a table through."""
    return matches(".".join(table.namespace), settings.namespace_filter) and matches(table.name, settings.table_filter)
