"""The catalogs that a deployment serves: those that its settings name, and table buckets that S3 Tables lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from icekeeper.catalogs.addresses import (
    CatalogAddress,
    Catalogs,
    add_found,
    address_from_json,
    named_addresses,
    wants_all_buckets,
)
from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.load import connect, known_catalogs
from icekeeper.catalogs.table_buckets import TableBucket, find_table_buckets
from icekeeper.errors import PolicyError, StorageError
from icekeeper.pyiceberg_private.configuration import catalogs_of

__all__ = ["fleet_catalogs", "open_address", "parse_catalog_file", "recorded_address"]


def parse_catalog_file(text: str, source: str) -> Catalogs:
    """Properties by lower-case catalog name, from a file in the format of ``.pyiceberg.yaml``.

    Raises:
        PolicyError: it is malformed.
    """
    try:
        return catalogs_of(text)
    except ValueError as error:
        raise PolicyError(f"{source} is no catalog file: {error}") from error


def fleet_catalogs(
    environment: Mapping[str, str],
    catalog_file: Catalogs,
    *,
    find: Callable[[], Iterable[TableBucket]] = find_table_buckets,
    unreachable: Callable[[StorageError], None] | None = None,
) -> Sequence[CatalogAddress]:
    """Addresses to open one by one with :func:`open_address`, so that one that fails stops no other.

    Args:
        environment: holds ``ICEKEEPER_CATALOGS`` and ``ICEKEEPER_TABLE_BUCKETS``; with ``all``, S3 Tables is asked.
        catalog_file: what is configured; PyIceberg's own configuration (``PYICEBERG_CATALOG__…``) wins over it.
        find: lists the table buckets.
        unreachable: called with the error when the buckets cannot be listed, and for each listed bucket that clashes
            with another catalog; the other catalogs are then returned.

    Raises:
        PolicyError: the settings are malformed, name the same tables twice, or give two catalogs one name.
        StorageError: the table buckets cannot be listed, and ``unreachable`` is not given.
    """
    catalogs = known_catalogs(catalog_file)
    named = named_addresses(environment, catalogs, unless_named=tuple(catalog_file))
    if not wants_all_buckets(environment):
        return named
    found: list[str] = []
    try:
        found.extend(bucket.arn for bucket in find())
    except StorageError as error:
        if unreachable is None:
            raise
        unreachable(error)
    addresses = named
    for arn in found:
        try:
            addresses = add_found(addresses, [arn], catalogs)
        except PolicyError as error:  # whoever creates a bucket must not be able to stop the scan of all the others
            if unreachable is None:
                raise
            unreachable(StorageError(f"{arn} is left out: {error}"))
    return addresses


def recorded_address(document: Mapping[str, Any], catalog_file: Catalogs) -> CatalogAddress:
    """The address that :meth:`CatalogAddress.to_json` wrote, as it is configured now; no table buckets are listed.

    Raises:
        PolicyError: that catalog is no longer configured, or has another warehouse by now.
    """
    return address_from_json(document, known_catalogs(catalog_file))


def open_address(address: CatalogAddress, environment: Mapping[str, str]) -> Catalog:
    """Connect to one catalog of a fleet; ``environment`` says where its tables may have files.

    Raises:
        PolicyError: its type is not supported, or its properties are incomplete.
        StorageError: it cannot be reached.
    """
    return connect(address.name, address.properties, environment)
