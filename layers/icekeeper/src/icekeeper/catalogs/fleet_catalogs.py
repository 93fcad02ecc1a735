"""The catalogs that a deployment serves: those that its settings name, and the table buckets that are found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from icekeeper.catalogs.fleet import CatalogAddress, Catalogs, add_found, named_catalogs, wants_all_buckets
from icekeeper.catalogs.table_buckets import TableBucket, find_table_buckets
from icekeeper.errors import StorageError

__all__ = ["fleet_catalogs"]


def fleet_catalogs(
    environment: Mapping[str, str],
    catalogs: Catalogs,
    *,
    find: Callable[[], Iterable[TableBucket]] = find_table_buckets,
    unreachable: Callable[[StorageError], None] | None = None,
) -> Sequence[CatalogAddress]:
    """Addresses to open one by one with :func:`icekeeper.catalogs.load.open_address`; one that fails stops no other.

    Args:
        environment: holds ``ICEKEEPER_CATALOGS`` and ``ICEKEEPER_TABLE_BUCKETS``; with ``all``, S3 Tables is asked.
        catalogs: what is configured (:func:`icekeeper.catalogs.load.known_catalogs`).
        find: lists the table buckets.
        unreachable: told when they cannot be listed; the catalogs that are known without are then returned.

    Raises:
        PolicyError: the settings are malformed, or give one table two names.
        StorageError: the table buckets cannot be listed, and nobody wants to be told.
    """
    named = named_catalogs(environment, catalogs)
    if not wants_all_buckets(environment):
        return named
    found: list[str] = []
    try:
        for bucket in find():
            found.append(bucket.arn)
    except StorageError as error:
        if unreachable is None:
            raise
        unreachable(error)
    return add_found(named, found, catalogs)
