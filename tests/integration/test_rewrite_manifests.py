"""Manifests are rewritten once, by a single process or all workers, beside other commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from icekeeper.engines.engine import Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine
from icekeeper.model import ManifestContent, ManifestFile
from icekeeper.operations.manifests import rewrite_manifests
from icekeeper.operations.manifests import rewrite_manifests as write_manifests
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from support.deletes import create_by_region
from support.maintained_table import ID_AND_PART, MaintainedTable, maintained_table, new_table, outcome_of
from support.scripted_catalog import ScriptedCatalog, once
from support.v3 import append, lineage, upgrade

REWRITE = Operation.REWRITE_MANIFESTS
ALL_LANES = {"_LANE_BYTES": 1, "_TARGETS_PER_LANE": 1, "_SPLIT_BYTES": 1}


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """A table with twelve commits that alternate between three partitions."""
    table = new_table(local_catalog, tmp_path)
    with table.table.update_spec() as update:
        update.add_identity("part")
    for number in range(12):
        table.append(number, part="abc"[number % 3])
    return table


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The staged manifests of each call that writes manifests."""
    calls: list[list[str]] = []
    original = write_manifests.write_planned

    def watched(*arguments: Any, **more: Any) -> None:
        original(*arguments, **more)
        calls.append(list(more["into"].staged))

    monkeypatch.setattr(rewrite_manifests, "write_planned", watched)
    return calls


def manifests(table: MaintainedTable, content: ManifestContent = ManifestContent.DATA) -> list[ManifestFile]:
    reader = table.reader
    head = reader.metadata.current_snapshot
    assert head is not None
    return [m for m in reader.manifests(head) if m.content is content]


def test_the_dry_run_lists_the_manifests_that_the_real_run_rewrites(table: MaintainedTable) -> None:
    files = table.files()
    planned = table.run(REWRITE, dry_run=True)
    assert table.files() == files
    assert planned.summary == "would rewrite 12 manifests into 1"
    outcome = table.run(REWRITE)
    assert outcome.files_planned == planned.files_planned
    assert outcome.summary == "rewrote 12 manifests into 1 (12 entries)"
    metrics = {key.partition(".")[2]: value for key, value in outcome.metrics.items()}
    assert metrics.pop("duration_ms") >= 0
    assert metrics == {
        "manifests_rewritten": 12,
        "manifests_written": 1,
        "entries_total": 12,
        "delete_manifests_rewritten": 0,
        "delete_manifests_written": 0,
        "delete_entries_total": 0,
        "manifests_opened_before": 4.0,
        "manifests_opened_after": 1.0,
    }
    assert table.readers_agree() == list(range(12))
    assert table.verify().ok
    assert table.run(REWRITE).reason == "only 1 data manifests, below threshold of 2"


def test_badly_clustered_manifests_are_rewritten_once(table: MaintainedTable) -> None:
    """Every commit touches every partition, and every manifest has its full size."""
    with table.table.transaction() as change:
        change.set_properties({"commit.manifest.target-size-bytes": "5000"})
    table.run(REWRITE)
    for _ in range(6):
        rows = [{"id": 100 + n, "part": f"{n:03}"} for n in range(40)]
        table.table.append(pa.Table.from_pylist(rows, schema=ID_AND_PART))
    outcome = table.run(REWRITE)
    assert outcome.status is Status.SUCCEEDED
    before, after = (outcome.metrics[f"rewrite_manifests.manifests_opened_{when}"] for when in ("before", "after"))
    assert before > 5
    assert after < 2.5
    assert (
        outcome.metrics["rewrite_manifests.manifests_written"]
        <= outcome.metrics["rewrite_manifests.manifests_rewritten"]
    )
    assert table.run(REWRITE).status is Status.SKIPPED
    assert table.verify().ok
    # Another planner plans the same number of files.
    scan = StaticTable.from_metadata(table.loaded.metadata_location).scan(row_filter="part == '020'")
    assert len(list(scan.plan_files())) == 6


def test_written_manifests_survive_a_lost_swap(table: MaintainedTable, written: list[list[str]]) -> None:
    """The manifests that it replaces are still current, so only the manifest list is written again."""
    catalog = ScriptedCatalog(table.catalog, before_commit=once(lambda: table.append(99, part="z")))
    outcome = table.run(REWRITE, catalog=catalog)
    assert outcome.summary == "rewrote 12 manifests into 1 (12 entries)"
    assert (catalog.commits, len(written)) == (2, 1)
    assert sum(m.manifest_path in written[0] for m in manifests(table)) == 1
    assert table.readers_agree() == [*range(12), 99]
    assert table.verify().ok
    assert not [path for path in table.unreferenced() if "/data/" not in path]


