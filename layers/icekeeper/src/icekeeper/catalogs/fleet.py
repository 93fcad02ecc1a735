"""The catalogs of a deployment: configured ones by name, and table buckets by their address or found by listing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import boto3
from botocore.exceptions import BotoCoreError, ClientError
from strictyaml import YAML, MapPattern, Str, YAMLError, load

from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.errors import PolicyError, StorageError

__all__ = ["CatalogAddress", "fleet_catalogs", "open_address", "parse_catalog_file"]

CATALOGS = "ICEKEEPER_CATALOGS"
TABLE_BUCKETS = "ICEKEEPER_TABLE_BUCKETS"
ALL = "all"
_CUSTOMER = "customer"
_SCHEMA = MapPattern(Str(), MapPattern(Str(), MapPattern(Str(), Str())))


@dataclass(frozen=True, slots=True)
class CatalogAddress:
    """How to open one catalog; its properties may hold secrets: never log or store them."""

    name: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)


def parse_catalog_file(text: str, source: str) -> Mapping[str, Mapping[str, str]]:
    """Properties by catalog name, from a file in the format of ``.pyiceberg.yaml``.

    Raises:
        PolicyError: it is malformed.
    """
    try:
        parsed: YAML = load(text, _SCHEMA)
        document = parsed.data
    except YAMLError as error:
        raise PolicyError(f"{source} is no catalog file: {' '.join(str(error).split())}") from error
    if list(document) != ["catalog"]:
        raise PolicyError(f"{source} is no catalog file: it must have the one key 'catalog', as .pyiceberg.yaml has")
    return {str(name): dict(properties) for name, properties in document["catalog"].items()}


def fleet_catalogs(
    environment: Mapping[str, str], catalog_file: Mapping[str, Mapping[str, str]]
) -> Sequence[CatalogAddress]:
    """``ICEKEEPER_CATALOGS`` (names; left out: all of the file) and ``ICEKEEPER_TABLE_BUCKETS`` (ARNs, or ``all``).

    A table bucket's catalog is named as the bucket.  The name is part of a table's identity, so whoever pins snapshots
    from elsewhere must call the catalog the same.

    Raises:
        PolicyError: a variable is malformed, or two catalogs would have one name.
        StorageError: table buckets are to be found, and cannot be listed.
    """
    named = _listed(environment, CATALOGS)
    addresses = [CatalogAddress(name, catalog_file.get(name, {})) for name in named or catalog_file]
    buckets = _listed(environment, TABLE_BUCKETS)
    arns = _find_table_buckets() if buckets == [ALL] else buckets
    for arn in arns:
        name = arn.rpartition("bucket/")[2]
        if not arn.startswith("arn:") or ":bucket/" not in arn or not name:
            raise PolicyError(
                f"environment variable {TABLE_BUCKETS} names '{arn}'; write the ARNs of table buckets, or {ALL}"
            )
        addresses.append(CatalogAddress(name, {"type": "s3tables", "warehouse": arn}))
    seen: set[str] = set()
    for address in addresses:
        if address.name in seen:
            raise PolicyError(f"two catalogs of this deployment are called '{address.name}'; name one otherwise")
        seen.add(address.name)
    return addresses


def open_address(address: CatalogAddress) -> Catalog:
    """Connect to it.

    Raises:
        PolicyError: it is not configured, or incompletely.
        StorageError: it cannot be reached.
    """
    return open_catalog(address.name, address.properties)


def _listed(environment: Mapping[str, str], variable: str) -> list[str]:
    parts = (part.strip() for part in environment.get(variable, "").split(","))
    return list(dict.fromkeys(part for part in parts if part))


def _find_table_buckets() -> Iterator[str]:
    try:
        client = boto3.client("s3tables")
        for page in client.get_paginator("list_table_buckets").paginate():
            for bucket in page["tableBuckets"]:
                # AWS keeps buckets of its own (S3 metadata, …), which nobody else may change.
                if bucket.get("type", _CUSTOMER) == _CUSTOMER:
                    yield str(bucket["arn"])
    except (BotoCoreError, ClientError) as error:
        raise StorageError(f"the table buckets of this account cannot be listed: {error}") from error
