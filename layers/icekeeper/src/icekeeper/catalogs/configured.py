"""The configuration of a catalog, where its tables may have files, and which catalogs a deployment serves (pure).

Also here: ARNs of table buckets, and second names of buckets.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from icekeeper.errors import CatalogNotFound, PolicyError
from icekeeper.model import CatalogId, TableName
from icekeeper.policy.allowed_prefixes import allowed_prefixes, check_allowed_prefixes
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES, AllowedLocations
from icekeeper.storage.paths import LOCAL_SCHEMES, S3_SCHEMES, authority, split_path
from icekeeper.text import address_to_show

# Properties for signing in to the catalog, not to the store: files and Spark workers never need them.
_CATALOG_ONLY = frozenset({"credential", "token", "type", "uri"})
_CATALOG_ONLY_PREFIXES = ("auth", "header.", "oauth2-", "rest.", "ssl")


def file_io_properties(properties: Mapping[str, Any]) -> dict[str, str]:
    """The FileIO properties among a catalog's properties, without secrets that only the catalog needs."""
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
# PyIceberg's users name a catalog class in py-catalog-impl; only this class is accepted.
S3_TABLES_IMPL = "icekeeper.catalogs.s3tables.S3TablesCatalog"
# As in PyIceberg (pyiceberg.catalog.infer_catalog_type, 0.12).
INFERRED = {"http": CatalogKind.REST, "sqlite": CatalogKind.SQL, "postgresql": CatalogKind.SQL}


def kind_of(name: str, properties: Mapping[str, Any]) -> CatalogKind:
    """The kind that ``type`` or ``py-catalog-impl`` names, else the kind that ``uri`` implies.

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
        """Parse an ARN.

        Raises:
            ValueError: the text is not the ARN of a table bucket; the message continues a sentence.
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


# Endings of the aliases of access points, which are second names of buckets.  No bucket has such a name: S3 user guide,
# "General purpose bucket naming rules", "Access point aliases" (a volume of FSx: ``-ext-s3alias``), "Access points for
# directory buckets", S3 on Outposts (``--op-s3``).
_ACCESS_POINT_ENDINGS = ("-s3alias", "--ol-s3", "--op-s3", "--xa-s3", ".mrap")


def is_access_point(bucket: str) -> bool:
    """Whether the bucket part of a path is the ARN or the alias of an access point
    (platform: buckets-have-second-names)."""
    return bucket.lower().startswith("arn:") or bucket.lower().endswith(_ACCESS_POINT_ENDINGS)


