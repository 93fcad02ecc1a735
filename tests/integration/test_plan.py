"""``icekeeper plan``: what a pass would do and free, and what each ref holds alone; it changes nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from support.command import EVERYTHING_IS_OLD, Command, local_path, one_sentence

LOCAL = ("--engine", "local")
BOTH = (*EVERYTHING_IS_OLD, "--operations", "expire_snapshots,remove_orphans")


def test_it_says_what_a_pass_then_does(command: Command) -> None:
    """The same files, and the bytes that they really have on the disk."""
    table = command.table()
    orphan = local_path(table.location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"12345")
    before = command.contents()
    planned = command("plan", "ns.t", *LOCAL, *BOTH, "--json")
    assert (planned.code, command.contents()) == (0, before)
    expiry, sweep = planned.json["operations"]
    assert sweep["files"]["planned"] == [orphan.as_uri()]
    sizes = [Path(local_path(path)).stat().st_size for path in expiry["files"]["planned"]]
    assert planned.json["reclaimable_bytes"] == sum(sizes) + 5
    done = command("maintain", "ns.t", *LOCAL, *BOTH, "--json")
    for would, did in zip(planned.json["operations"], done.json["operations"], strict=True):
        assert did["files"]["deleted"] == would["files"]["planned"]


def test_it_names_the_bounds_that_another_engine_has_to_honour(command: Command) -> None:
    """Pins, staged loads, grace and protected prefixes, as they are after the plan was made."""
    table = command.table(appends=3)
    snapshots = [snapshot.snapshot_id for snapshot in table.snapshots()]
    for name, place in (("older", 1), ("newer", 2)):
        assert (
            command("pin", "add", "ns.t", "--snapshot", str(snapshots[place]), "--ttl", "1d", "--name", name).code == 0
        )
    staged, prefix = f"{table.location()}/data/loaded.parquet", f"{table.location()}/data/load-1"
    assert command("stage", "add", "ns.t", "--name", "open", "--file", staged, "--prefix", prefix).code == 0
    assert command("stage", "add", "ns.t", "--name", "failed", "--file", f"{staged}.2").code == 0
    assert command("stage", "failed", "ns.t", "--name", "failed").code == 0
    kept = f"{table.location()}/data/kept"
    settings = ("--set", f"orphan_protected_prefixes={kept}", "--set", "orphan_older_than_hours=48")
    before = command.contents()
    bounds = command("plan", "ns.t", *LOCAL, *settings, "--json").json["bounds"]
    assert command.contents() == before
    now_ms, hour_ms = bounds["now_ms"], 3_600_000
    assert abs(now_ms - time.time() * 1000) < 60_000
    assert bounds == {
        "now_ms": now_ms,
        "metadata_location": command.catalog.load_table("ns.t").metadata_location,
        "gc_enabled": True,
        "oldest_pinned_snapshot_id": snapshots[1],
        "pinned_metadata": [table.metadata_location],
        "staged": {"prefixes": [prefix], "files": [staged]},
        "protected_prefixes": [kept],
        "allowed_prefixes": [command.warehouse.as_uri()],
        "orphans_modified_before_ms": now_ms - 48 * hour_ms,
        "snapshots_committed_before_ms": now_ms - 168 * hour_ms,
        "snapshots_kept": 5,
    }


def test_many_staged_files_are_listed_beside_the_document(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    table = command.table()
    staged = f"{table.location()}/data/loaded.parquet"
    assert command("stage", "add", "ns.t", "--name", "open", "--file", staged).code == 0
    monkeypatch.setattr("icekeeper.administration.settings.MAX_INLINE_PATHS", 0)
    found = command("plan", "ns.t", *LOCAL, "--json").json["bounds"]["staged"]
    assert (found["prefixes"], found["files_count"]) == ([], 1)
    assert json.loads(Path(found["listing"]).read_text()) == {"staged": [staged]}


def test_a_tag_costs_what_only_it_holds(command: Command) -> None:
    """Bytes of the files that dropping the tag would free, metadata included; the branch shares none of them."""
    table = command.table(appends=1)
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "kept").commit()  # type: ignore[union-attr]
    first = table.inspect.files()["file_path"].to_pylist()
    table = command.catalog.load_table("ns.t")
    table.delete()
    answer = command("plan", "ns.t", *LOCAL, "--json")
    assert answer.code == 0
    costs = answer.json["costs"]
    by_name = {ref["name"]: ref for ref in costs["refs"]}
    assert {name: (ref["type"], ref["snapshots"]) for name, ref in by_name.items()} == {
        "main": ("branch", 2),
        "kept": ("tag", 1),
    }
    assert by_name["kept"]["bytes_only_here"] == 0  # its snapshot is in the history of main
    assert [s["refs"] for s in costs["snapshots"]] == [["kept", "main"], ["main"]]
    assert costs["bytes"] >= local_path(first[0]).stat().st_size


def test_people_read_what_is_reclaimable(command: Command) -> None:
    command.table(appends=2)
    answer = command("plan", "ns.t", *LOCAL)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0] == "ns.t: succeeded (dry run: nothing was changed)"
    assert any(line.startswith("reclaimable: 0 bytes of the ") for line in lines)
    assert any(line.startswith("main  branch  2 snapshot(s), ") for line in lines)


def test_an_unknown_table_is_a_wrong_call(command: Command) -> None:
    answer = command("plan", "ns.nothing", *LOCAL)
    assert answer.code == 2
    assert "ns.nothing" in one_sentence(answer.err)
