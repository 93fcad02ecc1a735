"""``icekeeper maintain``: its results, skipped and refused operations, and its journal."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from icekeeper.cli import main
from support.command import (
    EVERYTHING_IS_OLD,
    LOCAL,
    OPERATION_NAMES,
    PASS,
    Command,
    local_path,
    one_sentence,
    rows,
    statuses,
    summaries,
)
from support.proxies import closed_port

# A pass by ``icekeeper maintain`` over a local table.


def test_maintain_prints_every_operation_as_json(command: Command) -> None:
    table = command.table(appends=6)
    before = rows(command)
    inputs = {task.file.file_path for task in table.scan().plan_files()}

    answer = command(*PASS, "--json")

    assert answer.code == 0
    document = answer.json
    assert list(document) == [
        *("table", "catalog", "run_id", "dry_run", "status", "operations", "summary", "metrics", "engine")
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


def test_text_has_a_line_per_operation_and_a_second_pass_does_nothing(command: Command) -> None:
    command.table()
    text, both = command(*PASS, "--dry-run"), command(*PASS, "--dry-run", "--json")
    times = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z")  # a second may end between both
    assert times.sub("T", both.err) == times.sub("T", text.out)
    assert text.out.startswith("ns.t: planned (dry run: nothing was changed)\n")
    assert both.json["dry_run"] is True

    answer = command(*PASS)
    assert answer.code == 0
    assert [" ".join(line.split()) for line in answer.out.splitlines()][:5] == [
        "ns.t: succeeded",
        "compact succeeded compacted 6 files into 1",
        "rewrite_position_deletes skipped no position delete files eligible for merging",
        "expire_snapshots succeeded expired 6 snapshots, deleted 18 unreferenced files",
        "remove_orphans succeeded removed 0 orphan files",
    ]
    assert answer.err == ""

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
    assert [status for status, _ in statuses(answer).values()] == [*["skipped"] * 3, "succeeded", "skipped"]
    assert command.contents() == before
    # The journal has no entry of a pass that changed nothing.
    assert len(passes(command)) == 1


def test_a_table_without_a_snapshot_is_skipped(command: Command) -> None:
    command.table(appends=0)
    answer = command(*PASS, "--json")
    assert answer.code == 0
    assert statuses(answer) == {
        "compact": ("skipped", "no current snapshot"),
        "rewrite_position_deletes": ("skipped", "no current snapshot"),
        "expire_snapshots": ("skipped", "no snapshots to expire"),
        "remove_orphans": (
            "skipped",
            "ns.t has never had a commit, so nothing shows that the files in its folder belong to Iceberg; if they "
            "do, run icekeeper maintain ns.t --catalog C --operations remove_orphans",
        ),
        "rewrite_manifests": ("skipped", "no current snapshot"),
    }


def test_a_dry_run_changes_nothing_and_lists_the_files_of_the_pass(command: Command) -> None:
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
    # One operation at a time, because a pass changes the input of its later operations.
    for name in OPERATION_NAMES:
        dry, done = (
            command(*PASS, "--operations", name, "--json", *option).json["operations"][0]
            for option in (["--dry-run"], [])
        )
        assert sorted(dry["files"]["planned"]) == sorted(done["files"]["planned"])
        assert (dry["status"], dry["reason"]) == (done["status"], done["reason"])
        if name in ("expire_snapshots", "remove_orphans"):
            assert sorted(done["files"]["deleted"]) == sorted(done["files"]["planned"])


# -- names


def test_everything_before_the_last_dot_is_the_namespace_and_odd_names_stay_whole(command: Command) -> None:
    command.catalog.create_namespace("a.b")
    command.table("a.b.t")
    assert command("verify", "a.b.t", "--json").json["table"] == "a.b.t"
    assert command("detect", "--json").json["proposals"][0]["table"] == "a.b.t"
    assert command("maintain", "a.b.t", *LOCAL, "--json").json["table"] == "a.b.t"
    name = "ns.[bold]t ü"
    command.table(name, appends=1)
    assert command("verify", name).out == f"{name}: ok (1 snapshot, 1 manifest, 1 file)\n"
    answer = command("maintain", name, *LOCAL, "--json")
    assert (answer.code, answer.json["table"]) == (0, name)


# The journal has entries of passes that changed something, failed or were refused.

AGED_PASS = ("maintain", "ns.t", "--engine", "local", *EVERYTHING_IS_OLD, "--json")


def passes(command: Command) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = command("history", "ns.t", "--json").json["passes"]
    return found


def test_only_passes_that_changed_something_or_were_refused_are_recorded(command: Command) -> None:
    table = command.table(appends=2)
    first = command(*AGED_PASS).json
    second = command(*AGED_PASS).json
    sweep = next(part for part in second["operations"] if part["operation"] == "remove_orphans")
    assert (sweep["status"], sweep["summary"]) == ("succeeded", "removed 0 orphan file(s)")
    assert [item["run_id"] for item in passes(command)] == [first["run_id"]]
    orphan = local_path(table.location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"PAR1")
    for _ in range(2):
        command(*AGED_PASS, "--operations", "remove_orphans")
    newest, _ = passes(command)
    assert newest["summary"] == "remove_orphans: removed 1 orphan file(s)"
    assert not orphan.exists()
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    local_path(snapshot.manifest_list).unlink()
    for count in (1, 2):
        command(*AGED_PASS, "--operations", "remove_orphans")
        assert [item["status"] for item in passes(command)] == [*["partial"] * count, *["succeeded"] * 2]


# Operations that ``icekeeper maintain`` skips, refuses or fails, and the rest of the pass.


def test_disabled_maintenance_skips_all_and_gc_disabled_skips_deletions(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bound overrides the settings of the call."""
    table, off = command.table(appends=2), ("--set", "maintenance_enabled=false")
    before = command.contents()

    def assert_skipped(named: str, *more: str) -> None:
        answer = command(*PASS, "--json", *more)
        assert (answer.code, answer.json["status"]) == (0, "succeeded")
        assert set(statuses(answer).values()) == {("skipped", f"maintenance is disabled ({named})")}
        assert command.contents() == before

    assert_skipped("this call", *off)
    with monkeypatch.context() as patch:
        patch.setenv("ICEKEEPER_MAINTENANCE_ENABLED", "false")
        assert_skipped("deployment ICEKEEPER_MAINTENANCE_ENABLED")
    with monkeypatch.context() as patch:
        patch.setenv("ICEKEEPER_BOUND_MAINTENANCE_ENABLED", "false")
        assert_skipped("bound ICEKEEPER_BOUND_MAINTENANCE_ENABLED", "--set", "maintenance_enabled=true")
    with table.transaction() as transaction:
        transaction.set_properties({"icekeeper.maintenance_enabled": "false"})
    before = command.contents()
    assert_skipped("table property icekeeper.maintenance_enabled")

    with table.transaction() as transaction:
        transaction.set_properties({"icekeeper.maintenance_enabled": "true", "gc.enabled": "false"})
    answer = command(*PASS, "--json", "--set", "min_input_files=2")
    assert answer.code == 0
    shown = "gc.enabled is false: this table's files must not be deleted"
    assert statuses(answer)["expire_snapshots"] == statuses(answer)["remove_orphans"] == ("skipped", shown)
    assert statuses(answer)["compact"] == ("succeeded", None)


