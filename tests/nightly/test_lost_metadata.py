"""Random metadata files of a table are lost: what a repair reports as mended reads as before, all else is the same."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.command import Command, local_path

CASES = 60
pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records")


def rows(command: Command, snapshot_id: int) -> list[Any]:
    table = command.catalog.load_table("ns.t")
    return sorted(table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist(), key=str)


def write(command: Command, chance: random.Random) -> None:
    """Random commits: appends with and without merged manifests, overwrites and deletes, on two branches."""
    table = command.catalog.create_table("ns.t", schema := pa.schema([("id", pa.int64()), ("name", pa.string())]))
    for number in range(chance.randint(2, 7)):
        merges = str(chance.random() < 0.3).lower()
        with table.transaction() as change:
            change.set_properties({"commit.manifest-merge.enabled": merges, "commit.manifest.min-count-to-merge": "2"})
        batch = pa.Table.from_pylist([{"id": number, "name": f"n{i}"} for i in range(chance.randint(1, 4))], schema)
        match chance.choice(["append", "append", "append", "overwrite", "delete", "branch"]):
            case "append":
                table.append(batch)
            case "overwrite":
                table.overwrite(batch, f"id = {number - 1}")
            case "delete" if number:
                table.delete("name = 'n0'")
            case _ if number and "audit" not in table.refs():
                table.append(batch)
                head = table.current_snapshot()
                assert head is not None
                table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
            case _:
                table.append(batch)


@pytest.mark.parametrize("seed", range(CASES))
def test_what_is_mended_reads_as_before(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chance, command = random.Random(seed), Command(tmp_path, monkeypatch, capsys)
    write(command, chance)
    table = command.catalog.load_table("ns.t")
    before = {snapshot.snapshot_id: rows(command, snapshot.snapshot_id) for snapshot in table.snapshots()}
    lists = {str(snapshot.manifest_list) for snapshot in table.snapshots()}
    manifests = {m.manifest_path for s in table.snapshots() for m in s.manifests(table.io)} - lists
    lost = chance.sample(sorted(lists), chance.randint(1, min(3, len(lists))))
    lost += chance.sample(sorted(manifests), chance.choice([0, 0, 1]))
    for path in lost:
        local_path(path).unlink()
    elsewhere = local_path(table.location()) / "data"
    kept = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    answer = command("repair", "ns.t", "--yes", "--json")
    states = {found["snapshot_id"]: found["state"] for found in answer.json["retained"]}
    assert answer.code == (0 if set(states.values()) <= {"mended"} else 1)
    assert {path for path in map(local_path, lost) if path.exists()} == {
        local_path(mend["path"]) for mend in answer.json["mends"]
    }
    for snapshot_id, found in before.items():
        if states.get(snapshot_id) == "unmended":
            with pytest.raises(FileNotFoundError):
                rows(command, snapshot_id)
        else:
            assert rows(command, snapshot_id) == found
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == kept
    again = command("repair", "ns.t", "--yes", "--json").json
    assert (again["mends"], {found["state"] for found in again["retained"]} <= {"unmended"}) == ([], True)
