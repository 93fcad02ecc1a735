"""Pins: a pinned snapshot neither expires nor loses its metadata file, also beside other writers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.administration.pins import add_pin, list_pins, remove_pin
from icekeeper.catalogs.catalog import identity_of
from icekeeper.errors import CommitStateUnknown, OperationRefused
from icekeeper.machine.clock import HOUR_MS, Clock, iso_utc, system_clock
from icekeeper.model import TableName
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import Pin, PinKind
from icekeeper.storage.paths import normalise
from support.command import ABOUT, EVERYTHING_IS_OLD, Command, one_sentence
from support.maintained_table import NAME, MaintainedTable, ahead, new_table, store_at
from support.moments import Moment, at
from support.readers import canonical, duckdb_rows, pyiceberg_rows
from support.scripted_catalog import ScriptedCatalog, once

# The pin command: a pinned snapshot neither expires nor loses its metadata file, and other engines see its tag.

PASS = ("maintain", "ns.t", "--engine", "local", *EVERYTHING_IS_OLD)
EXPIRE = (*PASS, "--operations", "expire_snapshots,remove_orphans", "--json")


def snapshots(command: Command) -> list[int]:
    return [snapshot.snapshot_id for snapshot in command.catalog.load_table("ns.t").metadata.snapshots]


def refs(command: Command) -> dict[str, Any]:
    return {name: ref for name, ref in command.catalog.load_table("ns.t").metadata.refs.items() if name != "main"}


def test_a_pinned_snapshot_outlives_an_expiry_and_is_still_read(command: Command) -> None:
    """A pin is a horizon: the pinned snapshot and newer snapshots are kept, older snapshots expire."""
    command.table(appends=6)
    ids = snapshots(command)
    pinned_rows = canonical(pyiceberg_rows(command.pointers()[0][1], ids[2]))
    added = command("pin", "add", "ns.t", "--snapshot", str(ids[2]), "--ttl", "6h", "--name", "reader", "--json")
    assert added.code == 0
    location = added.json["pin"]["metadata_location"]

    answer = command(*EXPIRE)

    assert answer.json["operations"][0]["summary"].startswith("expired 2 snapshot(s)")
    assert snapshots(command) == ids[2:]
    assert canonical(duckdb_rows(location, ids[2])) == pinned_rows
    assert command("pin", "remove", "ns.t", "--name", "reader").code == 0
    assert command(*EXPIRE).json["operations"][0]["summary"].startswith("expired 3 snapshot(s)")


def test_pins_are_shown_as_json(command: Command) -> None:
    command.table(appends=2)
    head = snapshots(command)[-1]
    before_ms = system_clock()
    added = command("pin", "add", "ns.t", "--snapshot", "current", "--ttl", "90s", "--name", "N", "--json")
    pin = added.json["pin"]
    assert added.code == 0
    assert added.json == {
        **ABOUT,
        "pin": {
            "name": "N",
            "snapshot_id": head,
            "snapshot_id_text": str(head),
            "metadata_location": command.pointers()[0][1],
            "expires_ms": pin["expires_ms"],
            "expires": iso_utc(pin["expires_ms"]),
            "kind": "reader",
            "tag": None,
        },
    }
    assert 90_000 <= pin["expires_ms"] - before_ms <= 90_000 + system_clock() - before_ms
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", pin["expires"])
    assert command("pin", "list", "ns.t", "--json").json == {**ABOUT, "pins": [pin]}
    text = command("pin", "list", "ns.t")
    assert text.out.split() == ["N", "reader", "snapshot", str(head), "until", pin["expires"]]
    removed = command("pin", "remove", "ns.t", "--name", "N", "--json")
    assert (removed.code, removed.json) == (0, {**ABOUT, "removed": "N"})
    assert command("pin", "list", "ns.t", "--json").json == {**ABOUT, "pins": []}


def test_an_unnamed_pin_gets_a_name_and_the_same_name_extends_a_pin(command: Command) -> None:
    table = command.table(appends=2)
    add = ("pin", "add", "ns.t", "--snapshot", "current", "--json")
    first = command(*add, "--ttl", "1h").json["pin"]
    assert re.fullmatch(r"pin-[0-9a-f]{8}", first["name"])
    longer = command(*add, "--ttl", "6h", "--name", first["name"]).json["pin"]
    assert longer["expires_ms"] >= first["expires_ms"] + 5 * HOUR_MS
    shorter = command(*add, "--ttl", "1m", "--name", first["name"]).json["pin"]
    assert shorter == longer
    assert command("pin", "list", "ns.t", "--json").json["pins"] == [longer]

    table.append(table.scan().to_arrow())  # the pin keeps the metadata file of its reader
    again = ("--snapshot", first["snapshot_id_text"], "--ttl", "9h", "--name", first["name"])
    later = command("pin", "add", "ns.t", *again, "--json").json["pin"]
    assert (later["metadata_location"], later["name"]) == (first["metadata_location"], first["name"])


WRONG_PINS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--snapshot", "current", "--ttl", "6"), "--ttl takes a time like 90s, 30m, 6h or 7d, at most 366d, not '6'"),
    (("--snapshot", "7", "--ttl", "6h"), "ns.t has no snapshot 7; icekeeper show ns.t lists them"),
    (("--snapshot", "latest", "--ttl", "6h"), "a pin takes a snapshot id or 'current', not 'latest'"),
    (("--snapshot", "current", "--ttl", "6h", "--name", "a:b"), "pin name 'a:b' must be 1 to 128 letters"),
    (("--snapshot", "current", "--ttl", "6h", "--name", ""), "pin name '' must be 1 to 128 letters"),
    (("--snapshot", "current", "--ttl", "6h", "--name", "kept"), "pin 'kept' holds snapshot "),
)


def test_wrong_pins_fail_with_a_sentence_and_change_nothing(command: Command) -> None:
    command.table(appends=2)
    command.table("ns.empty", appends=0)
    command("pin", "add", "ns.t", "--snapshot", str(snapshots(command)[0]), "--ttl", "1h", "--name", "kept")
    pins, absent = command("pin", "list", "ns.t", "--json").json["pins"], "there is no table ns.absent in catalog C"
    for arguments, sentence in (
        *((("add", "ns.t", *arguments), sentence) for arguments, sentence in WRONG_PINS),
        (("add", "ns.empty", "--snapshot", "current", "--ttl", "1h"), "ns.empty has no current snapshot to pin"),
        (("add", "ns.absent", "--snapshot", "1", "--ttl", "1h"), absent),
        (("list", "ns.absent"), absent),
        (("remove", "ns.absent", "--name", "N"), absent),
        (("remove", "ns.t", "--name", "N"), "there is no pin 'N' on ns.t; pins are: kept"),
    ):
        answer = command("pin", *arguments, "--json")
        assert answer.code == 2
        assert answer.json["error"]["message"].startswith(sentence)
        assert one_sentence(answer.err).startswith(sentence)
    assert command("pin", "list", "ns.t", "--json").json["pins"] == pins


# -- tags


def test_a_tag_keeps_the_snapshot_for_engines_that_do_not_know_pins(command: Command) -> None:
    """The tag's age counts from the snapshot, so it expires with the pin; removing the pin removes it."""
    command.table(appends=3)
    first = command.catalog.load_table("ns.t").metadata.snapshots[0]
    added = command(
        *("pin", "add", "ns.t", "--snapshot", str(first.snapshot_id), "--ttl", "6h", "--name", "N", "--tag", "--json")
    )
    pin = added.json["pin"]
    assert pin["tag"] == "N"
    tag = refs(command)["N"]
    assert (tag.snapshot_ref_type.value, tag.snapshot_id) == ("tag", first.snapshot_id)
    assert tag.max_ref_age_ms == pin["expires_ms"] - first.timestamp_ms
    longer = command(
        *("pin", "add", "ns.t", "--snapshot", str(first.snapshot_id), "--ttl", "9h", "--name", "N", "--json")
    ).json["pin"]
    assert longer["tag"] == "N"
    assert refs(command)["N"].max_ref_age_ms == longer["expires_ms"] - first.timestamp_ms
    assert command("pin", "remove", "ns.t", "--name", "N").code == 0
    assert refs(command) == {}


