"""Open a catalog by the name it has in PyIceberg's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import CatalogType, infer_catalog_type

from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.rest import RestCatalog
from icekeeper.catalogs.s3tables import S3TablesCatalog
from icekeeper.catalogs.sql import SqlCatalog
from icekeeper.errors import PolicyError
from icekeeper.pyiceberg_private import configured_catalogs, merged

__all__ = ["open_catalog"]

S3_TABLES = "s3tables"
# The way PyIceberg users name a catalog class; only ours is taken.
S3_TABLES_IMPL = "icekeeper.catalogs.s3tables.S3TablesCatalog"
SUPPORTED = "rest, sql, s3tables"


def open_catalog(name: str, properties: Mapping[str, str] | None = None) -> Catalog:
    """Connect to the catalog that PyIceberg's configuration calls ``name``; given properties win over configured ones.

    ``type: rest`` and ``type: sql`` are PyIceberg's own; ``type: s3tables`` with ``warehouse`` set to the ARN of a
    table bucket speaks the S3 Tables API (also as ``py-catalog-impl: icekeeper.catalogs.s3tables.S3TablesCatalog``).

    Raises:
        PolicyError: there is no such catalog, its type is not supported, or its properties are incomplete.
        StorageError: it cannot be reached.
    """
    try:
        catalogs = configured_catalogs()
    except ValueError as error:
        raise PolicyError(f"PyIceberg's configuration cannot be read: {error}") from error
    configured = catalogs.get(name.lower())
    if configured is None and not properties:
        known = ", ".join(sorted(catalogs)) or "none"
        raise PolicyError(
            f"there is no catalog '{name}' (configured: {known}); add it to ~/.pyiceberg.yaml under 'catalog:' or set"
            f" PYICEBERG_CATALOG__{name.upper().replace('-', '_')}__URI and __TYPE"
        )
    settings = merged(configured or {}, properties or {})
    kind = _kind(name, settings)
    if kind == S3_TABLES:
        return S3TablesCatalog(name, settings)
    if kind not in (CatalogType.REST.value, CatalogType.SQL.value):
        raise PolicyError(f"catalog {name} has type '{kind}'; supported are {SUPPORTED}")
    if not settings.get("uri"):
        raise PolicyError(f"catalog {name} has no uri")
    return RestCatalog(name, settings) if kind == CatalogType.REST.value else SqlCatalog(name, settings)


def _kind(name: str, settings: Mapping[str, Any]) -> str:
    implementation = settings.get("py-catalog-impl")
    if implementation:
        return S3_TABLES if implementation == S3_TABLES_IMPL else str(implementation)
    if settings.get("type"):
        return str(settings["type"]).lower()
    try:
        inferred = infer_catalog_type(name, dict(settings))
    except ValueError as error:
        raise PolicyError(f"catalog {name} has no type and none can be inferred; set type to {SUPPORTED}") from error
    return inferred.value if inferred else ""
