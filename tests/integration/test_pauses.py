"""``icekeeper pause`` and the other switches of a table: no pass maintains a paused table, however it starts;
a running pass stops before its next commit or batch of deletions (rule: switches-stop-at-once)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import identity_of
from icekeeper.deletion import delete
from icekeeper.machine.clock import HOUR_MS, iso_utc, system_clock
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.runtime import Runtime
from support.command import CATALOG, Command, local_path, one_sentence
from support.maintained_table import NAME, MaintainedTable, grow_old, new_table, outcome_of
from support.moments import Moment, at
from support.pipeline_deployment import Pipeline

UNTIL = "2099-01-01T00:00:00Z"
WHY = f"the table is paused until {UNTIL} (table property icekeeper.paused_until)"


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    made = Command(tmp_path, monkeypatch, capsys)
    made.table(appends=6)
    return made


def test_no_pass_maintains_a_paused_table_until_it_is_resumed(command: Command) -> None:
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
    reported = [item["summary"].split(" ", 2) for item in passes if item["summary"].startswith("pause:")]
    assert [(verb, rest) for verb, _, rest in reported] == [
        ("pause:", f"ended the pause until {UNTIL}"),
        ("pause:", f"paused the table until {UNTIL}: rows doubted"),
    ]


def test_a_pause_ends_by_itself(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    until_ms = system_clock() + 6 * HOUR_MS
    table = new_table(local_catalog, tmp_path, properties={"icekeeper.paused_until": iso_utc(until_ms)}, appends=3)
    assert table.run(Operation.COMPACT).reason == (
        f"the table is paused until {iso_utc(until_ms)} (table property icekeeper.paused_until)"
    )
    table.late_ms = 24 * HOUR_MS
    assert table.run(Operation.COMPACT).status is Status.SUCCEEDED


def test_a_table_is_paused_and_resumed_while_a_pass_runs(command: Command) -> None:
    """The pass holds the lease; pausing does not need it."""
    runtime = Runtime.open(CATALOG, command.environment())
    loaded = runtime.catalog.load(NAME)
    key = identity_of(runtime.catalog, loaded).lease_key
    runtime.state.leases.acquire(key, "another pass", now_ms=system_clock(), ttl_ms=HOUR_MS, name="ns.t")
    assert command("pause", "ns.t", "--until", UNTIL).code == 0
    assert command.catalog.load_table("ns.t").properties["icekeeper.paused_until"] == UNTIL
    assert command("resume", "ns.t").out == f"ns.t is maintained again; it was paused until {UNTIL}\n"
    assert "icekeeper.paused_until" not in command.catalog.load_table("ns.t").properties


@pytest.mark.parametrize(
    ("until", "sentence"),
    [
        (
            "soon",
            "--until takes a duration like 6h or 3d, or a time with its zone like 2026-12-01T06:00:00Z, not 'soon'",
        ),
        ("2026-12-01T06:00:00", "not '2026-12-01T06:00:00'"),
        ("2001-01-01T00:00:00Z", "until 2001-01-01T00:00:00Z: that is past; give a later time"),
    ],
)
def test_malformed_and_past_times_are_refused(command: Command, until: str, sentence: str) -> None:
    answer = command("pause", "ns.t", "--until", until)
    assert answer.code == 2
    assert sentence in one_sentence(answer.err)
    assert "icekeeper.paused_until" not in command.catalog.load_table("ns.t").properties


def test_a_pause_property_that_is_not_a_time_fails_every_pass(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(local_catalog, tmp_path, properties={"icekeeper.paused_until": "tomorrow"})
    with pytest.raises(Exception, match="paused_until cannot be 'tomorrow'"):
        table.run(Operation.COMPACT)


# Switches that are set while a pass runs.

PAUSE = ("paused_until", UNTIL, WHY)
OFF = ("maintenance_enabled", "false", "maintenance is disabled (table property icekeeper.maintenance_enabled)")


def switch(key: str) -> tuple[str, str, str]:
    """The switch of one operation, and the reason that a pass reports."""
    return (key, "false", f"{key} is false (table property icekeeper.{key})")


def setting(table: MaintainedTable, key: str, value: str) -> Callable[[], object]:
    """Return a function that sets a property of the table."""
    return lambda: table.table.transaction().set_properties({f"icekeeper.{key}": value}).commit_transaction()


def unset(table: MaintainedTable, key: str) -> None:
    table.table.transaction().remove_properties(f"icekeeper.{key}").commit_transaction()


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Three appends."""
    return new_table(local_catalog, tmp_path, appends=3)


