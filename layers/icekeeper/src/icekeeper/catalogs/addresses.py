"""Which catalogs a deployment serves, by its settings; nothing is opened here.

``ICEKEEPER_CATALOGS`` is a comma-separated list of configured catalogs; when it is not set, all catalogs of the catalog
file are served.  ``ICEKEEPER_TABLE_BUCKETS`` is a comma-separated list of ARNs of table buckets, or ``all``; each
becomes a catalog with the bucket's name, and with its ARN as warehouse.

Two names for the same tables would have every table looked at twice in each scan.  So two settings that name one
warehouse are an error, and a bucket that ``all`` finds is left out where a configured catalog serves it already.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from icekeeper.catalogs.kind import CatalogKind, canonical_name, kind_of
from icekeeper.catalogs.table_bucket_arn import TableBucketArn
from icekeeper.catalogs.table_bucket_properties import table_bucket_properties
from icekeeper.errors import PolicyError

__all__ = [
    "CATALOGS",
    "TABLE_BUCKETS",
    "CatalogAddress",
    "Catalogs",
    "add_found",
    "address_from_json",
    "find_address",
    "named_addresses",
    "wants_all_buckets",
]

CATALOGS = "ICEKEEPER_CATALOGS"
TABLE_BUCKETS = "ICEKEEPER_TABLE_BUCKETS"
ALL = "all"

Catalogs = Mapping[str, Mapping[str, Any]]
"""Properties by lower-case catalog name."""


@dataclass(frozen=True, slots=True)
class CatalogAddress:
    """How to open one catalog; :meth:`to_json` leaves the properties out, which may hold secrets."""

    name: str
    warehouse: str | None
    """As configured; ``None`` where the configuration names none."""
    properties: Mapping[str, Any] = field(repr=False)
    is_found: bool = field(default=False, compare=False)
    """Whether nobody has named it: the S3 Tables API has listed it."""

    def to_json(self) -> dict[str, str | None]:
        """Name and warehouse: enough for :func:`address_from_json` where the same catalogs are configured."""
        return {"catalog": self.name, "warehouse": self.warehouse}


def named_addresses(
    environment: Mapping[str, str], catalogs: Catalogs, *, unless_named: Sequence[str] = ()
) -> Sequence[CatalogAddress]:
    """The catalogs that the settings name: configured ones, then table buckets, each in the order given.

    Args:
        environment: holds ``ICEKEEPER_CATALOGS`` and ``ICEKEEPER_TABLE_BUCKETS``.
        catalogs: what is configured.
        unless_named: the configured catalogs to take when ``ICEKEEPER_CATALOGS`` is not set.

    Raises:
        PolicyError: a variable names a catalog that is not configured, or has text that is no ARN of a table bucket;
            two names mean the same tables; or two catalogs have one name.
    """
    addresses = [_configured(name, catalogs) for name in _items(environment, CATALOGS) or unless_named]
    addresses += [_table_bucket(bucket, catalogs) for bucket in _buckets(environment)]
    known: dict[Hashable, CatalogAddress] = {}
    for address in addresses:
        other = known.setdefault(_tables_of(address), address)
        if other.name != address.name:
            raise PolicyError(
                f"{CATALOGS} and {TABLE_BUCKETS} reach the same tables as catalog '{other.name}' and as catalog"
                f" '{address.name}', which would hide the pins of one from the other; leave one out, or call the"
                " configured one as the table bucket"
            )
    return _with_distinct_names(known.values())


def wants_all_buckets(environment: Mapping[str, str]) -> bool:
    """Whether ``ICEKEEPER_TABLE_BUCKETS`` is ``all``, so that the S3 Tables API must list the buckets.

    Raises:
        PolicyError: ``all`` stands beside ARNs.
    """
    items = _items(environment, TABLE_BUCKETS)
    if ALL in items and len(items) > 1:
        raise PolicyError(f"{TABLE_BUCKETS} is '{environment[TABLE_BUCKETS]}'; set it to ARNs or to '{ALL}', not both")
    return items == [ALL]


def add_found(addresses: Sequence[CatalogAddress], arns: Iterable[str], catalogs: Catalogs) -> Sequence[CatalogAddress]:
    """The addresses, followed by those of the found table buckets that no address serves yet.

    Raises:
        PolicyError: several configured catalogs have a found bucket as warehouse, and differ; or a bucket has the name
            of another catalog.
    """
    known = {_tables_of(address): address for address in addresses}
    for arn in arns:
        address = replace(_table_bucket(_parsed(arn), catalogs), is_found=True)
        known.setdefault(_tables_of(address), address)
    return _with_distinct_names(known.values())


def find_address(addresses: Sequence[CatalogAddress], name: str | None) -> CatalogAddress:
    """The address of the catalog with this name or warehouse; ``None`` finds the only catalog there is.

    Raises:
        PolicyError: no catalog fits, or more than one.
    """
    served = ", ".join(sorted(a.name for a in addresses)) or "none"
    wanted = [a for a in addresses if name is None or name in (a.name, a.warehouse)]
    if len(wanted) == 1:
        return wanted[0]
    if name is None:
        raise PolicyError(f"name the catalog: this deployment serves {served}")
    if wanted:
        raise PolicyError(f"several catalogs have the warehouse '{name}'; name one of {served}")
    raise PolicyError(f"this deployment has no catalog '{name}'; it has: {served}")


def address_from_json(document: Mapping[str, Any], catalogs: Catalogs) -> CatalogAddress:
    """The address that :meth:`CatalogAddress.to_json` wrote, with properties as they are configured now.

    Raises:
        PolicyError: that catalog is no longer configured, or has another warehouse by now.
    """
    name, warehouse = str(document["catalog"]), document.get("warehouse") or None
    if name.lower() in catalogs:
        address = _configured(name, catalogs)
        if address.warehouse in (None, warehouse):
            return address
    try:
        bucket = TableBucketArn.parse(warehouse or "")
    except ValueError:
        bucket = None
    if bucket is None or bucket.name != name:
        raise PolicyError(f"catalog '{name}' with warehouse '{warehouse or ''}' is not configured any more")
    return _table_bucket(bucket, catalogs)


def _with_distinct_names(addresses: Iterable[CatalogAddress]) -> Sequence[CatalogAddress]:
    """The same addresses; raises PolicyError if two share a name, by which records of a catalog are found again."""
    seen: dict[str, CatalogAddress] = {}
    for address in addresses:
        if seen.setdefault(address.name, address) is not address:
            raise PolicyError(f"two catalogs of this deployment are called '{address.name}'; name one otherwise")
    return tuple(seen.values())


def _items(environment: Mapping[str, str], variable: str) -> list[str]:
    items = (item.strip() for item in environment.get(variable, "").split(","))
    return list(dict.fromkeys(item for item in items if item))


def _buckets(environment: Mapping[str, str]) -> list[TableBucketArn]:
    if wants_all_buckets(environment):
        return []
    return [_parsed(item) for item in _items(environment, TABLE_BUCKETS)]


def _parsed(arn: str) -> TableBucketArn:
    try:
        return TableBucketArn.parse(arn)
    except ValueError as error:
        raise PolicyError(f"{TABLE_BUCKETS} has {error}, or '{ALL}' alone") from error


def _configured(name: str, catalogs: Catalogs) -> CatalogAddress:
    if name.startswith("arn:"):
        raise PolicyError(f"{CATALOGS} has '{name}'; table buckets belong into {TABLE_BUCKETS}")
    properties = catalogs.get(name.lower())
    if properties is None:
        known = ", ".join(sorted(catalogs)) or "none"
        raise PolicyError(f"{CATALOGS} has '{name}', but there is no such catalog (configured: {known})")
    warehouse = properties.get("warehouse")
    return CatalogAddress(canonical_name(name, kind_of(name, properties)), warehouse or None, properties)


def _table_bucket(bucket: TableBucketArn, catalogs: Catalogs) -> CatalogAddress:
    return CatalogAddress(bucket.name, bucket.text, table_bucket_properties(bucket, catalogs))


def _tables_of(address: CatalogAddress) -> Hashable:
    """A key that is equal for addresses of the same tables."""
    properties = address.properties
    kind = kind_of(address.name, properties)
    if kind is CatalogKind.SQL:
        # One database holds many catalogs, each under its name.
        return kind, properties.get("uri"), address.name
    if kind is CatalogKind.GLUE:
        region = properties.get("glue.region") or properties.get("client.region")
        return kind, properties.get("glue.id"), region, properties.get("glue.endpoint")
    try:
        return CatalogKind.S3_TABLES, TableBucketArn.parse(address.warehouse or "").text
    except ValueError:
        return kind, str(properties.get("uri", "")).rstrip("/"), address.warehouse