def test_a_table_of_a_newer_format_is_refused_by_every_operation(command: Command) -> None:
    metadata = local_path(command.table().metadata_location)
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "format-version": 4}))
    before = command.contents()
    answer = command(*PASS, "--json")
    shown = "format version 4 is not maintained by this version of Icekeeper; the table was left alone"
    assert answer.code == 1
    assert answer.json["status"] == "partial"
    assert set(statuses(answer).values()) == {("refused", shown)}
    assert answer.err.splitlines()[-1].startswith("error: ns.t: compact refused, ")
    assert command.contents() == before
    detection = command("detect", "--json", "--unsafe")
    assert (detection.code, detection.json["proposals"]) == (0, [])


def test_a_refused_operation_does_not_stop_the_next(command: Command) -> None:
    """The folder has a metadata file of another table: the removal of orphans is refused, the rest is done."""
    table, other = command.table(), command.table("ns.other", appends=1)
    stray = local_path(table.location()) / "metadata" / "00000-of-another.metadata.json"
    stray.write_bytes(local_path(other.metadata_location).read_bytes())
    answer = command(*PASS, "--json")
    assert answer.code == 1
    assert answer.json["status"] == "partial"
    shown = [status for status, _ in statuses(answer).values()]
    assert shown == ["succeeded", "skipped", "succeeded", "refused", "skipped"]
    reason = statuses(answer)["remove_orphans"][1]
    assert reason is not None
    assert f"{stray.as_uri()} belongs to another table" in reason
    assert "counts only from the deployment, a policy file or the call; or, if the table was dropped" in reason
    assert answer.err.splitlines()[-1] == f"error: ns.t: remove_orphans refused: {reason}"
    assert stray.exists()


