"""Statements of Spark SQL with Iceberg's extensions (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["drop_field", "order_by", "replace_field", "set_properties"]


def drop_field(table: str, field: str) -> str:
    """Drop a partition field."""
    return f"ALTER TABLE {_name(table)} DROP PARTITION FIELD {_name(field)}"


def replace_field(table: str, field: str, column: str, transform: str, buckets: int | None = None) -> str:
    """Replace a partition field by a transform of a column, with its number of buckets if it has one."""
    number = "" if buckets is None else f"{buckets}, "
    return (
        f"ALTER TABLE {_name(table)} REPLACE PARTITION FIELD {_name(field)} WITH {transform}({number}{_name(column)})"
    )


def order_by(table: str, column: str) -> str:
    """Give the table a sort order."""
    return f"ALTER TABLE {_name(table)} WRITE ORDERED BY {_name(column)}"


def set_properties(table: str, properties: Mapping[str, str]) -> str:
    """Set table properties."""
    listed = ", ".join(f"{_text(key)}={_text(value)}" for key, value in properties.items())
    return f"ALTER TABLE {_name(table)} SET TBLPROPERTIES ({listed})"


def _name(name: str) -> str:
    """Parts that are no plain words stand in backticks."""
    return ".".join(
        part if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", part) else "`" + part.replace("`", "``") + "`"
        for part in name.split(".")
    )


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
