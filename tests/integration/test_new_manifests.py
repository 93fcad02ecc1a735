"""Where a table has files is learnt from many manifests by all workers, and is what this process alone would learn."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.deletion import table_claims as new_manifests
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import MetadataUnreadable
from icekeeper.pass_context.context import OperationContext
from support.maintained_table import NAME, MaintainedTable, new_table


def context_of(table: MaintainedTable) -> OperationContext:
    runtime, loaded = table.runtime_with(), table.loaded
    return runtime.context(loaded, runtime.policy(loaded, {}), LocalEngine(processes=1))


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MaintainedTable:
    """Three manifests of files in two roots, each of which counts as many."""
    made = new_table(local_catalog, tmp_path)
    made.fill(2)
    with made.table.transaction() as change:
        change.set_properties({"write.data.path": f"{made.metadata.location}/elsewhere"})
    made.append(9)
    monkeypatch.setattr(new_manifests, "_BY_ENGINE_BYTES", 0)
    monkeypatch.setattr(new_manifests, "_TASK_BYTES", 1)
    return made


def test_workers_see_the_roots_that_this_process_would_see(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_engine = context_of(table)
    assert new_manifests.read_new_manifests(by_engine, table.loaded, ())
    monkeypatch.setattr(new_manifests, "_BY_ENGINE_BYTES", 2**40)
    here = context_of(table)
    new_manifests.read_new_manifests(here, table.loaded, ())
    assert by_engine.footprint.roots() == here.footprint.roots()
    assert {root.rpartition("/")[2] for root in here.footprint.roots()} == {"data", "elsewhere"}


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_manifest_that_no_worker_can_read_leaves_the_table_unknown(table: MaintainedTable, *, is_gone: bool) -> None:
    """One that is gone hides none of the others."""
    assert table.metadata.current_snapshot is not None
    (lost, *_) = table.reader.manifests(table.metadata.current_snapshot)
    path, context = Path(lost.manifest_path.removeprefix("file://")), context_of(table)
    if is_gone:
        path.unlink()
        assert not new_manifests.read_new_manifests(context, table.loaded, ())
        assert {root.rpartition("/")[2] for root in context.footprint.roots()} == {"data"}
    else:
        path.write_bytes(b"no manifest")
        with pytest.raises(MetadataUnreadable, match=r"^manifest [^ ]*"):
            new_manifests.read_new_manifests(context, table.loaded, ())
    table.maintain("expire_snapshots")
    (claims,) = table.state.claims.touching(table.metadata.location.removeprefix("file://"))
    assert (str(claims.table), claims.seen_sequence_number) == (str(NAME), -1)