def test_written_manifests_are_deleted_if_another_commit_replaced_their_inputs(
    table: MaintainedTable, written: list[list[str]]
) -> None:
    catalog = ScriptedCatalog(table.catalog, before_commit=once(lambda: table.table.delete("part == 'a'")))
    outcome = table.run(REWRITE, catalog=catalog)
    assert outcome.status is Status.SUCCEEDED
    assert (catalog.commits, len(written)) == (2, 2)
    assert not set(written[0]) & set(written[1])
    assert table.readers_agree() == [n for n in range(12) if n % 3]
    assert table.verify().ok
    assert not [path for path in table.unreferenced() if "/data/" not in path]


def test_written_manifests_are_deleted_when_every_swap_is_lost(table: MaintainedTable) -> None:
    def lose() -> None:
        table.append(99, part="z")

    catalog = ScriptedCatalog(table.catalog, before_commit=lose)
    outcome = table.run(REWRITE, catalog=catalog, max_commit_retries="1")
    assert outcome.status is Status.FAILED
    assert not table.unreferenced()


def test_written_manifests_are_deleted_when_a_manifest_cannot_be_read(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds in this process, and for workers that have already begun to write."""
    damaged = Path(manifests(table)[5].manifest_path.removeprefix("file://"))
    damaged.write_bytes(damaged.read_bytes()[:-40])
    files = table.files()
    assert damaged.name in table.run(REWRITE).summary
    monkeypatch.setattr(write_manifests, "_SAMPLED_MANIFESTS", 2)  # the sample misses the damage
    for name, value in ALL_LANES.items():
        monkeypatch.setattr(write_manifests, name, value)
    outcome = table.run(REWRITE, engine=LocalEngine(1))
    assert outcome.status is Status.FAILED
    assert damaged.name in outcome.summary
    assert table.files() == files


# -- by all workers


@pytest.fixture(params=["local", "spark"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "spark":
        session: SparkSession = request.getfixturevalue("spark_session")
        return SparkEngine(session.sparkContext)
    return LocalEngine(2)


def live(table: MaintainedTable) -> Counter[str]:
    """The live entries without their status."""
    return Counter(repr((e.snapshot_id, e.sequence_number, e.file_sequence_number, e.file)) for e in table.entries())


def test_all_workers_write_the_same_entries_as_a_single_process(
    table: MaintainedTable, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live entries are the same, and each partition is in one manifest."""
    with table.table.transaction() as change:
        change.set_properties({"commit.manifest.target-size-bytes": "6500"})
    before = live(table)
    for name, value in ALL_LANES.items():
        monkeypatch.setattr(write_manifests, name, value)
    outcome = table.run(REWRITE, engine=engine)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["rewrite_manifests.manifests_written"] > 1
    assert outcome.metrics["rewrite_manifests.manifests_opened_after"] == 1.0
    assert outcome.metrics["rewrite_manifests.entries_total"] == 12
    assert live(table) == before
    assert table.readers_agree() == list(range(12))
    assert table.verify().ok
    assert not [path for path in table.unreferenced() if "/data/" not in path]


# -- delete manifests, row ids


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[MaintainedTable]:
    with maintained_table(tmp_path) as table:
        create_by_region(table, 3)
        yield table


def rewritten(table: MaintainedTable, **settings: Any) -> OperationOutcome:
    return outcome_of(table.maintain(operations="rewrite_manifests", **settings), REWRITE)


def test_row_ids_that_another_commit_assigned_during_the_pass_are_kept(regions: MaintainedTable) -> None:
    """The first commit after an upgrade to v3 assigns row ids to existing manifests without rewriting them."""
    upgrade(regions)
    seen: list[Counter[Any]] = []

    def number_rows() -> None:
        append(regions, 500, 5, "us")
        seen.append(lineage(regions))

    regions.catalog.before_commit = once(number_rows)
    assert rewritten(regions).status is Status.SUCCEEDED
    assert len(seen[0]) == 65
    assert lineage(regions) == seen[0]
    regions.assert_sound()
