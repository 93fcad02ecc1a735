"""Claims: which catalog has files where, and how a person forgets a catalog that is gone."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestFile, TableName
from icekeeper.report.outcome import Status
from icekeeper.state.claims import TableClaims
from icekeeper.state.open import open_state
from icekeeper.storage.paths import normalise
from support.command import CATALOG, EVERYTHING_IS_OLD, Command, one_sentence
from support.maintained_table import ID_AND_PART, new_table
from support.served import files_of, ids, maintain

# Where a table has files is known although its catalog entry went back to an older state
# (rule: ask-neighbours-before-deleting).

GUEST = "ns.guest"


def date_back(guest: Table) -> None:
    """Let the clock of the guest's last writer be half a minute behind: Iceberg tolerates a whole one."""
    path = Path(normalise(guest.refresh().metadata_location))
    document = json.loads(path.read_text())
    newest = document["snapshots"][-1]
    for entry in (newest, document["snapshot-log"][-1]):
        entry["timestamp-ms"] = min(one["timestamp-ms"] for one in document["snapshots"]) - 30_000
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("format_version", ["1", "2"])
def test_expiry_spares_what_a_guest_took_in_after_a_look(
    local_catalog: SqlCatalog, tmp_path: Path, format_version: str, *, is_behind: bool
) -> None:
    """Whatever its writer's clock says (rule: read-each-guest-manifest-once)."""
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    guest = table.pyiceberg.create_table(GUEST, schema=ID_AND_PART, properties={"format-version": format_version})
    guest.append(table.new_rows(70))
    maintain(table, table.pyiceberg, GUEST, operations="compact", min_input_files="9")
    guest.add_files(files_of(table.table))
    if is_behind:
        date_back(guest)
    assert maintain(table, table.pyiceberg, "ns.t")["expire_snapshots"].status is Status.SUCCEEDED
    assert ids(guest) == [0, 1, 10, 11, 20, 21, 70]