def late_reason(why: str) -> str:
    return f"{why}; the property was set while the pass ran"


@pytest.mark.parametrize(("key", "value", "why"), [PAUSE, OFF, switch("rewrite_enabled")])
@pytest.mark.parametrize("late", [False, True], ids=["before-the-head-is-read", "before-the-swap"])
def test_compaction_that_is_switched_off_commits_nothing(
    table: MaintainedTable, key: str, value: str, why: str, *, late: bool
) -> None:
    before, ids = table.files(), table.ids()
    head = table.metadata.current_snapshot
    if late:
        with at(Moment.BEFORE_COMMIT, setting(table, key, value)):
            outcome = table.run(Operation.COMPACT)
    else:
        table.engine.during = setting(table, key, value)
        outcome = table.run(Operation.COMPACT)
        table.engine.during = lambda: None
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, late_reason(why))
    assert table.metadata.current_snapshot == head
    assert [path for path in table.files() - before if not path.endswith(".metadata.json")] == []
    unset(table, key)
    assert table.run(Operation.COMPACT).status is Status.SUCCEEDED
    assert table.readers_agree() == ids


@pytest.mark.parametrize(("key", "value", "why"), [PAUSE, OFF, switch("snapshot_expiry_enabled")])
def test_an_expiry_switched_off_mid_pass_is_skipped(table: MaintainedTable, key: str, value: str, why: str) -> None:
    with at(Moment.AFTER_COMMIT, setting(table, key, value)):
        outcome = table.maintain("compact,expire_snapshots")
    assert outcome_of(outcome, Operation.COMPACT).status is Status.SUCCEEDED
    expiry = outcome_of(outcome, Operation.EXPIRE_SNAPSHOTS)
    assert (expiry.status, expiry.reason) == (Status.SKIPPED, late_reason(why))
    assert len(table.metadata.snapshots) == 4
    table.assert_sound()
    unset(table, key)
    assert table.run(Operation.EXPIRE_SNAPSHOTS).metrics["expire_snapshots.snapshots_expired"] == 3


@pytest.mark.parametrize(("key", "value", "why"), [PAUSE, OFF, switch("snapshot_expiry_enabled")])
def test_an_expiry_switched_off_after_its_commit_leaves_deletions_to_a_later_pass(
    table: MaintainedTable, key: str, value: str, why: str
) -> None:
    table.run(Operation.COMPACT)
    before = table.files()
    with at(Moment.AFTER_COMMIT, setting(table, key, value)):
        expiry = table.run(Operation.EXPIRE_SNAPSHOTS)
    assert (expiry.status, expiry.summary) == (
        Status.SUCCEEDED,
        f"expired 3 snapshot(s), deleted 0 unreferenced file(s); 9 file(s) remain for a later pass: {late_reason(why)}",
    )
    assert len(table.metadata.snapshots) == 1
    assert table.files() >= before
    if key != "snapshot_expiry_enabled":
        (off,) = table.maintain("expire_snapshots").operations
        assert (off.status, off.reason) == (Status.SKIPPED, why)
    unset(table, key)
    later = table.run(Operation.EXPIRE_SNAPSHOTS)
    assert (later.status, later.summary) == (Status.SUCCEEDED, "deleted 9 file(s) that an interrupted run left behind")
    assert table.unreferenced() == set()
    assert table.readers_agree() == [0, 1, 10, 11, 20, 21]


@pytest.mark.parametrize(("key", "value", "why"), [PAUSE, OFF, switch("orphan_sweep_enabled")])
def test_a_sweep_that_is_switched_off_stops_before_its_next_batch(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch, key: str, value: str, why: str
) -> None:
    monkeypatch.setattr(delete, "_BATCH", 2)
    orphans = {table.plant(f"data/orphan-{number}.parquet") for number in range(5)}
    monkeypatch.setattr(delete, "_IN_FLIGHT", 1)
    more = {"orphan_max_delete_ratio": "1"}
    with at(Moment.DELETION_DECIDED, setting(table, key, value)):
        outcome = table.run(Operation.REMOVE_ORPHANS, **more)
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, late_reason(why))
    assert orphans <= table.files()
    unset(table, key)
    with at(Moment.AFTER_DELETION, setting(table, key, value)):
        outcome = table.run(Operation.REMOVE_ORPHANS, **more)
    assert (outcome.status, outcome.summary) == (
        Status.SUCCEEDED,
        f"removed 2 orphan file(s); 3 file(s) remain for a later pass: {late_reason(why)}",
    )
    assert len(orphans & table.files()) == 3
    unset(table, key)
    assert table.run(Operation.REMOVE_ORPHANS, **more).summary == "removed 3 orphan file(s)"


