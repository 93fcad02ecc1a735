"""Sweeps of tables with missing referenced files: an orphan may be the last copy of rows
(rule: keep-possible-last-copies)."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.deletion.referenced_paths import Hashes
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import OperationRefused
from icekeeper.operations.orphans import remove_orphans
from icekeeper.operations.orphans import remove_orphans as compare_listing
from icekeeper.operations.orphans.delete_orphans import MissingFiles
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, PassStatus, Status
from icekeeper.storage.paths import normalise
from support.command import Command, local_path
from support.maintained_table import MaintainedTable, grow_old, new_table
from support.moments import Moment, at


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Four appends; every file is ten days old and has a unique size."""
    made = new_table(local_catalog, tmp_path)
    for number in range(4):
        made.append(*range(10**number))
    grow_old(Path(path) for path in made.files())
    return made


def data_files(table: MaintainedTable) -> list[Path]:
    return sorted(Path(normalise(file.file_path)) for file in table.data_files())


def misname(path: Path) -> str:
    """Simulate a faulty copy: change one character of the file's name."""
    return str(path.rename(path.with_name("x" + path.name[1:])))


def sweep(table: MaintainedTable, **more: Any) -> OperationOutcome:
    return table.run(Operation.REMOVE_ORPHANS, **{"orphan_older_than_hours": "72", **more})


def deleted(outcome: OperationOutcome) -> set[str]:
    return {normalise(path) for path in outcome.files_deleted}


def test_a_default_pass_keeps_the_last_copies_of_a_damaged_table(table: MaintainedTable) -> None:
    """Copies are kept even if a person allows the sweep."""
    copies = {misname(path) for path in data_files(table)}
    rubbish = table.plant("data/rubbish.parquet")
    done = table.maintain(orphan_older_than_hours="72")
    outcome = next(item for item in done.operations if item.operation is Operation.REMOVE_ORPHANS)
    assert (outcome.status, outcome.files_deleted) == (Status.REFUSED, ())
    for word in ("4 of the 4 files", "orphan_max_missing_ratio 0.01 (default)", "restore"):
        assert word in (outcome.reason or "")
    assert {*copies, rubbish} <= table.files()
    outcome = sweep(table, orphan_max_missing_ratio="1")
    assert (outcome.status, deleted(outcome)) == (Status.REFUSED, {rubbish})
    assert copies <= table.files()


