"""``icekeeper plan`` and dry runs report what a pass would do; the pass confirms the figures."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from icekeeper.operations.compaction.land import expected_files
from icekeeper.policy import Operation
from icekeeper.report.outcome import in_turn, order_json
from icekeeper.storage.paths import normalise
from support.command import EVERYTHING_IS_OLD, Command, local_path
from support.maintained_table import assert_agree, dry_run, maintained_table, outcome_of
from support.moments import Moment, at
from support.v3 import delete_positions, file_of, upgraded_table, with_row_ids

# Dry runs plan each operation on the current table, and in turn on the result of the earlier operations.

OPERATIONS = ("--engine", "local", "--operations", "compact,rewrite_manifests")


def test_a_dry_run_answers_on_the_head_and_in_turn(command: Command) -> None:
    command.table(appends=6)
    dry = command("maintain", "ns.t", *OPERATIONS, "--dry-run", "--json").json
    manifests = dry["operations"][1]
    assert (manifests["summary"], len(manifests["files"]["planned"])) == ("would rewrite 6 manifests into 1", 6)
    assert dry["planned_anew"] == {"rewrite_manifests": ["compact"]}
    left = "only 2 data manifests, below threshold of 5"
    assert {key: manifests["in_turn"][key] for key in ("status", "reason", "planned_after")} == {
        "status": "skipped",
        "reason": left,
        "planned_after": ["compact"],
    }
    replanned = "planned on the table as the earlier operations would leave it: rewrite_manifests"
    for called in (("plan", "ns.t"), ("maintain", "ns.t", "--dry-run")):
        text = command(*called, *OPERATIONS).out
        assert (replanned in text, "rewrite 6 manifests" in text) == (True, False)
    plan = command("plan", "ns.t", *OPERATIONS, "--json").json
    assert (plan["operations"][1]["reason"], plan["planned_anew"]) == (left, {})


# A dry run plans each operation on the result of the earlier operations, as the pass runs them.


def test_partitions_that_would_expire_are_not_compacted_first(tmp_path: Path) -> None:
    """The snapshot of the first operation expires in the same pass; its files do not exist yet."""
    with maintained_table(tmp_path) as made:
        made.create()
        with made.table.update_spec() as update:
            update.add_identity("part")
        for number in range(3):
            made.append(number, part="2020-01-01")
            made.append(10 + number, part="2999-01-01")
        called = "expire_partitions,compact,expire_snapshots,rewrite_manifests"
        settings: dict[str, Any] = {"partition_retention_hours": "24", "partition_time": "part=%Y-%m-%d"}
        would = dry_run(made, called, **settings)
        assert outcome_of(would, Operation.COMPACT).summary == "would compact 3 files into 1 (across 1 bins)"
        expiry = outcome_of(would, Operation.EXPIRE_SNAPSHOTS)
        assert all(Path(normalise(path)).exists() for path in expiry.files_planned)
        assert_agree(would, made.maintain(called, **settings))


def test_a_dry_run_drops_the_deletion_vectors_of_compacted_files(tmp_path: Path) -> None:
    with upgraded_table(tmp_path) as made:
        with_row_ids(made)
        delete_positions(made, {file_of(made, 0): [0], file_of(made, 100): [1, 2]})
        assert_agree(dry_run(made), made.maintain())


def test_an_operation_is_planned_on_the_result_of_an_earlier_operation(tmp_path: Path) -> None:
    """Compaction leaves two manifests, one of them with the deleted entries."""
    with maintained_table(tmp_path) as made:
        made.create(properties={"icekeeper.operations": "compact,rewrite_manifests"})
        made.fill(4)
        would = dry_run(made)
        manifests = outcome_of(would, Operation.REWRITE_MANIFESTS)
        assert (manifests.summary, manifests.planned_after) == (
            "would rewrite 2 manifests into 1",
            (Operation.COMPACT,),
        )
        assert not manifests.files_planned  # they have no names yet
        assert_agree(would, made.maintain())


def test_after_a_commit_during_a_dry_run_later_plans_read_the_new_head(tmp_path: Path) -> None:
    """Earlier plans no longer apply, so that later operations are planned on the table itself."""
    with maintained_table(tmp_path) as made:
        made.create()
        made.fill(4)
        with at(Moment.AFTER_LISTING, lambda: made.append(99)):
            would = in_turn(made.maintain("compact,remove_orphans,rewrite_manifests", dry_run=True))
        manifests = outcome_of(would, Operation.REWRITE_MANIFESTS)
        assert (manifests.summary, manifests.planned_after) == ("would rewrite 5 manifests into 1", ())
        assert order_json(would.operations) == {"rewrite_manifests": ["compact"]}


def test_an_unknown_result_leaves_later_plans_on_the_current_table(tmp_path: Path) -> None:
    """The plan itself is kept; later operations are planned on the current table and reported as planned anew."""
    with maintained_table(tmp_path) as made:
        made.create()
        made.fill(4)
        with mock.patch.object(
            expected_files, "expected_result", side_effect=KeyError("a document that breaks the rules")
        ):
            would = dry_run(made, "compact,rewrite_manifests")
        assert [item.summary for item in would.operations] == [
            "would compact 4 files into 1 (across 1 bins)",
            "would rewrite 4 manifests into 1",
        ]
        assert order_json(would.operations) == {"rewrite_manifests": ["compact"]}


# ``icekeeper plan`` reports what a pass would do and free, and the bytes that each ref holds alone; it changes nothing.

LOCAL = ("--engine", "local")
BOTH = (*EVERYTHING_IS_OLD, "--operations", "expire_snapshots,remove_orphans")


def test_a_plan_names_the_files_that_a_pass_then_deletes(command: Command) -> None:
    """It reports their size on the disk."""
    table = command.table()
    orphan = local_path(table.location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"12345")
    before = command.contents()
    planned = command("plan", "ns.t", *LOCAL, *BOTH, "--json")
    assert (planned.code, command.contents()) == (0, before)
    expiry, sweep = planned.json["operations"]
    assert sweep["files"]["planned"] == [orphan.as_uri()]
    sizes = [Path(local_path(path)).stat().st_size for path in expiry["files"]["planned"]]
    assert planned.json["reclaimable_bytes"] == sum(sizes) + 5
    done = command("maintain", "ns.t", *LOCAL, *BOTH, "--json")
    for would, did in zip(planned.json["operations"], done.json["operations"], strict=True):
        assert did["files"]["deleted"] == would["files"]["planned"]


def test_a_plan_names_the_bounds_that_another_engine_must_keep(command: Command) -> None:
    """Pins, staged loads, the grace period and protected prefixes."""
    table = command.table(appends=3)
    snapshots = [snapshot.snapshot_id for snapshot in table.snapshots()]
    for name, place in (("older", 1), ("newer", 2)):
        assert (
            command("pin", "add", "ns.t", "--snapshot", str(snapshots[place]), "--ttl", "1d", "--name", name).code == 0
        )
    staged, prefix = f"{table.location()}/data/loaded.parquet", f"{table.location()}/data/load-1"
    assert command("stage", "add", "ns.t", "--name", "open", "--file", staged, "--prefix", prefix).code == 0
    assert command("stage", "add", "ns.t", "--name", "failed", "--file", f"{staged}.2").code == 0
    assert command("stage", "failed", "ns.t", "--name", "failed").code == 0
    kept = f"{table.location()}/data/kept"
    settings = ("--set", f"orphan_protected_prefixes={kept}", "--set", "orphan_older_than_hours=48")
    before = command.contents()
    bounds = command("plan", "ns.t", *LOCAL, *settings, "--json").json["bounds"]
    assert command.contents() == before
    now_ms, hour_ms = bounds["now_ms"], 3_600_000
    assert abs(now_ms - time.time() * 1000) < 60_000
    assert bounds == {
        "now_ms": now_ms,
        "metadata_location": command.catalog.load_table("ns.t").metadata_location,
        "gc_enabled": True,
        "oldest_pinned_snapshot_id": snapshots[1],
        "pinned_metadata": [table.metadata_location],
        "staged": {"prefixes": [prefix], "files": [staged]},
        "protected_prefixes": [kept],
        "allowed_prefixes": [command.warehouse.as_uri()],
        "orphans_modified_before_ms": now_ms - 48 * hour_ms,
        "snapshots_committed_before_ms": now_ms - 168 * hour_ms,
        "snapshots_kept": 5,
    }


def test_many_staged_files_are_listed_beside_the_document(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    table = command.table()
    staged = f"{table.location()}/data/loaded.parquet"
    assert command("stage", "add", "ns.t", "--name", "open", "--file", staged).code == 0
    monkeypatch.setattr("icekeeper.administration.settings.MAX_INLINE_PATHS", 0)
    found = command("plan", "ns.t", *LOCAL, "--json").json["bounds"]["staged"]
    assert (found["prefixes"], found["files_count"]) == ([], 1)
    assert json.loads(Path(found["listing"]).read_text()) == {"staged": [staged]}


def test_a_tag_costs_the_bytes_that_only_it_holds(command: Command) -> None:
    """These are the files, metadata included, that dropping the tag would free."""
    table = command.table(appends=1)
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "kept").commit()  # type: ignore[union-attr]
    first = table.inspect.files()["file_path"].to_pylist()
    table = command.catalog.load_table("ns.t")
    table.delete()
    answer = command("plan", "ns.t", *LOCAL, "--json")
    assert answer.code == 0
    costs = answer.json["costs"]
    by_name = {ref["name"]: ref for ref in costs["refs"]}
    assert {name: (ref["type"], ref["snapshots"]) for name, ref in by_name.items()} == {
        "main": ("branch", 2),
        "kept": ("tag", 1),
    }
    assert by_name["kept"]["bytes_only_here"] == 0  # its snapshot is in the history of main
    assert [s["refs"] for s in costs["snapshots"]] == [["kept", "main"], ["main"]]
    assert costs["bytes"] >= local_path(first[0]).stat().st_size


def test_the_text_of_a_plan_shows_reclaimable_bytes(command: Command) -> None:
    command.table(appends=2)
    answer = command("plan", "ns.t", *LOCAL)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0] == "ns.t: planned (dry run: nothing was changed)"
    assert any(line.startswith("reclaimable: 0 B of the ") for line in lines)
    assert any(line.startswith("main  branch  2 snapshots, ") for line in lines)


# ``icekeeper plan`` reports how many files a lookup opens.


def test_the_plan_of_a_sorted_table_reports_its_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    icekeeper = Command(tmp_path, monkeypatch, capsys)
    icekeeper.table(appends=5)
    by_id = ("--operations", "compact", "--set", "strategy=sort", "--set", "sort_order=id")
    lines = icekeeper("plan", "ns.t", *by_id).out.splitlines()
    assert "clustering depth: a lookup opens 5 files on average" in lines
    metrics = icekeeper("plan", "ns.t", *by_id, "--json").json["metrics"]
    assert metrics["compact.depth_before"] == 5.0
    assert "clustering depth" not in icekeeper("plan", "ns.t", "--operations", "compact").out
