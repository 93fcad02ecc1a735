"""Claims: which catalog has files where, and how a person forgets a catalog that is gone."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.catalogs.catalog import LoadedTable, missing_table
from icekeeper.deletion.table_claims import exclude_entry
from icekeeper.errors import PolicyError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import CatalogId, ManifestFile, TableName
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.state.claims import TableClaims
from icekeeper.state.open import open_state
from icekeeper.storage.paths import normalise
from support.command import CATALOG, EVERYTHING_IS_OLD, Command, one_sentence
from support.maintained_table import ID_AND_PART, MaintainedTable, new_table
from support.readers import pyiceberg_ids
from support.served import age_everything, files_of, ids, maintain

# The folders of a table remain recorded if its catalog entry returns to an older state
# (rule: ask-neighbours-before-deleting).

GUEST = "ns.guest"


def date_back(guest: Table) -> None:
    """Set the guest's last commit half a minute back; Iceberg tolerates a minute."""
    path = Path(normalise(guest.refresh().metadata_location))
    document = json.loads(path.read_text())
    newest = document["snapshots"][-1]
    for entry in (newest, document["snapshot-log"][-1]):
        entry["timestamp-ms"] = min(item["timestamp-ms"] for item in document["snapshots"]) - 30_000
    path.write_text(json.dumps(document))


GUESTS = {f"ns.v{version}{'behind' * behind}": (version, behind) for version in ("1", "2") for behind in (False, True)}
"""Guests of each format version, and whether the clock of their writer is behind."""


def test_expiry_keeps_files_that_a_guest_added_after_a_look(four_appends: MaintainedTable) -> None:
    """This holds for any clock of its writer (rule: look-at-every-served-table)."""
    table, catalog, guests = four_appends, four_appends.pyiceberg, dict[str, Table]()
    for name, (version, _) in GUESTS.items():
        guests[name] = catalog.create_table(name, schema=ID_AND_PART, properties={"format-version": version})
        guests[name].append(table.new_rows(70))
        maintain(table, catalog, name, operations="compact", min_input_files="9")
    expected = add_file_to_each(table, guests)
    assert maintain(table, catalog, "ns.t")["expire_snapshots"].status is Status.SUCCEEDED
    assert {name: ids(guest) for name, guest in guests.items()} == expected


def add_file_to_each(table: MaintainedTable, guests: dict[str, Table]) -> dict[str, list[int]]:
    """Add one file of the table to each guest; return the rows of each."""
    for (name, guest), path in zip(guests.items(), sorted(files_of(table.table)), strict=True):
        guest.add_files([path])
        if GUESTS[name][1]:
            date_back(guest)
    expected = {name: ids(guest) for name, guest in guests.items()}
    assert sorted(i for found in expected.values() for i in found) == [0, 1, 10, 11, 20, 21, 30, 31, *[70] * 4]
    return expected