def test_a_switch_of_one_operation_does_not_stop_the_others(table: MaintainedTable) -> None:
    with at(Moment.AFTER_COMMIT, setting(table, "snapshot_expiry_enabled", "false")):
        outcome = table.maintain("compact,expire_snapshots,rewrite_manifests")
    assert [part.status.value for part in outcome.operations] == ["succeeded", "skipped", "succeeded"]


def test_a_running_pass_keeps_its_other_settings(table: MaintainedTable) -> None:
    """A mistake in them fails only the next pass."""

    def change() -> None:
        setting(table, "operations", "compact")()
        setting(table, "no_such_key", "1")()

    with at(Moment.AFTER_COMMIT, change):
        outcome = table.maintain("compact,expire_snapshots")
    assert [part.status.value for part in outcome.operations] == ["succeeded", "succeeded"]


def test_a_setting_of_the_call_overrides_a_switch_of_the_table(table: MaintainedTable) -> None:
    with at(Moment.AFTER_COMMIT, setting(table, "snapshot_expiry_enabled", "false")):
        outcome = table.maintain("compact,expire_snapshots", snapshot_expiry_enabled="true")
    assert [part.status.value for part in outcome.operations] == ["succeeded", "succeeded"]


def test_a_switch_that_cannot_be_read_stops_the_pass(table: MaintainedTable) -> None:
    with at(Moment.AFTER_COMMIT, setting(table, "paused_until", "tomorrow")):
        outcome = table.maintain("compact,expire_snapshots")
    assert [part.status.value for part in outcome.operations] == ["succeeded", "failed"]
    assert "paused_until cannot be 'tomorrow'" in (outcome.operations[1].reason or "")
    assert len(table.metadata.snapshots) == 4


def test_a_table_that_was_paused_during_a_pass_is_due_once_it_is_resumed(table: MaintainedTable) -> None:
    table.engine.during = setting(table, *PAUSE[:2])
    table.maintain("compact")
    table.engine.during = lambda: None
    overrides = {"min_input_files": "2", "operations": "compact"}
    assert table.runtime.detect(overrides, unsafe=True).proposals == ()
    unset(table, "paused_until")
    (proposal,) = table.runtime.detect(overrides, unsafe=True).proposals
    assert str(proposal.table) == "ns.t"


def test_the_failed_loads_of_a_paused_table_are_kept(table: MaintainedTable) -> None:
    """Also if the pause is set just before their clean-up."""
    table.engine.during = setting(table, *PAUSE[:2])
    table.run(Operation.COMPACT)  # leaves the record of a job
    table.engine.during = lambda: None
    unset(table, "paused_until")
    table.late_ms = 1000 * HOUR_MS
    with at(Moment.OPERATIONS_DONE, setting(table, *PAUSE[:2])):
        outcome = table.maintain("rewrite_manifests")
    assert (outcome.staged, outcome.warnings) == (None, ())
    unset(table, "paused_until")
    assert table.maintain("rewrite_manifests").staged is not None


def test_a_pause_during_a_step_leaves_it_and_later_steps_to_a_later_run(pipeline: Pipeline) -> None:
    """Each step of the state machine reads the policy again."""
    pipeline.deployment = pipeline.open(ICEKEEPER_SMALL_COMPACTION_MB="1280")
    item, plan = pipeline.begin()
    assert plan.routes["compact"] == plan.routes["expire_snapshots"] == "function"
    with at(Moment.BEFORE_COMMIT, setting(pipeline.table, *PAUSE[:2])):
        reported = pipeline.run(item, "compact")
    assert reported == {"compact": f"left to a later run: {late_reason(WHY)}"}
    changed = "left to a later run: the policy of ns.t changed since it was planned"
    assert pipeline.run(item, "expire_snapshots") == {"expire_snapshots": changed}