def test_a_copy_is_kept_and_named_and_the_pass_is_partial(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers find the same files as this process."""
    by_size = misname(data_files(table)[0])
    by_name = table.plant(f"data/elsewhere/{data_files(table)[0].name}", b"cut off")
    rubbish = table.plant("data/rubbish.parquet")
    for dry_run in (True, False):
        done = table.maintain("remove_orphans", orphan_older_than_hours="72", dry_run=dry_run)
        (outcome,) = done.operations
        assert (done.status, outcome.status, done.is_idle) == (PassStatus.PARTIAL, Status.REFUSED, dry_run)
        assert {normalise(path) for path in outcome.files_planned} == {rubbish}
        assert outcome.plan is not None
        assert {normalise(path) for path in outcome.plan["like_missing"]} == {by_size, by_name}
        assert "2 unreferenced file(s)" in (outcome.reason or "")
        assert outcome.metrics["remove_orphans.files_missing"] == 1
        assert outcome.metrics["remove_orphans.files_like_missing"] == 2
    assert deleted(outcome) == {rubbish}
    assert {by_size, by_name} <= table.files()
    assert outcome.summary.endswith("removed 1 orphan file(s)")

    table.plant("data/rubbish.parquet")
    monkeypatch.setattr(remove_orphans, "DISTRIBUTED_ABOVE", 0)
    monkeypatch.setattr(compare_listing, "_REFERENCES_PER_PART", 2)
    outcome = sweep(table, engine=LocalEngine(1))
    assert (outcome.status, deleted(outcome)) == (Status.REFUSED, {rubbish})
    assert outcome.metrics["remove_orphans.files_missing"] == 1
    assert {by_size, by_name} <= table.files()


def test_a_missing_file_of_an_old_snapshot_keeps_its_copy_too(table: MaintainedTable) -> None:
    gone = data_files(table)
    table.table.overwrite(table.new_rows(1))
    copies = {misname(path) for path in gone}
    outcome = sweep(table)
    assert (outcome.files_deleted, outcome.metrics["remove_orphans.files_missing"]) == ((), 4)
    assert copies <= table.files()


def test_the_limit_of_the_orphan_share_applies_to_few_files_if_a_file_is_missing(table: MaintainedTable) -> None:
    for number in range(40):
        table.plant(f"data/{number}.parquet")
    data_files(table)[0].unlink()
    outcome = sweep(table)
    assert outcome.status is Status.REFUSED
    assert "listed files are orphans, more than orphan_max_delete_ratio 0.5 (default)" in (outcome.reason or "")
    assert len(sweep(table, orphan_max_delete_ratio="1").files_deleted) == 40


def test_files_expired_by_another_writer_do_not_count_as_missing(table: MaintainedTable) -> None:
    gone = data_files(table)
    table.table.overwrite(table.new_rows(1))
    rubbish = table.plant("data/rubbish.parquet")
    twin = table.plant("data/twin.parquet", gone[0].read_bytes())

    def expire() -> None:
        table.table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
        for path in gone:
            path.unlink()

    with at(Moment.BEFORE_LISTING, expire):
        first = sweep(table)
    assert (first.status, deleted(first)) == (Status.SUCCEEDED, {rubbish, twin})


def inventory_of(table: MaintainedTable, folder: Path, moment: datetime) -> str:
    lines = [f"file://{path},1,{moment.isoformat()}\n" for path in table.files()]
    (folder / "list.csv").write_text("path,size,last_modified\n" + "".join(lines))
    return str(folder / "list.csv")


def test_an_inventory_has_the_sizes_of_the_store_and_lacks_newer_files(table: MaintainedTable, tmp_path: Path) -> None:
    rubbish = table.plant("data/rubbish.parquet")
    listed = inventory_of(table, tmp_path, datetime.now(UTC) - timedelta(days=5))
    known = {*data_files(table)}
    table.fill(1)
    (new,) = {*data_files(table)} - known
    aside = new.rename(tmp_path / "aside")
    outcome = sweep(table, orphan_inventory=listed)
    assert (outcome.status, deleted(outcome)) == (Status.SUCCEEDED, {rubbish})
    aside.rename(new)

    copy, rubbish = misname(data_files(table)[0]), table.plant("data/rubbish.parquet")
    listed = inventory_of(table, tmp_path, datetime.now(UTC))
    outcome = sweep(table, orphan_inventory=listed, orphan_older_than_hours="0")
    assert (outcome.status, deleted(outcome)) == (Status.REFUSED, {rubbish})
    assert copy in table.files()


def test_a_bucket_sweep_keeps_copies_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in another table's folder, which is not swept, does not count as missing."""
    command = Command(tmp_path, monkeypatch, capsys)
    damaged, sound = command.table("ns.damaged", appends=2), command.table("ns.sound", appends=2)
    lender = command.table("ns.lender", appends=3, properties={"icekeeper.maintenance_enabled": "false"})
    sound.add_files([task.file.file_path for task in lender.scan().plan_files()])
    rubbish = [local_path(item.location()) / "data/rubbish.parquet" for item in (damaged, sound)]
    for path in rubbish:
        path.write_bytes(b"x")
    copy = misname(local_path(next(iter(damaged.scan().plan_files())).file.file_path))
    grow_old(path for path in command.warehouse.rglob("*") if path.is_file())
    answer = command("orphans", "--bucket", command.warehouse.as_uri(), "--set", "orphan_older_than_hours=72", "--json")
    found = {table["table"]: table for table in answer.json["tables"]}
    assert found["ns.sound"]["status"] == "succeeded"
    assert found["ns.damaged"]["status"] == "refused"
    assert "1 unreferenced file(s)" in found["ns.damaged"]["reason"]
    assert (answer.code, Path(copy).exists(), [path.exists() for path in rubbish]) == (1, True, [False, False])


@pytest.mark.parametrize(
    ("in_head", "files", "limit", "refused"),
    [
        (1, 1, Fraction(0), False),  # a single loss may be an accident
        (2, 200, Fraction(1, 100), False),
        (2, 199, Fraction(1, 100), True),
        (0, 0, Fraction(1, 100), False),
        (200, 200, Fraction(1), False),
    ],
)
def test_few_files_may_be_missing(in_head: int, files: int, limit: Fraction, refused: bool) -> None:
    missing = MissingFiles(in_head + 5, in_head, files, "s3://b/t/data/f", Hashes(), Hashes())
    if not refused:
        missing.refuse_too_many(limit, "default")
        return
    with pytest.raises(OperationRefused, match=rf"{in_head} of the {files} files .*s3://b/t/data/f"):
        missing.refuse_too_many(limit, "default")


def test_hashes_record_which_were_queried() -> None:
    kept = Hashes()
    kept.add([5, 1, 3, 1])
    assert list(kept.never_found()) == [1, 3, 5]
    assert kept.find(array("q", [3, 4, 3])) == [1]
    assert list(kept.never_found()) == [1, 5]
