"""Arguments and options that several commands share, and how their text becomes values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer

from icekeeper.errors import PolicyError
from icekeeper.model import TableName
from icekeeper.runtime import EngineName

__all__ = ["AsJson", "CatalogName", "Engine", "Settings", "Table", "Unsafe", "overrides", "table_name"]

Table: TypeAlias = Annotated[str, typer.Argument(metavar="NS.TABLE", help="namespace and table; the last dot divides")]
CatalogName: TypeAlias = Annotated[
    str, typer.Option("--catalog", metavar="C", help="a catalog of PyIceberg's configuration (~/.pyiceberg.yaml)")
]
Settings: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="a policy setting for this call; repeatable")
]
Engine: TypeAlias = Annotated[
    EngineName | None, typer.Option("--engine", help="where files are rewritten; Spark when it is installed")
]
Unsafe: TypeAlias = Annotated[
    bool, typer.Option("--unsafe", help="allow an orphan grace period below 24 hours (tests, demonstrations)")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="print exactly one JSON document")]


def table_name(text: str) -> TableName:
    """Raises PolicyError for text that is not ``namespace.table``."""
    try:
        return TableName.parse(text)
    except ValueError as error:
        raise PolicyError(str(error)) from None


def overrides(settings: Sequence[str] | None, operations: str | None = None) -> dict[str, str]:
    """``--set`` and ``--operations`` as one layer of settings.

    Raises:
        PolicyError: a setting is not KEY=VALUE, or a key is given twice with different values.
    """
    values: dict[str, str] = {}
    for setting in [*(settings or ()), *(() if operations is None else (f"operations={operations}",))]:
        key, separator, value = setting.partition("=")
        key, value = key.strip(), value.strip()
        if not separator or not key:
            raise PolicyError(f"--set takes KEY=VALUE, not '{setting}'")
        if values.get(key, value) != value:
            raise PolicyError(f"{key} is set twice, to '{values[key]}' and to '{value}'")
        values[key] = value
    return values