@pytest.mark.parametrize("format_version", ["1", "2"])
def test_a_manifest_is_read_by_one_look_only(
    local_catalog: SqlCatalog, tmp_path: Path, format_version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(local_catalog, tmp_path)
    table.fill(1)
    guest = table.pyiceberg.create_table(GUEST, schema=ID_AND_PART, properties={"format-version": format_version})
    read: list[str] = []
    live_paths = TableReader.live_paths

    def counted(reader: TableReader, manifests: Sequence[ManifestFile]) -> Iterator[str]:
        read.extend(one.manifest_path for one in manifests)
        return live_paths(reader, manifests)

    monkeypatch.setattr(TableReader, "live_paths", counted)
    for number in range(3):
        guest.append(table.new_rows(number))
        maintain(table, table.pyiceberg, GUEST, operations="compact", min_input_files="9")
    snapshot = guest.refresh().current_snapshot()
    assert snapshot is not None
    assert sorted(read) == sorted(one.manifest_path for one in snapshot.manifests(guest.io))


@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("format_version", ["1", "2"])
def test_expiry_spares_what_a_guest_took_in_after_it_went_back(
    local_catalog: SqlCatalog, tmp_path: Path, format_version: str, *, is_behind: bool
) -> None:
    """Sequence numbers begin again below those that a pass has seen: the backup of a catalog was restored."""
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    catalog = table.pyiceberg
    guest = catalog.create_table(GUEST, schema=ID_AND_PART, properties={"format-version": format_version})
    guest.append(table.new_rows(70))
    backup = guest.metadata_location
    for number in range(3):
        guest.append(table.new_rows(80 + number))
    maintain(table, catalog, GUEST, operations="expire_snapshots", max_snapshots_to_keep="9")
    given_up = guest.metadata_location
    catalog.drop_table(GUEST)
    guest = catalog.register_table(GUEST, backup)
    for file in Path(normalise(given_up)).parent.glob("*.metadata.json"):
        if file.name > Path(backup).name:
            file.unlink()
    guest.add_files(files_of(table.table))
    if is_behind:
        date_back(guest)

    maintain(table, catalog, GUEST, operations="expire_snapshots", max_snapshots_to_keep="9")
    outcomes = maintain(table, catalog, "ns.t")
    assert outcomes["expire_snapshots"].status is Status.SUCCEEDED
    assert ids(catalog.load_table(GUEST)) == [0, 1, 10, 11, 20, 21, 70]


# ``icekeeper claims``: what was recorded of a catalog that is gone stops deletion until a person forgets it.

EXPIRE = ("maintain", "ns.t", "--operations", "expire_snapshots", *EVERYTHING_IS_OLD, "--json")
GONE = ("--by-catalog", "gone", "--by-table", "ns.guest")


def claim(folder: str, catalog: str = "gone", warehouse: str = "s3://gone", table: str = "ns.guest") -> TableClaims:
    """Record that a table was seen to have files in a folder."""
    claims = TableClaims(
        catalog=catalog,
        warehouse=warehouse,
        table=TableName.parse(table),
        uuid="0b9e3b1c-0000-0000-0000-000000000000",
        location="s3://gone/ns/guest",
        folders=frozenset((normalise(folder),)),
    )
    open_state(os.environ).claims.record(claims)
    return claims


def is_recorded(claims: TableClaims) -> bool:
    return open_state(os.environ).claims.of_entry(claims.entry) is not None


def test_the_refusal_names_the_command_that_ends_it(command: Command) -> None:
    guest = claim(command.table().location())
    refused = command(*EXPIRE).json["operations"][0]
    assert refused["status"] == "refused"
    told = shlex.split(refused["reason"].partition("icekeeper claims forget ")[2])
    forgotten = command("claims", "forget", *told, "--json", catalog=None)
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
    summaries = [one["summary"] for one in command("history", "ns.t", "--json").json["passes"]]
    assert any("forgot that ns.guest of catalog gone" in summary for summary in summaries)


def test_the_list_shows_who_was_seen_at_the_tables_folders(command: Command) -> None:
    location = command.table().location()
    claim(f"{location}/data")
    claim(f"{location}2", table="ns.neighbour")
    command(*EXPIRE)
    listed = command("claims", "list", "ns.t", "--json").json
    assert [(one["catalog"], one["table"]) for one in listed["claims"]] == [("gone", "ns.guest")]
    assert "ns.guest" in command("claims", "list", "ns.t").out


def test_a_table_that_is_still_there_is_not_forgotten(command: Command) -> None:
    """It would lose the files that it needs."""
    location = command.table().location()
    table = command.table("ns.guest")
    guest = TableClaims(
        catalog=CATALOG,
        warehouse=command.warehouse.as_uri(),
        table=TableName.parse("ns.guest"),
        uuid=str(table.metadata.table_uuid),
        location=normalise(table.location()),
        folders=frozenset((normalise(location),)),
    )
    open_state(os.environ).claims.record(guest)
    answer = command("claims", "forget", "ns.t", "--by-catalog", CATALOG, "--by-table", "ns.guest")
    assert answer.code == 1
    assert "is still there" in one_sentence(answer.err)
    assert is_recorded(guest)


def test_a_configured_catalog_that_does_not_answer_is_not_taken_for_gone(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__GONE__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__GONE__URI", "http://127.0.0.1:9/")
    guest = claim(command.table().location())
    answer = command("claims", "forget", "ns.t", *GONE)
    assert answer.code == 1
    assert "--force" in one_sentence(answer.err)
    assert is_recorded(guest)
    assert command("claims", "forget", "ns.t", *GONE, "--force").code == 0
    assert not is_recorded(guest)


def test_what_was_never_recorded_is_told(command: Command) -> None:
    command.table()
    answer = command("claims", "forget", "ns.t", *GONE)
    assert answer.code == 2
    assert "ns.guest of catalog gone" in one_sentence(answer.err)


def test_of_two_warehouses_the_one_to_forget_must_be_named(command: Command) -> None:
    location = command.table().location()
    first, second = claim(location), claim(location, warehouse="s3://other")
    answer = command("claims", "forget", "ns.t", *GONE)
    assert answer.code == 2
    assert "--by-warehouse" in one_sentence(answer.err)
    assert command("claims", "forget", "ns.t", *GONE, "--by-warehouse", "s3://other").code == 0
    assert is_recorded(first)
    assert not is_recorded(second)
