"""A gallery of damage, alone and in random pairs: after ``icekeeper repair`` readers find exactly the promised rows.

Other means than Icekeeper's make the damage: PyIceberg and a foreign writer commit, fastavro edits manifests, and files
are moved or deleted.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from icekeeper.model import EntryStatus, FileContent, ManifestEntry
from icekeeper.repair.plan import RepairOptions, RepairPlan
from icekeeper.report.outcome import PassStatus
from support.damaged_table import Record, edit_avro, state_length
from support.deletes import commit_deletes, equality_delete, position_delete, relist
from support.maintained_table import NAME, MaintainedTable, local_path, maintained_table
from support.readers import duckdb_rows, pyiceberg_rows
from support.v3 import commit_files, data_files, delete_positions, live, upgrade, vectors

FILES, ROWS = 6, 10
SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("x", pa.float64())])


@dataclass
class Patient:
    """A table that is damaged, and what is promised of it."""

    table: MaintainedTable
    version: int
    partitioned: bool
    rng: random.Random
    whole: list[str] = field(default_factory=list)
    """Data files that nothing has damaged."""
    ids: dict[str, list[int]] = field(default_factory=dict)
    """Data file → its ids."""
    promised: Counter[int] = field(default_factory=Counter)
    options: dict[str, Any] = field(default_factory=dict)
    is_list_wrong: bool = False
    """Whether an entry of the head's manifest list is damaged."""

    def victim(self) -> str:
        return self.whole.pop(self.rng.randrange(len(self.whole)))

    @property
    def manifest_list(self) -> str:
        head = self.table.metadata.current_snapshot
        assert head is not None
        return str(head.manifest_list)

    def manifest_of(self, path: str) -> str:
        return next(manifest for manifest, entry in live(self.table) if entry.file.file_path == path)

    def edit(self, path: str, change: Callable[[list[Record], Record], object]) -> None:
        """Edit the manifest of a file: all its entries, and the file's own."""
        manifest = self.manifest_of(path)
        edit_avro(
            local_path(manifest),
            lambda found: change(found, next(e for e in found if e["data_file"]["file_path"] == path)),
        )
        for snapshot in self.table.metadata.snapshots.values():
            edit_avro(local_path(str(snapshot.manifest_list)), lambda listed: state_length(listed, manifest))

    def edit_list(self, change: Callable[[Record], object]) -> None:
        """Edit the first entry of the head's manifest list that is of data files."""

        def first(listed: list[Record]) -> None:
            change(next(record for record in listed if record.get("content", 0) == 0))

        self.is_list_wrong = True
        edit_avro(local_path(self.manifest_list), first)

    def hide(self, path: str) -> None:
        """Move a file to a folder below the table."""
        backup = self.table.folder / "backup" / Path(path).name
        backup.parent.mkdir(exist_ok=True)
        shutil.move(local_path(path), backup)


@contextmanager
def patient(folder: Path, version: int, partitioned: bool, seed: int) -> Iterator[Patient]:
    with maintained_table(folder) as table:
        table.pyiceberg.create_namespace("ns")
        columns = [(1, "id", LongType()), (2, "region", StringType()), (3, "x", DoubleType())]
        spec = PartitionSpec(*[PartitionField(2, 1000, IdentityTransform(), "region")][: 1 if partitioned else 0])
        written = table.pyiceberg.create_table(
            "ns.t",
            Schema(*(NestedField(*column) for column in columns)),
            partition_spec=spec,
            properties={"format-version": str(min(version, 2))},
        )
        for number in range(FILES):
            ids = list(range(number * ROWS, number * ROWS + ROWS))
            written.append(pa.table([ids, ["us"] * ROWS, [float("nan"), *map(float, ids[1:])]], schema=SCHEMA))
        if version == 3:
            upgrade(table)
            commit_files(table, [], {})  # the first commit of v3 gives every row its id
        made = Patient(table, version, partitioned, random.Random(seed))
        made.whole = sorted((file.file_path for file in data_files(table)), key=_first_id)
        for number, path in enumerate(made.whole):
            made.ids[path] = list(range(number * ROWS, number * ROWS + ROWS))
        made.promised = Counter(range(FILES * ROWS))
        yield made


def _first_id(path: str) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_table(local_path(path), columns=["id"])["id"][0].as_py())


Make = Callable[[Patient], None]
GALLERY: dict[str, tuple[int, tuple[int, ...], Make]] = {}
"""Name → the order in which it is made (entries, deletes, manifests, lists), the versions, how it is made."""


def damage(order: int, *versions: int) -> Callable[[Make], Make]:
    def named(make: Make) -> Make:
        GALLERY[make.__name__.replace("_", " ")] = order, versions or (1, 2, 3), make
        return make

    return named


