"""Every table of every served catalog is known before the first deletion (rule: partial-listings-delete-nothing)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.catalogs.sql import SqlCatalog as OurSqlCatalog
from icekeeper.deletion.other_tables import know_every_table
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import PartlyListed, StorageError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.report.outcome import Status
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from icekeeper.storage.paths import normalise
from support.command import CATALOG, EVERYTHING_IS_OLD, Command, local_path
from support.maintained_table import ID_AND_PART, MaintainedTable, new_table
from support.served import age_everything, files_of, grow_old_in_history, ids, maintain, second_catalog
from support.table_functions import Functions
from support.tables import new_document

# Every table of every served catalog is known up to its newest head before a file of another table is deleted.

RUN = ("run", "--once", "--engine", "local", "--set", "min_input_files=2", "--set", "max_snapshots_to_keep=1")
NEVER_PASSED_OVER = [{"icekeeper.maintenance_enabled": "false"}, {"gc.enabled": "false"}]


@pytest.fixture
def owner(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """A table with three appends."""
    return new_table(local_catalog, tmp_path, appends=3)


@pytest.fixture
def other(tmp_path: Path) -> SqlCatalog:
    """A second catalog, which a pass over its table has recorded in the state."""
    return second_catalog(tmp_path)


def known(owner: MaintainedTable, other: SqlCatalog) -> None:
    """Record in the state that the other catalog is served."""
    other.create_table("ns.any", schema=ID_AND_PART)
    maintain(owner, other, "ns.any", operations="compact", min_input_files="9")


def history(table: Table) -> list[list[int]]:
    """The ids of every snapshot in the loaded metadata file."""
    return [sorted(table.scan(snapshot_id=item.snapshot_id).to_arrow()["id"].to_pylist()) for item in table.snapshots()]


class TestNeverPassedOver:
    @pytest.mark.parametrize(("properties", "in_other_catalog"), [*zip(NEVER_PASSED_OVER, (True, False), strict=True)])
    def test_expiry_keeps_files_that_a_clone_added_since_the_last_look(
        self, owner: MaintainedTable, other: SqlCatalog, properties: dict[str, str], *, in_other_catalog: bool
    ) -> None:
        catalog = other if in_other_catalog else owner.pyiceberg
        known(owner, other)
        clone = catalog.create_table("ns.clone", schema=ID_AND_PART, properties=properties)
        clone.append(owner.new_rows(99))
        owner.append(30)
        maintain(owner, owner.pyiceberg, "ns.t", served=other, operations="expire_snapshots")
        clone.add_files(files_of(owner.table))
        outcomes = maintain(owner, owner.pyiceberg, "ns.t", served=other)
        assert outcomes["expire_snapshots"].status is Status.SUCCEEDED
        assert ids(clone) == [0, 1, 10, 11, 20, 21, 30, 99]

    def test_a_folder_that_a_property_names_is_known_without_a_commit_of_rows(
        self, owner: MaintainedTable, other: SqlCatalog
    ) -> None:
        """Files that it stages there are not our orphans."""
        known(owner, other)
        guest = other.create_table("ns.guest", schema=ID_AND_PART)
        owner.plant("data/orphan.parquet")
        maintain(owner, owner.pyiceberg, "ns.t", served=other)
        data = f"{owner.metadata.location}/data/of-guest"
        guest.transaction().set_properties({"write.data.path": data}).commit_transaction()
        staged = Path(owner.plant("data/of-guest/staged.parquet"))
        age_everything(owner)
        outcome = maintain(owner, owner.pyiceberg, "ns.t", served=other)["remove_orphans"]
        assert outcome.status is Status.SUCCEEDED
        assert staged.exists()


class TestOneHead:
    @pytest.mark.parametrize("in_other_catalog", [False, True])
    def test_expiry_keeps_the_history_of_an_entry_at_the_same_head(
        self, owner: MaintainedTable, other: SqlCatalog, *, in_other_catalog: bool
    ) -> None:
        """This lasts until the entry moves or is proven gone (rule: stale-entries-delete-nothing)."""
        catalog = other if in_other_catalog else owner.pyiceberg
        known(owner, other)
        maintain(owner, owner.pyiceberg, "ns.t", served=other, operations="compact")
        twin = catalog.register_table("ns.twin", owner.loaded.metadata_location)
        before = history(twin)
        for _ in range(2):
            age_everything(owner)
            outcomes = maintain(owner, owner.pyiceberg, "ns.t", served=other)
            assert outcomes["expire_snapshots"].status is Status.SUCCEEDED
            assert history(twin) == before
        assert len(before) == 4
        catalog.drop_table("ns.twin")
        for days, left in ((0, 4), (7, 4), (9, 1)):
            age_everything(owner)
            owner.late_ms = days * 24 * HOUR_MS
            maintain(owner, owner.pyiceberg, "ns.t", served=other)
            assert len([path for path in owner.files() if path.endswith(".parquet")]) == left

    @pytest.mark.parametrize("is_seen", [False, True])
    def test_the_metadata_file_of_another_entry_outlives_the_log(
        self, owner: MaintainedTable, other: SqlCatalog, *, is_seen: bool
    ) -> None:
        """An entry that a pass has seen, and an entry of another catalog that no pass has seen."""
        known(owner, other)
        log = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
        owner.table.transaction().set_properties(log).commit_transaction()
        catalog = owner.pyiceberg if is_seen else other
        twin = catalog.register_table("ns.twin", owner.loaded.metadata_location)
        if is_seen:
            maintain(owner, catalog, "ns.twin", operations="compact", min_input_files="9")
        for size in "123":
            rewrite: dict[str, Any] = {"operations": "compact", "rewrite_all": "true", "target_file_size_mb": size}
            maintain(owner, owner.pyiceberg, "ns.t", served=other, **rewrite)
        assert ids(twin) == [0, 1, 10, 11, 20, 21]


class TestOneLook:
    """The loads and manifests that a look costs."""

    def test_the_passes_of_a_run_share_a_look(self, command: Command, loads: Counter[str]) -> None:
        """Detection loads each table once; an unknown table is loaded once more, for any number of passes in a
        process."""
        run = (*RUN, "--concurrency", "1")
        for number in range(4):
            grow_old_in_history(command.table(f"ns.t{number}", appends=2))
        for number in range(3):
            command.table(f"ns.quiet{number}", appends=1)
        assert command(*run).code == 0
        assert {loads[f"ns.quiet{number}"] for number in range(3)} == {2}
        grow_old_in_history(command.table("ns.t4", appends=2))
        loads.clear()
        assert command(*run).code == 0
        assert {loads[f"ns.quiet{number}"] for number in range(3)} == {1}

    def test_a_run_of_several_hours_looks_again(self, owner: MaintainedTable, loads: Counter[str]) -> None:
        """The run id is the same: steps of an execution, or an execution that is restarted days later."""
        owner.pyiceberg.create_table("ns.quiet", schema=ID_AND_PART).append(owner.new_rows(1))
        for hours, looks in ((0, 1), (5, 1), (7, 2)):
            owner.late_ms = hours * HOUR_MS
            owner.plant("data/orphan.parquet")
            owner.maintain("remove_orphans", run_id="r1")
            assert loads["ns.quiet"] == looks

    def test_a_table_in_its_own_bucket_has_no_neighbours(self, owner: MaintainedTable) -> None:
        """S3 made the bucket only for this table (platform: buckets-have-second-names)."""
        alone = replace(owner.loaded, metadata=TableMetadata(new_document("s3://0a1b2c--table-s3", 2)))
        runtime = owner.runtime_with()
        context = runtime.context(owner.loaded, runtime.policy(owner.loaded, {}), LocalEngine(1))
        assert know_every_table(context, alone) == ()
        assert list(owner.state.claims.looks()) == []
        assert len(know_every_table(context, owner.loaded)) == 1


class TestUnreadable:
    """A table that cannot be loaded may need files."""

    @pytest.fixture
    def lost(self, owner: MaintainedTable) -> Callable[[bytes | None], None]:
        """Damage the metadata file of ``ns.lost``, or remove it."""
        other = owner.create_beside("ns.lost", f"{owner.folder.parent.as_uri()}/lost")
        other.append(owner.new_rows(5))

        def damage(by: bytes | None) -> None:
            path = Path(normalise(owner.pyiceberg.load_table("ns.lost").metadata_location))
            path.unlink() if by is None else path.write_bytes(by)

        return damage

    def test_a_table_never_looked_at_stops_deletions_until_it_is_excluded(
        self, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A table without a look stops deletions in its bucket and nowhere else
        (rule: never-seen-tables-stop-their-bucket)."""
        table = command.table()
        broken = command.table("ns.broken", appends=1)
        broken.add_files(files_of(table)[:1])
        Path(normalise(broken.metadata_location)).write_text("{")
        pass_over = ("maintain", "ns.t", *EVERYTHING_IS_OLD, "--json")
        refused = {item["operation"]: item for item in command(*pass_over).json["operations"]}
        for operation in ("expire_snapshots", "remove_orphans"):
            if operation == "remove_orphans":
                (command.warehouse / "ns/t/data/orphan.parquet").write_bytes(b"1")
                refused = {item["operation"]: item for item in command(*pass_over).json["operations"]}
            assert refused[operation]["status"] == "refused"
            assert "ns.broken" in refused[operation]["reason"]
            assert f"icekeeper claims exclude ns.broken --catalog {CATALOG}" in refused[operation]["reason"]
        assert command("claims", "exclude", "ns.broken").code == 0
        done = {item["operation"]: item["status"] for item in command(*pass_over).json["operations"]}
        assert (done["expire_snapshots"], done["remove_orphans"]) == ("succeeded", "succeeded")

    def test_files_below_an_excluded_table_are_kept(self, command: Command) -> None:
        table = command.table(appends=1)
        nested = command.catalog.create_table("ns.nested", table.schema(), location=f"{table.location()}/sub/nested")
        nested.append(table.scan().to_arrow())
        theirs = {path for path in command.contents() if "/sub/nested/" in path}
        Path(normalise(nested.metadata_location)).write_text("{")
        assert command("claims", "exclude", "ns.nested").code == 0
        orphan = Path(normalise(table.location())) / "data/orphan.parquet"
        orphan.write_bytes(b"1")
        swept = ("maintain", "ns.t", *EVERYTHING_IS_OLD, "--set", f"orphan_sweep_prefixes={table.location()}/sub")
        assert command(*swept, "--set", "orphan_max_delete_ratio=1").code == 0
        assert not orphan.exists()
        assert theirs <= command.contents().keys()

    def test_an_excluded_table_counts_again_once_it_can_be_read(self, command: Command) -> None:
        table = command.table()
        answer = command("claims", "exclude", "ns.t")
        assert (answer.code, "can be read" in answer.err) == (1, True)
        broken = command.table("ns.broken", appends=1)
        broken.add_files(files_of(table)[:1])
        before, path = ids(broken), Path(normalise(broken.metadata_location))
        document = path.read_bytes()
        path.write_text("{")
        assert command("claims", "exclude", "ns.broken").code == 0
        path.write_bytes(document)
        assert command("maintain", "ns.t", *EVERYTHING_IS_OLD, "--set", "min_input_files=2").code == 0
        assert ids(broken) == before

    def test_files_recorded_by_the_last_look_are_kept(
        self, owner: MaintainedTable, lost: Callable[[bytes | None], None]
    ) -> None:
        theirs = Path(owner.plant("imported/theirs.parquet"))
        theirs.write_bytes(Path(files_of(owner.table)[0].removeprefix("file://")).read_bytes())
        owner.pyiceberg.load_table("ns.lost").add_files([theirs.as_uri()])
        maintain(owner, owner.pyiceberg, "ns.lost", operations="compact", min_input_files="9")
        lost(b"{")
        orphan = Path(owner.plant("data/orphan.parquet"))
        age_everything(owner)
        named = f"{owner.metadata.location}/imported"
        outcome = maintain(owner, owner.pyiceberg, "ns.t", orphan_sweep_prefixes=named)["remove_orphans"]
        assert outcome.status is Status.SUCCEEDED
        assert [theirs.exists(), orphan.exists()] == [True, False]

    def test_an_unreadable_table_stops_nothing_in_another_bucket(
        self, owner: MaintainedTable, other: SqlCatalog
    ) -> None:
        """On a local disk a catalog's warehouse counts as a bucket."""
        known(owner, other)
        broken = other.create_table("ns.broken", schema=ID_AND_PART)
        Path(normalise(broken.metadata_location)).write_text("{")
        orphan = Path(owner.plant("data/orphan.parquet"))
        age_everything(owner)
        outcomes = maintain(owner, owner.pyiceberg, "ns.t", served=other)
        assert {outcomes[name].status for name in ("expire_snapshots", "remove_orphans")} == {Status.SUCCEEDED}
        assert not orphan.exists()
        table = other.load_table("ns.any")
        table.append(owner.new_rows(1))
        table.overwrite(owner.new_rows(2))
        refused = maintain(owner, other, "ns.any", served=owner.pyiceberg)["expire_snapshots"]
        assert refused.status is Status.REFUSED
        assert "ns.broken of catalog other" in str(refused.reason)

    def test_a_catalog_that_does_not_answer_stops_deletions_in_its_buckets(
        self, owner: MaintainedTable, other: SqlCatalog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known(owner, other)
        clone = other.create_table("ns.clone", schema=ID_AND_PART, location=f"{owner.folder.parent.as_uri()}/clone")
        maintain(owner, other, "ns.clone", operations="compact", min_input_files="9")
        listed = OurSqlCatalog.list_tables

        def silent(catalog: OurSqlCatalog) -> Iterator[TableName]:
            if catalog.id.name == other.name:
                raise StorageError("it does not answer")
            yield from listed(catalog)

        monkeypatch.setattr(OurSqlCatalog, "list_tables", silent)
        clone.add_files(files_of(owner.table))
        refused = maintain(owner, owner.pyiceberg, "ns.t", served=other)["expire_snapshots"]
        assert refused.status is Status.REFUSED
        assert "its tables cannot be listed: it does not answer; nothing was deleted" in str(refused.reason)
        assert ids(clone) == [0, 1, 10, 11, 20, 21]

    def test_a_table_whose_metadata_file_is_gone_stops_nothing(
        self, owner: MaintainedTable, lost: Callable[[bytes | None], None]
    ) -> None:
        lost(None)
        orphan = Path(owner.plant("data/orphan.parquet"))
        age_everything(owner)
        for operation in ("expire_snapshots", "remove_orphans"):
            outcome = maintain(owner, owner.pyiceberg, "ns.t", operations=operation)[operation]
            assert outcome.status is Status.SUCCEEDED
            assert orphan.exists() == (operation != "remove_orphans")

    def test_files_below_a_table_without_its_metadata_file_are_kept(self, owner: MaintainedTable) -> None:
        nested = owner.create_beside("ns.nested", f"{owner.metadata.location}/sub/nested")
        nested.append(owner.new_rows(5))
        Path(normalise(nested.metadata_location)).unlink()
        theirs = [path for path in owner.files() if "/sub/nested/" in path]
        orphan = Path(owner.plant("data/orphan.parquet"))
        age_everything(owner)
        named = f"{owner.metadata.location}/sub"
        maintain(owner, owner.pyiceberg, "ns.t", operations="remove_orphans", orphan_sweep_prefixes=named)
        assert not orphan.exists()
        assert set(theirs) <= owner.files()
        assert len(theirs) == 4


class TestNeverRead:
    """A catalog of the run of which no table has been read."""

    @pytest.fixture
    def second(self, command: Command, monkeypatch: pytest.MonkeyPatch) -> SqlCatalog:
        database, folder = command.folder / "d.db", command.folder / "d"
        at = {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": command.warehouse.as_uri()}
        for key, value in at.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__D__{key.upper()}", value)
        monkeypatch.setenv(ALLOWED_PREFIXES, f"D={command.folder}")
        there = SqlCatalog("D", **at)
        there.create_namespace("ns")
        folder.mkdir()
        return there

    @pytest.fixture
    def expirable(self, command: Command) -> Table:
        table = command.table()
        table.overwrite(table.scan().to_arrow())
        grow_old_in_history(table)
        return table

    def test_a_catalog_of_damaged_tables_stops_deletions(
        self, command: Command, second: SqlCatalog, expirable: Table
    ) -> None:
        broken = second.create_table("ns.broken", expirable.schema())
        Path(normalise(broken.metadata_location)).write_text("{")
        printed = command(*RUN, "--catalog", "D").out
        assert "expire_snapshots: another table, which may need the files, cannot be read" in printed
        (blocker,) = command("list", "--json").json["blockers"]
        assert blocker.startswith("ns.broken cannot be read; deletions wait in 1 table; repair it, or exclude it with ")

    def test_a_catalog_that_cannot_be_opened_stops_deletions_while_it_is_named(
        self, command: Command, monkeypatch: pytest.MonkeyPatch, expirable: Table, second: SqlCatalog
    ) -> None:
        """A run that does not name the catalog does not wait for it."""
        monkeypatch.setenv("PYICEBERG_CATALOG__D__TYPE", "rest")
        monkeypatch.setenv("PYICEBERG_CATALOG__D__URI", "http://127.0.0.1:9/")
        printed = command(*RUN, "--catalog", "D").out
        assert "expire_snapshots: another table, which may need the files, cannot be read" in printed
        assert command("list", "--json").json["blockers"] == [
            "catalog D cannot be read; deletions wait in 1 table; repair it"
        ]
        assert len(expirable.refresh().snapshots()) > 1
        assert command(*RUN).code == 0
        assert (len(expirable.refresh().snapshots()), command("list", "--json").json["blockers"]) == (1, [])

    def test_a_clone_in_a_catalog_that_a_filter_leaves_out_keeps_its_files(
        self, command: Command, second: SqlCatalog, expirable: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No pass looks at the clone, which is not maintained, but the run does."""
        monkeypatch.setenv("PYICEBERG_CATALOG__D__WAREHOUSE", (command.folder / "d").as_uri())
        clone = second.create_table("ns.clone", expirable.schema(), properties=NEVER_PASSED_OVER[0])
        old = expirable.snapshots()[0]
        clone.add_files([task.file.file_path for task in expirable.scan(snapshot_id=old.snapshot_id).plan_files()])
        before = ids(clone)
        only = ("--set", f"bucket_filter={command.warehouse.name}")
        assert command(*RUN, "--catalog", "D", *only).code == 0
        assert [len(expirable.refresh().snapshots()), ids(clone)] == [1, before]


# A catalog that may not list all of its tables is maintained as far as it is safe
# (rule: partial-listings-delete-nothing).

HIDDEN = "access to the tables of 1 database(s) is denied (hr)"


def test_a_deployment_counts_catalogs_without_tables(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alarm CatalogsEmptyAlarm uses this count."""
    monkeypatch.setenv("METRICS", "all")
    functions.table.pyiceberg.drop_table("ns.t")
    answer = functions.send("detect")
    values = answer.values("service")
    assert (values["CatalogsEmpty"], values["TablesScanned"], values["TablesNotReadable"]) == (1, 0, 0)
    assert [line["message"] for line in answer.lines if line.get("level") == "WARNING"] == [
        "catalog local lists no tables; if it has any, the right to list them is missing, such as an AWS Lake "
        "Formation grant"
    ]


@pytest.mark.parametrize("apart", [False, True])
def test_a_bucket_sweep_continues_if_rules_keep_hidden_tables_apart(
    command: Command, monkeypatch: pytest.MonkeyPatch, *, apart: bool
) -> None:
    table, listed = command.table(appends=1), OurSqlCatalog.list_tables
    orphan = local_path(table.location()) / "data/orphan.parquet"
    orphan.write_bytes(b"1")

    def half(self: OurSqlCatalog) -> Iterator[TableName]:
        yield from listed(self)
        raise PartlyListed(HIDDEN, hidden=[("hr",)])

    monkeypatch.setattr(OurSqlCatalog, "list_tables", half)
    if apart:
        rules = ";".join(f"C.{name}={command.warehouse.as_uri()}/{name}/" for name in ("ns", "hr"))
        monkeypatch.setenv("ICEKEEPER_ALLOWED_PREFIXES", rules)
    bucket = ("--bucket", command.warehouse.as_uri(), *EVERYTHING_IS_OLD, "--set", "orphan_max_delete_ratio=1")
    answer = command("orphans", *bucket, "--json")
    assert answer.json["warnings"] == [HIDDEN]
    assert [item["status"] for item in answer.json["tables"]] == ["succeeded" if apart else "refused"]
    assert orphan.exists() != apart
