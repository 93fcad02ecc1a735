"""Wildcard patterns over buckets, namespaces and tables: detection's filters and the rules of a policy file."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

__all__ = ["bucket_name", "matches"]


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns fits the whole name; no pattern fits every name.  Case matters."""
    # Only * and ? are wildcards; fnmatch alone would also take brackets for one.
    return not patterns or any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns)


def bucket_name(warehouse: str) -> str:
    """The name that bucket patterns are matched against: the last part of a bucket's address or ARN, or of a folder."""
    parts = urlsplit(warehouse)
    is_bucket_url = parts.scheme in ("s3", "s3a", "s3n") and parts.netloc
    return parts.netloc if is_bucket_url else warehouse.rstrip("/").rsplit("/", 1)[-1]
