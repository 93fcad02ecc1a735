"""Every table of every served catalog is known before the first file goes (rule: partial-listings-delete-nothing)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ServerError
from pyiceberg.table import Table

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.rest import RestCatalog
from icekeeper.catalogs.sql import SqlCatalog as OurSqlCatalog
from icekeeper.cycle.service import Service
from icekeeper.deletion.other_tables import know_every_table
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import PartlyListed, StorageError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.policy import Operation, Policy
from icekeeper.report.outcome import Status
from icekeeper.state.open import open_state
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.command import CATALOG, EVERYTHING_IS_OLD, Command, in_this_process, local_path
from support.maintained_table import ID_AND_PART, MaintainedTable, new_table
from support.scripted_rest import scripted_rest
from support.served import age_everything, files_of, grow_old_in_history, ids, maintain, open_ours, second_catalog
from support.table_functions import Functions
from support.tables import new_document

# Every table of every served catalog is known up to its newest head before the first file of another one goes.

RUN = ("run", "--once", "--engine", "local", "--set", "min_input_files=2", "--set", "max_snapshots_to_keep=1")
NEVER_PASSED_OVER = [{"icekeeper.maintenance_enabled": "false"}, {"gc.enabled": "false"}]


@pytest.fixture
def owner(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Three appends."""
    made = new_table(local_catalog, tmp_path)
    made.fill(3)
    return made


@pytest.fixture
def other(tmp_path: Path) -> SqlCatalog:
    """A second catalog; a pass over a table of it has told the state of it."""
    return second_catalog(tmp_path)


def known(owner: MaintainedTable, other: SqlCatalog) -> None:
    """Let the state know that the other catalog is served."""
    other.create_table("ns.any", schema=ID_AND_PART)
    maintain(owner, other, "ns.any", operations="compact", min_input_files="9")


def history(table: Table) -> list[list[int]]:
    """The ids of every snapshot that the metadata file, as it was loaded, retains."""
    return [sorted(table.scan(snapshot_id=one.snapshot_id).to_arrow()["id"].to_pylist()) for one in table.snapshots()]


