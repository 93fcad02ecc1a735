"""Which catalogs a deployment serves, their kinds, and ARNs of table buckets; nothing is opened here (pure)."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from icekeeper.errors import CatalogNotFound, PolicyError

# Properties for signing in to the catalog, not to the store: files and Spark workers never need them.
_CATALOG_ONLY = frozenset({"credential", "token", "type", "uri"})
_CATALOG_ONLY_PREFIXES = ("auth", "header.", "oauth2-", "rest.", "ssl")


def file_io_properties(properties: Mapping[str, Any]) -> dict[str, str]:
    """The FileIO properties among a catalog's, without the secrets that are only the catalog's."""
    return {
        key: value
        for key, value in properties.items()
        if isinstance(value, str) and key not in _CATALOG_ONLY and not key.startswith(_CATALOG_ONLY_PREFIXES)
    }


class CatalogKind(StrEnum):
    """The values of ``type`` that Icekeeper opens."""

    REST = "rest"
    SQL = "sql"
    S3_TABLES = "s3tables"
    GLUE = "glue"


SUPPORTED = ", ".join(CatalogKind)
# PyIceberg's users name a catalog class in py-catalog-impl; only ours is accepted.
S3_TABLES_IMPL = "icekeeper.catalogs.s3tables.S3TablesCatalog"
# As in PyIceberg (pyiceberg.catalog.infer_catalog_type, 0.12).
INFERRED = {"http": CatalogKind.REST, "sqlite": CatalogKind.SQL, "postgresql": CatalogKind.SQL}


def kind_of(name: str, properties: Mapping[str, Any]) -> CatalogKind:
    """The kind that ``type`` or ``py-catalog-impl`` names, else the one that ``uri`` implies.

    Raises:
        PolicyError: the properties name a kind that is not supported, or imply none.
    """
    stated = properties.get("py-catalog-impl") or str(properties.get("type") or "").lower()
    if stated:
        if stated == S3_TABLES_IMPL:
            return CatalogKind.S3_TABLES
        if stated in tuple(CatalogKind):
            return CatalogKind(stated)
        raise PolicyError(f"catalog {name} has type '{stated}'; supported are {SUPPORTED}")
    uri = str(properties.get("uri") or "")
    inferred = next((kind for start, kind in INFERRED.items() if uri.startswith(start)), None)
    if inferred is None:
        raise PolicyError(f"catalog {name} has no type and none can be inferred; set type to {SUPPORTED}")
    return inferred


def canonical_name(name: str, kind: CatalogKind) -> str:
    """The spelling of a configured catalog's name that Icekeeper shows and records.

    Lower case, because PyIceberg ignores case.  But a SQL catalog stores the name in its rows, so that another spelling
    is another catalog.
    """
    return name if kind is CatalogKind.SQL else name.lower()


# Amazon S3 API reference, "TableBucketARN"; servers that emulate AWS allow other accounts and names.
_ARN = re.compile(r"arn:[a-z0-9-]+:s3tables:(?P<region>[a-z0-9-]*):[^:]*:bucket/(?P<name>[^:/,*\s]+)")
EXAMPLE = "arn:aws:s3tables:us-east-1:111122223333:bucket/NAME"


@dataclass(frozen=True, slots=True)
class TableBucketArn:
    """A table bucket; its name is unique only within region and account, its ARN everywhere."""

    text: str
    region: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableBucketArn:
        """Take an ARN apart.

        Raises:
            ValueError: the text is no such ARN; the message continues a sentence.
        """
        match = _ARN.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}', but must be the ARN of a table bucket, for example {EXAMPLE}")
        return cls(text, match["region"], match["name"])

    def __str__(self) -> str:
        return self.text


def is_table_bucket(warehouse: str) -> bool:
    """Whether a catalog's warehouse is a table bucket, by its ARN."""
    return _ARN.fullmatch(warehouse) is not None


# Reserved for access points and never the name of a bucket, of which each is a second name: Amazon S3 user guide,
# "General purpose bucket naming rules", "Access point aliases" (a volume of FSx: ``-ext-s3alias``), "Access points for
# directory buckets", S3 on Outposts (``--op-s3``).
_ACCESS_POINT_ENDINGS = ("-s3alias", "--ol-s3", "--op-s3", "--xa-s3", ".mrap")


def is_access_point(bucket: str) -> bool:
    """Whether what stands for a bucket in a path is an access point: its ARN or its alias
    (platform: buckets-have-second-names)."""
    return bucket.lower().startswith("arn:") or bucket.lower().endswith(_ACCESS_POINT_ENDINGS)


