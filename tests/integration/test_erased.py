"""``erased`` finds a row wherever it is hidden, and its commands remove it; a scan of every file judges."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType

from icekeeper.catalogs.load import open_catalog
from icekeeper.engines import local_engine
from icekeeper.erasure import search
from icekeeper.erasure.prove import Search
from icekeeper.errors import StorageError
from icekeeper.metadata.puffin import THETA_SKETCH, PuffinBlob, encode_blobs
from icekeeper.model import DataFile, FileContent, TableName
from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer
from support.command import CATALOG, EVERYTHING_IS_OLD, LOCAL, Answer, Command, digest, local_path, one_sentence
from support.deletes import commit_deletes, position_delete
from support.maintained_table import MaintainedTable
from support.v3 import commit_files, commit_keys, delete_positions, upgrade

NEEDLE = "needle-7f3a"
WHERE = f"name = '{NEEDLE}'"
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"}),
        pa.field("name", pa.string(), metadata={b"PARQUET:field_id": b"2"}),
    ]
)
TIDY = ("maintain", "ns.t", *LOCAL, *EVERYTHING_IS_OLD, "--set", "writer_mark_retention_hours=0", "--operations")
Places = set[tuple[str, str, str]]
HIDDEN = "rows hidden by deletes, still stored"
VISIBLE = "rows that readers see"
KEYS = "keys or rows in delete files"
BOUNDS = "bounds or partition values in manifests"
TEXT = "a value in a metadata file"


class Hidden:
    """A table of rows around the row to hide: its name is never a bound of a file, unless a test wants so."""

    def __init__(self, command: Command, version: int = 2, spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC) -> None:
        self.command = command
        self.table: Table = command.catalog.create_table(
            "ns.t", SCHEMA, partition_spec=spec, properties={"format-version": str(min(version, 2))}
        )
        self.made = MaintainedTable(open_catalog(CATALOG), command.state.parent, pyiceberg=command.catalog)
        self.append("ann", "zoe")
        if version == 3:
            upgrade(self.made)

    def append(self, *names: str, **summary: str) -> str:
        """Append a file; returns its path."""
        before = self.data_files()
        self.table.refresh().append(rows(*names), snapshot_properties=summary)
        return next(iter(self.data_files() - before))

    def data_files(self) -> set[str]:
        return {str(file["file_path"]) for file in self.table.refresh().inspect.files().to_pylist()}

    def delete(self) -> None:
        self.table.refresh().delete(WHERE)

    def tidy(self) -> None:
        """Remove expired snapshots and orphans, so that only the head is left."""
        assert self.command(*TIDY, "expire_snapshots,remove_orphans").code == 0

    def write(self, name: str, content: pa.Table) -> str:
        """A file that no commit names."""
        path = local_path(self.table.location()) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(content, path)
        return f"file://{path}"

    @property
    def folder(self) -> Path:
        return local_path(self.table.location())


def rows(*names: str) -> pa.Table:
    return pa.table({"id": list(range(len(names))), "name": list(names)}, schema=ARROW)


def visible(table: Hidden) -> None:
    table.append("bob", NEEDLE, "tom")


def under_positions(table: Hidden) -> None:
    content, more = position_delete(table.append("bob", NEEDLE, "tom"), 1, "")
    commit_deletes(table.made, [(content, {**more, "partition": ()})])
    table.tidy()


def under_a_vector(table: Hidden) -> None:
    path = table.append("bob", NEEDLE, "tom") if table.made.loaded.metadata.format_version < 3 else append_v3(table)
    delete_positions(table.made, {path: [1]})
    table.tidy()


def append_v3(table: Hidden) -> str:
    """PyIceberg does not write v3."""
    path = table.write("data/three.parquet", rows("bob", NEEDLE, "tom"))
    commit_files(table.made, [made_file(local_path(path), record_count=3)], {})
    return path


def keys(column: str, value: object, field_id: int) -> tuple[pa.Table, dict[str, Any]]:
    kind = pa.int64() if isinstance(value, int) else pa.string()
    field = pa.field(column, kind, metadata={b"PARQUET:field_id": str(field_id).encode()})
    about = {"content": FileContent.EQUALITY_DELETES, "partition": (), "equality_ids": (field_id,)}
    return pa.table({column: [value]}, schema=pa.schema([field])), about


def under_equality(table: Hidden) -> None:
    table.append("bob", NEEDLE, "tom")
    commit_keys(table.made, [keys("id", 1, 1)])
    table.tidy()


def as_a_key(table: Hidden) -> None:
    commit_keys(table.made, [keys("name", NEEDLE, 2)])
    table.tidy()


def in_a_position_delete(table: Hidden) -> None:
    """Position delete files may hold the deleted rows."""
    content, more = position_delete(next(iter(table.data_files())), 0, "")
    row = pa.StructArray.from_arrays([pa.array([1]), pa.array([NEEDLE])], fields=list(ARROW))
    field = pa.field("row", row.type, metadata={b"PARQUET:field_id": b"2147483544"})
    commit_deletes(table.made, [(content.append_column(field, row), {**more, "partition": ()})])
    table.tidy()


def in_a_snapshot(table: Hidden) -> None:
    table.append("bob", NEEDLE, "tom")
    table.delete()


def in_a_branch(table: Hidden) -> None:
    visible(table)
    head = table.table.refresh().current_snapshot()
    assert head is not None
    table.table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
    table.delete()
    table.tidy()


def in_a_tag(table: Hidden) -> None:
    visible(table)
    head = table.table.refresh().current_snapshot()
    assert head is not None
    table.table.manage_snapshots().create_tag(head.snapshot_id, "audit").commit()
    table.delete()
    table.tidy()


def in_a_load(table: Hidden) -> None:
    path = table.write("data/load.parquet", rows("bob", NEEDLE))
    files = table.command.folder / "files.txt"
    files.write_text(f"{path}\n")
    assert table.command("stage", "add", "ns.t", "--name", "night", "--file-list", str(files)).code == 0


def in_an_orphan(table: Hidden) -> None:
    table.write("data/orphan.parquet", rows("bob", NEEDLE))


def in_an_unfinished_deletion(table: Hidden) -> None:
    path = table.write("data/waits.parquet", rows("bob", NEEDLE))
    memory = table.made.runtime.table(table.made.loaded.name).memory(table.made.loaded)
    memory.expect_deletions("run-1", [path])


def in_a_deleted_entry(table: Hidden) -> None:
    table.append(NEEDLE)
    table.delete()
    table.tidy()


def in_a_name(table: Hidden) -> None:
    table.write(f"data/name={NEEDLE}/orphan.parquet", rows("bob"))


def in_a_sketch(table: Hidden) -> None:
    blob = PuffinBlob(THETA_SKETCH, (2,), 0, 0, {}, 77, 1)
    (table.folder / "metadata" / "old.stats").write_bytes(encode_blobs([(blob, b"hashes")], {})[0])


def in_a_summary(table: Hidden) -> None:
    table.append("bob", comment=f"corrected {WHERE}")
    table.tidy()


def in_an_old_metadata_file(table: Hidden) -> None:
    table.append("bob", comment=f"corrected {WHERE}")
    table.append("tom")
    table.tidy()


CASES: dict[str, tuple[Callable[[Hidden], None], tuple[int, ...], Places]] = {
    "visible": (visible, (1, 2), {("ref", "main", VISIBLE)}),
    "positions": (under_positions, (2,), {("ref", "main", HIDDEN)}),
    "vector": (under_a_vector, (3,), {("ref", "main", HIDDEN)}),
    "equality": (under_equality, (2,), {("ref", "main", HIDDEN)}),
    "key": (as_a_key, (2, 3), {("ref", "main", KEYS)}),
    "row of a position delete": (in_a_position_delete, (2,), {("ref", "main", KEYS)}),
    "snapshot": (in_a_snapshot, (1, 2), {("snapshots", "", "rows")}),
    "branch": (in_a_branch, (1, 2), {("ref", "audit", VISIBLE)}),
    "tag": (in_a_tag, (2,), {("ref", "audit", VISIBLE)}),
    "load": (in_a_load, (1, 2, 3), {("staged load", "night", "rows")}),
    "orphan": (in_an_orphan, (1, 2, 3), {("orphans", "", "rows")}),
    "unfinished deletion": (in_an_unfinished_deletion, (2,), {("unfinished deletion", "run-1", "rows")}),
    "deleted entry": (in_a_deleted_entry, (1, 2), {("ref", "main", BOUNDS)}),
    "name": (in_a_name, (2,), {("orphans", "", "a value in the name of a file")}),
    "sketch": (in_a_sketch, (2,), {("orphans", "", "statistics over the rows")}),
    "summary": (in_a_summary, (2,), {("current metadata file", "", TEXT), ("metadata log", "", TEXT)}),
    "old metadata": (in_an_old_metadata_file, (2,), {("metadata log", "", TEXT)}),
}


@pytest.mark.parametrize(
    ("case", "version"), [(case, version) for case, (_, versions, _) in CASES.items() for version in versions]
)
def test_a_row_is_found_where_it_is_hidden_and_removed_by_the_commands(
    case: str, version: int, command: Command
) -> None:
    hide, _, expected = CASES[case]
    table = Hidden(command, version)
    hide(table)
    before = command.contents()
    answer = erased(command)
    assert command.contents() == before
    assert (answer.code, places(answer)) == (1, expected)
    if case not in ("sketch", "name"):  # the judge reads neither hashes nor names
        assert {path for place in answer.json["places"] for path in place["objects"]} == judged(table.folder)
    for _ in range(4):
        if answer.code != 1:
            break
        follow(table, answer)
        answer = erased(command)
    assert answer.code == 0, json.dumps([answer.json["places"], answer.json["unknown"]], indent=1)
    assert answer.json["answer"] == "gone"
    assert objects(answer) == {f"file://{path}": digest(path) for path in table.folder.rglob("*") if path.is_file()}
    assert judged(table.folder) == set()


# Formats and versions of data files, and columns that changed.


def orc_of(content: pa.Table) -> bytes:
    fields = [f.with_metadata({b"iceberg.id": f.metadata[b"PARQUET:field_id"]}) for f in content.schema]
    sink = io.BytesIO()
    orc.write_table(content.cast(pa.schema(fields)), sink)
    return sink.getvalue()


def avro_of(content: pa.Table) -> bytes:
    fields = [
        {"name": "id", "type": ["null", "long"], "field-id": 1},
        {"name": "name", "type": ["null", "string"], "field-id": 2},
    ]
    sink = io.BytesIO()
    fastavro.writer(sink, {"type": "record", "name": "table", "fields": fields}, content.to_pylist())
    return sink.getvalue()


@pytest.mark.parametrize("is_orphan", [False, True])
@pytest.mark.parametrize(("kind", "encode"), [("ORC", orc_of), ("AVRO", avro_of)])
def test_rows_are_found_in_every_format(
    kind: str, encode: Callable[[pa.Table], bytes], is_orphan: bool, command: Command
) -> None:
    table = Hidden(command)
    assert erased(command).code == 0
    data = encode(rows("bob", NEEDLE))
    path = table.folder / "data" / f"more.{kind.lower()}"
    path.write_bytes(data)
    if not is_orphan:
        commit_files(table.made, [made_file(path, kind)], {})
    answer = erased(command)
    assert places(answer) == {("orphans", "", "rows") if is_orphan else ("ref", "main", VISIBLE)}
    assert (answer.code, answer.json["places"][0]["rows"]) == (1, 1)


def made_file(path: Path, kind: str = "PARQUET", **more: Any) -> DataFile:
    about = {"partition": (), "record_count": 2, "file_size_in_bytes": path.stat().st_size}
    return DataFile(content=FileContent.DATA, file_path=f"file://{path}", file_format=kind, **{**about, **more})


def test_a_filter_uses_the_current_columns(command: Command) -> None:
    """By field id: renamed, promoted, lacking and with a default."""
    old = Schema(NestedField(1, "id", IntegerType()), NestedField(2, "name", StringType()))
    table = command.catalog.create_table("ns.t", old)
    table.append(pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["ann", NEEDLE]}))
    with table.update_schema() as change:
        change.rename_column("name", "label")
        change.update_column("id", LongType())
        change.add_column("more", StringType())
    made = MaintainedTable(open_catalog(CATALOG), command.state.parent)
    count = {}
    for where in (f"label = '{NEEDLE}' and id = 2", "id = 3000000000", "more is null", "more = 'x'", "name = 'ann'"):
        answer = erased(command, "--where", where)
        count[where] = (answer.code, sum(place["rows"] for place in answer.json.get("places", [])))
    assert count == {
        f"label = '{NEEDLE}' and id = 2": (1, 1),
        "id = 3000000000": (0, 0),
        "more is null": (1, 2),
        "more = 'x'": (0, 0),
        "name = 'ann'": (2, 0),
    }
    upgrade(made)
    made.rewrite_document(lambda d: d["schemas"][-1]["fields"][-1].update({"initial-default": "x"}))
    assert [erased(command, "--where", f"more = '{value}'").code for value in "xy"] == [1, 0]


def test_values_of_a_partition_stay_in_names_and_entries(command: Command) -> None:
    by_name = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    table = Hidden(command, spec=by_name)
    table.table.append(rows("bob", NEEDLE))
    table.delete()
    table.tidy()
    answer = erased(command)
    assert places(answer) == {("ref", "main", BOUNDS)}
    follow(table, answer)
    assert erased(command).code == 0
    assert judged(table.folder) == set()


# What cannot be read is unknown.


def encrypted(table: Hidden) -> str:
    path = local_path(table.write("data/secret.parquet", rows("bob")))
    commit_files(table.made, [made_file(path, key_metadata=b"key", record_count=1)], {})
    return "is encrypted"


def an_encrypted_orphan(table: Hidden) -> str:
    (table.folder / "data" / "secret.parquet").write_bytes(b"PARE" + bytes(40) + b"PARE")
    return "has a format that is not read"


def a_damaged_orphan(table: Hidden) -> str:
    path = local_path(table.write("data/cut.parquet", rows("bob")))
    path.write_bytes(path.read_bytes()[:-9])
    return "Parquet magic bytes not found in footer"


def a_text(table: Hidden) -> str:
    (table.folder / "README").write_text("who knows")
    return "has a format that is not read"


def an_orphan_without_ids(table: Hidden) -> str:
    table.write("data/plain.parquet", pa.table({"name": ["ann"], "mail": [NEEDLE]}))
    return "plain.parquet"


def a_linked_file(table: Hidden) -> str:
    """A listing leaves links out, but readers follow them."""
    path, elsewhere = local_path(table.append("bob", "tom")), table.command.warehouse / "elsewhere.parquet"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    return "is not listed"


def a_lost_list(table: Hidden) -> str:
    table.append("bob")
    snapshot = table.table.refresh().snapshots()[0]
    local_path(snapshot.manifest_list).unlink()
    return "does not exist"


@pytest.mark.parametrize(
    "hide",
    [encrypted, an_encrypted_orphan, a_damaged_orphan, a_text, an_orphan_without_ids, a_linked_file, a_lost_list],
)
def test_what_cannot_be_read_is_unknown(hide: Callable[[Hidden], str], command: Command) -> None:
    table = Hidden(command)
    why = hide(table)
    answer = erased(command)
    assert (answer.code, answer.json["answer"], places(answer)) == (4, "unknown", set())
    (found,) = answer.json["unknown"]
    assert why in found["reason"]


def test_checksums_and_markers_hold_no_values(command: Command) -> None:
    table = Hidden(command)
    for name, content in (("_SUCCESS", b""), (".f.parquet.crc", b"crc\0" + bytes(8)), ("version-hint.text", b"17\n")):
        (table.folder / "metadata" / name).write_bytes(content)
    assert erased(command).code == 0
    (table.folder / "metadata" / ".g.crc").write_bytes(NEEDLE.encode())
    assert erased(command).code == 4


def test_what_is_denied_is_unknown(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Hidden(command)

    def denied(storage: Storage, prefix: str) -> Any:
        raise StorageError(f"{prefix} cannot be accessed: access is denied to these credentials")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "list", denied)
        answer = erased(command)
        assert (answer.code, "access is denied" in answer.json["unknown"][0]["reason"]) == (4, True)
    monkeypatch.setattr(Storage, "can_list", lambda storage, location: False)
    answer = erased(command)
    assert (answer.code, "unseen" in answer.json["unknown"][0]["reason"]) == (4, True)
    assert len(answer.json["objects"]) > 3  # what metadata name is looked at nevertheless


def test_a_catalog_that_does_not_answer_is_unknown(command: Command) -> None:
    local_path(str(Hidden(command).table.refresh().metadata_location)).unlink()
    answer = command("erased", "ns.t", "--where", WHERE)
    assert (answer.code, one_sentence(answer.err).startswith("metadata file ")) == (4, True)


# Only the footer of a file excludes its rows.


def test_a_bound_excludes_no_file_whose_footer_disagrees(command: Command) -> None:
    table = Hidden(command)
    path = local_path(table.write("data/lie.parquet", rows("ann", NEEDLE)))
    wrong: dict[str, Any] = {"lower_bounds": {2: b"a"}, "upper_bounds": {2: b"b"}}
    commit_files(table.made, [made_file(path, **wrong)], {})
    answer = erased(command)
    assert places(answer) == {("ref", "main", VISIBLE)}


def test_a_footer_excludes_row_groups_unless_everything_is_read(command: Command) -> None:
    table = Hidden(command)
    path = local_path(table.write("data/lie.parquet", rows(NEEDLE)))
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[:start] + data[start:].replace(NEEDLE.encode(), b"noodle-7f3a"))
    believed = erased(command)
    assert (believed.code, believed.json["rows_excluded"], believed.json["rows_read"]) == (0, 1, 2)
    answer = erased(command, "--read-all")
    assert (answer.code, places(answer)) == (1, {("orphans", "", "rows")})


# Keys, and wrong calls.


def test_keys_come_from_a_file(command: Command, tmp_path: Path) -> None:
    visible(Hidden(command))
    listed, columns, wrong = tmp_path / "keys.csv", tmp_path / "keys.parquet", tmp_path / "wrong.csv"
    listed.write_text(f"name\nnobody\n{NEEDLE}\n")
    pq.write_table(pa.table({"id": [7, 2]}), columns)
    answers = [erased(command, "--keys", str(path)) for path in (listed, columns)]
    assert [sum(p["rows"] for p in answer.json["places"]) for answer in answers] == [1, 1]
    assert answers[0].json["filter"] == {"column": "name", "keys": 2, "sha256": digest(listed)}
    found = {}
    for text in ("name\n", "", "nome\nann\n", "id,name\n1,ann\n", "id\nann\n"):
        wrong.write_text(text)
        found[text] = command("erased", "ns.t", "--keys", str(wrong))
    assert {answer.code for answer in found.values()} == {2}
    assert "has no keys" in found["name\n"].err
    assert "did you mean 'name'" in found["nome\nann\n"].err
    assert "is not a file with one column" in found["id,name\n1,ann\n"].err
    both = ("erased", "ns.t", "--where", WHERE, "--keys", str(listed))
    assert [command(*call).code for call in (both, both[:2], (*both[:2], "--where", "nome = 1"))] == [2, 2, 2]


def test_keys_may_be_dates(command: Command, tmp_path: Path) -> None:
    table = command.catalog.create_table("ns.t", Schema(NestedField(1, "day", DateType())))
    table.append(pa.table({"day": pa.array([dt.date(2026, 1, 31), dt.date(2026, 2, 1)])}))
    listed = tmp_path / "days.csv"
    listed.write_text("day\n2026-01-31\n2025-01-01\n")
    answer = erased(command, "--keys", str(listed))
    assert [place["rows"] for place in answer.json["places"] if place["rows"]] == [1]


def test_workers_search_the_files(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes of their own, a task for each file."""
    table = Hidden(command)
    for _ in range(3):
        table.append("bob", NEEDLE, "tom")
    monkeypatch.setattr(search, "_TASK_BYTES", 1)
    monkeypatch.setattr(local_engine, "SMALL_WORK_BYTES", 1)
    assert erased(command).json["places"][0]["rows"] == 3


