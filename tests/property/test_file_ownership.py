"""Tables that share files under any rules, and passes over them: no needed file is deleted."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.catalogs.load import open_catalog
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.model import TableName
from icekeeper.report.outcome import Status
from icekeeper.runtime import Runtime
from icekeeper.state.open import open_state
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from icekeeper.storage.paths import normalise
from support.duckdb_session import DuckDB
from support.examples import NIGHTLY, examples
from support.maintained_table import EAGER, grow_old
from support.model.ownership import OwnershipMachine
from support.model.truth import Rows
from support.readers import pyiceberg_ids
from support.served import files_of

# Tables that nest, share files, are registered twice, renamed and restored; and passes over them.
#
# After every step PyIceberg reads each table completely through its newest metadata file, and pins and pending loads
# are complete.  Every run has the same forty cases; ``make nightly`` has two thousand new cases, where DuckDB reads
# each table in the end.

CASES = settings(
    derandomize=not NIGHTLY,
    database=None,
    max_examples=examples(40),
    stateful_step_count=30 if NIGHTLY else 12,
    suppress_health_check=list(HealthCheck),
    # A failing case prints all of its steps; shrinking it takes minutes.
    phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if NIGHTLY else [])],
)


@pytest.mark.slow
def test_no_pass_deletes_a_file_that_is_needed(tmp_path_factory: pytest.TempPathFactory, duckdb: DuckDB) -> None:
    """Passes that always refuse would prove nothing: most passes succeed, and files are deleted."""
    folder, tally = tmp_path_factory.mktemp("ownership"), Counter[str]()

    def read_again(metadata_location: str) -> Rows | None:
        return tuple(sorted(row["id"] for row in duckdb.rows(metadata_location))) if NIGHTLY else None

    class Machine(OwnershipMachine):
        def __init__(self) -> None:
            super().__init__(folder, tally, read_again)

    run_state_machine_as_test(Machine, settings=CASES)
    done, refused = tally["expire_snapshots succeeded"], tally["expire_snapshots refused"]
    assert done > refused
    assert tally["files deleted"] > done


# Under any rules of an operator, no pass deletes a file that a readable table names or that is recorded for a table.

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
FOLDERS = {
    "none": None,
    "own": "{own}",
    "all": "",
    "nested": "{own}/t",
    "two": "{own},{home}/elsewhere",
    "other": "other",
}
BROKEN = {"readable": "", "gone": "", "damaged": "*.metadata.json", "manifest": "*-m0.avro", "list": "snap-*.avro"}
DATA_PATHS = (None, "", "victim", "victim/t", "victim/t/data", "tenant/elsewhere")


@dataclass(frozen=True)
class Case:
    """What a tenant does with a table beside a victim's table, and the rules of the operator."""

    victim_rule: str
    tenant_rule: str
    data_path: str | None
    takes_in: bool
    is_seen: bool
    broken: str


RULES_TRIED = st.builds(
    Case,
    st.sampled_from(("none", "own", "all", "nested", "two")),
    st.sampled_from(tuple(FOLDERS)),
    st.sampled_from(DATA_PATHS),
    st.booleans(),
    st.booleans(),
    st.sampled_from(tuple(BROKEN)),
)


class World:
    """A victim, a tenant whose table may break, and a readable guest that added the victim's files."""

    def __init__(self, folder: Path, case: Case) -> None:
        self.folder, self.home, self.case = folder, folder / "warehouse", case
        self.properties = {"uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": self.home.as_uri()}
        self.catalog = SqlCatalog("C", **self.properties)
        for namespace in ("victim", "tenant", "guest"):
            self.catalog.create_namespace(namespace)
        self.victim, self.tenant, self.guest = (self.table(f"{name}.t") for name in ("victim", "tenant", "guest"))
        self.guest.add_files(files_of(self.victim))
        self.state = open_state({"ICEKEEPER_STATE": str(folder / "state.db")})

    def table(self, name: str) -> Table:
        table = self.catalog.create_table(name, ROWS.schema)
        table.append(ROWS)
        return table

    @property
    def rules(self) -> str:
        named = {"victim": self.case.victim_rule, "tenant": self.case.tenant_rule}
        texts = {
            name: FOLDERS[rule].format(own=f"{self.home}/{name}", home=self.home)  # type: ignore[union-attr]
            for name, rule in named.items()
            if rule != "none"
        }
        return ";".join(
            f"C.{name}={text if text.startswith('/') else self.home / text}" for name, text in texts.items()
        )

    def plant(self) -> Path:
        path = self.home / "victim/t/data/orphan.parquet"
        path.write_bytes(b"1")
        return path

    def sweep(self) -> Counter[Status]:
        """Run a pass over the victim; return the statuses."""
        grow_old(path for path in self.home.rglob("*") if path.is_file())
        environment = {ALLOWED_PREFIXES: self.rules}
        catalog = open_catalog("C", {**self.properties, "type": "sql"}, environment)
        runtime = Runtime(catalog, self.state, environment=environment, other_catalog=lambda recorded: None)
        chosen = {**EAGER, "operations": "expire_snapshots,remove_orphans", "orphan_max_delete_ratio": "1"}
        outcome = runtime.maintain(TableName.parse("victim.t"), chosen, LocalEngine(1), unsafe=True)
        return Counter(item.status for item in outcome.operations)

    def break_it(self) -> None:
        if self.case.broken == "gone":
            Path(normalise(self.tenant.metadata_location)).unlink()
        for path in (self.home / "tenant/t").rglob(BROKEN[self.case.broken] or "nothing"):
            path.write_bytes(b"{")


