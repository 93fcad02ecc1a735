"""A deployment with local tables: the real functions and jobs over real Iceberg tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import identity_of
from icekeeper.model import TableName
from icekeeper.operation_facts import FUNCTIONS
from icekeeper.state.identity import TableIdentity
from icekeeper.state.open import open_state
from icekeeper.state.store import PassRecord, StateStore
from local_stack.metrics import Metric
from local_stack.stack import LocalStack
from support.maintained_table import new_table

POLICY_FILE = """\
rules:
- settings:  # two of anything are too many, one snapshot is enough, and every pass sweeps
    min_input_files: 2
    min_manifests_to_rewrite: 2
    max_snapshots_to_keep: 1
    snapshot_retention_hours: 0
    orphan_sweep_interval_hours: 0
"""


class LocalLake:
    """A stack and its only catalog, ``local``."""

    def __init__(self, stack: LocalStack, catalog: SqlCatalog, folder: Path) -> None:
        self.stack = stack
        self.table = new_table(catalog, folder)
        self.pyiceberg = catalog
        stack.start_afresh()
        stack.put_control(
            "config/pyiceberg.yaml",
            f"catalog:\n  local:\n    type: sql\n    uri: sqlite:///{folder / 'catalog.db'}\n"
            f"    warehouse: {(folder / 'warehouse').as_uri()}\n",
        )
        stack.put_control("config/policy.yaml", POLICY_FILE)

    @property
    def state(self) -> StateStore:
        """The deployment's state, as an operator opens it."""
        return open_state({"ICEKEEPER_STATE": f"dynamodb://{self.stack.template.name('StateTable')}"})

    def identity(self, name: str = "ns.t") -> TableIdentity:
        catalog = self.table.catalog
        return identity_of(catalog, catalog.load(TableName.parse(name)))

    def exists(self, name: str = "ns.t") -> bool:
        return self.pyiceberg.table_exists(name)

    def journal(self, name: str = "ns.t") -> tuple[PassRecord, ...]:
        return self.state.history(self.identity(name))

    def before(self, step: str, happens: Callable[[Any], object]) -> None:
        """Call ``happens`` just before each call for a step."""
        self.stack.functions[FUNCTIONS[step]].before = lambda event: event["step"] == step and happens(event)

    def metrics(self, name: str) -> list[Metric]:
        """Every value of a metric that functions wrote in this test."""
        return [metric for metric in self.stack.metrics if metric.name == name]