def test_a_tag_that_another_writer_moved_is_kept(command: Command) -> None:
    table = command.table(appends=3)
    ids = snapshots(command)
    command("pin", "add", "ns.t", "--snapshot", str(ids[0]), "--ttl", "6h", "--name", "N", "--tag")
    table.refresh()
    table.manage_snapshots().remove_tag("N").commit()
    table.manage_snapshots().create_tag(ids[1], "N").commit()
    assert command("pin", "remove", "ns.t", "--name", "N").code == 0
    assert refs(command)["N"].snapshot_id == ids[1]


@pytest.mark.parametrize(
    ("properties", "name", "sentence"),
    [
        ({"format-version": "1"}, "N", "tables of format version 1 cannot have tags; pin without a tag"),
        ({}, "main", "the table has a branch 'main' already; choose another name for the pin"),
        ({}, "kept", "the table has a tag 'kept' already; choose another name for the pin"),
    ],
)
def test_impossible_tags_are_refused_and_nothing_is_pinned(
    command: Command, properties: dict[str, str], name: str, sentence: str
) -> None:
    table = command.table(appends=2, properties=properties)
    if name == "kept":
        table.manage_snapshots().create_tag(snapshots(command)[0], "kept").commit()
    before = command.contents()
    answer = command("pin", "add", "ns.t", "--snapshot", "current", "--ttl", "6h", "--name", name, "--tag")
    assert (answer.code, one_sentence(answer.err)) == (2, sentence)
    assert command.contents() == before
    assert command("pin", "list", "ns.t", "--json").json["pins"] == []


