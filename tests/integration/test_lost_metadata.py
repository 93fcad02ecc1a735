"""``icekeeper repair`` of metadata: lists and manifests that are gone, unreadable snapshots, and newer metadata files
(rule: the-old-head-stays)."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icekeeper.catalogs.rest import RestCatalog
from icekeeper.errors import StorageError
from icekeeper.repair import newer_metadata, unreadable
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.storage import Storage
from support.command import EVERYTHING_IS_OLD, LOCAL, Answer, Command, local_path, one_sentence, rows, statuses
from support.damaged_table import edit_avro
from support.readers import duckdb_rows

REPAIR = ("repair", "ns.t", "--yes")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    made = Command(tmp_path, monkeypatch, capsys)
    made.table(appends=4)
    return made


def snapshots(command: Command) -> list[Any]:
    return list(command.catalog.load_table("ns.t").snapshots())


def list_of(snapshot: Any) -> Path:
    return local_path(str(snapshot.manifest_list))


def manifests_of(command: Command, snapshot: Any) -> list[Path]:
    """The newest first."""
    return [local_path(m.manifest_path) for m in snapshot.manifests(command.catalog.load_table("ns.t").io)]


def count(command: Command, snapshot_id: int | None = None) -> int:
    """The rows of a snapshot, as DuckDB and PyIceberg read them."""
    table = command.catalog.load_table("ns.t")
    read = len(table.scan(snapshot_id=snapshot_id).to_arrow())
    assert read == len(duckdb_rows(table.metadata_location, snapshot_id))
    return read


def states(answer: Answer) -> dict[int, str]:
    return {found["snapshot_id"]: found["state"] for found in answer.json["retained"]}


def maintained(command: Command) -> None:
    """A whole pass succeeds, and no row changes."""
    before = rows(command)
    passed = command("maintain", "ns.t", *LOCAL, *EVERYTHING_IS_OLD, "--json")
    assert {status for status, _ in statuses(passed).values()} <= {"succeeded", "skipped"}, passed.out
    assert rows(command) == before
    assert command("verify", "ns.t").code == 0


@pytest.mark.parametrize("version", ["1", "2"])
def test_the_list_of_the_head_is_rebuilt_from_its_parent_and_its_manifests(command: Command, version: str) -> None:
    if version == "1":
        command.catalog.drop_table("ns.t")
        command.table(appends=4, properties={"format-version": "1"})
    head = snapshots(command)[-1]
    lost = list_of(head).read_bytes()
    list_of(head).unlink()
    assert command("verify", "ns.t").code == 1
    planned = command(*REPAIR, "--dry-run", "--json")
    assert [(mend["kind"], mend["path"]) for mend in planned.json["mends"]] == [("metadata_file", head.manifest_list)]
    assert not list_of(head).exists()
    answer = command(*REPAIR, "--json")
    assert (answer.code, states(answer), answer.json["snapshot_id"]) == (0, {head.snapshot_id: "mended"}, None)
    assert answer.json["summary"] == "brought 1 metadata file back; repair again afterwards: no entry was looked at"
    assert (count(command), list_of(head).read_bytes() == lost) == (12, False)
    assert command(*REPAIR, "--json").json["summary"] == "nothing to repair"
    assert command("history", "ns.t", "--json").json["passes"][0]["summary"].startswith("repair: brought 1")
    maintained(command)


def test_lists_in_a_row_are_rebuilt_by_the_child_that_appended(command: Command) -> None:
    """The two oldest have no parent whose list could be read."""
    first, second, *_ = snapshots(command)
    for snapshot in (first, second):
        list_of(snapshot).unlink()
    answer = command(*REPAIR, "--json")
    assert (answer.code, len(answer.json["mends"])) == (0, 2)
    assert [count(command, s.snapshot_id) for s in (first, second)] == [3, 6]
    maintained(command)


def test_a_list_is_not_rebuilt_where_a_manifest_is_unknown_and_the_branch_can_be_rolled_back(command: Command) -> None:
    *_, parent, head = snapshots(command)
    manifests_of(command, head)[0].unlink()
    list_of(head).unlink()
    answer = command(*REPAIR, "--json")
    left = answer.json["unmended"][0]
    assert (answer.code, answer.json["mends"], states(answer)) == (1, [], {head.snapshot_id: "unmended"})
    assert "its summary says added-data-files 1, but manifests with its id have 0" in left["detail"]
    assert "1 snapshot that added 3 rows and deleted 0 left it: acknowledged rows go" in left["detail"]
    to = f"icekeeper rollback ns.t --branch main --to {parent.snapshot_id} --catalog C"
    assert left["option"] == to

    done = command(*to.removesuffix(" --catalog C").split()[1:], "--yes", "--json")
    folder = local_path(done.json["aside"])
    assert sorted(path.suffix for path in folder.iterdir()) == [".copy"]
    assert (done.code, done.json["tag"], count(command)) == (0, None, 9)
    orphans = ("--set", "orphan_older_than_hours=0", "--unsafe")
    assert command("maintain", "ns.t", "--operations", "remove_orphans", *orphans).code == 1
    give_up = command(*REPAIR, "--json").json["unmended"][0]["option"]
    assert f"--set snapshot_give_up_ids={head.snapshot_id} --unsafe" in give_up
    assert command(*give_up.replace(" --catalog C", "").split()[1:]).code == 0
    maintained(command)
    assert folder.exists()
    old = time.time() - 31 * 24 * 3600
    for path in folder.iterdir():
        os.utime(path, (old, old))
    assert command("maintain", "ns.t", "--operations", "remove_orphans", *orphans).code == 0
    assert list(folder.parent.rglob("*.copy")) == []


def test_a_lost_file_comes_back_from_a_file_of_the_same_name(command: Command) -> None:
    first, *_, head = snapshots(command)
    elsewhere = local_path(command.catalog.load_table("ns.t").location()) / "data" / "moved"
    elsewhere.mkdir(parents=True)
    moved = [list_of(head), manifests_of(command, first)[0]]
    kept = [path.read_bytes() for path in moved]
    for path in moved:
        shutil.move(path, elsewhere / path.name)
    answer = command(*REPAIR, "--json")
    assert (answer.code, set(states(answer).values())) == (0, {"mended"})
    assert ([path.read_bytes() for path in moved], count(command)) == (kept, 12)
    maintained(command)


def test_a_lost_list_comes_back_from_an_older_version_of_its_key(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_, head = snapshots(command)
    versions = {"2": list_of(first).read_bytes(), "1": list_of(head).read_bytes()}
    found = [ListedObject(str(head.manifest_list), len(data), None, version=name) for name, data in versions.items()]
    monkeypatch.setattr(unreadable, "versions_of", lambda _, path: found if path == head.manifest_list else ())
    monkeypatch.setattr(Storage, "open_version", lambda _, listed: pa.BufferReader(versions[listed.version]))
    list_of(head).unlink()
    answer = command(*REPAIR, "--json")
    assert [mend["detail"] for mend in answer.json["mends"]] == [
        f"{head.manifest_list} is gone; version 1 of it has its content, and is copied"
    ]
    assert (answer.code, list_of(head).read_bytes(), count(command)) == (0, versions["1"], 12)


def test_a_file_of_the_same_name_with_other_content_is_not_taken(command: Command) -> None:
    first, *_, head = snapshots(command)
    lost, other = manifests_of(command, first)[0], manifests_of(command, head)[0]
    elsewhere = local_path(command.catalog.load_table("ns.t").location()) / "data" / "moved"
    elsewhere.mkdir(parents=True)
    shutil.copy(other, elsewhere / lost.name)
    size = other.stat().st_size  # the counts of both are equal, too

    def state_size(listed: list[dict[str, Any]]) -> None:
        for record in listed:
            if record["manifest_path"] == lost.as_uri():
                record["manifest_length"] = size

    for snapshot in snapshots(command):
        edit_avro(list_of(snapshot), state_size)
    lost.unlink()
    answer = command(*REPAIR, "--json")
    assert (answer.code, answer.json["mends"], set(states(answer).values())) == (1, [], {"unmended"})
    assert answer.json["unmended"][0]["detail"].endswith("no ancestor of it can be read")


@pytest.mark.parametrize("what", ["list", "manifest"])
def test_a_store_that_fails_shows_no_damage(command: Command, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    head = snapshots(command)[-1]
    path = (list_of(head) if what == "list" else manifests_of(command, head)[0]).as_uri()
    read = Storage.read

    def fail(storage: Storage, wanted: str) -> bytes:
        if wanted == path:
            raise StorageError(f"{wanted}: the store is busy")
        return read(storage, wanted)

    monkeypatch.setattr(Storage, "read", fail)
    for call in (REPAIR, ("rollback", "ns.t", "--yes", "--to", str(snapshots(command)[0].snapshot_id))):
        answer = command(*call)
        assert (answer.code, answer.out) == (1, "")
        assert "the store is busy" in one_sentence(answer.err)


def test_each_branch_and_tag_is_reported_for_itself(command: Command) -> None:
    first, second, third, head = snapshots(command)
    table = command.catalog.load_table("ns.t")
    table.manage_snapshots().create_branch(third.snapshot_id, "audit").create_tag(second.snapshot_id, "eom").commit()
    table.refresh()
    for snapshot in (second, third):
        manifests_of(command, snapshot)[0].unlink()
    answer = command(*REPAIR, "--json")
    found = {left["option"]: left["detail"] for left in answer.json["unmended"]}
    back = f"icekeeper rollback ns.t --branch {{}} --to {first.snapshot_id} --catalog C"
    assert found.keys() == {back.format("main"), back.format("audit"), None}
    assert found[None].startswith("tag 'eom': manifest ")
    assert states(answer) == {s.snapshot_id: "unmended" for s in (second, third, head)}


# Newer metadata files.


def point(command: Command, location: str) -> None:
    """Set the catalog's pointer, as the restore of a backup does."""
    with closing(sqlite3.connect(command.database)) as connection, connection:
        connection.execute("UPDATE iceberg_tables SET metadata_location = ?", (location,))


