"""Which kind of catalog the properties of a catalog describe."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from icekeeper.errors import PolicyError

__all__ = ["SUPPORTED", "CatalogKind", "canonical_name", "kind_of"]


class CatalogKind(StrEnum):
    """The values of ``type`` that Icekeeper opens."""

    REST = "rest"
    SQL = "sql"
    S3_TABLES = "s3tables"
    GLUE = "glue"


SUPPORTED = ", ".join(CatalogKind)
# The way PyIceberg users name a catalog class; only ours is taken.
S3_TABLES_IMPL = "icekeeper.catalogs.s3tables.S3TablesCatalog"
# As PyIceberg infers a type from the address (pyiceberg.catalog.infer_catalog_type, 0.12).
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
    """The one spelling of a configured catalog's name that Icekeeper shows and records.

    PyIceberg ignores the case of catalog names, so they become lower case.  A SQL catalog stores its name in its rows
    as it was spelled, so that another spelling is another catalog.
    """
    return name if kind is CatalogKind.SQL else name.lower()
