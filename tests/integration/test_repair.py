"""``icekeeper repair`` mends damage that other writers made, and every reader then reads the promised rows."""

from __future__ import annotations

from typing import Any

import pytest

from support.command import LOCAL, Answer, Command, local_path, rows
from support.damaged_table import Damaged, read_avro


@pytest.fixture
def damaged(command: Command) -> Damaged:
    return Damaged(command)


def repair(command: Command, *arguments: str) -> Answer:
    return command("repair", "ns.t", "--json", *arguments)


def verified(command: Command) -> tuple[bool, list[Any], int]:
    found = command("verify", "ns.t", "--json").json
    return found["ok"], found["problems"], found["superseded"]


def test_a_healthy_table_stays_as_it_is(command: Command) -> None:
    command.table(appends=3)
    before = command.contents()
    answer = repair(command)
    assert (answer.code, answer.json["summary"], answer.json["snapshot_id"]) == (0, "nothing to repair", None)
    assert command.contents() == before


def test_one_of_two_equal_entries_goes(command: Command, damaged: Damaged) -> None:
    """Neither a tombstone nor a changed id: changelog readers must not see rows of a live file go."""
    before = rows(command)
    damaged.edit_manifest(lambda records: records.append(records[0]))
    assert len(rows(command)) > len(before)
    dry = repair(command, "--dry-run")
    assert (dry.code, dry.json["operation"], dry.json["repaired_entry_count"]) == (0, "overwrite", 1)
    refused = command("repair", "ns.t")
    assert refused.code == 2
    assert "confirm with --yes" in refused.err
    answer = repair(command, "--yes")
    assert (answer.code, answer.json["repaired_manifests"], answer.json["repaired_entry_count"]) == (0, 1, 1), answer
    assert rows(command) == before
    table = command.catalog.load_table("ns.t")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "overwrite"
    manifests = [local_path(manifest.manifest_path) for manifest in snapshot.manifests(table.io)]
    assert [entry["status"] for path in manifests for entry in read_avro(path)] == [0, 1, 1]
    assert table.refs()[f"icekeeper-before-{damaged.snapshot_id}"].snapshot_id == damaged.snapshot_id
    assert verified(command) == (True, [], 3)
    assert repair(command).json["summary"] == "nothing to repair"
    passed = command("maintain", "ns.t", "--operations", "all", *LOCAL, "--json")
    assert passed.code == 0, passed
    assert rows(command) == before
