"""The properties that open a table bucket of which only the ARN is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icekeeper.catalogs.io_properties import file_io_properties
from icekeeper.catalogs.kind import CatalogKind
from icekeeper.catalogs.table_bucket_arn import TableBucketArn
from icekeeper.errors import PolicyError

__all__ = ["table_bucket_properties"]


def table_bucket_properties(bucket: TableBucketArn, configured: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Type and warehouse, and the endpoints, region and credentials of a configured catalog with the same warehouse.

    Of several such catalogs the one with the bucket's name is taken.  Of a REST catalog over the bucket, its address
    and its sign-in are left out.

    Raises:
        PolicyError: several catalogs have that warehouse, none has the bucket's name, and their properties differ.
    """
    owners = {name: settings for name, settings in configured.items() if settings.get("warehouse") == bucket.text}
    if bucket.name in owners:
        owners = {bucket.name: owners[bucket.name]}
    lent = {name: file_io_properties(settings) for name, settings in owners.items()}
    distinct = list(lent.values())
    if any(properties != distinct[0] for properties in distinct):
        raise PolicyError(
            f"catalogs {', '.join(sorted(lent))} are all about table bucket {bucket} and differ; name the one to use"
            f" '{bucket.name}', or leave only one of them configured"
        )
    properties = {**(distinct[0] if distinct else {}), "type": CatalogKind.S3_TABLES.value, "warehouse": bucket.text}
    properties.pop("py-catalog-impl", None)
    return properties