# Characters that have a meaning in patterns or in the setting.
_NOT_A_NAME = re.compile(r"[*?\[\];=,'\s\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class ConfiguredCatalog:
    """The configuration of a catalog: the properties that open it, and the rules that bound its tables."""

    name: str
    """In the spelling that Icekeeper shows and records."""
    kind: CatalogKind
    properties: Mapping[str, Any] = field(repr=False)
    """They may hold secrets."""
    rules: str = ""
    """The value of :data:`.ALLOWED_PREFIXES` when the catalog was opened."""
    is_found: bool = field(default=False, compare=False)
    """Whether the S3 Tables API listed it, and no setting names it."""

    def __post_init__(self) -> None:
        """Raises PolicyError if the rules are malformed."""
        check_allowed_prefixes(self.rules)

    @classmethod
    def of(cls, name: str, properties: Mapping[str, Any]) -> ConfiguredCatalog:
        """The catalog with these properties; its name in lower case, because PyIceberg ignores case.

        The name of a SQL catalog keeps its case: its rows contain the name, so another spelling is another catalog.

        Raises:
            PolicyError: the properties name a kind that is not supported, or imply none.
        """
        kind = kind_of(name, properties)
        return cls(name if kind is CatalogKind.SQL else name.lower(), kind, properties)

    @property
    def stated_warehouse(self) -> str:
        """The property ``warehouse``; empty if there is none."""
        return str(self.properties.get("warehouse") or "")

    @property
    def id(self) -> CatalogId:
        """Name and warehouse; without a warehouse, the id of a Glue catalog, or the address of a REST server."""
        warehouse = self.stated_warehouse
        if not warehouse and self.kind is CatalogKind.GLUE:
            warehouse = str(self.properties.get("glue.id") or "")
        elif not warehouse and self.kind is CatalogKind.REST:
            warehouse = address_to_show(str(self.properties.get("uri") or ""))
        return CatalogId(self.name, warehouse)

    @property
    def texts(self) -> dict[str, str]:
        """The properties that are text."""
        return {key: value for key, value in self.properties.items() if isinstance(value, str)}

    def bound_of(self, table: TableName, metadata_location: str, home: str | None = None) -> AllowedLocations:
        """Where the files of a table may be: by a rule of the operator, else by the warehouse
        (rule: bound-every-table).

        Args:
            metadata_location: its metadata file.  The writer of that file could write there; the location named in the
                file may belong to another table.
            home: the table's location according to the catalog's service.
        """
        subject = self._subject(table.namespace)
        found = allowed_prefixes(self.rules, self.name, table.namespace)
        prefixes, why_none = (self._default(metadata_location, home), "") if found is None else found
        spelled_in = self.stated_warehouse if found is None else self.rules
        if alias := next((prefix for prefix in prefixes if _is_second_name(prefix, spelled_in)), None):
            prefixes, why_none = (
                (),
                (
                    f"{authority(alias)} is an access point, a second name of a bucket in which other tables may have "
                    f"files; give the table the bucket's own name, or name the access point in the catalog's "
                    f"warehouse or in a rule of {ALLOWED_PREFIXES}"
                ),
            )
        return AllowedLocations(prefixes, found is not None, subject, self.rules, why_none)

    def _subject(self, namespace: tuple[str, ...]) -> str:
        """The beginning of a rule for a namespace; empty if such a rule would also fit other namespaces."""
        if not namespace or not all(namespace) or any(_NOT_A_NAME.search(level) or "." in level for level in namespace):
            return ""
        return f"{_NOT_A_NAME.sub('?', self.name).replace('.', '?')}.{'.'.join(namespace)}"

    def _default(self, metadata_location: str, home: str | None) -> tuple[str, ...]:
        stated = self.stated_warehouse.strip()
        warehouse, place = split_path(stated), split_path(metadata_location)
        is_url = "://" in stated
        is_path = stated.startswith(("/", "file:/")) or (self.kind is CatalogKind.SQL and stated)
        if self.kind is not CatalogKind.GLUE and (is_url or is_path):
            if warehouse.scheme in S3_SCHEMES or warehouse.scheme in LOCAL_SCHEMES:
                return (stated,)
            return (f"{place.scheme}://{place.authority}",) if place.scheme == warehouse.scheme else ()
        if place.scheme not in S3_SCHEMES or not place.authority:
            return ()
        if stated.startswith("arn:") and self.kind is not CatalogKind.GLUE:
            return (home or metadata_location.rpartition("/")[0].removesuffix("/metadata"),)
        return (f"{place.scheme}://{place.authority}",)


def _is_second_name(prefix: str, spelled_in: str) -> bool:
    """Whether a prefix is in an access point that the operator's own text does not contain: a table or namespace chose
    it (rule: second-names-of-buckets)."""
    place = split_path(prefix)
    if place.scheme not in S3_SCHEMES or not is_access_point(place.authority):
        return False
    return not re.search(rf"//{re.escape(place.authority)}(?![^/,;\s])", spelled_in)


def table_bucket_properties(bucket: TableBucketArn, configured: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The properties that open a table bucket of which only the ARN is known.

    They are type and warehouse, and the endpoints, region and credentials of a configured catalog with that warehouse;
    a catalog with the bucket's name comes first.  Address and sign-in of a REST catalog over the bucket are left out.

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
            f"catalogs {', '.join(sorted(lent))} all have table bucket {bucket} as warehouse, and their properties"
            f" differ; rename the catalog to use to '{bucket.name}', or configure only one of them"
        )
    properties = {**(distinct[0] if distinct else {}), "type": CatalogKind.S3_TABLES.value, "warehouse": bucket.text}
    properties.pop("py-catalog-impl", None)
    return properties


# The catalogs that a deployment serves.  If the same tables had two catalogs, each scan would read every table twice.
# So two settings that name the same warehouse are an error, and a bucket that ``all`` finds is skipped if a configured
# catalog serves it already.

CATALOGS = "ICEKEEPER_CATALOGS"
"""Comma-separated names of configured catalogs; when it is not set, all catalogs of the catalog file are served."""
TABLE_BUCKETS = "ICEKEEPER_TABLE_BUCKETS"
"""Comma-separated ARNs of table buckets, or ``all``.  Each becomes a catalog with the bucket's name, and the ARN as
warehouse."""
ALL = "all"

Catalogs = Mapping[str, Mapping[str, Any]]
"""Properties by lower-case catalog name."""


def named_catalogs(
    environment: Mapping[str, str], catalogs: Catalogs, *, unless_named: Sequence[str] = ()
) -> Sequence[ConfiguredCatalog]:
    """The catalogs that the settings name: configured catalogs, then table buckets, each in the order given.

    ``unless_named``: the configured catalogs to serve when ``ICEKEEPER_CATALOGS`` is not set.

    Raises:
        PolicyError: a variable names a catalog that is not configured, or contains text that is not the ARN of a table
            bucket; two names denote the same tables; or two catalogs have the same name.
    """
    named = [_configured(name, catalogs) for name in _items(environment, CATALOGS) or unless_named]
    if not wants_all_buckets(environment):
        named += [_table_bucket(_parsed(arn), catalogs) for arn in _items(environment, TABLE_BUCKETS)]
    known: dict[Hashable, ConfiguredCatalog] = {}
    for catalog in named:
        other = known.setdefault(_tables_of(catalog), catalog)
        if other.name != catalog.name:
            raise PolicyError(
                f"{CATALOGS} and {TABLE_BUCKETS} name the same tables as catalog '{other.name}' and as catalog"
                f" '{catalog.name}', and neither would see the pins of the other; remove one of them, or give the"
                " configured catalog the name of the table bucket"
            )
    return _with_distinct_names(known.values())


def wants_all_buckets(environment: Mapping[str, str]) -> bool:
    """Whether ``ICEKEEPER_TABLE_BUCKETS`` is ``all``, so that the S3 Tables API must list the buckets.

    Raises:
        PolicyError: it contains both ``all`` and ARNs.
    """
    items = _items(environment, TABLE_BUCKETS)
    if ALL in items and len(items) > 1:
        raise PolicyError(f"{TABLE_BUCKETS} is '{environment[TABLE_BUCKETS]}'; set it to ARNs or to '{ALL}', not both")
    return items == [ALL]


def add_found(
    served: Sequence[ConfiguredCatalog], arns: Iterable[str], catalogs: Catalogs
) -> Sequence[ConfiguredCatalog]:
    """The catalogs, then the table buckets in ``arns`` that none of them serves yet.

    Raises:
        PolicyError: several configured catalogs have a found bucket as warehouse, and differ; or a bucket has the name
            of another catalog.
    """
    known = {_tables_of(catalog): catalog for catalog in served}
    for arn in arns:
        found = replace(_table_bucket(_parsed(arn), catalogs), is_found=True)
        known.setdefault(_tables_of(found), found)
    return _with_distinct_names(known.values())


def find_catalog(served: Sequence[ConfiguredCatalog], name: str | None) -> ConfiguredCatalog:
    """The catalog with this name or warehouse; ``None`` finds the only catalog.

    Raises:
        PolicyError: no catalog fits, or several do.
    """
    names = ", ".join(sorted(catalog.name for catalog in served)) or "none"
    wanted = [c for c in served if name is None or name in (c.name, c.stated_warehouse or c.name)]
    if len(wanted) == 1:
        return wanted[0]
    if name is None:
        raise PolicyError(f"name the catalog: this deployment serves {names}")
    if wanted:
        raise PolicyError(f"several catalogs have the warehouse '{name}'; use a name: {names}")
    raise CatalogNotFound(f"this deployment has no catalog '{name}'; it has: {names}")


def recorded_catalog(recorded: CatalogId, catalogs: Catalogs) -> ConfiguredCatalog:
    """The catalog with this name and warehouse, as it is configured now.

    Raises:
        PolicyError: that catalog is no longer configured, or now has another warehouse.
    """
    name, warehouse = recorded
    if name.lower() in catalogs:
        found = _configured(name, catalogs)
        if not found.stated_warehouse or found.id.warehouse == warehouse:
            return found
    try:
        bucket = TableBucketArn.parse(warehouse)
    except ValueError:
        bucket = None
    if bucket is None or bucket.name != name:
        raise PolicyError(f"catalog '{name}' with warehouse '{warehouse}' is no longer configured")
    return _table_bucket(bucket, catalogs)


def _with_distinct_names(served: Iterable[ConfiguredCatalog]) -> Sequence[ConfiguredCatalog]:
    """The same catalogs; raises PolicyError if two share a name, because names are keys of a catalog's records."""
    seen: dict[str, ConfiguredCatalog] = {}
    for catalog in served:
        if seen.setdefault(catalog.name, catalog) is not catalog:
            raise PolicyError(f"two catalogs of this deployment are named '{catalog.name}'; rename one of them")
    return tuple(seen.values())


def _items(environment: Mapping[str, str], variable: str) -> list[str]:
    items = (item.strip() for item in environment.get(variable, "").split(","))
    return list(dict.fromkeys(item for item in items if item))


def _parsed(arn: str) -> TableBucketArn:
    try:
        return TableBucketArn.parse(arn)
    except ValueError as error:
        raise PolicyError(f"{TABLE_BUCKETS} contains {error}, or '{ALL}' alone") from error


def _configured(name: str, catalogs: Catalogs) -> ConfiguredCatalog:
    if name.startswith("arn:"):
        raise PolicyError(f"{CATALOGS} contains '{name}'; name table buckets in {TABLE_BUCKETS} instead")
    properties = catalogs.get(name.lower())
    if properties is None:
        known = ", ".join(sorted(catalogs)) or "none"
        raise PolicyError(f"{CATALOGS} contains '{name}', which is not configured (configured: {known})")
    return ConfiguredCatalog.of(name, properties)


def _table_bucket(bucket: TableBucketArn, catalogs: Catalogs) -> ConfiguredCatalog:
    return ConfiguredCatalog(bucket.name, CatalogKind.S3_TABLES, table_bucket_properties(bucket, catalogs))


def _tables_of(catalog: ConfiguredCatalog) -> Hashable:
    """A key that is equal for catalogs of the same tables."""
    kind, properties = catalog.kind, catalog.properties
    if kind is CatalogKind.SQL:
        # A database may contain many catalogs.
        return kind, properties.get("uri"), catalog.name
    if kind is CatalogKind.GLUE:
        region = properties.get("glue.region") or properties.get("client.region")
        return kind, properties.get("glue.id"), region, properties.get("glue.endpoint")
    try:
        return CatalogKind.S3_TABLES, TableBucketArn.parse(catalog.stated_warehouse).text
    except ValueError:
        return kind, str(properties.get("uri", "")).rstrip("/"), catalog.stated_warehouse