# Pins beside concurrent writers.


@pytest.fixture
def table(four_appends: MaintainedTable) -> MaintainedTable:
    return four_appends


def handle_of(table: MaintainedTable, **more: Any) -> TableHandle:
    given = {"catalog": table.catalog, "state": table.state, "clock": system_clock, **more}
    return TableHandle(table=NAME, sleep=table.waits.append, **given)


def test_a_snapshot_that_expires_while_it_is_pinned_is_not_pinned(table: MaintainedTable) -> None:
    """The expiry reads the pins before this pin exists, and commits before the pin is checked."""
    first = next(iter(table.metadata.snapshots))
    location = table.loaded.metadata_location
    with (
        at(Moment.PIN_RECORDED, lambda: table.run(Operation.EXPIRE_SNAPSHOTS)),
        mock.patch.object(SqliteStateStore, "pins", return_value=()),
        pytest.raises(OperationRefused) as caught,
    ):
        add_pin(handle_of(table), snapshot=str(first), ttl_ms=HOUR_MS)
    assert str(caught.value) == f"snapshot {first} expired while it was being pinned; pin a newer one"
    assert list_pins(handle_of(table)) == ()
    assert location != table.loaded.metadata_location


def test_an_expiry_that_read_the_pins_too_early_keeps_pinned_files(table: MaintainedTable) -> None:
    """Pinned between plan and commit, the snapshot and all newer ones leave the table, but remain in the pinned
    metadata file (rule: pin-is-a-horizon)."""
    first, *newer = table.metadata.snapshots
    rows = {i: canonical(pyiceberg_rows(table.loaded.metadata_location, i)) for i in (first, *newer)}
    pins: list[Pin] = []

    def pin() -> None:
        pins.append(add_pin(handle_of(table), snapshot=str(first), ttl_ms=HOUR_MS))

    table.run(Operation.COMPACT)
    with at(Moment.BEFORE_COMMIT, pin):
        outcome = table.run(Operation.EXPIRE_SNAPSHOTS)
    assert outcome.status is Status.SUCCEEDED
    assert list(table.metadata.snapshots) == [table.metadata.refs["main"].snapshot_id]
    assert {i: canonical(duckdb_rows(pins[0].metadata_location, i)) for i in rows} == rows
    assert table.unreferenced() != set()
    assert table.run(Operation.REMOVE_ORPHANS, dry_run=True).files_planned == ()
    table.run(Operation.REMOVE_ORPHANS)
    assert {i: canonical(duckdb_rows(pins[0].metadata_location, i)) for i in rows} == rows
    remove_pin(handle_of(table), pins[0].name)
    table.run(Operation.REMOVE_ORPHANS)
    assert table.unreferenced() == set()


def test_a_pinned_snapshot_with_unreadable_references_stops_every_deletion(table: MaintainedTable) -> None:
    first = next(iter(table.metadata.snapshots))
    pin = add_pin(handle_of(table), snapshot=str(first), ttl_ms=HOUR_MS)
    orphan = table.plant("data/orphan.parquet")
    with mock.patch.object(SqliteStateStore, "pins", return_value=()):
        table.run(Operation.EXPIRE_SNAPSHOTS)
    Path(normalise(pin.metadata_location)).unlink()
    outcome = table.run(Operation.REMOVE_ORPHANS)
    assert outcome.status is Status.REFUSED
    assert outcome.reason is not None
    assert outcome.reason.startswith(f"the files that pin '{pin.name}' holds cannot be determined: ")
    assert "; nothing was deleted; " in outcome.reason
    assert orphan in table.files()