def table_bucket_properties(bucket: TableBucketArn, configured: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The properties that open a table bucket of which only the ARN is known.

    They are type and warehouse, and the endpoints, region and credentials of a configured catalog with that warehouse,
    preferably one with the bucket's name.  Address and sign-in of a REST catalog over the bucket are left out.

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


# The catalogs that a deployment serves.  With two names for the same tables, each scan would read every table twice.
# So two settings that name one warehouse are an error, and a bucket that ``all`` finds is skipped where a configured
# catalog serves it already.

CATALOGS = "ICEKEEPER_CATALOGS"
"""Comma-separated names of configured catalogs; when it is not set, all catalogs of the catalog file are served."""
TABLE_BUCKETS = "ICEKEEPER_TABLE_BUCKETS"
"""Comma-separated ARNs of table buckets, or ``all``.  Each becomes a catalog with the bucket's name, and the ARN as
warehouse."""
ALL = "all"

Catalogs = Mapping[str, Mapping[str, Any]]
"""Properties by lower-case catalog name."""


@dataclass(frozen=True, slots=True)
class CatalogAddress:
    """How to open one catalog; the properties may hold secrets, so :meth:`to_json` leaves them out."""

    name: str
    warehouse: str | None
    """As configured; ``None`` where the configuration names none."""
    properties: Mapping[str, Any] = field(repr=False)
    is_found: bool = field(default=False, compare=False)
    """Whether the S3 Tables API listed it, and no setting names it."""

    def to_json(self) -> dict[str, str | None]:
        """Name and warehouse: enough for :func:`address_from_json` where the same catalogs are configured."""
        return {"catalog": self.name, "warehouse": self.warehouse}


def named_addresses(
    environment: Mapping[str, str], catalogs: Catalogs, *, unless_named: Sequence[str] = ()
) -> Sequence[CatalogAddress]:
    """The catalogs that the settings name: configured ones, then table buckets, each in the order given.

    ``unless_named``: the configured catalogs to serve when ``ICEKEEPER_CATALOGS`` is not set.

    Raises:
        PolicyError: a variable names a catalog that is not configured, or contains text that is no ARN of a table
            bucket; two names mean the same tables; or two catalogs have one name.
    """
    addresses = [_configured(name, catalogs) for name in _items(environment, CATALOGS) or unless_named]
    if not wants_all_buckets(environment):
        addresses += [_table_bucket(_parsed(arn), catalogs) for arn in _items(environment, TABLE_BUCKETS)]
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
        PolicyError: it contains ``all`` and ARNs.
    """
    items = _items(environment, TABLE_BUCKETS)
    if ALL in items and len(items) > 1:
        raise PolicyError(f"{TABLE_BUCKETS} is '{environment[TABLE_BUCKETS]}'; set it to ARNs or to '{ALL}', not both")
    return items == [ALL]


def add_found(addresses: Sequence[CatalogAddress], arns: Iterable[str], catalogs: Catalogs) -> Sequence[CatalogAddress]:
    """The addresses, then those of the table buckets in ``arns`` that no address serves yet.

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
    raise CatalogNotFound(f"this deployment has no catalog '{name}'; it has: {served}")


def address_from_json(document: Mapping[str, Any], catalogs: Catalogs) -> CatalogAddress:
    """The address that :meth:`CatalogAddress.to_json` wrote, with the properties that are configured now.

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
    """The same addresses; raises PolicyError if two share a name, because names are keys of a catalog's records."""
    seen: dict[str, CatalogAddress] = {}
    for address in addresses:
        if seen.setdefault(address.name, address) is not address:
            raise PolicyError(f"two catalogs of this deployment are called '{address.name}'; rename one")
    return tuple(seen.values())


def _items(environment: Mapping[str, str], variable: str) -> list[str]:
    items = (item.strip() for item in environment.get(variable, "").split(","))
    return list(dict.fromkeys(item for item in items if item))


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
        # One database holds many catalogs.
        return kind, properties.get("uri"), address.name
    if kind is CatalogKind.GLUE:
        region = properties.get("glue.region") or properties.get("client.region")
        return kind, properties.get("glue.id"), region, properties.get("glue.endpoint")
    try:
        return CatalogKind.S3_TABLES, TableBucketArn.parse(address.warehouse or "").text
    except ValueError:
        return kind, str(properties.get("uri", "")).rstrip("/"), address.warehouse
