"""A tenant breaks its own table: the tables of others are maintained as before, and lose no needed file."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from pyiceberg.table import Table

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.sql import SqlCatalog as OurSqlCatalog
from icekeeper.deletion import other_tables as served_tables
from icekeeper.deletion.other_tables import fitting
from icekeeper.errors import PartlyListed, StorageError
from icekeeper.model import CatalogId, TableName
from icekeeper.pass_context import footprint
from icekeeper.state.claims import CatalogLook, UnseenEntry
from icekeeper.storage.paths import normalise
from support.command import CATALOG, EVERYTHING_IS_OLD, Command, local_path
from support.maintained_table import grow_old
from support.readers import pyiceberg_ids, pyiceberg_rows
from support.served import files_of, grow_old_in_history, ids

VICTIMS = tuple(f"victim.t{number}" for number in range(3))
OTHERS = tuple(f"tenant.t{number}" for number in range(2))
SWEEP = ("--operations", "expire_snapshots,remove_orphans", *EVERYTHING_IS_OLD, "--set", "orphan_max_delete_ratio=1")
RUN = ("run", "--once", "--engine", "local", "--set", "snapshot_retention_hours=24", "--set", "max_snapshots_to_keep=1")


LITTLE_LOG = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "4"}


class Lake:
    """A table of a victim, and a tenant's table that a test breaks."""

    def __init__(self, command: Command, patch: pytest.MonkeyPatch) -> None:
        self.command, self.patch = command, patch
        for namespace in ("victim", "tenant"):
            command.catalog.create_namespace(namespace)
        self.tables = {"victim.t0": command.table("victim.t0", appends=2)}
        self.tables["tenant.bad"] = command.table("tenant.bad", appends=1)
        self.orphan = self.plant("data/orphan.parquet")

    def with_more(self) -> Lake:
        """Add two more tables of the victim and two of the tenant."""
        for name in (*VICTIMS[1:], *OTHERS):
            self.tables[name] = self.command.table(name, appends=2 if name in VICTIMS else 1)
        return self

    @property
    def home(self) -> str:
        return self.command.warehouse.as_uri()

    @property
    def victim(self) -> Table:
        return self.tables["victim.t0"]

    @property
    def bad(self) -> Table:
        return self.tables["tenant.bad"]

    def plant(self, name: str) -> Path:
        """Write an old unreferenced file of the victim; return its path."""
        path = local_path(self.victim.location()) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
        grow_old([path])
        return path

    def sweep(self) -> dict[str, dict[str, str]]:
        """Run a pass over the victim's first table; return the outcome by operation."""
        answer = self.command("maintain", "victim.t0", *SWEEP, "--json")
        return {item["operation"]: item for item in answer.json["operations"]}

    def pointer(self) -> Path:
        return Path(normalise(dict(self.command.pointers())["tenant.bad"]))

    def point_at(self, location: str) -> None:
        """Point the entry of the tenant's table to any metadata file."""
        with closing(sqlite3.connect(self.command.database)) as connection, connection:
            connection.execute(
                "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 'bad'", (f"{self.home}/{location}",)
            )

    def name_data_path(self, folder: str) -> None:
        with self.bad.transaction() as transaction:
            transaction.set_properties({"write.data.path": f"{self.home}{folder}"})

    def guest(self, name: str, file: str) -> Table:
        """Add a readable table that has taken in a file of the victim."""
        self.command.catalog.create_namespace_if_not_exists(name.partition(".")[0])
        table = self.command.table(name, appends=1)
        table.add_files([file])
        return table

    def spoil(self, pattern: str) -> None:
        for path in local_path(self.bad.location()).rglob(pattern):
            path.write_bytes(b"no avro")


