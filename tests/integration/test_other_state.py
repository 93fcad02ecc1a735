"""A pass whose state knows nothing of a table that Icekeeper has maintained says so (rule 191)."""

from __future__ import annotations

import pytest

from support.command import Command

PASS = ("maintain", "ns.t", "--set", "min_input_files=2", "--json")


def test_a_state_that_does_not_know_the_last_run_is_told(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.table()
    first = command(*PASS)
    assert "warnings" not in first.json
    run_id, (snapshot_id,) = first.json["run_id"], first.json["operations"][0]["snapshot_ids"]
    assert "warnings" not in command(*PASS).json, "its own state knows the run"
    monkeypatch.setenv("ICEKEEPER_STATE", str(command.folder / "other.db"))
    sentence = (
        f"run {run_id} committed snapshot {snapshot_id}, and the state of this pass has seen no pass over the table: "
        "what is pinned or staged in another state is not protected here; name that state with ICEKEEPER_STATE, unless "
        "it is lost"
    )
    for arguments in ((*PASS, "--dry-run"), PASS):
        told = command(*arguments)
        assert (told.code, told.json["warnings"]) == (0, [sentence])
    assert "warnings" not in command(*PASS).json, "the table is known there now"
