"""A pass by ``icekeeper maintain`` over a local table: what it does, in which order, and how it is told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from icekeeper.policy import Operation
from icekeeper.report import outcome as listings
from support.command import LOCAL, OPERATION_NAMES, PASS, Command, local_path, rows, statuses, summaries

# -- maintain


def test_a_pass_in_json(command: Command) -> None:
    table = command.table(appends=6)
    before = rows(command)
    inputs = {task.file.file_path for task in table.scan().plan_files()}

    answer = command(*PASS, "--json")

    assert answer.code == 0
    document = answer.json
    assert list(document) == [
        *("table", "catalog", "run_id", "dry_run", "status", "operations", "summary", "metrics", "engine"),
    ]
    assert {key: document[key] for key in ("table", "catalog", "dry_run", "status")} == {
        "table": "ns.t",
        "catalog": "C",
        "dry_run": False,
        "status": "succeeded",
    }
    assert [part["operation"] for part in document["operations"]] == OPERATION_NAMES
    for part in document["operations"]:
        assert list(part) == [
            *("operation", "status", "reason", "summary", "snapshot_id", "snapshot_id_text"),
            *("snapshot_ids", "snapshot_ids_text", "metrics", "files"),
        ]
        assert list(part["files"]) == ["planned", "deleted"]
        assert all(key.startswith(f"{part['operation']}.") for key in part["metrics"])
    assert document["summary"] == "; ".join(
        f"{part['operation']}: {part['summary']}" for part in document["operations"]
    )
    assert document["metrics"] == {k: v for part in document["operations"] for k, v in part["metrics"].items()}
    compact, _, expiry, orphans, manifests = document["operations"]
    head = command.catalog.load_table("ns.t").current_snapshot()
    assert head is not None
    assert (compact["status"], compact["reason"]) == ("succeeded", None)
    assert compact["summary"] == "compacted 6 files into 1 (across 1 bins)"
    assert compact["snapshot_ids"] == [compact["snapshot_id"]] == [head.snapshot_id]
    assert set(compact["files"]["planned"]) == inputs
    assert compact["files"]["deleted"] == []
    expected = {"compact.files_merged": 6, "compact.files_written": 1, "compact.bins": 1}
    assert compact["metrics"] | expected == compact["metrics"]
    # Six data files, their six manifests and six manifest lists.
    assert expiry["summary"] == "expired 6 snapshot(s), deleted 18 unreferenced file(s)"
    assert (expiry["snapshot_id"], expiry["snapshot_ids"]) == (None, [])
    assert sorted(expiry["files"]["deleted"]) == sorted(expiry["files"]["planned"])
    assert not any(local_path(path).exists() for path in expiry["files"]["deleted"])
    assert expiry["metrics"]["expire_snapshots.snapshots_expired"] == 6
    assert (orphans["status"], orphans["summary"]) == ("succeeded", "removed 0 orphan file(s)")
    assert manifests["status"] == "skipped"
    assert manifests["reason"].startswith("only ")
    assert head.summary is not None
    assert head.summary.operation.value == "replace"
    assert head.summary["icekeeper.run-id"] == document["run_id"]
    assert rows(command) == before


def test_a_second_pass_has_nothing_to_do(command: Command) -> None:
    command.table()
    command(*PASS)
    before = command.contents()
    answer = command(*PASS, "--json")
    assert answer.code == 0
    assert summaries(answer) == {
        "compact": "no files eligible for compaction",
        "rewrite_position_deletes": "no position delete files eligible for merging",
        "expire_snapshots": "no snapshots to expire",
        "remove_orphans": "removed 0 orphan file(s)",
        "rewrite_manifests": summaries(answer)["rewrite_manifests"],
    }
    assert [status for status, _ in statuses(answer).values()] == [
        "skipped",
        "skipped",
        "skipped",
        "succeeded",
        "skipped",
    ]
    assert command.contents() == before


def test_a_table_without_a_snapshot_is_skipped(command: Command) -> None:
    command.table(appends=0)
    answer = command(*PASS, "--json")
    assert answer.code == 0
    assert statuses(answer) == {
        "compact": ("skipped", "no current snapshot"),
        "rewrite_position_deletes": ("skipped", "no current snapshot"),
        "expire_snapshots": ("skipped", "no snapshots to expire"),
        "remove_orphans": ("succeeded", None),
        "rewrite_manifests": ("skipped", "no current snapshot"),
    }


def test_people_read_a_line_per_operation(command: Command) -> None:
    command.table()
    answer = command(*PASS)
    assert answer.code == 0
    assert [" ".join(line.split()) for line in answer.out.splitlines()][:5] == [
        "ns.t: succeeded",
        "compact succeeded compacted 6 files into 1",
        "rewrite_position_deletes skipped no position delete files eligible for merging",
        "expire_snapshots succeeded expired 6 snapshot(s), deleted 18 unreferenced file(s)",
        "remove_orphans succeeded removed 0 orphan file(s)",
    ]
    assert answer.err == ""


def test_with_json_people_read_standard_error(command: Command) -> None:
    command.table()
    text, both = command(*PASS, "--dry-run"), command(*PASS, "--dry-run", "--json")
    assert both.err == text.out
    assert text.out.startswith("ns.t: succeeded (dry run: nothing was changed)\n")
    assert both.json["dry_run"] is True


@pytest.mark.parametrize("asked", ["rewrite_manifests,compact", "compact,rewrite_manifests", "compact , compact,all"])
def test_operations_run_in_canonical_order(command: Command, asked: str) -> None:
    command.table()
    answer = command(*PASS, "--dry-run", "--json", "--operations", asked)
    assert answer.code == 0
    wanted = OPERATION_NAMES if "all" in asked else ["compact", "rewrite_manifests"]
    assert list(statuses(answer)) == wanted


def test_a_dry_run_changes_nothing_and_lists_what_it_would(command: Command) -> None:
    table = command.table()
    orphan = local_path(table.location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"PAR1")
    os.utime(orphan, (1, 1))
    before = command.contents()

    answer = command(*PASS, "--dry-run", "--json")

    assert answer.code == 0
    assert command.contents() == before
    planned = {part["operation"]: part["files"]["planned"] for part in answer.json["operations"]}
    assert {name: len(paths) for name, paths in planned.items()} == {
        "compact": 6,
        "rewrite_position_deletes": 0,
        "expire_snapshots": 5,  # manifest lists: every data file and manifest is the head's too
        "remove_orphans": 1,
        "rewrite_manifests": 6,
    }
    assert planned["remove_orphans"] == [orphan.as_uri()]
    assert all(str(path) in before for paths in planned.values() for path in map(local_path, paths))
    assert all(part["files"]["deleted"] == [] for part in answer.json["operations"])
    assert all(part["snapshot_id"] is None for part in answer.json["operations"])
    assert summaries(answer) == {
        "compact": "would compact 6 files into 1 (across 1 bins)",
        "rewrite_position_deletes": "no position delete files eligible for merging",
        "expire_snapshots": "would expire 5 snapshot(s) and delete 5 unreferenced file(s)",
        "remove_orphans": "would remove 1 orphan file(s)",
        "rewrite_manifests": "would rewrite 6 manifests into 1",
    }


def test_what_a_dry_run_planned_is_what_happens(command: Command) -> None:
    """Operation by operation, since a pass changes what its later operations see."""
    table = command.table()
    orphan = local_path(table.location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"PAR1")
    os.utime(orphan, (1, 1))
    for name in OPERATION_NAMES:
        planned, done = (
            command(*PASS, "--operations", name, "--json", *dry).json["operations"][0] for dry in (["--dry-run"], [])
        )
        assert sorted(planned["files"]["planned"]) == sorted(done["files"]["planned"])
        assert (planned["status"], planned["reason"]) == (done["status"], done["reason"])
        if name in ("expire_snapshots", "remove_orphans"):
            assert sorted(done["files"]["deleted"]) == sorted(done["files"]["planned"])


def test_long_lists_of_files_go_to_a_file(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.table()
    monkeypatch.setattr(listings, "MAX_INLINE_PATHS", 5)
    answer = command(*PASS, "--json")
    compact, _, expiry, orphans, _ = (part["files"] for part in answer.json["operations"])
    assert compact == {"listing": compact["listing"], "planned_count": 6, "deleted_count": 0}
    assert expiry == {"listing": expiry["listing"], "planned_count": 18, "deleted_count": 18}
    assert orphans == {"planned": [], "deleted": []}
    for files in (compact, expiry):
        path = Path(files["listing"])
        assert path.is_relative_to(command.state.parent)
        listing = json.loads(path.read_text())
        assert {key: len(paths) for key, paths in listing.items()} == {
            "planned": files["planned_count"],
            "deleted": files["deleted_count"],
        }


# -- names


def test_everything_before_the_last_dot_is_the_namespace(command: Command) -> None:
    command.catalog.create_namespace("a.b")
    command.table("a.b.t")
    assert command("verify", "a.b.t", "--json").json["table"] == "a.b.t"
    assert command("detect", "--json").json["proposals"][0]["table"] == "a.b.t"
    assert command("maintain", "a.b.t", *LOCAL, "--json").json["table"] == "a.b.t"


def test_odd_names_stay_whole(command: Command) -> None:
    name = "ns.[bold]t ü"
    command.table(name)
    assert command("verify", name).out == f"{name}: ok (6 snapshots, 6 manifests, 6 files)\n"
    answer = command("maintain", name, *LOCAL, "--json")
    assert (answer.code, answer.json["table"]) == (0, name)


def test_every_operation_of_the_vocabulary_can_be_asked_for(command: Command) -> None:
    command.table()
    for operation in Operation:
        answer = command("maintain", "ns.t", *LOCAL, "--dry-run", "--operations", operation.value)
        assert (answer.code, answer.err) == (0, "")


def test_many_small_appends_of_different_schemas_keep_their_rows(command: Command) -> None:
    table = command.table(appends=3)
    with table.update_schema() as update:
        update.rename_column("name", "label")
    table = command.catalog.load_table("ns.t")
    for _ in range(3):
        table.append(pa.table({"id": pa.array([4], pa.int64()), "label": ["d"]}))
    before = rows(command)
    assert command(*PASS).code == 0
    assert rows(command) == before
