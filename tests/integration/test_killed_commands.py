"""Commands that are killed lose no row, and the same command does afterwards what it should have done (rule 166)."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from icekeeper.state.held_lease import has_died
from support.command import Command
from support.killed_processes import dies_at
from support.readers import canonical, pyiceberg_rows

LONGEST_LEASE_MS = 180_000
EVERY_STEP = range(1, 100)
KILLED: dict[str, tuple[tuple[str, ...], Iterable[int]]] = {
    "run": (
        ("run", "--once", "--engine", "local", "--set", "min_input_files=2", "--set", "max_snapshots_to_keep=1"),
        (10, 40),
    ),
    "pin": (("pin", "add", "ns.t", "--name", "p", "--snapshot", "current", "--ttl", "2h"), EVERY_STEP),
    "stage": (("stage", "add", "ns.t", "--name", "L", "--prefix", "{}/data/in", "--file", "{}/data/f"), EVERY_STEP),
    "policy": (("policy", "set", "ns.t", "min_input_files=3"), EVERY_STEP),
}


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_command_is_called_again(
    command: Command, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    table, (given, steps) = command.table(), KILLED[name]
    arguments = [part.format(table.location()) for part in given]
    rows = canonical(pyiceberg_rows(table.metadata_location))
    before = tmp_path_factory.mktemp("before") / "all"
    assert command("detect").code == 0
    shutil.copytree(command.folder, before)

    def work() -> None:
        assert command(*arguments).code == 0

    deaths = 0
    for step in steps:
        shutil.rmtree(command.folder)
        shutil.copytree(before, command.folder)
        if not dies_at(step, work):
            break
        deaths += 1
        no_lease_bars_others(command.state)
        for again in (("verify", "ns.t"), tuple(arguments), ("verify", "ns.t")):
            answer = command(*again)
            assert (answer.code, answer.err) == (0, answer.err if again[0] == "run" else ""), (step, again)
        assert canonical(pyiceberg_rows(dict(command.pointers())["ns.t"])) == rows, step
    assert deaths


def no_lease_bars_others(state: Path) -> None:
    """Where a death can be proven, nothing waits for the three minutes; the mark of a schedule bars nobody."""
    with closing(sqlite3.connect(state)) as connection:
        left = connection.execute("SELECT holder, expires_ms FROM leases WHERE lease_key <> 'schedule'").fetchall()
    assert all(end - time.time() * 1000 <= LONGEST_LEASE_MS for _, end in left), left
    assert all(has_died(holder) for holder, _ in left), left
