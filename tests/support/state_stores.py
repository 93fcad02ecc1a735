"""Every state store, and whose state the contract suites keep in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite import SqliteStateStore
from icekeeper.state.store import StateStore

__all__ = ["IDENTITY", "OTHERS", "STORES", "OpenStore"]

IDENTITY = TableIdentity("C", "s3://bucket/", TableName(("ns", "sub"), "t"), "uuid-1")
OTHERS = (
    replace(IDENTITY, catalog="D"),
    replace(IDENTITY, warehouse="s3://other/"),
    replace(IDENTITY, table=TableName(("ns",), "t")),
    replace(IDENTITY, uuid="uuid-2"),
)
"""Tables that differ from it in one thing only."""

OpenStore: TypeAlias = Callable[[], StateStore]
"""Opens the same store anew, as another process would."""

STORES: Mapping[str, Callable[[Path], StateStore]] = {
    "sqlite": lambda folder: SqliteStateStore(folder / "state" / "state.db"),
}
