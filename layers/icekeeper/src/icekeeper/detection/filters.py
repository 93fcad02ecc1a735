"""Which buckets, namespaces and tables a deployment's filters let through (pure)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from icekeeper.model import TableName
from icekeeper.policy import Policy

__all__ = ["selects_bucket", "selects_table"]


def selects_bucket(settings: Policy, warehouse: str) -> bool:
    """Whether ``bucket_filter`` lets a warehouse through: a bucket's address or ARN, or a folder, by its name."""
    parts = urlsplit(warehouse)
    is_bucket_url = parts.scheme in ("s3", "s3a", "s3n") and parts.netloc
    name = parts.netloc if is_bucket_url else warehouse.rstrip("/").rsplit("/", 1)[-1]
    return _matches(name, settings.bucket_filter)


def selects_table(settings: Policy, table: TableName) -> bool:
    """Whether ``namespace_filter`` and ``table_filter`` let a table through."""
    return _matches(".".join(table.namespace), settings.namespace_filter) and _matches(
        table.name, settings.table_filter
    )


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    # Only * and ? are wildcards; fnmatch alone would also take brackets for one.
    return not patterns or any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns)
