"""The functions of a deployment with a local table, and their sample events of events/."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icekeeper.machine.clock import system_clock
from icekeeper.operation_facts import FUNCTIONS
from icekeeper.pipeline.events import Item, parse_event
from icekeeper.state.identity import TableIdentity
from icekeeper.state.lake_stats import LakeStats
from support.lambda_functions import Answer, LambdaFunctions, sample
from support.maintained_table import MaintainedTable

RUN = "by-hand-1"
SECRETS = (
    "token-that-nobody-may-see",
    "key-that-nobody-may-see",
    "password-that-nobody-may-see",
    "header/that-nobody-may-see",
)
EVENTS = {**FUNCTIONS, "detect_forced": FUNCTIONS["detect"]}
"""Sample → function."""


class Functions(LambdaFunctions):
    """The functions of a deployment with a local table."""

    def __init__(self, table: MaintainedTable, folder: Path, state: str, *more: Any, **environment: str) -> None:
        self.table = table
        self.control = folder / "control"
        self.item: Mapping[str, Any] = {}
        (folder / "pyiceberg.yaml").write_text(
            f"catalog:\n  local:\n    type: sql\n    uri: sqlite:///{folder / 'catalog.db'}\n"
            f"    warehouse: {(folder / 'warehouse').as_uri()}\n    token: {SECRETS[0]}\n"
            f"    s3.secret-access-key: {SECRETS[1]}\n"
        )
        settings = {
            "ICEKEEPER_MIN_INPUT_FILES": "2",
            "ICEKEEPER_SMALL_COMPACTION_MB": "1280",
            "ICEKEEPER_MIN_MANIFESTS_TO_REWRITE": "2",
            "ICEKEEPER_MAX_SNAPSHOTS_TO_KEEP": "1",
            "ICEKEEPER_SNAPSHOT_RETENTION_HOURS": "0",
            "ICEKEEPER_CONTROL_BUCKET": str(self.control),
            "ICEKEEPER_CATALOG_FILE": str(folder / "pyiceberg.yaml"),
            "ICEKEEPER_STATE": state,
        }
        super().__init__({**settings, **environment}, *more)

    def send(self, name: str, **changed: Any) -> Answer:
        """Send a sample event of events/ with this deployment's table."""
        event = sample(name)
        if "item" in event:
            event["item"] |= self.item
        if "started_ms" in event:
            event["started_ms"] = system_clock()  # the table's files are older than the run
        return self.call(EVENTS[name], {**event, **changed})

    @property
    def identity(self) -> TableIdentity:
        """The identity of the table in the state."""
        return parse_event(Item, self.item).identity

    def remembered(self) -> list[LakeStats]:
        """The lake stats of the catalog's tables."""
        (configured,) = self.deployment.catalogs()
        catalog = self.deployment.runtime_of(configured).catalog
        return list(self.deployment.state.lake_stats.of_catalog(catalog.id))

    def begin(self, run_id: str = RUN) -> None:
        """Run detection and the plan."""
        wanted = {"table": "ns.t", "catalog": "local"}
        found = self.send("detect_forced", run_id=run_id, input=wanted)
        assert found.error is None
        (self.item,) = json.loads((self.control / found.result["tables"]["key"]).read_text())
        assert self.send("plan", run_id=run_id).error is None