class TestNeverPassedOver:
    @pytest.mark.parametrize("properties", NEVER_PASSED_OVER)
    def test_a_run_over_two_catalogs_keeps_a_clone(
        self, command: Command, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]
    ) -> None:
        """No pass ever looks at it: the run does."""
        at = {
            "type": "sql",
            "uri": f"sqlite:///{command.folder / 'd.db'}",
            "warehouse": (command.folder / "d").as_uri(),
        }
        for key, value in at.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__D__{key.upper()}", value)
        monkeypatch.setenv(ALLOWED_PREFIXES, f"D={command.folder}")
        there = SqlCatalog("D", **at)
        there.create_namespace("ns")
        table = command.table()
        clone = there.create_table("ns.clone", table.schema(), properties=properties)
        clone.add_files(files_of(table))
        before = ids(clone)
        table.overwrite(table.scan().to_arrow())
        grow_old_in_history(table)
        assert command(*RUN, "--catalog", "D").code == 0
        assert [len(table.refresh().snapshots()), ids(clone)] == [1, before]

    @pytest.mark.parametrize("in_other_catalog", [False, True])
    @pytest.mark.parametrize("properties", NEVER_PASSED_OVER)
    def test_expiry_spares_what_it_took_in_since_the_last_look(
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
        """What it stages there is no orphan of ours."""
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
        """As long as it stands there, and until it is proven to be gone (rule: stale-entries-delete-nothing)."""
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

    def test_the_metadata_file_of_an_entry_that_nobody_has_seen_outlives_the_log(
        self, owner: MaintainedTable, other: SqlCatalog
    ) -> None:
        known(owner, other)
        with owner.table.transaction() as transaction:
            transaction.set_properties(
                {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
            )
        twin = other.register_table("ns.twin", owner.loaded.metadata_location)
        for number in range(3):
            size = f"{number + 1}"
            maintain(
                owner,
                owner.pyiceberg,
                "ns.t",
                served=other,
                operations="compact",
                rewrite_all="true",
                target_file_size_mb=size,
            )
        assert ids(twin) == [0, 1, 10, 11, 20, 21]


class TestOneLook:
    """Loads and manifests: what a look costs."""

    def test_the_passes_of_a_run_share_it(self, command: Command, loads: Counter[str]) -> None:
        """Detection loads each table once; one that nobody knows is loaded once more, whatever number of passes a
        process runs."""
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

    def test_what_a_run_that_lasts_for_hours_has_seen_is_old(self, owner: MaintainedTable, loads: Counter[str]) -> None:
        """The same run id: steps of one execution, or an execution that is begun anew days later."""
        owner.pyiceberg.create_table("ns.quiet", schema=ID_AND_PART).append(owner.new_rows(1))
        for hours, looks in ((0, 1), (5, 1), (7, 2)):
            owner.late_ms = hours * HOUR_MS
            owner.plant("data/orphan.parquet")
            owner.maintain("remove_orphans", run_id="r1")
            assert loads["ns.quiet"] == looks

    def test_it_reads_the_manifests_that_came_since(
        self, owner: MaintainedTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        quiet = owner.pyiceberg.create_table("ns.quiet", schema=ID_AND_PART)
        quiet.append(owner.new_rows(1))
        reads: list[str] = []
        read = Storage.read

        def reading(storage: Storage, path: str) -> bytes:
            reads.append(path)
            return read(storage, path)

        monkeypatch.setattr(Storage, "read", reading)
        for appends, manifests in ((1, 2), (0, 0), (1, 1)):  # the first look reads those of all appends
            if appends:
                quiet.append(owner.new_rows(2))
            owner.plant("data/orphan.parquet")
            reads.clear()
            owner.maintain("remove_orphans")
            read_now = {path for path in reads if "/quiet/" in path and path.endswith("-m0.avro")}
            assert len(read_now) == manifests
            assert len(reads) == len(set(reads))

    def test_near_a_table_in_a_bucket_of_its_own_nobody_is_looked_for(self, owner: MaintainedTable) -> None:
        """S3 made that bucket for it alone (platform: buckets-have-second-names)."""
        alone = replace(owner.loaded, metadata=TableMetadata(new_document("s3://0a1b2c--table-s3", 2)))
        runtime = owner.runtime_with()
        context = runtime.context(owner.loaded, runtime.policy(owner.loaded, {}), LocalEngine(1))
        assert know_every_table(context, alone) == ()
        assert list(owner.state.claims.looks()) == []
        assert len(know_every_table(context, owner.loaded)) == 1

    def test_a_pass_of_its_own_loads_each_table_once(self, owner: MaintainedTable, loads: Counter[str]) -> None:
        for number in range(3):
            owner.pyiceberg.create_table(f"ns.quiet{number}", schema=ID_AND_PART).append(owner.new_rows(1))
        owner.plant("data/orphan.parquet")
        maintain(owner, owner.pyiceberg, "ns.t")
        assert {loads[f"ns.quiet{number}"] for number in range(3)} == {1}


class TestUnreadable:
    """A table that cannot be loaded, and may need files."""

    @pytest.fixture
    def lost(self, owner: MaintainedTable) -> Callable[[bytes | None], None]:
        """Damage the metadata file of ``ns.lost``, or remove it."""
        other = owner.create_beside("ns.lost", f"{owner.folder.parent.as_uri()}/lost")
        other.append(owner.new_rows(5))

        def damage(by: bytes | None) -> None:
            path = Path(normalise(owner.pyiceberg.load_table("ns.lost").metadata_location))
            path.unlink() if by is None else path.write_bytes(by)

        return damage

    def test_never_looked_at_it_stops_deletion_until_it_is_excluded(
        self, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A table that was never looked into stops deletions in its bucket, and no further
        (rule: never-seen-tables-stop-their-bucket)."""
        table = command.table()
        broken = command.table("ns.broken", appends=1)
        broken.add_files(files_of(table)[:1])
        Path(normalise(broken.metadata_location)).write_text("{")
        pass_over = ("maintain", "ns.t", *EVERYTHING_IS_OLD, "--json")
        refused = {one["operation"]: one for one in command(*pass_over).json["operations"]}
        for operation in ("expire_snapshots", "remove_orphans"):
            if operation == "remove_orphans":
                (command.warehouse / "ns/t/data/orphan.parquet").write_bytes(b"1")
                refused = {one["operation"]: one for one in command(*pass_over).json["operations"]}
            assert refused[operation]["status"] == "refused"
            assert "ns.broken" in refused[operation]["reason"]
            assert f"icekeeper claims exclude ns.broken --catalog {CATALOG}" in refused[operation]["reason"]
        assert command("claims", "exclude", "ns.broken").code == 0
        done = {one["operation"]: one["status"] for one in command(*pass_over).json["operations"]}
        assert (done["expire_snapshots"], done["remove_orphans"]) == ("succeeded", "succeeded")

    def test_what_lies_under_an_excluded_one_stays(self, command: Command) -> None:
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

    def test_a_table_that_can_be_loaded_is_not_excluded(self, command: Command) -> None:
        command.table()
        answer = command("claims", "exclude", "ns.t")
        assert answer.code == 1
        assert "can be read" in answer.err

    def test_one_that_is_excluded_counts_again_once_it_can_be_read(self, command: Command) -> None:
        table = command.table()
        broken = command.table("ns.broken", appends=1)
        broken.add_files(files_of(table)[:1])
        before, path = ids(broken), Path(normalise(broken.metadata_location))
        document = path.read_bytes()
        path.write_text("{")
        assert command("claims", "exclude", "ns.broken").code == 0
        path.write_bytes(document)
        assert command("maintain", "ns.t", *EVERYTHING_IS_OLD, "--set", "min_input_files=2").code == 0
        assert ids(broken) == before

    def test_what_its_last_look_recorded_is_spared(
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

    def test_it_stops_nothing_in_another_bucket(self, owner: MaintainedTable, other: SqlCatalog) -> None:
        """On a local disk a catalog's warehouse stands for one."""
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

    def test_a_listing_that_lacks_the_table_itself_is_not_complete(
        self, owner: MaintainedTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An empty page of a proxy, or no right to list (rule: trust-only-own-answers)."""
        clone = owner.pyiceberg.create_table("ns.clone", schema=ID_AND_PART)
        clone.add_files(files_of(owner.table))
        monkeypatch.setattr(OurSqlCatalog, "list_tables", lambda catalog: iter(()))
        outcome = maintain(owner, owner.pyiceberg, "ns.t")["expire_snapshots"]
        assert outcome.status is Status.REFUSED
        assert "the listing of catalog local lacks ns.t, which can be loaded" in str(outcome.reason)
        assert ids(clone) == [0, 1, 10, 11, 20, 21]

    @pytest.mark.parametrize("operation", ["expire_snapshots", "remove_orphans"])
    def test_one_whose_metadata_file_is_gone_stops_nothing(
        self, owner: MaintainedTable, lost: Callable[[bytes | None], None], operation: str
    ) -> None:
        lost(None)
        orphan = Path(owner.plant("data/orphan.parquet"))
        age_everything(owner)
        outcome = maintain(owner, owner.pyiceberg, "ns.t", operations=operation)[operation]
        assert outcome.status is Status.SUCCEEDED
        assert orphan.exists() == (operation != "remove_orphans")

    def test_what_lies_under_a_gone_one_is_spared(self, owner: MaintainedTable) -> None:
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
    """A catalog of the run of which nobody has ever read a table."""

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

    def test_all_of_its_tables_are_damaged(self, command: Command, second: SqlCatalog, expirable: Table) -> None:
        broken = second.create_table("ns.broken", expirable.schema())
        Path(normalise(broken.metadata_location)).write_text("{")
        told = command(*RUN, "--catalog", "D").out
        assert "expire_snapshots: ns.broken of catalog D may need files of ns.t, because it cannot be read" in told

    def test_it_cannot_be_opened(
        self, command: Command, monkeypatch: pytest.MonkeyPatch, expirable: Table, second: SqlCatalog
    ) -> None:
        """Who no longer names it waits for it no longer."""
        monkeypatch.setenv("PYICEBERG_CATALOG__D__TYPE", "rest")
        monkeypatch.setenv("PYICEBERG_CATALOG__D__URI", "http://127.0.0.1:9/")
        told = command(*RUN, "--catalog", "D").out
        assert "expire_snapshots: a table of catalog D may need files of ns.t, because " in told
        assert len(expirable.refresh().snapshots()) > 1
        assert command(*RUN).code == 0
        assert len(expirable.refresh().snapshots()) == 1

    def test_a_filter_leaves_it_out(
        self, command: Command, second: SqlCatalog, expirable: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYICEBERG_CATALOG__D__WAREHOUSE", (command.folder / "d").as_uri())
        clone = second.create_table("ns.clone", expirable.schema())
        old = expirable.snapshots()[0]
        clone.add_files([task.file.file_path for task in expirable.scan(snapshot_id=old.snapshot_id).plan_files()])
        before = ids(clone)
        only = ("--set", f"bucket_filter={command.warehouse.name}")
        assert command(*RUN, "--catalog", "D", *only).code == 0
        assert [len(expirable.refresh().snapshots()), ids(clone)] == [1, before]


# A catalog that may not list all of its tables is maintained as far as that is safe
# (rule: partial-listings-delete-nothing).

HIDDEN = "access to the tables of 1 database(s) is denied (hr)"


def test_where_tables_may_be_hidden_files_are_merged_and_none_deleted(
    local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hidden table may need any of them (rule: ask-neighbours-before-deleting)."""
    table = new_table(local_catalog, tmp_path)
    table.fill(5)
    listed = OurSqlCatalog.list_tables

    def half(self: OurSqlCatalog) -> Iterator[TableName]:
        yield from listed(self)
        raise PartlyListed(HIDDEN)

    monkeypatch.setattr(OurSqlCatalog, "list_tables", half)
    before = table.files()
    assert table.run(Operation.COMPACT).status.value == "succeeded"
    planted = table.plant("data/orphan.parquet")
    for operation in (Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS):
        outcome = table.run(operation, snapshot_retention_hours="0", max_snapshots_to_keep="1")
        assert outcome.status.value == "refused"
        assert f"cannot be listed: {HIDDEN}; nothing was deleted" in str(outcome.reason)
    assert {*before, planted} <= table.files()
    assert table.ids() == [0, 1, 10, 11, 20, 21, 30, 31, 40, 41]


def test_a_service_tells_of_an_empty_catalog_when_it_becomes_one(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with every detection, and again when it happens again."""
    read = Service._read_rules

    def at_once(self: Service) -> tuple[TablePolicies, Policy]:
        policies, policy = read(self)
        return policies, policy.model_copy(update={"detection_interval_s": 0})

    monkeypatch.setattr(Service, "_read_rules", at_once)
    lines: list[str] = []
    between: list[Callable[[], object]] = [
        lambda: None,
        lambda: command.table(appends=1),
        lambda: command.catalog.drop_table("ns.t"),
    ]

    def tell(line: str) -> None:
        lines.append(line.partition(" ")[2])
        if " scanned, " in line:
            (between.pop(0) if between else service.stop)()

    run_pass = in_this_process(LocalEngine(1))
    service = Service(open_state(os.environ), run_pass, tell, catalogs=[CATALOG], environment=os.environ)
    service.run()
    empty = (
        f"catalog {CATALOG} lists no tables; if it has any, the right to list them is missing, such as an AWS Lake "
        "Formation grant"
    )
    looked = [f"{count} scanned, 0 need maintenance" for count in ("0 tables", "1 table")]
    assert lines == [empty, looked[0], looked[0], looked[1], empty, looked[0]]


def test_a_deployment_counts_catalogs_without_tables(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alarm CatalogsEmptyAlarm goes by it."""
    monkeypatch.setenv("METRICS", "all")
    functions.table.pyiceberg.drop_table("ns.t")
    told = functions.send("detect")
    values = told.values("service")
    assert (values["CatalogsEmpty"], values["TablesScanned"], values["TablesNotReadable"]) == (1, 0, 0)
    assert [line["message"] for line in told.lines if line.get("level") == "WARNING"] == [
        "catalog local lists no tables; if it has any, the right to list them is missing, such as an AWS Lake "
        "Formation grant"
    ]


@pytest.mark.parametrize("deep", [False, True])
def test_a_rest_server_that_fails_for_one_lists_the_others(
    local_catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, *, deep: bool
) -> None:
    """One namespace of a tenant's must not stop all maintenance of the catalog."""
    with scripted_rest(open_ours(local_catalog)) as server:
        catalog = server.open()
        assert isinstance(catalog, RestCatalog)

        def tables(namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
            if namespace == ("tenant",):
                raise ServerError("InternalServerError: no")
            return [(*namespace, "t0")]

        def namespaces(parent: tuple[str, ...]) -> list[tuple[str, ...]]:
            if deep and parent == ("tenant",):
                raise ServerError("InternalServerError: no")
            return [] if parent else [("tenant",), ("victim",)]

        monkeypatch.setattr(catalog._client, "list_tables", tables)
        monkeypatch.setattr(catalog._client, "list_namespaces", namespaces)
        found: list[TableName] = []
        with pytest.raises(PartlyListed, match=r"1 namespace.*, for example tenant: .*no") as caught:
            found.extend(catalog.list_tables())
        assert next(catalog.list_tables()) == TableName(("victim",), "t0")
        assert caught.value.hidden == (() if deep else (("tenant",),))
        monkeypatch.setattr(catalog._client, "list_namespaces", lambda parent: [] if parent else [("tenant",)])
        with pytest.raises(StorageError) as whole:  # none is listed: the catalog is out of order
            list(catalog.list_tables())
        assert not isinstance(whole.value, PartlyListed)


@pytest.mark.parametrize("apart", [False, True])
def test_a_sweep_of_the_bucket_goes_on_where_rules_keep_the_hidden_apart(
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
    assert [one["status"] for one in answer.json["tables"]] == ["succeeded" if apart else "refused"]
    assert orphan.exists() != apart


def test_a_table_that_the_catalog_fails_for_stops_nobody_that_rules_keep_apart(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers 500 for one table."""
    table, load = command.table(appends=1), OurSqlCatalog.load
    command.catalog.create_namespace("hr")
    command.table("hr.broken", appends=1)
    orphan = local_path(table.location()) / "data/orphan.parquet"

    def failing(self: OurSqlCatalog, name: TableName) -> LoadedTable:
        if name.namespace == ("hr",):
            raise StorageError(f"catalog C answered HTTP 500 about {name}: no")
        return load(self, name)

    monkeypatch.setattr(OurSqlCatalog, "load", failing)
    rules = ";".join(f"C.{name}={command.warehouse.as_uri()}/{name}/" for name in ("ns", "hr"))
    swept = ("maintain", "ns.t", "--operations", "remove_orphans", *EVERYTHING_IS_OLD)
    for said in ("", rules):
        monkeypatch.setenv("ICEKEEPER_ALLOWED_PREFIXES", said)
        orphan.write_bytes(b"1")
        assert command(*swept).code == (0 if said else 1)
        assert orphan.exists() == (not said)