def metric(name: str, change: Callable[[Any], Any]) -> None:
    """Damage to a field of an entry, or to the value of a map's first column."""

    def make(one: Patient) -> None:
        def edit(found: list[Record], entry: Record) -> None:
            file = entry["data_file"]
            if isinstance(file[name], list) and name != "split_offsets":
                file[name][0]["value"] = change(file[name][0]["value"])
            else:
                file[name] = change(file[name])

        one.edit(one.victim(), edit)
        one.options["file_metrics"] = True

    GALLERY[f"wrong {name.replace('_', ' ')}"] = 0, (1, 2, 3), make


metric("record_count", lambda count: count + 3)
metric("file_size_in_bytes", lambda size: size - 7)
metric("split_offsets", lambda offsets: [4, 10**9])
metric("column_sizes", lambda size: size + 1)
metric("value_counts", lambda count: count - 1)
metric("null_value_counts", lambda count: count + 2)
metric("lower_bounds", lambda bound: (10**6).to_bytes(8, "little"))
metric("upper_bounds", lambda bound: (-(10**6)).to_bytes(8, "little", signed=True))


@damage(0, 1, 2)
def listed_twice_in_a_manifest(one: Patient) -> None:
    one.edit(one.victim(), lambda found, entry: found.append(entry))


@damage(1, 2)
def listed_twice_by_a_rewrite_of_manifests(one: Patient) -> None:
    path = one.victim()

    def carried(entry: ManifestEntry) -> list[ManifestEntry]:
        return [replace(entry, status=EntryStatus.EXISTING)] * (2 if entry.file.file_path == path else 1)

    relist(one.table, carried)


@damage(1, 2, 3)
def listed_again_with_a_new_sequence_number(one: Patient) -> None:
    path = one.victim()
    (file,) = (file for file in data_files(one.table) if file.file_path == path)
    commit_files(one.table, [replace(file, first_row_id=None)], {})
    one.options["keep"] = 1


@damage(0)
def moved_to_another_folder(one: Patient) -> None:
    one.hide(one.victim())


@damage(0, 1, 3)
def at_another_address(one: Patient) -> None:
    """Not of v2, where position deletes, which name old paths, leave it to a person."""
    path = one.victim()

    def change(found: list[Record], entry: Record) -> None:
        entry["data_file"]["file_path"] = f"s3a://old-bucket/t/data/{Path(path).name}"

    one.edit(path, change)


@damage(0)
def gone_for_good(one: Patient) -> None:
    path = one.victim()
    local_path(path).unlink()
    one.promised -= Counter(one.ids[path])
    one.options["drop_missing"] = True


@damage(1, 2)
def a_position_delete_is_gone(one: Patient) -> None:
    path = one.victim()
    commit_deletes(one.table, [_position_delete(one, path, 3)])
    local_path(_deletes(one)[-1]).unlink()
    one.options["drop_missing"] = True


@damage(1, 2)
def a_position_delete_is_elsewhere(one: Patient) -> None:
    path = one.victim()
    before = set(_deletes(one))
    commit_deletes(one.table, [_position_delete(one, path, 3)])
    (new,) = set(_deletes(one)) - before
    one.hide(new)
    one.promised -= Counter([one.ids[path][3]])


@damage(1, 2)
def an_equality_delete_is_gone(one: Patient) -> None:
    before = set(_deletes(one))
    commit_deletes(one.table, [_equality_delete(one, one.ids[one.victim()][4])])
    (new,) = set(_deletes(one)) - before
    local_path(new).unlink()
    one.options["drop_missing"] = True


@damage(1, 2)
def an_equality_delete_is_elsewhere(one: Patient) -> None:
    row, before = one.ids[one.victim()][4], set(_deletes(one))
    commit_deletes(one.table, [_equality_delete(one, row)])
    (new,) = set(_deletes(one)) - before
    one.hide(new)
    one.promised -= Counter([row])


@damage(1, 3)
def a_vector_is_gone(one: Patient) -> None:
    local_path(delete_positions(one.table, {one.victim(): [1, 2]})).unlink()
    one.options["drop_missing"] = True


@damage(1, 3)
def a_vector_is_elsewhere(one: Patient) -> None:
    path = one.victim()
    one.hide(delete_positions(one.table, {path: [1, 2]}))
    one.promised -= Counter(one.ids[path][1:3])


@damage(1, 3)
def a_data_file_has_two_vectors(one: Patient) -> None:
    path = one.victim()
    delete_positions(one.table, {path: [1]})
    old = vectors(one.table)[path].file
    delete_positions(one.table, {path: [2]})
    commit_files(one.table, [old], {})
    one.promised -= Counter(one.ids[path][1:3])


@damage(1, 3)
def a_vector_stands_in_another_partition(one: Patient) -> None:
    if one.partitioned:
        path = one.victim()
        delete_positions(one.table, {path: [5]}, under=("eu",))
        one.promised -= Counter([one.ids[path][5]])