# Passes and writers meanwhile.


def test_rows_that_a_pass_moves_meanwhile_are_found(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between listing and reading, a pass moves the row to a file that the listing lacks, and deletes its file."""
    table = Hidden(command)
    for _ in range(5):
        table.append("bob", NEEDLE, "tom")
    listed = Search._list

    def moving(looking: Search) -> None:
        listed(looking)
        monkeypatch.setattr(Search, "_list", listed)
        assert command("maintain", "ns.t", *LOCAL, *EVERYTHING_IS_OLD, "--operations", "all").code == 0

    monkeypatch.setattr(Search, "_list", moving)
    answer = erased(command)
    assert (answer.code, places(answer), answer.json["moved"]) == (1, {("ref", "main", VISIBLE)}, 1)
    assert answer.json["places"][0]["rows"] == 5
    assert objects(answer) == {f"file://{path}": digest(path) for path in table.folder.rglob("*") if path.is_file()}


def test_a_table_that_never_rests_is_unknown(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Hidden(command)
    listed = Search._list

    def vanishing(looking: Search) -> None:
        path = table.folder / "data" / "fleeting.parquet"
        path.write_bytes(b"PAR1")
        listed(looking)
        path.unlink()

    monkeypatch.setattr(Search, "_list", vanishing)
    answer = erased(command)
    assert (answer.code, "or vanished before it was read" in answer.json["unknown"][0]["reason"]) == (4, True)


def test_people_see_each_place_once(command: Command) -> None:
    table = Hidden(command)
    under_positions(table)
    answer = command("erased", "ns.t", "--where", WHERE, *LOCAL)
    assert answer.code == 1
    assert answer.out.splitlines()[0] == "ns.t: present"
    (line,) = [line for line in answer.out.splitlines() if HIDDEN in line]
    assert line == f"  ref main: {HIDDEN}: 1 row in 1 object; the policy sets no day"
    document = erased(command).json
    assert (document["answer"], document["versions"].keys()) == ("present", {"icekeeper", "pyarrow"})
    assert document["statement"].startswith("1 place still stored matching rows, or values of them, at 20")


# Object stores.


def as_catalog(name: str, properties: dict[str, str], patch: pytest.MonkeyPatch) -> Catalog:
    """A catalog that the command finds, too."""
    for key, value in properties.items():
        patch.setenv(f"PYICEBERG_CATALOG__{name}__{key.upper().replace('-', '_').replace('.', '__')}", value)
    return load_catalog(name, **properties)


def test_older_versions_of_a_bucket_are_looked_at(
    command: Command, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    properties = {**moto_server.s3_properties, "type": "sql", "uri": f"sqlite:///{tmp_path}/b.db"}
    properties["warehouse"] = "s3://kept-versions/lake"
    client = Storage(moto_server.s3_properties).s3
    client.create_bucket(Bucket="kept-versions")
    client.put_bucket_versioning(Bucket="kept-versions", VersioningConfiguration={"Status": "Enabled"})
    catalog = as_catalog("B", properties, monkeypatch)
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", SCHEMA)
    table.append(rows("ann", "zoe"))
    table.append(rows("bob", NEEDLE, "tom"))
    table.delete(WHERE)
    assert command(*TIDY, "expire_snapshots,remove_orphans", catalog="B").code == 0
    answer = command("erased", "ns.t", "--where", WHERE, "--json", catalog="B")
    assert (answer.code, places(answer)) == (1, {("older versions", "", "rows")})
    assert not any("older versions" in text for text in answer.json["not_covered"])
    older = client.list_object_versions(Bucket="kept-versions")
    for entry in [*older["Versions"], *older["DeleteMarkers"]]:
        if entry["Key"] in {v["Key"] for v in older["DeleteMarkers"]}:
            client.delete_object(Bucket="kept-versions", Key=entry["Key"], VersionId=entry["VersionId"])
    answer = command("erased", "ns.t", "--where", WHERE, "--json", catalog="B")
    assert answer.code == 0, answer.out
    listed = {o["Key"]: o["ETag"].strip('"') for o in client.list_objects_v2(Bucket="kept-versions")["Contents"]}
    assert {o["path"].removeprefix("s3://kept-versions/"): o["etag"] for o in answer.json["objects"]} == listed


def erased(command: Command, *more: str) -> Answer:
    where = () if "--where" in more or "--keys" in more else ("--where", WHERE)
    return command("erased", "ns.t", *where, *LOCAL, "--json", *more)


def places(answer: Answer) -> Places:
    return {(place["holder"], place["name"], place["what"]) for place in answer.json["places"]}


def objects(answer: Answer) -> dict[str, str]:
    return {o["path"]: o["etag"].removeprefix("sha256:") for o in answer.json["objects"]}


def follow(table: Hidden, answer: Answer) -> None:
    """Do what the certificate says, in its order."""
    for step in answer.json["sooner"]:
        if step.startswith("SQL: "):
            run_sql(table, step.removeprefix("SQL: "))
            continue
        words = shlex.split(step)[1:]
        words = words[: words.index("--catalog")]
        found = table.command(*words, *(LOCAL if words[0] == "maintain" else ()))
        assert found.code == 0, (step, found.out, found.err)


def run_sql(table: Hidden, statement: str) -> None:
    """As an engine does."""
    now = table.table.refresh()
    if statement.startswith("DELETE FROM ns.t WHERE "):
        now.delete(statement.removeprefix("DELETE FROM ns.t WHERE "))
    elif dropped := re.search(r"DROP (BRANCH|TAG) `(\w+)`", statement):
        changes = now.manage_snapshots()
        (changes.remove_branch if dropped[1] == "BRANCH" else changes.remove_tag)(dropped[2]).commit()
    else:
        key, value = re.findall(r"'([^']+)'", statement)
        with now.transaction() as change:
            change.set_properties({key: value})
        for _ in range(2):
            table.append("later")


def judged(folder: Path) -> set[str]:
    """The files that hold the name, by readers that know nothing of Iceberg."""
    return {f"file://{path}" for path in folder.rglob("*") if path.is_file() and NEEDLE in decoded(path)}


def decoded(path: Path) -> str:
    data = path.read_bytes()
    if data.startswith(b"PAR1"):
        return str(pq.read_table(io.BytesIO(data)).to_pylist())
    if data.startswith(b"ORC"):
        return str(orc.read_table(io.BytesIO(data)).to_pylist())
    if data.startswith(b"Obj\x01"):
        return str(list(fastavro.reader(io.BytesIO(data))))
    return data.decode(errors="replace")


def test_a_table_bucket_of_seaweedfs(
    command: Command, table_bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = as_catalog("W", table_bucket, monkeypatch)
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", SCHEMA)
    table.append(rows("bob", NEEDLE, "tom"))
    answer = command("erased", "ns.t", "--where", WHERE, "--json", catalog="W")
    assert (answer.code, places(answer)) == (1, {("ref", "main", VISIBLE)})
    table.delete(WHERE)
    assert command(*TIDY, "expire_snapshots,remove_orphans", catalog="W").code == 0
    answer = command("erased", "ns.t", "--where", WHERE, "--json", catalog="W")
    assert answer.code == 0
    storage = Storage(open_catalog("W").load(TableName(("ns",), "t")).io_properties)
    listed = {found.path: (found.etag or "").strip('"') for found in storage.list(table.location())}
    assert objects(answer) == listed


def test_statistics_of_a_snapshot_with_the_row_are_a_place(command: Command) -> None:
    """Sketches hold hashes of the rows of their snapshot, also of the row that is hidden."""
    table = Hidden(command)
    under_positions(table)
    assert command("maintain", "ns.t", *LOCAL, "--operations", "compute_statistics").code == 0
    answer = erased(command)
    statistics = "statistics over the rows"
    assert {("ref", "main", statistics), ("ref", "main", HIDDEN)} <= places(answer)
    for _ in range(4):
        if answer.code == 1:
            follow(table, answer)
            answer = erased(command)
    assert answer.code == 0, answer.json["places"]


@pytest.mark.parametrize(("hide", "settings"), [(in_an_orphan, {}), (in_a_snapshot, {"max_snapshots_to_keep": "1"})])
def test_a_pass_by_the_policy_removes_a_place_on_its_day(
    hide: Callable[[Hidden], None], settings: dict[str, str], command: Command
) -> None:
    table = Hidden(command)
    hide(table)
    for key, value in settings.items():
        assert command("policy", "set", "ns.t", f"{key}={value}").code == 0
    (place,) = erased(command).json["places"]
    on = dt.datetime.fromisoformat(place["gone_on"]).replace(tzinfo=dt.UTC)
    days = (on.date() - dt.datetime.now(dt.UTC).date()).days
    answers = {}
    for day in (days - 1, days + 1):
        table.made.late_ms = day * 86_400_000
        asked = {"operations": "expire_snapshots,remove_orphans"}
        table.made.runtime.maintain(TableName(("ns",), "t"), asked, table.made.engine, names_table=True)
        answers[day] = erased(command).code
    assert answers == {days - 1: 1, days + 1: 0}