def test_a_table_at_the_location_of_a_dropped_table_is_swept_on_request(command: Command) -> None:
    """PyIceberg's default location is the same; health warns once, and detection proposes no sweep."""
    first = command.table(appends=2)
    command.catalog.drop_table("ns.t")
    table = command.table(appends=2)
    assert table.location() == first.location()
    left = {path for path in command.contents() if path.startswith("/")}
    answer = command(*PASS, "--json", "--operations", "remove_orphans")
    status, reason = statuses(answer)["remove_orphans"]
    assert (answer.code, status) == (0, "skipped")
    assert f"belongs to a dropped table (UUID {first.metadata.table_uuid})" in str(reason)
    assert left <= command.contents().keys()
    for _ in range(2):
        kinds = [item["kind"] for item in command("health", "ns.t", "--json").json["warnings"]]
        assert kinds.count("former_table") == 1
    detected = command("detect", "--json", "--unsafe").json
    assert not [item for item in detected["proposals"] if "orphans" in " ".join(item["reasons"])]
    metadata = local_path(table.location()) / "metadata"
    ours = {local_path(entry.metadata_file) for entry in table.metadata.metadata_log}
    theirs = {*metadata.glob("*.metadata.json")} - ours - {local_path(table.metadata_location)}
    named = ",".join(sorted(path.as_uri() for path in theirs))
    swept = command(
        *PASS,
        "--json",
        "--operations",
        "remove_orphans",
        "--set",
        f"orphan_protected_prefixes={named}",
        "--set",
        "orphan_max_delete_ratio=1",
    )
    assert statuses(swept)["remove_orphans"][0] == "succeeded"
    assert swept.json["operations"][0]["metrics"]["remove_orphans.orphans_removed"] == 6
    assert [item["kind"] for item in command("health", "ns.t", "--json").json["warnings"]].count("former_table") == 0


def test_a_store_that_does_not_answer_fails_the_pass_within_seconds(
    table_bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The catalog answers, but the bucket does not."""
    catalog = load_catalog("far", **table_bucket)
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    monkeypatch.setenv("ICEKEEPER_STATE", str(tmp_path / "state.db"))
    with closed_port() as endpoint:
        for key, value in {**table_bucket, "s3.endpoint": endpoint}.items():
            variable = key.upper().replace(".", "__").replace("-", "_")
            monkeypatch.setenv(f"PYICEBERG_CATALOG__FAR__{variable}", value)
        for arguments in (["maintain", "ns.t", *LOCAL], ["verify", "ns.t"]):
            started = time.monotonic()
            assert main([*arguments, "--catalog", "far"]) == 1
            assert time.monotonic() - started < 15
            captured = capsys.readouterr()
            assert f"nothing answers at {endpoint}" in one_sentence(captured.err)
    assert table.refresh().metadata.snapshots == table.metadata.snapshots