@damage(1, 3)
def an_entry_of_a_vector_states_another_cardinality(one: Patient) -> None:
    path = one.victim()
    delete_positions(one.table, {path: [1, 2]})
    vector = vectors(one.table)[path].file
    commit_files(one.table, [replace(vector, record_count=3)], {vector.key: ""})
    one.promised -= Counter(one.ids[path][1:3])
    one.options["file_metrics"] = True


@damage(1, 2)
def a_position_delete_stands_in_another_partition(one: Patient) -> None:
    if one.partitioned:
        path = one.victim()
        content, more = _position_delete(one, path, 6)
        commit_deletes(one.table, [(content, {**more, "partition": ("eu",)})])
        one.promised -= Counter([one.ids[path][6]])


@damage(2, 2)
def a_position_delete_is_listed_twice(one: Patient) -> None:
    path = one.victim()
    before = set(_deletes(one))
    commit_deletes(one.table, [_position_delete(one, path, 7)])
    (new,) = set(_deletes(one)) - before
    one.edit(new, lambda found, entry: found.append(entry))
    one.promised -= Counter([one.ids[path][7]])


@damage(1, 3)
def vectors_of_a_file_that_left_the_table(one: Patient) -> None:
    path = one.victim()
    delete_positions(one.table, {path: [1]})
    old = vectors(one.table)[path].file
    delete_positions(one.table, {path: [2]})
    (data,) = (file for file in data_files(one.table) if file.file_path == path)
    commit_files(one.table, [old], {data.key: ""})
    one.promised -= Counter(one.ids[path])


@damage(0)
def two_files_gone_one_of_them_elsewhere(one: Patient) -> None:
    moved_to_another_folder(one)
    gone_for_good(one)


@damage(0, 1, 2)
def wrong_and_listed_twice(one: Patient) -> None:
    def change(found: list[Record], entry: Record) -> None:
        entry["data_file"]["record_count"] += 1
        found.append(entry)

    one.edit(one.victim(), change)
    one.options["file_metrics"] = True


def listed(name: str, *versions: int, **stated: Any) -> None:
    """Damage to an entry of the manifest list."""

    def make(one: Patient) -> None:
        one.edit_list(lambda record: _put(record, stated))
        if "added_rows_count" in stated:  # only the files show whether the list or the entries are right
            one.options["file_metrics"] = True

    GALLERY[name] = 3, versions or (1, 2, 3), make


def _put(record: Record, stated: Record) -> None:
    for key, value in stated.items():
        name = key if key in record else key.replace("files_count", "data_files_count")
        record[name] = value


listed("a list counts too many files", existing_files_count=77)
listed("a list counts too few rows", added_rows_count=0, existing_rows_count=1)
listed("a list counts deleted files", deleted_files_count=5, deleted_rows_count=50)
listed("a list counts too many rows", added_rows_count=10**6)
listed("a list counts other rows and another length", added_rows_count=3, manifest_length=3)
listed("a list hides a manifest", added_files_count=0, existing_files_count=0)
listed("a list states another length", manifest_length=1)
listed("a list states another sequence number", 2, 3, min_sequence_number=50)


@damage(3)
def a_list_narrows_its_partitions(one: Patient) -> None:
    if one.partitioned:

        def narrow(record: Record) -> None:
            record["partitions"][0].update(lower_bound=b"a", upper_bound=b"b")

        one.edit_list(narrow)


@damage(4)
def wrong_totals_of_the_snapshot(one: Patient) -> None:
    def change(document: dict[str, Any]) -> None:
        for snapshot in document["snapshots"]:
            if snapshot["snapshot-id"] == document["current-snapshot-id"]:
                snapshot["summary"]["total-records"] = "12345"

    one.table.rewrite_document(change)


@damage(5)
def a_manifest_is_elsewhere(one: Patient) -> None:
    one.hide(_sound_manifest(one))


@damage(5)
def a_manifest_is_cut_and_whole_elsewhere(one: Patient) -> None:
    path = local_path(_sound_manifest(one))
    backup = one.table.folder / "backup" / path.name
    backup.parent.mkdir(exist_ok=True)
    shutil.copy(path, backup)
    path.unlink()


@damage(7)
def the_manifest_list_is_elsewhere(one: Patient) -> None:
    if one.version < 3 or not one.is_list_wrong:  # it is then not taken back, nor rebuilt without its row ids
        one.hide(one.manifest_list)


@damage(6)
def the_list_of_an_old_snapshot_is_gone(one: Patient) -> None:
    head = one.table.metadata.current_snapshot
    assert head is not None
    oldest = min(one.table.metadata.snapshots.values(), key=lambda snapshot: snapshot.timestamp_ms)
    if oldest.snapshot_id != head.snapshot_id:
        one.hide(str(oldest.manifest_list))