@pytest.mark.slow
@settings(derandomize=not NIGHTLY, database=None, max_examples=examples(8), suppress_health_check=list(HealthCheck))
@given(case=RULES_TRIED)
def test_readable_and_recorded_tables_keep_their_files(tmp_path_factory: pytest.TempPathFactory, case: Case) -> None:
    check(tmp_path_factory.mktemp("apart"), case)


KEPT_APART = (
    *((None, False, False, broken) for broken in ("gone", "damaged", "manifest", "list")),
    *((None, True, True, broken) for broken in ("gone", "damaged", "manifest", "list")),
    *((path, False, True, broken) for path in ("victim/t", "") for broken in ("gone", "damaged", "manifest")),
    *((path, False, False, "readable") for path in ("victim/t", "victim/t/data", "")),
    *(("victim/t/data", False, False, broken) for broken in ("damaged", "manifest")),
    ("victim/t/data", True, False, "readable"),
)
"""Data path, whether the tenant takes in the victim's files, whether a pass has seen that, and what breaks."""


@pytest.mark.parametrize("case", [Case("own", "own", *more) for more in KEPT_APART], ids=[*map(str, KEPT_APART)])
def test_a_broken_table_stops_no_deletion_of_a_table_that_rules_keep_apart(tmp_path: Path, case: Case) -> None:
    """The rules of the two namespaces share no folder (rule: separated-tables-stop-nothing)."""
    check(tmp_path, case)


def check(folder: Path, case: Case) -> None:
    """Run passes over the victim before and after the tenant's table breaks; check the remaining files."""
    world = World(folder, case)
    with closing(world.catalog):
        if case.data_path is not None:
            with world.tenant.transaction() as transaction:
                transaction.set_properties({"write.data.path": f"{world.home.as_uri()}/{case.data_path}".rstrip("/")})
        if case.takes_in:
            world.tenant.add_files(files_of(world.victim))
        tables = {
            item.name(): (item.metadata_location, pyiceberg_ids(item.metadata_location))
            for item in (world.tenant, world.guest)
        }
        if case.is_seen:
            world.plant()
            world.sweep()
        before = {path: path.read_bytes() for path in (world.home / "tenant/t").rglob("*") if path.is_file()}
        world.victim.refresh().overwrite(ROWS)
        orphan = world.plant()
        world.break_it()
        statuses = world.sweep()
        for path, content in before.items():
            path.write_bytes(content)
        assert pyiceberg_ids(world.victim.refresh().metadata_location) == [1, 2, 3]
        location, expected = tables["guest", "t"]
        assert pyiceberg_ids(location) == expected
        can_be_read = case.tenant_rule != "other"  # otherwise its rule forbids reading its metadata
        if can_be_read and (case.is_seen or case.broken == "readable"):
            location, expected = tables["tenant", "t"]
            assert pyiceberg_ids(location) == expected
        shares_nothing = {case.victim_rule, case.tenant_rule}.isdisjoint({"none", "all"})
        shares_nothing = shares_nothing and not case.victim_rule == case.tenant_rule == "two"
        if shares_nothing:
            assert set(statuses) <= {Status.SUCCEEDED, Status.SKIPPED}
            assert len(world.victim.snapshots()) == 1
            seen_there = (
                can_be_read
                and case.is_seen
                and case.broken != "readable"
                and (case.takes_in or case.data_path == "victim/t/data")
            )
            assert orphan.exists() == seen_there
