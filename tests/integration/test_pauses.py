"""``icekeeper pause`` and ``resume``: no pass runs on a paused table, whoever starts it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import identity_of
from icekeeper.machine.clock import HOUR_MS, iso_utc, system_clock
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.runtime import Runtime
from support.command import CATALOG, Command, local_path, one_sentence
from support.maintained_table import NAME, grow_old, new_table

UNTIL = "2099-01-01T00:00:00Z"
WHY = f"the table is paused until {UNTIL} (table property icekeeper.paused_until)"


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    made = Command(tmp_path, monkeypatch, capsys)
    made.table(appends=6)
    return made


def test_a_paused_table_is_maintained_by_nobody_until_it_is_resumed(command: Command) -> None:
    paused = command("pause", "ns.t", "--until", "2099-01-01T02:00:00+02:00", "--reason", "rows doubted", "--json")
    assert (paused.code, paused.json["paused_until"]) == (0, UNTIL)
    orphan = local_path(command.catalog.load_table("ns.t").location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"x")
    grow_old([orphan])
    before = command.contents()

    outcome = command("maintain", "ns.t", "--set", "min_input_files=2", "--json")
    assert {(part["status"], part["reason"]) for part in outcome.json["operations"]} == {("skipped", WHY)}
    assert {part["reason"] for part in command("maintain", "ns.t", "--dry-run", "--json").json["operations"]} == {WHY}
    swept = command("orphans", "--bucket", command.warehouse.as_uri(), "--json")
    assert [table["reason"] for table in swept.json["tables"]] == [WHY]
    found = command("detect", "--set", "min_input_files=2", "--json").json
    assert found["proposals"] == []
    assert command("run", "--once", "--set", "min_input_files=2").code == 0
    assert command.contents() == before

    resumed = command("resume", "ns.t")
    assert resumed.out == f"ns.t is maintained again; it was paused until {UNTIL}\n"
    assert command("resume", "ns.t").out == "ns.t was not paused\n"
    assert command("maintain", "ns.t", "--set", "min_input_files=2", "--json").json["status"] == "succeeded"
    passes = command("history", "ns.t", "--json").json["passes"]
    told = [one["summary"].split(" ", 2) for one in passes if one["summary"].startswith(("pause:", "resume:"))]
    assert [(verb, rest) for verb, _, rest in told] == [
        ("resume:", f"ended the pause until {UNTIL}"),
        ("pause:", f"paused the table until {UNTIL}: rows doubted"),
    ]


def test_a_pause_ends_by_itself(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    until_ms = system_clock() + 6 * HOUR_MS
    table = new_table(local_catalog, tmp_path, properties={"icekeeper.paused_until": iso_utc(until_ms)})
    table.fill(3)
    assert table.run(Operation.COMPACT).reason == (
        f"the table is paused until {iso_utc(until_ms)} (table property icekeeper.paused_until)"
    )
    table.late_ms = 24 * HOUR_MS
    assert table.run(Operation.COMPACT).status is Status.SUCCEEDED


def test_pause_waits_for_no_pass_that_runs(command: Command) -> None:
    runtime = Runtime.open(CATALOG, command.environment())
    loaded = runtime.catalog.load(NAME)
    key = identity_of(runtime.catalog, loaded).lease_key
    runtime.state.leases.acquire(key, "another pass", now_ms=system_clock(), ttl_ms=HOUR_MS, name="ns.t")
    before = command.contents()
    answer = command("pause", "ns.t", "--until", "6h")
    assert answer.code == 1
    assert "ns.t is leased by another pass until" in one_sentence(answer.err)
    assert "nothing was changed; repeat this when the pass has ended" in answer.err
    assert command.contents() == before


@pytest.mark.parametrize(
    ("until", "sentence"),
    [
        ("soon", "--until takes a time like 6h or 3d, or one with its zone like 2026-12-01T06:00:00Z, not 'soon'"),
        ("2026-12-01T06:00:00", "not '2026-12-01T06:00:00'"),
        (
            "2001-01-01T00:00:00Z",
            "until 2001-01-01T00:00:00Z: that is over; name a later time",
        ),
    ],
)
def test_times_that_pause_nothing_are_refused(command: Command, until: str, sentence: str) -> None:
    answer = command("pause", "ns.t", "--until", until)
    assert answer.code == 2
    assert sentence in one_sentence(answer.err)
    assert "icekeeper.paused_until" not in command.catalog.load_table("ns.t").properties


def test_a_property_that_is_no_time_keeps_every_pass_away(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(local_catalog, tmp_path, properties={"icekeeper.paused_until": "tomorrow"})
    with pytest.raises(Exception, match="paused_until cannot be 'tomorrow'"):
        table.run(Operation.COMPACT)
