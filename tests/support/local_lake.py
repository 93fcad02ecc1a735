"""A deployment whose tables lie on this disk: the real functions and jobs over real Iceberg tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.model import TableName
from icekeeper.operations.table_handle import identity_of
from icekeeper.state.identity import TableIdentity
from icekeeper.state.open import open_state
from icekeeper.state.store import PassRecord, StateStore
from support.local import LocalTable
from support.local_stack.metrics import Metric, metrics_in
from support.local_stack.stack import LocalStack

__all__ = ["EAGER", "LocalLake"]

# Two of anything are too many, and one snapshot is enough.
EAGER = {
    "ICEKEEPER_MIN_INPUT_FILES": "2",
    "ICEKEEPER_MIN_MANIFESTS_TO_REWRITE": "2",
    "ICEKEEPER_MAX_SNAPSHOTS_TO_KEEP": "1",
    "ICEKEEPER_SNAPSHOT_RETENTION_HOURS": "0",
}


class LocalLake:
    """A stack and its one catalog, ``local``."""

    def __init__(self, stack: LocalStack, catalog: SqlCatalog, folder: Path) -> None:
        self.stack = stack
        self.table = LocalTable(catalog, folder)
        self.pyiceberg = catalog
        stack.stand_in({}, {})
        stack.put_control(
            "config/pyiceberg.yaml",
            f"catalog:\n  local:\n    type: sql\n    uri: sqlite:///{folder / 'catalog.db'}\n"
            f"    warehouse: {(folder / 'warehouse').as_uri()}\n",
        )
        stack.start_cold(EAGER)
        self._calls = {role: len(function.invocations) for role, function in stack.functions.items()}

    @property
    def state(self) -> StateStore:
        """The deployment's, as an operator opens it."""
        return open_state({"ICEKEEPER_STATE": f"dynamodb://{self.stack.template.name('StateTable')}"})

    def identity(self, name: str = "ns.t") -> TableIdentity:
        catalog = self.table.catalog
        return identity_of(catalog, catalog.load(TableName.parse(name)))

    def journal(self, name: str = "ns.t") -> tuple[PassRecord, ...]:
        return self.state.history(self.identity(name))

    def before(self, role: str, happens: Callable[[Any], object]) -> None:
        """Let something happen just before each call of a function."""
        self.stack.functions[role].before = happens

    def printed(self, role: str) -> str:
        """What a function printed in this test."""
        calls = self.stack.functions[role].invocations[self._calls[role] :]
        return "\n".join(call.output for call in calls)

    def metrics(self, name: str) -> list[Metric]:
        """Every value of a metric that functions told in this test."""
        told = (metric for role in self.stack.functions for metric in metrics_in(self.printed(role)))
        return [metric for metric in told if metric.name == name]