def test_only_one_look_reads_a_manifest(
    local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(local_catalog, tmp_path, appends=1)
    read: list[str] = []
    live_paths = TableReader.live_paths

    def counted(reader: TableReader, manifests: Sequence[ManifestFile]) -> Iterator[str]:
        read.extend(item.manifest_path for item in manifests)
        return live_paths(reader, manifests)

    monkeypatch.setattr(TableReader, "live_paths", counted)
    for version in ("1", "2"):
        read.clear()
        name = f"ns.v{version}"
        guest = table.pyiceberg.create_table(name, schema=ID_AND_PART, properties={"format-version": version})
        for number in range(3):
            guest.append(table.new_rows(number))
            maintain(table, table.pyiceberg, name, operations="compact", min_input_files="9")
        snapshot = guest.refresh().current_snapshot()
        assert snapshot is not None
        maintain(table, table.pyiceberg, "ns.t")  # a pass over another table looks at this table, too
        of_guest = [path for path in read if f"/ns/v{version}/" in path]
        assert sorted(of_guest) == sorted(manifest.manifest_path for manifest in snapshot.manifests(guest.io))


def test_expiry_keeps_files_that_a_restored_guest_added(four_appends: MaintainedTable) -> None:
    """A catalog restored from a backup: sequence numbers restart below those that a pass has seen."""
    table, catalog, guests = four_appends, four_appends.pyiceberg, dict[str, Table]()
    keep: dict[str, Any] = {"operations": "expire_snapshots", "max_snapshots_to_keep": "9"}
    for name, (version, _) in GUESTS.items():
        guest = catalog.create_table(name, schema=ID_AND_PART, properties={"format-version": version})
        guest.append(table.new_rows(70))
        backup = guest.metadata_location
        for number in range(2):
            guest.append(table.new_rows(80 + number))
        maintain(table, catalog, name, **keep)
        catalog.drop_table(name)
        for file in Path(normalise(guest.metadata_location)).parent.glob("*.metadata.json"):
            if file.name > Path(backup).name:
                file.unlink()
        guests[name] = catalog.register_table(name, backup)
    expected = add_file_to_each(table, guests)
    for name in guests:
        maintain(table, catalog, name, **keep)
    assert maintain(table, catalog, "ns.t")["expire_snapshots"].status is Status.SUCCEEDED
    assert {name: ids(catalog.load_table(name)) for name in guests} == expected


# A table that its catalog denies may be hidden from us, or may be undropped (rule: gone-is-proven-twice).

DAY_MS = 24 * HOUR_MS


@pytest.mark.parametrize(
    ("since_days", "now_days", "then_days"), [(None, 9, 9), (0, 0, 0), (0, 7.99, 0), (0, 8, None), (9, 8, 8)]
)
def test_a_missing_table_counts_as_gone_after_eight_days(
    since_days: float | None, now_days: float, then_days: float | None
) -> None:
    """A first denial in the future comes from a clock that was ahead, and proves nothing."""
    claims = TableClaims(catalog=CatalogId("c", "w"), table=TableName.parse(GUEST), uuid="u", location="s3://b/guest")
    seen = claims if since_days is None else replace(claims, missing_ms=int(since_days * DAY_MS))
    now = seen.missing_again(int(now_days * DAY_MS))
    assert (now and now.missing_ms) == (None if then_days is None else then_days * DAY_MS)


class Denied:
    """A table, and a guest with its files, which a look has seen and which the catalog later denies."""

    def __init__(self, catalog: SqlCatalog, folder: Path) -> None:
        self.owner = new_table(catalog, folder, appends=3)
        self.guest = catalog.create_table(GUEST, schema=ID_AND_PART)
        self.guest.add_files(files_of(self.owner.table))
        self.taken = [Path(normalise(path)) for path in files_of(self.owner.table)]
        self.rows = ids(self.guest)
        maintain(self.owner, catalog, GUEST, operations="compact", min_input_files="9")
        self.owner.table.overwrite(self.owner.new_rows(1))
        self._catalog = catalog

    def drop(self) -> None:
        self._catalog.drop_table(GUEST)

    def restore(self) -> None:
        self.guest = self._catalog.register_table(GUEST, self.guest.metadata_location)

    def sweep(self, days: float) -> dict[str, OperationOutcome]:
        """Run a pass ``days`` later, with an orphan beside the table's data."""
        self.orphan = Path(self.owner.plant("elsewhere/orphan.parquet"))
        self.owner.late_ms = int(days * DAY_MS)
        age_everything(self.owner)
        sweeps = f"{self.owner.metadata.location}/elsewhere"
        operations = "expire_snapshots,remove_orphans"
        done = maintain(self.owner, self._catalog, "ns.t", operations=operations, orphan_sweep_prefixes=sweeps)
        assert all(path.exists() for path in self.taken) or not any(path.exists() for path in self.taken)
        return done

    @property
    def is_whole(self) -> bool:
        return self.taken[0].exists()


def test_files_of_a_missing_table_are_kept_for_eight_days(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """Eight days count from the first denial, not from the last look, and restart after the table was undropped."""
    denied = Denied(local_catalog, tmp_path)
    denied.sweep(0)
    denied.drop()
    for days in (30, 35, 37.9):
        outcomes = denied.sweep(days)
        assert {outcome.status for outcome in outcomes.values()} <= {Status.SUCCEEDED, Status.SKIPPED}
        assert [denied.is_whole, denied.orphan.exists()] == [True, False], days
        assert f"{GUEST} of catalog" in outcomes["remove_orphans"].summary
        assert "is not proven to be gone" in outcomes["remove_orphans"].summary
    denied.restore()
    denied.sweep(37.95)
    denied.drop()
    for days in (50, 50.1, 57.9):
        denied.sweep(days)
        assert denied.is_whole, days
    assert pyiceberg_ids(denied.guest.metadata_location) == denied.rows
    denied.sweep(58.1)
    assert denied.sweep(58.2).keys() == {"expire_snapshots", "remove_orphans"}
    assert not denied.is_whole


def test_an_entry_that_its_catalog_denies_stops_deletions_until_it_is_excluded(
    four_appends: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a listed entry can be excluded (rule: never-seen-tables-stop-their-bucket)."""
    owner, load = four_appends, four_appends.catalog.load
    owner.pyiceberg.create_table(GUEST, schema=ID_AND_PART)

    def loads(table: TableName) -> LoadedTable:
        if str(table) == GUEST:
            raise missing_table(owner.catalog, table)
        return load(table)

    monkeypatch.setattr(owner.catalog, "load", loads)
    assert owner.run(Operation.EXPIRE_SNAPSHOTS).status is Status.REFUSED
    exclude_entry(owner.catalog, TableName.parse(GUEST), owner.state)
    assert owner.run(Operation.EXPIRE_SNAPSHOTS).status is Status.SUCCEEDED
    with pytest.raises(PolicyError, match=r"there is no table ns\.none"):
        exclude_entry(owner.catalog, TableName.parse("ns.none"), owner.state)


@pytest.mark.parametrize("was_known", [False, True])
def test_a_renamed_table_is_recorded_by_its_new_name_unlike_a_second_entry(
    local_catalog: SqlCatalog, tmp_path: Path, *, was_known: bool
) -> None:
    """If two entries were seen together, the missing entry may be hidden."""
    owner = new_table(local_catalog, tmp_path, appends=2)
    local_catalog.register_table("ns.first", owner.loaded.metadata_location)
    if was_known:
        local_catalog.register_table("ns.second", owner.loaded.metadata_location)
    first = local_catalog.load_table("ns.first").metadata_location
    here = owner.catalog.id

    def known() -> set[str]:
        """The tables that are recorded after a pass that looks at all tables."""
        owner.table.overwrite(owner.new_rows(1))
        assert maintain(owner, local_catalog, "ns.t")["expire_snapshots"].status is Status.SUCCEEDED
        return {item.table.name for item in owner.state.claims.of_catalog(here)}

    assert known() == {"t", "first", *(["second"] if was_known else [])}
    if was_known:
        local_catalog.drop_table("ns.first")
    else:
        local_catalog.rename_table("ns.first", "ns.renamed")
    assert known() == ({"t", "first", "second"} if was_known else {"t", "renamed"})
    assert pyiceberg_ids(first) == [0, 1, 10, 11]


# ``icekeeper claims``: records of a removed catalog stop deletions until a person forgets them.

EXPIRE = ("maintain", "ns.t", "--operations", "expire_snapshots", *EVERYTHING_IS_OLD, "--json")
GONE = ("--by-catalog", "gone", "--by-table", "ns.guest")


def claim(folder: str, catalog: str = "gone", warehouse: str = "s3://gone", table: str = "ns.guest") -> TableClaims:
    """Record that a table was seen to have files in a folder."""
    claims = TableClaims(
        catalog=CatalogId(catalog, warehouse),
        table=TableName.parse(table),
        uuid="0b9e3b1c-0000-0000-0000-000000000000",
        location="s3://gone/ns/guest",
        folders=frozenset((normalise(folder),)),
    )
    open_state(os.environ).claims.record(claims)
    return claims


def is_recorded(claims: TableClaims) -> bool:
    return open_state(os.environ).claims.of_entry(claims.entry) is not None


def test_the_refusal_names_the_command_that_resolves_it(command: Command) -> None:
    location = command.table(appends=2).location()
    guest = claim(location)
    claim(f"{location}/data", table="ns.inside")
    claim(f"{location}2", table="ns.neighbour")
    refused = command(*EXPIRE).json["operations"][0]
    assert refused["status"] == "refused"
    listed = command("claims", "list", "ns.t", "--json").json
    assert sorted((item["catalog"], item["table"]) for item in listed["claims"]) == [
        ("gone", "ns.guest"),
        ("gone", "ns.inside"),
    ]
    assert "ns.guest" in command("claims", "list", "ns.t").out
    arguments = shlex.split(refused["reason"].partition("icekeeper claims forget ")[2])
    forgotten = command("claims", "forget", *arguments, "--json", catalog=None)
    assert forgotten.code == 0, forgotten.err
    assert forgotten.json["forgotten"] == [
        {
            "catalog": "gone",
            "warehouse": "s3://gone",
            "table": "ns.guest",
            "uuid": guest.uuid,
            "location": guest.location,
            "folders": sorted(guest.folders),
        }
    ]
    assert not is_recorded(guest)
    assert command(*EXPIRE).json["operations"][0]["status"] == "succeeded"
    summaries = [item["summary"] for item in command("history", "ns.t", "--json").json["passes"]]
    assert any("forgot that ns.guest of catalog gone" in summary for summary in summaries)


def test_a_claim_is_forgotten_only_by_name_and_if_its_catalog_is_gone(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, forget = command.table(appends=1).location(), ("claims", "forget", "ns.t", *GONE)
    answer = command(*forget)
    assert (answer.code, "ns.guest of catalog gone" in one_sentence(answer.err)) == (2, True)
    first, second = claim(location), claim(location, warehouse="s3://other")
    answer = command(*forget)
    assert (answer.code, "--by-warehouse" in one_sentence(answer.err)) == (2, True)
    assert command(*forget, "--by-warehouse", "s3://other").code == 0
    assert (is_recorded(first), is_recorded(second)) == (True, False)
    monkeypatch.setenv("PYICEBERG_CATALOG__GONE__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__GONE__URI", "http://127.0.0.1:9/")
    answer = command(*forget)  # a configured catalog without an answer is not gone
    assert (answer.code, "--force" in one_sentence(answer.err), is_recorded(first)) == (1, True, True)
    assert (command(*forget, "--force").code, is_recorded(first)) == (0, False)


def test_the_list_shows_the_records_of_an_unreadable_table(command: Command) -> None:
    table = command.table(appends=2)
    path = Path(normalise(table.metadata_location))
    document = path.read_text()
    path.write_text("{")
    unknown = command("claims", "list", "ns.t")
    assert (unknown.code, str(path) in one_sentence(unknown.err)) == (1, True)
    assert command("claims", "exclude", "ns.t").code == 0
    shown = command("claims", "list", "ns.t")
    assert (shown.code, "ns.t" in shown.out, "excluded until it can be read" in shown.out) == (0, True, True)
    listed = command("claims", "list", "ns.t", "--json").json
    assert [(item["table"], item["location"], item["folders"]) for item in listed["claims"]] == [("ns.t", "", [])]

    path.write_text(document)
    command(*EXPIRE)  # a look reads it
    claim(f"{table.location()}/data")
    Path(normalise(table.refresh().metadata_location)).write_text("{")
    listed = command("claims", "list", "ns.t", "--json").json
    assert [(item["catalog"], item["table"]) for item in listed["claims"]] == [("gone", "ns.guest")]


def test_a_table_is_forgotten_only_once_its_catalog_denies_it(command: Command) -> None:
    """Until then, it would lose files that it needs; a person need not wait eight days."""
    location = command.table(appends=1).location()
    table = command.table("ns.guest", appends=1)
    guest = TableClaims(
        catalog=CatalogId(CATALOG, command.warehouse.as_uri()),
        table=TableName.parse("ns.guest"),
        uuid=str(table.metadata.table_uuid),
        location=normalise(table.location()),
        folders=frozenset((normalise(location),)),
    )
    open_state(os.environ).claims.record(guest)
    forget = ("claims", "forget", "ns.t", "--by-catalog", CATALOG, "--by-table", "ns.guest")
    answer = command(*forget)
    assert answer.code == 1
    assert "still exists" in one_sentence(answer.err)
    assert is_recorded(guest)
    command.catalog.drop_table("ns.guest")
    assert command(*forget).code == 0
    assert not is_recorded(guest)
