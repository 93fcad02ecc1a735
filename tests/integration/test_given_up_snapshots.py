"""Snapshots whose metadata is gone: they stop expiry and sweeps until a person gives them up (rule 229)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from icekeeper.errors import PolicyError
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.storage.paths import normalise
from support.command import EVERYTHING_IS_OLD, Command, local_path
from support.maintained_table import MaintainedTable, maintained_table

EXPIRE, SWEEP = Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Two appends, whose rows an overwrite takes away (two more snapshots), and a third append."""
    with maintained_table(tmp_path) as made:
        made.create()
        made.append(1)
        made.append(2)
        made.table.overwrite(made.new_rows(3))
        made.append(4)
        yield made


def ids(table: MaintainedTable) -> list[int]:
    return [snapshot.snapshot_id for snapshot in table.table.snapshots()]


def list_of(table: MaintainedTable, place: int) -> Path:
    return Path(normalise(table.table.snapshots()[place].manifest_list))


def files_of(table: MaintainedTable, place: int) -> dict[int | None, tuple[Path, Path]]:
    """Manifest and data file of each append that the snapshot still has, by its id."""
    reader = table.reader
    manifests = reader.manifests(reader.metadata.snapshots[ids(table)[place]])
    return {
        entry.snapshot_id: (Path(normalise(manifest.manifest_path)), Path(normalise(entry.file.file_path)))
        for manifest, entries in reader.entries(manifests)
        for entry in entries
        if entry.is_live
    }


def give_up(table: MaintainedTable, *places: int, dry_run: bool = False) -> OperationOutcome:
    named = ",".join(str(ids(table)[place]) for place in places)
    return table.run(EXPIRE, snapshot_give_up_ids=named, dry_run=dry_run)


def test_a_lost_manifest_list_stops_everything_until_its_snapshot_is_given_up(table: MaintainedTable) -> None:
    lost, ((manifest, data),) = list_of(table, 0), files_of(table, 0).values()
    named, head, rows = ids(table)[0], ids(table)[-1], table.rows()
    lost.unlink()
    for more in ({}, {"snapshot_expire_ids": str(named)}):
        refused = table.run(EXPIRE, **more)
        assert refused.status is Status.REFUSED
        for word in (str(lost), f"--set snapshot_give_up_ids={named} --unsafe"):
            assert word in (refused.reason or "")
    assert table.run(SWEEP).status is Status.REFUSED

    dry, done = give_up(table, 0, dry_run=True), give_up(table, 0)
    assert (dry.status, done.status) == (Status.SUCCEEDED, Status.SUCCEEDED)
    for outcome in (dry, done):
        assert f"what only file://{lost} named is not known and stays" in outcome.summary
    assert done.files_deleted == ()  # the list itself is not there, and nothing else is proven to be of no use
    assert (manifest.exists(), data.exists()) == (True, True)
    assert named not in ids(table)
    assert str(data) in {normalise(path) for path in table.run(EXPIRE).files_deleted}  # the next snapshot named it, too
    assert (ids(table), table.rows()) == ([head], rows)
    assert table.run(SWEEP).status is Status.SUCCEEDED
    table.assert_sound()


def test_what_readable_metadata_proves_unneeded_goes(table: MaintainedTable) -> None:
    """Of two manifests that only the given up snapshots list, one can be read."""
    ((manifest, data),) = files_of(table, 0).values()
    lost, unknown = next(found for found in files_of(table, 1).values() if found[0] != manifest)
    lists, rows = [list_of(table, place) for place in (0, 1)], table.rows()
    lost.unlink()
    outcome = give_up(table, 0, 1)
    assert {Path(normalise(path)) for path in outcome.files_deleted} == {manifest, data, lost, *lists}
    assert f"what only file://{lost} named is not known and stays" in outcome.summary
    assert (unknown.exists(), table.rows()) == (True, rows)


def test_a_damaged_manifest_proves_nothing_by_its_first_entries(table: MaintainedTable) -> None:
    manifest, data = next(iter(files_of(table, 0).values()))
    manifest.write_bytes(manifest.read_bytes()[:-20])
    outcome = give_up(table, 0, 1)
    assert f"what only file://{manifest} named" in outcome.summary
    assert data.exists()


def test_what_the_others_need_stays_and_one_that_cannot_be_read_either_is_named(table: MaintainedTable) -> None:
    before, first, second = table.files(), ids(table)[0], ids(table)[1]
    for place in (0, 1):
        list_of(table, place).unlink()
    refused = give_up(table, 0)
    assert refused.status is Status.REFUSED
    assert f"snapshot_give_up_ids={first},{second} --unsafe" in (refused.reason or "")
    assert give_up(table, 0, 1).status is Status.SUCCEEDED
    assert len(before - table.files()) == 2
    table.assert_sound()


def test_what_the_head_needs_cannot_be_given_up(table: MaintainedTable) -> None:
    list_of(table, -1).unlink()
    outcome = table.run(EXPIRE)
    assert outcome.status is Status.REFUSED
    assert "move or drop branch 'main' first, whose head needs it" in (outcome.reason or "")
    with pytest.raises(PolicyError, match=r"snapshot_give_up_ids names \d+, the head of branch 'main'"):
        give_up(table, -1)


def test_the_command_takes_what_its_refusal_spells_out(command: Command) -> None:
    table = command.table(appends=3)
    oldest = table.snapshots()[0]
    local_path(oldest.manifest_list).unlink()
    expire = ("maintain", "ns.t", "--engine", "local", "--operations", "expire_snapshots")
    refused = command(*expire, *EVERYTHING_IS_OLD)
    given = ("--set", f"snapshot_give_up_ids={oldest.snapshot_id}", "--unsafe")
    assert " ".join(given) in refused.err
    assert command(*expire, *given[:2]).code == 2
    assert (command(*expire, *given).code, command(*expire, *EVERYTHING_IS_OLD).code) == (0, 0)


def test_it_needs_unsafe(table: MaintainedTable) -> None:
    named = {"snapshot_give_up_ids": str(ids(table)[0])}
    with pytest.raises(PolicyError, match=r"snapshot_give_up_ids \(from --set\) drops snapshots .*--unsafe allows it"):
        table.runtime.policy(table.loaded, named)
    with pytest.raises(PolicyError, match="only the snapshots of one of them expire"):
        table.runtime.policy(table.loaded, named | {"snapshot_expire_ids": "7"}, unsafe=True)
