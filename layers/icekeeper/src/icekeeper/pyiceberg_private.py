"""The one module that touches what PyIceberg does not promise to keep.

PyIceberg's public API rebuilds table metadata from models that drop unknown fields and cannot write format version 3,
so requests go through its authenticated session as raw JSON, and SQL swaps through its engine.  The version is pinned
exactly; :func:`missing_names` tells a contract test when a name has moved.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.scan_planning import StorageCredential
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.schema import Schema
from pyiceberg.utils.config import PYICEBERG_YML, Config, merge_config
from sqlalchemy import ColumnElement, Engine, Select, Update, select, update
from strictyaml import YAMLError

from icekeeper.model import DataFile

__all__ = [
    "BoundedRestCatalog",
    "configured_catalogs",
    "merged",
    "metrics_evaluator",
    "missing_names",
    "rest_credentials",
    "rest_request",
    "sql_engine",
    "sql_pointer",
    "sql_swap",
    "sql_tables",
]

# Connecting, and then between two bytes of an answer; a commit may wait for the server to write metadata.
REQUEST_TIMEOUT_S = (5.0, 60.0)
# PyIceberg's default is ten, at once; only GETs and requests that were never sent are repeated.
SIGV4_RETRIES, SIGV4_RETRIES_DEFAULT = "rest.sigv4.max-retries", "2"
# 401 Unauthorized and the REST catalog specification's 419 "authentication timeout": sign in again, try once more.
EXPIRED = (401, 419)


class BoundedRestCatalog(RestCatalog):
    """PyIceberg's REST client with a timeout on every request, those for configuration and token included."""

    def _config_headers(self, session: requests.Session) -> None:
        # The first thing that PyIceberg does with a new session, before it signs in.
        super()._config_headers(session)
        self.properties.setdefault(SIGV4_RETRIES, SIGV4_RETRIES_DEFAULT)
        session.request = functools.partial(session.request, timeout=REQUEST_TIMEOUT_S)  # type: ignore[method-assign]


def configured_catalogs() -> dict[str, dict[str, Any]]:
    """Properties by catalog name, read anew from ``.pyiceberg.yaml`` and the environment.

    Raises:
        ValueError: the configuration is not what PyIceberg expects.
    """
    try:
        config = Config()  # not load_catalog(): it keeps what it read when it was imported
    except YAMLError as error:
        raise ValueError(f"{PYICEBERG_YML} is not valid: {error}") from error
    return {name: dict(config.get_catalog_config(name) or {}) for name in config.get_known_catalogs()}


def merged(configured: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Configured properties overlaid with given ones, as PyIceberg merges them."""
    return dict(merge_config(dict(configured), dict(given)))


def rest_request(
    catalog: RestCatalog,
    method: str,
    endpoint: str,
    *,
    namespace: Sequence[str],
    table: str,
    json: Mapping[str, Any] | None = None,
) -> requests.Response:
    """Send one request about a table through the authenticated session; any status is returned.

    Raises:
        requests.RequestException: no answer came.
    """
    path = catalog._split_identifier_for_path((*namespace, table))
    url = catalog.url(endpoint, **path)
    response = catalog._session.request(method, url, json=json)
    if response.status_code in EXPIRED and catalog.properties.get("credential"):
        catalog._refresh_token()
        response = catalog._session.request(method, url, json=json)
    return response


def rest_credentials(credentials: Sequence[Mapping[str, Any]], location: str) -> Mapping[str, str]:
    """Of the credentials a catalog vends, those with the longest prefix of the location (REST specification)."""
    parsed = [StorageCredential.model_validate(credential) for credential in credentials]
    return RestCatalog._resolve_storage_credentials(parsed, location)


def sql_engine(catalog: SqlCatalog) -> Engine:
    """The catalog's SQLAlchemy engine."""
    return catalog.engine


def _sql_rows(catalog: SqlCatalog) -> Iterator[ColumnElement[bool]]:
    yield IcebergTables.catalog_name == catalog.name
    # Views share the table; catalogs made by older versions have no column that tells them apart.
    only_tables = catalog._iceberg_type_filter()
    if only_tables is not None:
        yield only_tables


def sql_tables(catalog: SqlCatalog) -> Select[str, str]:
    """Selects (namespace joined by dots, table) of every table of the catalog."""
    columns = IcebergTables.table_namespace, IcebergTables.table_name
    return select(*columns).where(*_sql_rows(catalog)).order_by(*columns)


def sql_pointer(catalog: SqlCatalog, namespace: str, table: str) -> Select[str | None]:
    """Selects a table's metadata location."""
    return select(IcebergTables.metadata_location).where(
        *_sql_rows(catalog), IcebergTables.table_namespace == namespace, IcebergTables.table_name == table
    )


def sql_swap(catalog: SqlCatalog, namespace: str, table: str, old: str, new: str) -> Update:
    """Moves a table's metadata location from ``old`` to ``new``: one row changed, or none when it is elsewhere."""
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


def metrics_evaluator(schema: Schema, expression: BooleanExpression) -> Callable[[DataFile], bool]:
    """Judges by a data file's counts and bounds whether it may hold rows that the expression matches."""
    evaluate = _InclusiveMetricsEvaluator(schema, expression, case_sensitive=True).eval
    return cast(Callable[[DataFile], bool], evaluate)  # it reads nothing but counts and bounds, which ours has too


def missing_names() -> tuple[str, ...]:
    """The names this module relies on that PyIceberg no longer has, or has with other parameters; empty is well."""
    expected: dict[Any, dict[str, tuple[str, ...]]] = {
        RestCatalog: {
            "_config_headers": ("self", "session"),
            "_split_identifier_for_path": ("self", "identifier", "kind"),
            "_refresh_token": ("self",),
            "_resolve_storage_credentials": ("storage_credentials", "location"),
            "url": ("self", "endpoint", "prefixed", "kwargs"),
        },
        SqlCatalog: {"_iceberg_type_filter": ("self",)},
        _InclusiveMetricsEvaluator: {"eval": ("self", "file")},
        Config: {"get_known_catalogs": ("self",), "get_catalog_config": ("self", "catalog_name")},
    }
    missing = []
    for owner, functions in expected.items():
        for name, parameters in functions.items():
            function = getattr(owner, name, None)
            if function is None or tuple(inspect.signature(function).parameters) != parameters:
                missing.append(f"{owner.__name__}.{name}({', '.join(parameters)})")
    sources = cast(dict[Any, tuple[str, ...]], {RestCatalog: ("self._session",), SqlCatalog: ("self.engine",)})
    for owner, attributes in sources.items():
        source = inspect.getsource(owner.__init__)
        missing += [f"{owner.__name__}: {name}" for name in attributes if f"{name} = " not in source]
    columns = ("catalog_name", "table_namespace", "table_name", "metadata_location", "previous_metadata_location")
    missing += [f"IcebergTables.{name}" for name in columns if not hasattr(IcebergTables, name)]
    return tuple(missing)
