"""``icekeeper rollback``: a branch goes back to a snapshot that is whole, and nothing else changes
(rule: the-old-head-stays)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from icekeeper.catalogs.catalog import identity_of
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.model import TableName
from icekeeper.runtime import Runtime
from support.command import CATALOG, LOCAL, Command, local_path, one_sentence, rows, statuses
from support.moments import Moment, at
from support.readers import duckdb_rows

BACK = ("rollback", "ns.t", "--yes", "--to")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    made = Command(tmp_path, monkeypatch, capsys)
    made.table(appends=3)
    return made


def ids(command: Command) -> list[int]:
    """The snapshots, oldest first."""
    return [snapshot.snapshot_id for snapshot in command.catalog.load_table("ns.t").snapshots()]


def heads(command: Command) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in command.catalog.load_table("ns.t").refs().items()}


def count(command: Command) -> int:
    """The rows, as DuckDB and PyIceberg read them."""
    location = command.catalog.load_table("ns.t").metadata_location
    found = {len(rows(command)), len(duckdb_rows(location))}
    assert len(found) == 1
    return found.pop()


def test_a_branch_goes_back_and_forth_and_passes_go_on(command: Command) -> None:
    first, second, third = ids(command)
    assert command(*BACK[:2], "--to", str(first), "--dry-run").code == 0
    assert heads(command) == {"main": third}
    answer = command(*BACK, str(first), "--json")
    document, tag = answer.json, f"icekeeper-before-{third}"
    assert (answer.code, document["outcome"], document["tag"]) == (0, "done", tag)
    assert [snapshot["snapshot_id"] for snapshot in document["leaving"]] == [third, second]
    assert {snapshot["added_rows"] for snapshot in document["leaving"]} == {3}
    what = "2 snapshots that added 6 rows and deleted 0 left it"
    assert document["summary"] == f"set branch 'main' from snapshot {third} to {first}; {what}"
    assert (heads(command), count(command)) == ({"main": first, tag: third}, 3)
    assert command(*BACK, str(first), "--json").json["outcome"] == "nothing"
    newest = command("history", "ns.t", "--json").json["passes"][0]["summary"]
    assert newest.endswith(document["summary"])
    assert newest.startswith("rollback: ")

    refused = command(*BACK, tag)
    assert (refused.code, "not known to be an ancestor" in one_sentence(refused.err)) == (2, True)
    assert command(*BACK, tag, "--not-ancestor").code == 0
    assert (heads(command)["main"], count(command)) == (third, 9)
    assert command(*BACK, str(second)).code == 0
    command.catalog.load_table("ns.t").append(command.catalog.load_table("ns.t").scan().to_arrow())
    assert count(command) == 12

    passed = command("maintain", "ns.t", *LOCAL, "--json")
    assert passed.json["status"] == "succeeded"
    assert {status for status, _ in statuses(passed).values()} <= {"succeeded", "skipped"}
    assert (count(command), heads(command)[tag]) == (12, third)


def manifest_list(command: Command, snapshot_id: int) -> str:
    snapshot = command.catalog.load_table("ns.t").snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return str(snapshot.manifest_list)


def manifest(command: Command, snapshot_id: int) -> str:
    table = command.catalog.load_table("ns.t")
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return str(snapshot.manifests(table.io)[0].manifest_path)


def data_file(command: Command, snapshot_id: int) -> str:
    files = command.catalog.load_table("ns.t").inspect.files(snapshot_id=snapshot_id).to_pylist()
    return str(files[0]["file_path"])


@pytest.mark.parametrize("lost", [manifest_list, manifest, data_file])
@pytest.mark.parametrize("how", ["gone", "cut"])
def test_a_snapshot_that_is_not_whole_is_refused(
    command: Command, lost: Callable[[Command, int], str], how: str
) -> None:
    first = ids(command)[0]
    path = local_path(lost(command, first))
    path.write_bytes(path.read_bytes()[:-40])
    if how == "gone":
        path.unlink()
    before = command.contents()
    for call in ((*BACK, str(first)), (*BACK[:2], "--dry-run", "--to", str(first))):
        answer = command(*call)
        assert answer.code == 1
        assert f"snapshot {first} is damaged: {path.as_uri()}" in one_sentence(answer.err)
    assert command.contents() == before


@pytest.mark.parametrize("lost", [manifest_list, manifest])
def test_an_old_head_that_cannot_be_read_gets_no_tag(command: Command, lost: Callable[[Command, int], str]) -> None:
    _, second, third = ids(command)
    local_path(lost(command, third)).unlink()
    answer = command(*BACK, str(second), "--json")
    assert (answer.code, answer.json["tag"]) == (0, None)
    assert answer.json["no_tag"].startswith("its metadata cannot be read: manifest")
    assert (heads(command), count(command)) == ({"main": second}, 6)


def test_a_branch_is_set_back_by_its_name_and_main_stays(command: Command) -> None:
    first, second, third = ids(command)
    table = command.catalog.load_table("ns.t")
    table.manage_snapshots().create_branch(third, "audit", min_snapshots_to_keep=5).create_tag(second, "good").commit()
    assert command(*BACK, "good", "--branch", "audit").code == 0
    assert heads(command) == {"main": third, "audit": second, "good": second, f"icekeeper-before-{third}": third}
    assert command.catalog.load_table("ns.t").refs()["audit"].min_snapshots_to_keep == 5
    assert command(*BACK, str(first), "--branch", "good").code == 2


def test_a_table_of_version_1_goes_back_without_a_tag(command: Command) -> None:
    command.table("ns.old", appends=3, properties={"format-version": "1"})
    table = command.catalog.load_table("ns.old")
    second = table.snapshots()[1].snapshot_id
    answer = command("rollback", "ns.old", "--yes", "--to", str(second), "--json")
    assert (answer.code, answer.json["no_tag"]) == (0, "tables of format version 1 cannot have tags")
    table.refresh()
    assert len(duckdb_rows(table.metadata_location)) == len(table.scan().to_arrow()) == 6
    table.append(table.scan().to_arrow())
    assert command("verify", "ns.old").code == 0


def test_without_a_terminal_it_asks_for_yes(command: Command) -> None:
    before = command.contents()
    answer = command("rollback", "ns.t", "--to", str(ids(command)[0]))
    assert answer.code == 2
    assert one_sentence(answer.err).endswith("left it; there is no terminal to ask on, confirm with --yes")
    assert command.contents() == before


def test_a_branch_that_moves_meanwhile_is_left_alone(command: Command) -> None:
    first = ids(command)[0]
    table = command.catalog.load_table("ns.t")
    with at(Moment.BEFORE_COMMIT, lambda: table.append(table.scan().to_arrow())):
        answer = command(*BACK, str(first))
    assert (answer.code, "nothing was changed; roll back again" in one_sentence(answer.err)) == (1, True)
    assert ([*heads(command)], count(command)) == (["main"], 18)


def test_a_table_under_maintenance_is_left_alone(command: Command) -> None:
    runtime = Runtime.open(CATALOG, command.environment())
    key = identity_of(runtime.catalog, runtime.catalog.load(TableName(("ns",), "t"))).lease_key
    lease = runtime.state.leases.acquire(key, "another run", now_ms=system_clock(), ttl_ms=HOUR_MS, name="ns.t")
    before = command.contents()
    assert command(*BACK, str(ids(command)[0])).code == 1
    assert command.contents() == before
    runtime.state.leases.release(lease)
    assert command(*BACK, str(ids(command)[0])).code == 0
