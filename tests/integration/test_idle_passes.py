"""A pass that changed nothing is no entry of the journal; one that failed or was refused is."""

from __future__ import annotations

from typing import Any

from support.command import EVERYTHING_IS_OLD, Command, local_path

PASS = ("maintain", "ns.t", "--engine", "local", *EVERYTHING_IS_OLD, "--json")


def passes(command: Command) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = command("history", "ns.t", "--json").json["passes"]
    return found


def test_a_pass_that_changed_nothing_is_no_entry(command: Command) -> None:
    command.table()
    first = command(*PASS).json
    second = command(*PASS).json
    sweep = next(part for part in second["operations"] if part["operation"] == "remove_orphans")
    assert (sweep["status"], sweep["summary"]) == ("succeeded", "removed 0 orphan file(s)")
    assert [one["run_id"] for one in passes(command)] == [first["run_id"]]


def test_a_sweep_that_found_something_is_an_entry(command: Command) -> None:
    table = command.table(appends=1)
    orphan = local_path(table.location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"PAR1")
    waits = ("--set", "orphan_min_sightings=2")
    summaries = []
    for _ in range(2):
        command(*PASS, *waits, "--operations", "remove_orphans")
        summaries = [one["summary"] for one in passes(command)]
    assert len(summaries) == 2
    assert summaries[0] == "remove_orphans: removed 1 orphan file(s)"
    assert not orphan.exists()


def test_a_refused_pass_is_an_entry_every_time(command: Command) -> None:
    table = command.table(appends=1)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    local_path(snapshot.manifest_list).unlink()
    for count in (1, 2):
        command(*PASS, "--operations", "remove_orphans")
        assert [one["status"] for one in passes(command)] == ["partial"] * count