@damage(8, 1, 2)
def the_manifest_list_is_gone_for_good(one: Patient) -> None:
    """The head only appended, so its parent's list and its own manifest prove it, unless the manifest is wrong, too."""
    head = one.table.metadata.current_snapshot
    if head is not None and head.summary["operation"] == "append" and not one.options and [*one.ids][-1] in one.whole:
        local_path(one.manifest_list).unlink()


@damage(4)
def all_data_files_are_elsewhere(one: Patient) -> None:
    for path in one.whole:
        one.hide(path)
    one.whole.clear()


def _sound_manifest(one: Patient) -> str:
    """A manifest of undamaged files, but not the first, about which the list may be wrong."""
    paths = one.whole or [*one.ids]
    return next(manifest for manifest, entry in reversed(live(one.table)) if entry.file.file_path in paths)


def _position_delete(one: Patient, path: str, position: int) -> tuple[pa.Table, dict[str, Any]]:
    content, more = position_delete(path, position, "us")
    return content, {**more, "partition": ("us",) if one.partitioned else ()}


def _equality_delete(one: Patient, row: int) -> tuple[pa.Table, dict[str, Any]]:
    content, more = equality_delete(row, "us")
    return content, {**more, "partition": ("us",) if one.partitioned else ()}


def _deletes(one: Patient) -> list[str]:
    found = one.table.data_files()
    return [file.file_path for file in found if file.content is not FileContent.DATA and file.content_offset is None]


def repaired(one: Patient, options: RepairOptions, names: str) -> RepairPlan:
    """Repair until there is nothing to repair; return the last plan."""
    for _ in range(3):
        plan = one.table.runtime.plan_repair(NAME, options).plan or pytest.fail("there is no head")
        if plan.is_empty:
            break
        one.table.runtime.repair(NAME, options, plan.digest)
    assert plan.is_empty, (names, [mend.sentence for mend in plan.every])
    return plan


def assert_kept(one: Patient, names: str) -> None:
    """Repair until there is nothing to repair; then verify, every reader and a whole pass agree."""
    table, plan = one.table, repaired(one, RepairOptions(**one.options), names)
    assert [left.sentence for left in plan.unmended] == [], names
    assert table.verify().problems == (), names
    for _ in range(2):
        location = table.loaded.metadata_location
        assert Counter(row["id"] for row in duckdb_rows(location)) == one.promised, names
        if one.version < 3 and not any(file.equality_ids for file in table.data_files()):  # else PyIceberg refuses
            assert Counter(row["id"] for row in pyiceberg_rows(location)) == one.promised, names
        assert table.maintain().status is PassStatus.SUCCEEDED, names


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("name", sorted(GALLERY))
def test_each_damage_is_mended(name: str, version: int, partitioned: bool, tmp_path: Path) -> None:
    _, versions, make = GALLERY[name]
    if version not in versions:
        pytest.skip("there is no such damage in this version")
    with patient(tmp_path, version, partitioned, 1) as one:
        make(one)
        assert_kept(one, name)


LEFT = (
    ("wrong record count", "moved to another folder"),
    ("wrong file size in bytes", "moved to another folder"),
    ("wrong split offsets", "moved to another folder"),
    ("wrong null value counts", "moved to another folder"),
    ("wrong file size in bytes", "at another address"),
    ("gone for good", "at another address"),  # the store there does not answer
)
"""Two damages of a file, after which a person has to decide whether the file that is found is the right one."""


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(("first", "second"), LEFT)
def test_a_file_that_may_be_another_one_is_left(first: str, second: str, version: int, tmp_path: Path) -> None:
    with patient(tmp_path, version, False, 1) as one:
        path = one.whole[0]
        for name in (first, second):
            one.whole = [path]
            GALLERY[name][2](one)
        before = {file.file_path for file in data_files(one.table)}
        plan = repaired(one, RepairOptions(file_metrics=True, drop_missing=True, keep=1), f"{first}; {second}")
        assert plan.unmended
        assert {file.file_path for file in data_files(one.table)} == before


PAIRS = 300


@pytest.mark.parametrize("seed", range(PAIRS))
def test_random_pairs_are_mended(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    version, partitioned = rng.choice((1, 2, 2, 3, 3)), rng.random() < 0.5
    fitting = sorted(name for name, (_, versions, _) in GALLERY.items() if version in versions)
    first, second = sorted(rng.sample(fitting, 2), key=lambda name: GALLERY[name][0])
    with patient(tmp_path, version, partitioned, seed) as one:
        for name in (first, second):
            GALLERY[name][2](one)
        assert_kept(one, f"{first}; {second} (v{version}, partitioned: {partitioned})")
