"""PyIceberg's SQL catalog: its engine, and statements on its table of pointers."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from sqlalchemy import ColumnElement, CompoundSelect, Engine, Select, Update, bindparam, select, union, update


def sql_engine(catalog: SqlCatalog) -> Engine:
    """The catalog's SQLAlchemy engine."""
    return catalog.engine


def _sql_rows(catalog: SqlCatalog) -> Iterator[ColumnElement[bool]]:
    yield IcebergTables.catalog_name == catalog.name
    # Views are in the same table; catalogs made by older versions have no column for the type.
    only_tables = catalog._iceberg_type_filter()
    if only_tables is not None:
        yield only_tables


def sql_tables(catalog: SqlCatalog) -> Select[str, str]:
    """Selects (namespace joined by dots, table) of every table of the catalog."""
    columns = IcebergTables.table_namespace, IcebergTables.table_name
    return select(*columns).where(*_sql_rows(catalog)).order_by(*columns)


def sql_catalog_names() -> CompoundSelect[str]:
    """Selects the name of every catalog that has a table or a namespace in the database, in its own spelling."""
    return union(select(IcebergTables.catalog_name), select(IcebergNamespaceProperties.catalog_name))


def sql_pointer(catalog: SqlCatalog) -> Select[str | None]:
    """Selects the metadata location of the table that the parameters ``namespace`` and ``table`` name.

    Make it once for a catalog: that takes three times as long as running it.
    """
    return select(IcebergTables.metadata_location).where(
        *_sql_rows(catalog),
        IcebergTables.table_namespace == bindparam("namespace"),
        IcebergTables.table_name == bindparam("table"),
    )


def sql_swap(catalog: SqlCatalog, namespace: str, table: str, old: str, new: str) -> Update:
    """Moves a table's metadata location from ``old`` to ``new``; changes no row if the location is not ``old``."""
    return (
        update(IcebergTables)
        .where(
            *_sql_rows(catalog),
            IcebergTables.table_namespace == namespace,
            IcebergTables.table_name == table,
            IcebergTables.metadata_location == old,
        )
        .values(metadata_location=new, previous_metadata_location=old)
        .execution_options(synchronize_session=False)
    )