def located(command: Command) -> str:
    return str(command.catalog.load_table("ns.t").metadata_location)


@pytest.fixture
def behind(command: Command) -> tuple[Command, str, str]:
    """A catalog that is two commits behind its table: the command, the newest file, and the file that it names."""
    table, newest = command.catalog.load_table("ns.t"), located(command)
    old = table.metadata.metadata_log[-2].metadata_file
    point(command, old)
    return command, newest, old


def test_a_newer_metadata_file_is_reported_and_the_pointer_moves_on_request(behind: tuple[Command, str, str]) -> None:
    command, newest, old = behind
    told = command(*REPAIR, "--json")
    assert [(left["kind"], left["option"]) for left in told.json["unmended"]] == [("pointer", f"--point-to {newest}")]
    assert (told.code, located(command), count(command)) == (1, old, 6)
    assert command(*REPAIR, "--point-to", newest, "--dry-run").code == 0
    assert located(command) == old
    moved = command(*REPAIR, "--point-to", newest, "--json")
    assert (moved.code, located(command), count(command)) == (0, newest, 12)
    assert moved.json["summary"] == (
        f"done: the catalog points at {newest} instead of {old}: 2 snapshots more, 0 snapshots less"
    )
    assert command("history", "ns.t", "--json").json["passes"][0]["summary"] == f"repair: {moved.json['summary']}"
    maintained(command)


