"""Forty hours of a small fleet: detection and passes keep tables of every kind in bounds."""

from __future__ import annotations

from pathlib import Path

from benchmarks.paper_fleet import LIVES, START_MS, PaperFleet
from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.sqlite.store import SqliteStateStore


def test_forty_hours_of_one_table_of_each_kind(tmp_path: Path) -> None:
    fleet = PaperFleet(SqliteStateStore(tmp_path / "state.db"), tables=12)
    # One table ends its life early with orphans that are old enough.
    crashed = next(m for m in fleet.members.values() if m.kind == "crashing")
    crashed.orphans.groups.append((START_MS - 80 * HOUR_MS, 7))
    for hour in range(40):
        fleet.hour(hour)
    assert {member.kind for member in fleet.members.values()} == set(LIVES)
    for member in fleet.members.values():
        table, tally = member.table, fleet.tallies[member.kind]
        is_debted = member.kind in ("cdc", "merge-on-read")
        assert table.rewritten <= (10 if is_debted else 3) * table.written or member.kind == "idle", member.kind
        assert tally.useful <= tally.proposed
        assert len(table.manifests) < 40
    assert fleet.tallies["streaming"].proposed == fleet.tallies["streaming"].useful == 40
    assert fleet.tallies["streaming"].worst_small <= 12
    assert fleet.tallies["idle"].useful >= 1
    assert len(fleet.tallies["crashing"].orphan_ages_ms) == 7
