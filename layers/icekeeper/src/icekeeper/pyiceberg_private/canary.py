"""Finds the private names of PyIceberg that have moved."""

from __future__ import annotations

import inspect
import re
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.table import Transaction, update
from pyiceberg.utils.config import Config


def missing_names() -> tuple[str, ...]:
    """The names used in this room that PyIceberg no longer has, or has with other parameters; empty if all is well."""
    expected: dict[Any, dict[str, tuple[str, ...]]] = {
        RestCatalog: {
            "_config_headers": ("self", "session"),
            "_create_session": ("self",),
            "_fetch_config": ("self",),
            "_split_identifier_for_path": ("self", "identifier", "kind"),
            "_refresh_token": ("self",),
            "_resolve_storage_credentials": ("storage_credentials", "location"),
            "url": ("self", "endpoint", "prefixed", "kwargs"),
        },
        SqlCatalog: {"_iceberg_type_filter": ("self",)},
        _InclusiveMetricsEvaluator: {"eval": ("self", "file")},
        update: {"update_table_metadata": ("base_metadata", "updates", "enforce_validation", "metadata_location")},
        Config: {"get_known_catalogs": ("self",), "get_catalog_config": ("self", "catalog_name")},
    }
    missing = []
    for owner, functions in expected.items():
        for name, parameters in functions.items():
            function = getattr(owner, name, None)
            if function is None or tuple(inspect.signature(function).parameters) != parameters:
                missing.append(f"{owner.__name__}.{name}({', '.join(parameters)})")
    sources: dict[Any, tuple[str, ...]] = {
        RestCatalog: ("self._session",),
        SqlCatalog: ("self.engine",),
        Transaction: ("self._table", "self._updates"),
    }
    for owner, attributes in sources.items():
        source = inspect.getsource(owner.__init__)
        missing += [f"{owner.__name__}: {name}" for name in attributes if f"{name} = " not in source]
    # Our own _fetch_config must set the same attributes (rule: admit-server-settings-by-list).
    theirs = set(re.findall(r"self\.(\w+) = ", inspect.getsource(RestCatalog._fetch_config)))
    ours = {"properties", "uri", "_supported_endpoints", "_namespace_separator"}
    missing += [f"RestCatalog._fetch_config: {name}" for name in sorted(theirs ^ ours)]
    columns = ("catalog_name", "table_namespace", "table_name", "metadata_location", "previous_metadata_location")
    missing += [f"IcebergTables.{name}" for name in columns if not hasattr(IcebergTables, name)]
    return tuple(missing)
