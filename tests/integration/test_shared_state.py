"""State that processes share, and state without a record of a maintained table."""

from __future__ import annotations

import multiprocessing
import sqlite3
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from icekeeper.state.open import open_state
from support.command import Command
from support.lease_race import KEYS, take_leases

# Processes share the state that ICEKEEPER_STATE names.


def test_processes_that_start_together_create_one_store_and_share_its_leases(tmp_path: Path) -> None:
    """In ``tests/contract/test_leases.py`` threads race for leases in every store."""
    address = str(tmp_path / "shared.db")
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        answers = list(pool.map(take_leases, [address] * 2, [(f"{worker}-a", f"{worker}-b") for worker in range(2)]))
    won = [item for answer in answers for item in answer.items()]
    leases = open_state({"ICEKEEPER_STATE": address}).leases
    assert sorted(key for key, _ in won) == sorted(KEYS)
    assert all(leases.current(key, now_ms=1_999) == lease for key, lease in won)
    with closing(sqlite3.connect(address)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# A pass reports that its state has no record of a table that Icekeeper has maintained.

PASS = ("maintain", "ns.t", "--set", "min_input_files=2", "--json")


def test_a_state_without_the_last_run_is_reported(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.table()
    first = command(*PASS)
    assert "warnings" not in first.json
    run_id, (snapshot_id,) = first.json["run_id"], first.json["operations"][0]["snapshot_ids"]
    assert "warnings" not in command(*PASS).json, "its own state knows the run"
    monkeypatch.setenv("ICEKEEPER_STATE", str(command.folder / "other.db"))
    sentence = (
        f"run {run_id} committed snapshot {snapshot_id}, but the state of this pass has no record of the table: pins "
        "and staged files in another state are not protected; name that state with ICEKEEPER_STATE, unless it is lost"
    )
    for arguments in ((*PASS, "--dry-run"), PASS):
        reported = command(*arguments)
        assert (reported.code, reported.json["warnings"]) == (0, [sentence])
    assert "warnings" not in command(*PASS).json, "the table is known there now"
