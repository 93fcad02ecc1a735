"""``icekeeper repair`` mends damage that other writers made, and every reader then reads the promised rows."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import PlanStale
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.types import encode
from icekeeper.model import EntryStatus, ManifestEntry, ManifestFile
from icekeeper.repair.lost_files import lost_files
from icekeeper.repair.plan import Head, RepairOptions
from icekeeper.repair.repair import RepairOutcome
from icekeeper.report.outcome import PassStatus
from icekeeper.storage.copies import copy_object
from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer
from support.command import LOCAL, Answer, Command, local_path, rows
from support.damaged_table import Damaged, Record, entry, read_avro
from support.deletes import commit_deletes, create_by_region, equality_delete, region_rows, relist, rows_of
from support.maintained_table import NAME, MaintainedTable, maintained_table
from support.moments import Moment, at
from support.plans import data_file
from support.tables import new_document


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


def test_an_older_folder_has_the_missing_file(command: Command, damaged: Damaged) -> None:
    """It is copied back, without a commit; a damaged file of the same name and size is not."""
    before, path = rows(command), local_path(damaged.data_files[0])
    backup = path.parent.parent / "backup" / path.name
    backup.parent.mkdir()
    shutil.move(path, backup)
    dry = repair(command, "--dry-run")
    assert (dry.code, dry.json["summary"]) == (0, "would copy 1 file back")
    assert {snapshot["state"] for snapshot in dry.json["retained"]} <= {"mended"}
    whole = backup.read_bytes()
    backup.write_bytes(b"\0" * len(whole))
    refused = repair(command, "--drop-missing", "--yes")
    assert (refused.code, refused.json["repaired_entry_count"]) == (1, 0)
    assert "is not dropped while" in refused.json["unmended"][0]["detail"]
    backup.write_bytes(whole)
    assert repair(command, "--yes").code == 0
    assert rows(command) == before
    assert backup.exists()
    assert verified(command) == (True, [], 0)


def test_a_file_that_is_gone_is_dropped_on_request_alone(command: Command, damaged: Damaged) -> None:
    """A file that is gone for good: the plan names its rows, and a whole pass runs afterwards."""
    gone = damaged.data_files[0]
    kept = rows(command)
    local_path(gone).unlink()
    (left,) = repair(command, "--dry-run").json["unmended"]
    assert (left["path"], left["option"]) == (gone, "--drop-missing")
    answer = repair(command, "--drop-missing", "--yes")
    assert (answer.code, answer.json["operation"]) == (0, "delete"), answer
    (mend,) = answer.json["mends"]
    assert (mend["kind"], mend["rows_lost"], mend["rows_back"]) == ("dropped_file", len(kept) // 3, 0)
    assert len(rows(command)) == len(kept) - len(kept) // 3
    assert verified(command)[:2] == (True, [])
    passed = command("maintain", "ns.t", "--operations", "all", *LOCAL, "--json")
    assert passed.code == 0, passed


def test_an_older_version_of_the_key_is_what_its_entry_describes(moto_server: MotoServer) -> None:
    """The newest version has the same size and other rows."""
    bucket = f"bucket-{uuid.uuid4()}"
    storage, path = Storage(moto_server.s3_properties), f"s3://{bucket}/t/data/f.parquet"
    moto_server.client("s3").create_bucket(Bucket=bucket)
    storage.s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    versions = []
    for ids in ([1, 2, 3], [4, 5, 6]):
        sink = pa.BufferOutputStream()
        field = pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})
        pq.write_table(pa.table({"id": ids}, schema=pa.schema([field])), sink)
        versions.append(sink.getvalue().to_pybytes())
        storage.write(path, versions[-1])
    storage.delete([path])
    assert len(versions[0]) == len(versions[1])
    lower, upper = ({1: encode("long", end)} for end in (1, 3))
    file = data_file(path, len(versions[0]), records=3, lower_bounds=lower, upper_bounds=upper)
    metadata = TableMetadata(new_document(f"s3://{bucket}/t", 2))
    manifest = ManifestFile(manifest_path="m", manifest_length=1, partition_spec_id=0, added_snapshot_id=1)
    found = ManifestEntry(EntryStatus.EXISTING, 1, 1, 1, file)
    snapshot = Snapshot({"snapshot-id": 1, "timestamp-ms": 0})
    head = Head(
        metadata=metadata, snapshot=snapshot, manifests=(manifest,), entries={"m": (found,)}, sizes={path: None}
    )
    loaded = LoadedTable(NAME, metadata, f"s3://{bucket}/t/metadata/v1.json", "", moto_server.s3_properties)
    (mend,) = lost_files(head, RepairOptions(), loaded, storage).mends
    assert mend.copy_version is not None
    copy_object(storage, path, path, mend.copy_version)
    assert storage.read(path) == versions[0]


def test_a_file_is_dropped_only_if_the_store_says_that_it_is_gone(command: Command, damaged: Damaged) -> None:
    """A bucket that is missing or renamed is no evidence that its objects are gone."""
    local_path(damaged.data_files[0]).unlink()
    with mock.patch.object(Storage, "shows_missing", return_value=False):
        answer = repair(command, "--drop-missing", "--yes")
    assert (answer.code, answer.json["mends"], answer.json["snapshot_id"]) == (1, [], None)
    assert "the store does not say that it is gone" in answer.json["unmended"][0]["detail"]


def test_entries_of_a_copied_table_get_the_paths_of_its_files(command: Command, damaged: Damaged) -> None:
    """The entries still name the bucket that the table was copied from."""
    before, old = rows(command), "s3a://old-bucket"

    def move(records: list[Record]) -> None:
        for record in records:
            record["data_file"]["file_path"] = f"{old}{local_path(record['data_file']['file_path'])}"

    damaged.edit_manifest(move)
    answer = repair(command, "--yes")
    assert (answer.code, answer.json["operation"]) == (0, "replace"), answer
    (mend,) = answer.json["mends"]
    assert mend["kind"] == "moved_path"
    assert mend["path"].startswith(old)
    assert rows(command) == before
    assert verified(command)[:2] == (True, [])
    passed = command("maintain", "ns.t", "--operations", "all", *LOCAL, "--json")
    assert passed.code == 0, passed
    assert rows(command) == before


Change = Callable[[Record], object]


def described(**values: Any) -> Change:
    """The entry states these values of its file."""
    return lambda file: file.update(values)


def of_first_column(name: str, value: Any) -> Change:
    """The entry states this value in a map keyed by field ids, for the first column."""

    def change(file: Record) -> None:
        first = min(file[name], key=lambda pair: pair["key"])
        first["value"] = value if isinstance(value, bytes) else first["value"] + value

    return change


WRONG = [
    (described(record_count=7), "overwrite"),
    (described(file_size_in_bytes=100), "replace"),
    (described(split_offsets=[4, 10**9]), "replace"),
    (of_first_column("null_value_counts", 2), "replace"),
    (of_first_column("value_counts", -1), "replace"),
    (of_first_column("lower_bounds", (10**6).to_bytes(8, "little")), "replace"),
    (of_first_column("upper_bounds", (-(10**6)).to_bytes(8, "little", signed=True)), "replace"),
]


def stated(manifest: str) -> list[Record]:
    """What the entries of a manifest say about their files."""
    files = [entry["data_file"] for entry in read_avro(local_path(manifest))]
    for file in files:
        for name in ("column_sizes", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds"):
            file[name] = {pair["key"]: pair["value"] for pair in file[name]}
    return [{name: value for name, value in file.items() if value is not None} for file in files]


@pytest.mark.parametrize(("change", "operation"), WRONG)
def test_an_entry_is_corrected_by_its_file(command: Command, damaged: Damaged, change: Change, operation: str) -> None:
    """All that a healthy entry stated is back."""
    before = stated(damaged.manifests[0])
    damaged.edit_manifest(lambda records: change(records[0]["data_file"]))
    answer = repair(command, "--repair-file-metrics", "--yes")
    assert (answer.code, answer.json["operation"], answer.json["repaired_entry_count"]) == (0, operation, 1), answer
    snapshot = command.catalog.load_table("ns.t").current_snapshot()
    assert snapshot is not None
    after = [file for m in snapshot.manifests(damaged.table.io) for file in stated(m.manifest_path)]
    assert before[0] in after
    assert verified(command)[:2] == (True, [])


@pytest.mark.parametrize("is_entry", [True, False])
def test_only_files_decide_between_a_list_and_its_entries(command: Command, damaged: Damaged, is_entry: bool) -> None:
    """A list that is made to agree with wrong entries would hide the damage."""
    if is_entry:
        damaged.edit_manifest(lambda records: records[0]["data_file"].update(record_count=7))
    else:
        damaged.edit_list(lambda records: entry(records, damaged.manifests[0]).update(added_rows_count=7))
    answer = repair(command, "--yes")
    assert (answer.code, answer.json["mends"], answer.json["snapshot_id"]) == (1, [], None)
    assert [left["option"] for left in answer.json["unmended"]] == ["--repair-file-metrics"]
    assert repair(command, "--repair-file-metrics", "--yes").code == 0
    assert verified(command)[:2] == (True, [])
    head = command.catalog.load_table("ns.t").current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary["total-records"] == "9"


def test_a_wrong_size_is_reported_without_the_option(command: Command, damaged: Damaged) -> None:
    damaged.edit_manifest(lambda records: records[0]["data_file"].update(file_size_in_bytes=100))
    answer = repair(command, "--yes")
    assert (answer.code, answer.json["snapshot_id"]) == (1, None)
    assert [left["option"] for left in answer.json["unmended"]] == ["--repair-file-metrics"]


def test_a_manifest_that_its_list_hides_is_listed_anew(command: Command, damaged: Damaged) -> None:
    """Readers skip a manifest whose counts say that it has no live files, and the next commit would drop it."""
    before = rows(command)
    zero = dict.fromkeys(("added_files_count", "existing_files_count", "added_rows_count", "existing_rows_count"), 0)
    damaged.edit_list(lambda records: entry(records, damaged.manifests[0]).update(zero))
    answer = repair(command, "--yes")
    assert (answer.code, answer.json["operation"], answer.json["mends"][0]["kind"]) == (
        0,
        "overwrite",
        "manifest_counts",
    )
    assert rows(command) == before
    assert verified(command)[:2] == (True, [])


def test_a_manifest_whose_list_states_another_length_is_listed_anew(command: Command, damaged: Damaged) -> None:
    before, manifest = rows(command), damaged.manifests[1]
    damaged.edit_list(lambda listed: entry(listed, manifest).update(manifest_length=7))
    answer = repair(command, "--yes")
    assert (answer.code, answer.json["operation"], answer.json["repaired_manifests"]) == (0, "replace", 1), answer
    assert answer.json["mends"][0]["detail"].endswith("the manifest list says that it has 7 bytes")
    assert (rows(command), verified(command)[:2]) == (before, (True, []))


def test_each_branch_is_repaired_for_itself(command: Command, damaged: Damaged) -> None:
    """A tag that keeps an old head is no head: the other branch is still damaged."""
    damaged.table.manage_snapshots().create_branch(damaged.snapshot_id, "audit").commit()
    damaged.edit_manifest(lambda records: records.append(records[0]))
    answer = repair(command, "--branch", "audit", "--yes")
    assert answer.code == 1
    assert answer.err.endswith("verify still finds 3 problems\n")
    refs = command.catalog.load_table("ns.t").refs()
    assert (refs["audit"].snapshot_id, refs["main"].snapshot_id) == (answer.json["snapshot_id"], damaged.snapshot_id)
    assert repair(command, "--yes").code == 0
    assert verified(command)[:2] == (True, [])


def test_a_pause_stops_passes_and_no_repair(command: Command, damaged: Damaged) -> None:
    """People pause a damaged table first; one whose maintenance is disabled is left alone."""
    damaged.edit_manifest(lambda records: records.append(records[0]))
    disabled = "icekeeper.maintenance_enabled"
    with command.catalog.load_table("ns.t").transaction() as change:
        change.set_properties({disabled: "false"})
    answer = repair(command, "--yes")
    assert (answer.code, answer.json["error"]["type"]) == (1, "OperationRefused")
    assert "maintenance is disabled" in answer.json["error"]["message"]
    with command.catalog.load_table("ns.t").transaction() as change:
        change.remove_properties(disabled)
    assert command("pause", "ns.t", "--until", "1h").code == 0
    assert repair(command, "--yes").code == 0
    assert verified(command)[:2] == (True, [])


def test_a_saved_repair_does_what_was_reviewed_or_nothing(command: Command, damaged: Damaged) -> None:
    """An append in between changes no mend; another damage does."""
    before, path = rows(command), command.folder / "repair.json"
    damaged.edit_manifest(lambda records: records.append(records[0]))
    assert repair(command, "--save", str(path)).code == 0
    assert len(rows(command)) > len(before)
    damaged.table.append(damaged.table.scan(limit=1).to_arrow())
    with_append = command.contents()
    (saved,) = json.loads(path.read_text())["repairs"]
    assert "is listed 2 times" in saved["mends"][0]
    applied = command("apply", str(path), "--json", catalog=None)
    assert (applied.code, applied.json["repairs"][0]["repaired_entry_count"]) == (0, 1), applied
    assert len(rows(command)) == len(before) + 1
    again = command("apply", str(path), "--json", catalog=None)
    assert again.code == 1
    assert again.json["repairs"][0]["error"]["type"] == "PlanStale"
    assert command.contents().keys() > with_append.keys()
    (passed, *_) = command("history", "ns.t", "--json").json["passes"]
    assert passed["metrics"] == {"repair.repaired_manifests": 1, "repair.repaired_entry_count": 1}


# A file whose two entries differ, and other writers.


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    with maintained_table(tmp_path) as made:
        create_by_region(made, 1)
        yield made


def listed_again(table: MaintainedTable, entry: ManifestEntry, sequence_number: int | None) -> None:
    """Another writer lists a file a second time, with this sequence number or a new one."""

    def twice(found: ManifestEntry) -> list[ManifestEntry]:
        if found.file.key != entry.file.key:
            return [found]
        number = table.metadata.last_sequence_number + 1 if sequence_number is None else sequence_number
        return [found, replace(found, sequence_number=number, file_sequence_number=number)]

    relist(table, twice)


def repaired(table: MaintainedTable, **options: Any) -> RepairOutcome:
    runtime, chosen = table.runtime_with(), RepairOptions(**options)
    planned = runtime.plan_repair(NAME, chosen)
    assert planned.plan is not None
    done, found = runtime.repair(NAME, chosen, planned.plan.digest)
    assert found is None or found.ok, found
    return done


@pytest.mark.parametrize(("keep", "operation", "kept"), [(1, "overwrite", 9), (2, "overwrite", 10)])
def test_the_rows_under_each_choice_are_those_that_readers_see(
    table: MaintainedTable, keep: int, operation: str, kept: int
) -> None:
    """An equality delete reaches the older entry only, so the choice decides about row 3."""
    entry = next(entry for entry in table.entries() if entry.file.partition == ("us",))
    commit_deletes(table, [equality_delete(3, "us")])
    listed_again(table, entry, None)
    assert sum(region_rows(table).values()) == 10 + 9 + 10
    planned = table.runtime_with().plan_repair(NAME, RepairOptions()).plan
    assert planned is not None
    assert planned.is_empty
    assert [left.sentence.rpartition(": ")[2] for left in planned.unmended] == [
        "readers then see 9 of its 10 rows",
        "readers then see 10 of its 10 rows",
    ]
    done = repaired(table, keep=keep)
    assert done.plan is not None
    assert done.plan.operation == operation
    assert sum(region_rows(table).values()) == 10 + kept
    assert table.maintain().status is PassStatus.SUCCEEDED
    assert sum(region_rows(table).values()) == 10 + kept


def test_an_append_before_the_commit_keeps_the_plan_and_its_rows(table: MaintainedTable) -> None:
    """The plan is made anew on the newer head, and it is the same."""
    (entry, _) = table.entries()
    listed_again(table, entry, entry.sequence_number)
    with at(Moment.BEFORE_COMMIT, lambda: table.table.append(rows_of(500, 2, "us"))):
        done = repaired(table)
    assert done.plan is not None
    head = table.metadata.current_snapshot
    assert head is not None
    assert (len(done.plan.mends), done.snapshot_id) == (1, head.snapshot_id)
    assert sum(region_rows(table).values()) == 10 + 10 + 2


def test_another_plan_before_the_commit_changes_nothing(table: MaintainedTable) -> None:
    """Another writer removes the file, so there is nothing left of what was shown."""
    (entry, other) = table.entries()
    listed_again(table, entry, entry.sequence_number)
    with (
        at(Moment.BEFORE_COMMIT, lambda: listed_again(table, other, other.sequence_number)),
        pytest.raises(PlanStale, match="plan again"),
    ):
        repaired(table)
    head = table.metadata.current_snapshot
    assert head is not None
    assert "icekeeper.operation" not in head.summary
    assert table.unreferenced() == set()