def test_a_pin_whose_metadata_file_another_engine_deleted_stops_nothing_while_the_table_has_its_snapshots(
    table: MaintainedTable,
) -> None:
    first = next(iter(table.metadata.snapshots))
    pin = add_pin(handle_of(table), snapshot=str(first), ttl_ms=HOUR_MS)
    table.append(99)  # so that the pinned file is not the current one
    orphan = table.plant("data/orphan.parquet")
    Path(normalise(pin.metadata_location)).unlink()
    assert list(map(normalise, table.run(Operation.REMOVE_ORPHANS).files_deleted)) == [orphan]


@pytest.mark.parametrize("kind", [PinKind.READER, PinKind.JOB])
def test_delete_after_commit_keeps_pinned_metadata(tmp_path: Path, kind: PinKind) -> None:
    """Pointer catalogs delete metadata files that leave the log, as Iceberg-Java does, except pinned files."""
    folder = tmp_path / "warehouse"
    folder.mkdir()
    catalog = SqlCatalog("local", uri=f"sqlite:///{tmp_path / 'catalog.db'}", warehouse=folder.as_uri())
    properties = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    table = new_table(catalog, tmp_path, properties=properties)
    table.append(1)
    loaded = table.loaded
    location = loaded.metadata_location
    assert loaded.metadata.current_snapshot is not None
    table.state.add_pin(
        Pin(
            identity=identity_of(table.catalog, loaded),
            name="p",
            snapshot_id=loaded.metadata.current_snapshot.snapshot_id,
            metadata_location=location,
            expires_ms=2**62,
            kind=kind,
        )
    )
    commits: list[str] = []
    for days in range(2, 6):
        table.append(days)
        table.run(Operation.COMPACT, rewrite_all="true")
        commits.append(table.loaded.metadata_location)
    assert Path(normalise(location)).exists()
    assert [Path(normalise(path)).exists() for path in commits] == [False] * 3 + [True]
    catalog.close()


def test_a_tag_of_unknown_outcome_keeps_the_pin(table: MaintainedTable) -> None:
    """The tag may exist; removing the pin then removes it, too."""

    def lose_the_answer() -> None:
        raise CommitStateUnknown("the answer got lost")

    class Silent(ScriptedCatalog):
        def load(self, table: TableName) -> Any:
            if self.commits:
                raise CommitStateUnknown("nobody answers")
            return super().load(table)

    catalog = Silent(table.catalog, after_commit=once(lose_the_answer))
    with pytest.raises(CommitStateUnknown):
        add_pin(handle_of(table, catalog=catalog), snapshot="current", ttl_ms=HOUR_MS, name="N", with_tag=True)
    assert [pin.tag for pin in list_pins(handle_of(table))] == ["N"]
    assert "N" in table.metadata.refs
    remove_pin(handle_of(table), "N")
    assert "N" not in table.metadata.refs
    assert list_pins(handle_of(table)) == ()


# A pin ends by the clock of the table's store, not by the clocks of the machines that set and read it
# (rule: age-by-store-clock).

NOW_H = 100  # the age of the table's snapshots in hours, by its store


def first_snapshot_is_kept(three_appends: MaintainedTable, clock: Clock, store_h: float) -> bool:
    """Whether the first snapshot survives an expiry of all unpinned snapshots, with these clocks."""
    first = next(iter(three_appends.metadata.snapshots))
    outcome = three_appends.run(
        Operation.EXPIRE_SNAPSHOTS,
        clock=clock,
        store_clock=store_at(ahead(store_h)),
        snapshot_retention_hours="4",
        max_snapshots_to_keep="1",
    )
    assert outcome.status in (Status.SUCCEEDED, Status.SKIPPED)
    return first in three_appends.metadata.snapshots


@pytest.mark.parametrize("setter_h", [-5, 5])
def test_a_pin_holds_if_the_clocks_of_both_machines_are_wrong(three_appends: MaintainedTable, setter_h: float) -> None:
    """The pin lasts two hours by the store; one machine is behind by more than that, the other ahead by more."""
    handle = TableHandle(
        three_appends.catalog, NAME, three_appends.state, ahead(NOW_H + setter_h), store_clock=store_at(ahead(NOW_H))
    )
    first = next(iter(three_appends.metadata.snapshots))
    add_pin(handle, snapshot=str(first), ttl_ms=2 * HOUR_MS, name="reader")
    assert first_snapshot_is_kept(three_appends, ahead(NOW_H + 3.5), NOW_H + 1)
    assert not first_snapshot_is_kept(three_appends, ahead(NOW_H), NOW_H + 3)