def test_a_catalog_that_cannot_move_its_pointer_conditionally_is_named(
    behind: tuple[Command, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, newest, old = behind
    monkeypatch.setattr(newer_metadata, "MovesPointers", RestCatalog)
    refused = command(*REPAIR, "--point-to", newest)
    assert (refused.code, located(command)) == (2, old)
    assert one_sentence(refused.err).startswith("catalog C (SqlCatalog) cannot set the metadata file of a table")


def test_a_file_between_is_not_the_newest(behind: tuple[Command, str, str]) -> None:
    command, newest, old = behind
    point(command, newest)
    between = command.catalog.load_table("ns.t").metadata.metadata_log[-1].metadata_file
    point(command, old)
    for path in (between, old, f"{newest}.gone"):
        refused = command(*REPAIR, "--point-to", path)
        assert (refused.code, located(command)) == (2, old)
        assert f"{newest} is; nothing was changed" in one_sentence(refused.err)


def test_a_state_with_a_sibling_is_refused(behind: tuple[Command, str, str]) -> None:
    command, newest, old = behind
    table = command.catalog.load_table("ns.t")
    table.append(table.scan().to_arrow())
    sibling = located(command)
    point(command, old)
    for path in (newest, sibling):
        refused = command(*REPAIR, "--point-to", path)
        assert refused.code in (1, 2)
        assert "nothing was changed" in one_sentence(refused.err)
    assert located(command) == old


def test_an_unreadable_file_may_be_a_sibling(behind: tuple[Command, str, str]) -> None:
    command, newest, old = behind
    torn = local_path(newest).with_name(f"00009-{'0' * 8}.metadata.json")
    torn.write_text("{")
    refused = command(*REPAIR, "--point-to", newest)
    assert refused.code == 1
    assert (
        one_sentence(refused.err)
        == f"{torn.as_uri()} may be another newer state: it cannot be read; nothing was changed"
    )
    assert located(command) == old


def test_a_newer_state_that_is_not_whole_is_refused(behind: tuple[Command, str, str]) -> None:
    command, newest, old = behind
    point(command, newest)
    manifests_of(command, snapshots(command)[-1])[0].unlink()
    point(command, old)
    refused = command(*REPAIR, "--point-to", newest)
    assert (refused.code, located(command)) == (1, old)
    assert f"{newest} is damaged" in one_sentence(refused.err)