@pytest.fixture
def lake(command: Command, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return Lake(command, monkeypatch)


@pytest.fixture
def ruled(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """The operator's rules keep both namespaces apart."""
    rules = f"C.victim={lake.home}/victim/;C.tenant={lake.home}/tenant/"
    monkeypatch.setenv("ICEKEEPER_ALLOWED_PREFIXES", rules)
    return lake


def look(lake: Lake) -> None:
    """Let a pass look into every table, then write a new orphan."""
    lake.sweep()
    lake.victim.refresh().append(lake.victim.scan().to_arrow())
    lake.orphan = lake.plant("data/orphan.parquet")


def missing(lake: Lake) -> None:
    lake.pointer().unlink()


def damaged(lake: Lake) -> None:
    lake.pointer().write_text("{")


def manifest(lake: Lake) -> None:
    lake.spoil("*-m0.avro")


def manifest_list(lake: Lake) -> None:
    lake.spoil("snap-*.avro")


def path_at(lake: Lake) -> None:
    lake.name_data_path("/victim/t0")


def path_in(lake: Lake) -> None:
    lake.name_data_path("/victim/t0/data")


def path_around(lake: Lake) -> None:
    lake.name_data_path("")


def points_into(lake: Lake) -> None:
    lake.point_at("victim/t0/metadata/9-none.metadata.json")


def points_around(lake: Lake) -> None:
    lake.point_at("metadata/9-none.metadata.json")


def failing(lake: Lake) -> None:
    """The catalog answers with an error only for this table."""
    load = OurSqlCatalog.load

    def loaded(self: OurSqlCatalog, name: TableName) -> LoadedTable:
        if str(name) == "tenant.bad":
            raise StorageError(f"catalog C answered HTTP 500 about {name}: no")
        return load(self, name)

    lake.patch.setattr(OurSqlCatalog, "load", loaded)


def newer_head(lake: Lake) -> None:
    """Commit twice, then set the entry back, so that it does not know the newer head."""
    path_in(lake)
    before = dict(lake.command.pointers())["tenant.bad"]
    for number in range(2):
        lake.bad.append(lake.bad.scan().to_arrow().slice(0, number))
    lake.point_at(before.removeprefix(f"{lake.home}/"))


WAYS: Sequence[tuple[Callable[[Lake], None], ...]] = (
    *((way,) for way in (missing, damaged, manifest, manifest_list, failing, points_into, points_around, newer_head)),
    *((path,) for path in (path_at, path_in, path_around)),
    *((path_in, way) for way in (damaged, manifest)),
    *((path, look, way) for path in (path_at, path_around) for way in (missing, damaged, manifest)),
)
"""Steps of a tenant and of passes."""


class TestKeptApart:
    """Rules of the operator share no folder between both (rule: separated-tables-stop-nothing)."""

    @pytest.mark.parametrize("steps", WAYS, ids=[" ".join(step.__name__ for step in steps) for steps in WAYS])
    def test_a_broken_table_stops_nothing_of_the_victim(
        self, ruled: Lake, steps: tuple[Callable[[Lake], None], ...]
    ) -> None:
        """Readable tables, kept apart or not, keep the files that they have taken in."""
        files = files_of(ruled.victim)
        guests = [ruled.guest(*pair) for pair in zip(("guest.t", "tenant.guest"), files, strict=True)]
        rows = [ids(guest) for guest in guests]
        for step in steps:
            step(ruled)
        ruled.victim.refresh().overwrite(ruled.victim.scan().to_arrow())
        outcomes = ruled.sweep()
        assert {name: item["status"] for name, item in outcomes.items()} == {
            "expire_snapshots": "succeeded",
            "remove_orphans": "succeeded",
        }
        assert not ruled.orphan.exists()
        assert len(ruled.victim.refresh().snapshots()) == 1
        assert [ids(guest) for guest in guests] == rows

    @pytest.mark.parametrize("broken", [missing, damaged, manifest, manifest_list])
    def test_recorded_files_of_a_broken_table_are_kept_and_it_is_named(
        self, ruled: Lake, broken: Callable[[Lake], None]
    ) -> None:
        ruled.bad.add_files(files_of(ruled.victim))
        before = {path: path.read_bytes() for path in local_path(ruled.bad.location()).rglob("*") if path.is_file()}
        rows = ids(ruled.bad)
        look(ruled)
        elsewhere = ruled.plant("imported/orphan.parquet")
        ruled.victim.overwrite(ruled.victim.scan().to_arrow())
        broken(ruled)
        named = ("--set", f"orphan_sweep_prefixes={ruled.victim.location()}/imported")
        answer = ruled.command("maintain", "victim.t0", *SWEEP, *named)
        assert answer.code == 0
        assert f"files in {normalise(ruled.victim.location())}/data are kept: tenant.bad of catalog C" in answer.out
        assert not elsewhere.exists()
        for path, content in before.items():
            path.write_bytes(content)
        assert ids(ruled.bad) == rows

    def test_an_entry_at_the_victims_own_metadata_keeps_its_history(self, ruled: Lake) -> None:
        """Its rule forbids reading the metadata, but both entries are the same table."""
        before = ruled.victim.refresh().metadata_location
        files = files_of(ruled.victim)
        ruled.command.register(before, "tenant.twin")
        with ruled.victim.transaction() as transaction:
            transaction.set_properties(LITTLE_LOG)
        for _ in range(2):  # each pass commits, and would delete metadata files that leave the log
            ruled.victim.refresh().overwrite(ruled.victim.scan().to_arrow())
            ruled.command("maintain", "victim.t0", "--operations", "expire_snapshots", *EVERYTHING_IS_OLD)
        ruled.victim.refresh().overwrite(ruled.victim.scan().to_arrow())
        assert {item["status"] for item in ruled.sweep().values()} == {"succeeded"}
        assert not ruled.orphan.exists()
        assert all(local_path(path).exists() for path in files)
        assert [row["id"] for row in pyiceberg_rows(before)] == [1, 2, 3, 1, 2, 3]

    def test_added_files_directly_in_the_victims_folder_are_kept(self, ruled: Lake) -> None:
        """A root around the victim covers the files directly in it and in folders of partitions."""
        near = [ruled.plant(name) for name in ("whole.parquet", "day=1/part.parquet")]
        for path in near:
            path.write_bytes(local_path(files_of(ruled.victim)[0]).read_bytes())
        grow_old(near)
        ruled.bad.add_files([f"file://{path}" for path in near])
        look(ruled)
        damaged(ruled)
        named = ("--set", f"orphan_sweep_prefixes={ruled.victim.location()}")
        assert ruled.command("maintain", "victim.t0", *SWEEP, *named).code == 0
        assert [path.exists() for path in (*near, ruled.orphan)] == [True, True, False]

    @pytest.mark.parametrize("broken", [missing, damaged, manifest])
    def test_a_run_maintains_all_others(self, ruled: Lake, broken: Callable[[Lake], None], loads: Counter[str]) -> None:
        """Passes of a run do not read again what the scan could not parse."""
        broken(ruled.with_more())
        aged = [table for name, table in ruled.tables.items() if name != "tenant.bad"]
        for table in aged:
            table.append(table.scan().to_arrow())
            grow_old_in_history(table)
        loads.clear()
        ruled.command(*RUN)
        assert [len(ruled.tables[name].refresh().snapshots()) for name in VICTIMS] == [1, 1, 1]
        if broken is damaged:
            assert loads["tenant.bad"] == 1

    def test_a_bucket_sweep_covers_all_others(self, ruled: Lake) -> None:
        damaged(ruled.with_more())
        theirs = local_path(ruled.tables["tenant.t0"].location()) / "data/orphan.parquet"
        theirs.write_bytes(b"1")
        share = ("--set", "orphan_max_delete_ratio=1")
        answer = ruled.command("orphans", "--bucket", ruled.home, *EVERYTHING_IS_OLD, *share, "--json")
        found = {item["table"]: item["status"] for item in answer.json["tables"]}
        waits = dict.fromkeys(("tenant.bad", "tenant.t0"), "refused")  # of the same namespace
        assert found == {**dict.fromkeys((*VICTIMS, *OTHERS), "succeeded"), **waits}
        assert [ruled.orphan.exists(), theirs.exists()] == [False, True]

    def test_only_rules_without_a_common_folder_keep_both_apart(
        self, lake: Lake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        damaged(lake)
        for rules, stops in (
            ("C.victim={home}/victim/;C.tenant={home}/", True),
            ("C.victim={home}/;C.tenant={home}/tenant/", True),
            ("C.victim={home}/victim/,{home}/common/;C.tenant={home}/tenant/,{home}/common/", True),
            ("C.victim={home}/victim/", True),
            ("C.tenant={home}/tenant/", True),
            ("*={home}/{{namespace}}/", False),
            ("C.victim={home}/victim/t0/;C.tenant={home}/tenant/bad/", False),
            ("C.victim={home}/victim/,{home}/common/;C.tenant={home}/other/", False),
        ):
            monkeypatch.setenv("ICEKEEPER_ALLOWED_PREFIXES", rules.format(home=lake.home))
            lake.orphan = lake.plant("data/orphan.parquet")
            found = {item["status"] for item in lake.sweep().values()}
            assert found <= ({"refused"} if stops else {"succeeded", "skipped"}), rules
            assert lake.orphan.exists() == stops, rules


@pytest.mark.parametrize("broken", [missing, damaged])
def test_a_pass_reads_a_broken_table_once(ruled: Lake, loads: Counter[str], broken: Callable[[Lake], None]) -> None:
    path_in(ruled)
    look(ruled)
    broken(ruled)
    loads.clear()
    assert {item["status"] for item in ruled.sweep().values()} == {"succeeded"}
    assert loads["tenant.bad"] == 1


def test_deletions_continue_only_if_rules_keep_a_hidden_namespace_apart(
    ruled: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog does not list the tables of a namespace, because its server fails only for that namespace."""
    listed, hidden = OurSqlCatalog.list_tables, list[tuple[str, ...]]()

    def partly(catalog: OurSqlCatalog) -> Iterator[TableName]:
        yield from (item for item in listed(catalog) if item.namespace != ("tenant",))
        raise PartlyListed("tenant fails", hidden=hidden)

    monkeypatch.setattr(OurSqlCatalog, "list_tables", partly)
    cases: list[tuple[list[tuple[str, ...]], bool]] = [
        ([], True),
        ([("tenant",), ("victim", "sub")], True),
        ([("tenant",)], False),
    ]
    for hidden, stops in cases:
        assert {item["status"] for item in ruled.sweep().values()} == {"refused" if stops else "succeeded"}, hidden
        assert ruled.orphan.exists() == stops, hidden


class TestBothWait:
    """Without rules deletions wait, and the reason names the rules that end the wait."""

    def test_the_refusal_and_health_name_the_rules_to_write(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
        def warnings() -> dict[str, str]:
            found = lake.command("health", "victim.t0", "--json").json["warnings"]
            return {item["kind"]: item["message"] for item in found if item["kind"] == "deletions_wait"}

        assert warnings() == {}
        whole = lake.pointer().read_bytes()
        damaged(lake)
        assert lake.command("detect").code == 1
        outcomes = lake.sweep()
        answer = lake.command("list", "--json").json
        blocker = (
            "tenant.bad cannot be read; deletions wait in 1 table; repair it, or exclude it with "
            "icekeeper claims exclude tenant.bad --catalog C"
        )
        assert answer["blockers"] == [blocker]
        states = [("tenant.bad", "unreadable", False), ("victim.t0", "well", True)]
        assert [(item["name"], item["state"], item["waits"]) for item in answer["tables"]] == states
        assert lake.command("list").out.splitlines()[0] == blocker
        rules = f"ICEKEEPER_ALLOWED_PREFIXES='C.victim={lake.home}/victim/;C.tenant=FOLDER/'"
        assert {item["status"] for item in outcomes.values()} == {"refused"}
        assert all(rules in item["reason"] for item in outcomes.values())
        assert warnings() == {"deletions_wait": outcomes["remove_orphans"]["reason"]}
        with monkeypatch.context() as patch:
            patch.setenv("ICEKEEPER_ALLOWED_PREFIXES", f"*={lake.home}/{{namespace}}/")
            assert warnings() == {}

        lake.pointer().write_bytes(whole)
        path_around(lake)
        look(lake)  # the tenant is then recorded around the victim
        damaged(lake)
        seen = lake.sweep().values()
        assert {item["status"] for item in seen} == {"refused"}
        assert all("had files at or around" in item["reason"] and rules in item["reason"] for item in seen)

    def test_no_rule_keeps_tables_of_the_same_namespace_apart(self, ruled: Lake) -> None:
        damaged(ruled)
        other = local_path(ruled.command.table("tenant.t0", appends=1).location())
        other.joinpath("data/orphan.parquet").write_bytes(b"1")
        answer = ruled.command("maintain", "tenant.t0", "--operations", "remove_orphans", *EVERYTHING_IS_OLD, "--json")
        reason = answer.json["operations"][0]["reason"]
        assert "icekeeper claims exclude tenant.bad --catalog C" in reason
        assert "ICEKEEPER_ALLOWED_PREFIXES" not in reason


NAMES = [("tenant", "x."), ("tenant", ""), ("", "x"), ("tenant", "a..b"), ("tenant.", "x"), ("tenant", "a.b")]


class TestNames:
    """A catalog lists invalid names."""

    @staticmethod
    def register(lake: Lake, namespace: str, name: str) -> None:
        with closing(sqlite3.connect(lake.command.database)) as connection, connection:
            connection.execute(
                "INSERT INTO iceberg_tables"
                " (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
                " VALUES (?, ?, ?, ?, 'TABLE')",
                (CATALOG, namespace, name, lake.bad.refresh().metadata_location),
            )

    @pytest.mark.parametrize(
        ("names", "broken"),
        [
            (NAMES, False),
            ([item for item in NAMES if item[0] == "tenant"], True),
            ([item for item in NAMES if item[0] != "tenant"], True),
        ],
        ids=["readable", "broken in a namespace with a rule", "broken elsewhere"],
    )
    def test_invalid_names_stop_neither_a_scan_nor_the_state(
        self, ruled: Lake, names: list[tuple[str, str]], *, broken: bool
    ) -> None:
        for namespace, name in names:
            self.register(ruled, namespace, name)
        ruled.command.catalog.drop_table("tenant.bad")
        if broken:
            Path(normalise(ruled.bad.metadata_location)).write_text("{")
        grow_old_in_history(ruled.victim)
        answer = ruled.command(*RUN)
        for namespace, name in names:
            reason = "no pass can refer to it: a part of its name is empty or has a dot"
            assert f"{namespace}.{name} failed: {reason}" in answer.out
        assert "is damaged" not in answer.out + answer.err
        assert ruled.command("history", "victim.t0").code == 0  # the state can be read
        if broken and ("", "x") in names:  # no rule keeps them apart
            for namespace, name in names:
                assert ruled.command("claims", "exclude", f"{namespace}.{name}").code == 0
            assert {item["status"] for item in ruled.sweep().values()} == {"succeeded"}
        else:
            assert len(ruled.victim.refresh().snapshots()) == 1
            assert {item["status"] for item in ruled.sweep().values()} <= {"succeeded", "skipped"}
            assert not ruled.orphan.exists()

    def test_all_operations_keep_files_of_a_table_with_an_invalid_name(self, lake: Lake) -> None:
        """The first operation must not remove the records of the look."""
        lake.bad.add_files(files_of(lake.victim))
        rows = ids(lake.bad)
        assert rows
        self.register(lake, "tenant", "a.b")
        lake.command.catalog.drop_table("tenant.bad")
        lake.victim.overwrite(lake.victim.scan().to_arrow())
        location = lake.bad.metadata_location
        assert {item["status"] for item in lake.sweep().values()} == {"succeeded"}
        assert not lake.orphan.exists()
        assert pyiceberg_ids(location) == rows


class TestVeryMany:
    """A tenant has more unreadable tables than fit into a record of the state."""

    def test_very_many_unreadable_tables_stop_nothing_of_the_victim(
        self, ruled: Lake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(served_tables, "_MOST_BYTES", 2_000)
        for number in range(40):
            ruled.command.register(f"{ruled.home}/tenant/many{number}/metadata/1-x.metadata.json", f"tenant.m{number}")
            if number % 2:
                place = local_path(f"{ruled.home}/tenant/many{number}/metadata")
                place.mkdir(parents=True)
                (place / "1-x.metadata.json").write_text("{")
        assert {item["status"] for item in ruled.sweep().values()} == {"succeeded"}
        assert not ruled.orphan.exists()

    def test_a_single_entry_of_each_namespace_represents_all(self) -> None:
        unseen = [
            UnseenEntry(
                table=TableName(("many", f"n{number % 3}"), f"t{number}"),
                reason="it cannot be read",
                location=f"s3://lake/n{number % 3}/t{number}",
                is_gone=number % 2 == 0,
            )
            for number in range(6_000)
        ]
        look = CatalogLook(catalog=CatalogId("C", "w"), run="r", unseen=tuple(unseen))
        small = fitting(look)
        assert small is not None
        assert {(item.table.namespace, item.is_gone, item.location) for item in small.unseen} == {
            (("many", f"n{number}"), is_gone, f"s3://lake/n{number}")
            for number in range(3)
            for is_gone in (True, False)
        }
        assert all(
            item.reason == "it cannot be read; 999 more tables of its namespace cannot be read either"
            for item in small.unseen
        )
        assert fitting(small) is small
        assert CatalogLook.from_json(CatalogId("C", "w"), small.to_json()) == small


def test_a_guest_with_files_in_very_many_folders_is_recorded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single folder around all tables of the bucket is then recorded (rule: look-at-every-served-table)."""
    monkeypatch.setattr(footprint, "_MOST_ROOTS", 0)
    paths = [lake.plant(f"imported{number}/part.parquet") for number in range(4)]
    for path in paths:
        path.write_bytes(local_path(files_of(lake.victim)[0]).read_bytes())
    grow_old(paths)
    lake.bad.add_files([path.as_uri() for path in paths])
    named = ",".join(path.parent.as_uri() for path in paths)
    assert lake.command("maintain", "victim.t0", *SWEEP, "--set", f"orphan_sweep_prefixes={named}").code == 0
    assert not lake.orphan.exists()
    assert len(ids(lake.bad)) == 15
