"""``icekeeper list`` shows the tables of the last scan, ``icekeeper show`` the parts of one table."""

from __future__ import annotations

import json
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import ListType, LongType, NestedField, StringType, StructType, TimestampType

from support.command import LOCAL, Command, local_path, one_sentence


def test_the_list_shows_the_last_scan_most_urgent_first(command: Command) -> None:
    for name, appends in (("ns.few", 1), ("ns.many", 8), ("ns.gone", 2)):
        command.table(name, appends=appends)
    assert one_sentence(command("list").err).startswith("no scan of catalog C is recorded: run icekeeper detect")
    local_path(command.catalog.load_table("ns.gone").metadata_location).unlink()
    assert command("detect").code == 1
    answer = command("list", "--json")
    assert answer.code == 0
    assert [(entry["name"], entry["state"]) for entry in answer.json["tables"]] == [
        ("ns.gone", "unreadable"),
        ("ns.many", "work"),
        ("ns.few", "well"),
    ]
    health = command("health", "ns.many", "--json").json
    assert answer.json["tables"][1]["counters"].items() <= health["counters"].items()
    heading, *rows = command("list").out.splitlines()
    assert (heading.split()[0], "age" in heading.split(), "0m" in rows[1].split()) == ("table", True, True)
    assert all(0 <= entry["age_seconds"] < 600 for entry in answer.json["tables"])
    assert [row.split()[:3] for row in rows] == [
        ["ns.gone", "unreadable", "–"],
        ["ns.many", "work", "due"],
        ["ns.few", "well", "1"],
    ]
    assert "8 data files of" in rows[1]
    for arguments, names in (
        (("ns.m*", "ns.gone"), ["ns.gone", "ns.many"]),
        (("--state", "work", "--state", "well"), ["ns.many", "ns.few"]),
        (("ns.m*", "--state", "well"), []),
    ):
        assert command("list", *arguments, "-o", "names").out.split() == names
    assert command("list", "--state", "well", "--json").json["tables"] == [answer.json["tables"][2]]
    assert command("list", "other.*").out == "no table matches\n"
    wide = command("list", "-o", "wide").out.splitlines()[0].split()
    assert " ".join(wide) == "table state files live average history orphans delete files snapshots age why"
    assert json.loads(command("list", "--json", catalog="D").out)["error"]["type"] == "CatalogNotFound"


def listed(command: Command) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in command("list", "--json").json["tables"]}


def test_the_list_follows_pauses_and_passes(command: Command) -> None:
    """The records of other tables do not change."""
    command.table("ns.t", appends=8)
    command.table("ns.other", appends=8)
    assert command("detect").code == 0
    before = listed(command)
    work = {"state": "work", "left_alone": None}
    assert {key: before["ns.t"].get(key) for key in work} == work
    assert command("pause", "ns.t", "--until", "2999-01-01T00:00:00Z").code == 0
    paused = listed(command)
    found = "the table is paused until 2999-01-01T00:00:00Z (table property icekeeper.paused_until)"
    assert (paused["ns.t"]["state"], paused["ns.t"].get("left_alone")) == ("paused", found)
    assert paused["ns.t"]["observed_ms"] > before["ns.t"]["observed_ms"]
    assert command("resume", "ns.t").code == 0
    resumed = listed(command)
    assert (resumed["ns.t"]["state"], resumed["ns.t"]["reasons"]) == ("work", before["ns.t"]["reasons"])
    assert command("maintain", "ns.t", *LOCAL, "--dry-run").code == 0
    assert listed(command)["ns.t"]["state"] == "work"
    assert command("maintain", "ns.t", *LOCAL).code == 0
    done = listed(command)
    assert (done["ns.t"]["state"], done["ns.t"]["counters"]["lake_data_files"]) == ("well", 1)
    kept = {key: value for key, value in done["ns.other"].items() if key != "age_seconds"}
    assert kept.items() <= before["ns.other"].items()
    after = command("detect", "--json").json
    assert [entry["table"] for entry in after["proposals"]] == ["ns.other"]
    again = listed(command)["ns.t"]
    assert again["observed_ms"] == done["ns.t"]["observed_ms"], "the next scan sees nothing new"


def test_a_pass_over_a_table_that_no_scan_has_seen_adds_no_entry(command: Command) -> None:
    command.table(appends=8)
    assert command("maintain", "ns.t", *LOCAL).code == 0
    assert one_sentence(command("list").err).startswith("no scan of catalog C is recorded")


def test_show_prints_the_metadata_of_a_table(command: Command) -> None:
    item = StructType(NestedField(6, "sku", StringType()), NestedField(7, "n", LongType()))
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "at", TimestampType()),
        NestedField(3, "items", ListType(5, item)),
    )
    table = command.catalog.create_table(
        "ns.t", schema, sort_order=SortOrder(SortField(1, IdentityTransform(), SortDirection.DESC))
    )
    with table.update_spec() as spec:
        spec.add_field("at", DayTransform(), "day")
        spec.add_field("id", BucketTransform(16), "shard")
    command.table("ns.u", appends=23)
    snapshot = command.catalog.load_table("ns.u").current_snapshot()
    assert snapshot is not None
    command.catalog.load_table("ns.u").manage_snapshots().create_tag(snapshot.snapshot_id, "audit").commit()
    lines = command("show", "ns.t").out.splitlines()
    assert [line.split() for line in lines[lines.index("schema") :]] == [
        ["schema"],
        ["1", "id", "long", "required"],
        ["2", "at", "timestamp"],
        ["3", "items", "list<struct<sku:", "string,", "n:", "long>>"],
        ["partition", "spec", "0"],
        ["none"],
        ["partition", "spec", "1", "(current)"],
        ["day(at)"],
        ["bucket(16,", "id)"],
        ["sort", "order", "1", "(current)"],
        ["id", "desc", "nulls-last"],
        ["refs"],
        ["none"],
        ["0", "snapshots"],
        ["none"],
    ]
    shown = command("show", "ns.u", "--json").json
    assert [(ref["name"], ref["type"]) for ref in shown["refs"]] == [("audit", "tag"), ("main", "branch")]
    assert [len(shown["snapshots"]), shown["snapshots"][0]["snapshot_id"]] == [23, snapshot.snapshot_id]
    assert "23 snapshots, the newest 20" in command("show", "ns.u").out.splitlines()
