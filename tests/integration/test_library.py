"""The library does what the command does and returns typed results."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from textwrap import dedent

import pytest
from pyiceberg.catalog import load_catalog

import icekeeper
from icekeeper import Icekeeper, Policy
from icekeeper.catalogs.catalog import identity_of
from icekeeper.errors import LeaseHeld, PolicyError
from icekeeper.report.outcome import PassStatus, Status
from support.command import Command, rows


@pytest.fixture
def lake(command: Command) -> Icekeeper:
    return Icekeeper("C", engine="local")


def test_the_library_detects_plans_maintains_and_verifies_a_table(command: Command, lake: Icekeeper) -> None:
    table = command.table(appends=6)
    before = rows(command)
    (found,) = lake.detect({"table_filter": "t"}).proposals
    planned = lake.plan(found.table, {"operations": "compact"})
    assert (planned.dry_run, [str(item.operation) for item in planned.operations]) == (True, ["compact"])
    assert len(planned.operations[0].files_planned) == 6
    assert command.catalog.load_table("ns.t").metadata_location == table.metadata_location
    outcome = lake.maintain(table, {"operations": "compact"})
    assert outcome.status is PassStatus.SUCCEEDED
    assert outcome.summary == "compact: compacted 6 files into 1 (across 1 bins)"
    assert rows(command) == before
    assert lake.verify("ns.t").ok
    assert lake.health("ns.t").counters["lake_data_files"] == 1
    assert [(item.run_id, item.status) for item in lake.history("ns.t")] == [(outcome.run_id, "succeeded")]
    assert lake.history("ns.t", limit=1)[0].summary == outcome.summary


def test_only_fields_that_a_policy_sets_are_settings_of_the_call(command: Command, lake: Icekeeper) -> None:
    """A value that equals the default counts too; other values come from the sources that the command reads."""
    command.table().transaction().set_properties({"icekeeper.min_input_files": "7"}).commit_transaction()
    resolved = lake.policy("ns.t", Policy(target_file_size_mb=Fraction(256), min_file_size_ratio=Fraction(1, 2)))
    assert (resolved.policy.min_input_files, resolved.sources["min_input_files"]) == (
        7,
        "table property icekeeper.min_input_files",
    )
    assert {key for key, source in resolved.sources.items() if source == "this call"} == {
        "target_file_size_mb",
        "min_file_size_ratio",
    }
    assert (resolved.policy.target_file_size_bytes, resolved.policy.min_file_size_ratio) == (
        256 * 2**20,
        Fraction(1, 2),
    )
    resolved = lake.policy("ns.t", {"min_file_size_ratio": 0.3, "rewrite_all": True})
    assert (resolved.policy.min_file_size_ratio, resolved.policy.rewrite_all) == (Fraction(3, 10), True)
    for chosen, status in (({}, Status.SKIPPED), ({"min_input_files": 2}, Status.SUCCEEDED)):
        assert lake.plan("ns.t", {"operations": ["compact"], **chosen}).operations[0].status is status


def test_wrong_calls_are_refused_with_one_sentence(command: Command, lake: Icekeeper, tmp_path: Path) -> None:
    table = command.table()
    with pytest.raises(PolicyError, match="engine is one of auto, spark, local, not 'flink'"):
        Icekeeper("C", engine="flink")
    with pytest.raises(PolicyError, match="there is no catalog 'nowhere'"):
        Icekeeper("nowhere")
    with pytest.raises(PolicyError, match="'t' is not a table name"):
        lake.verify("t")
    with pytest.raises(PolicyError, match="policy key table_filter has no effect on one table"):
        lake.maintain("ns.t", {"table_filter": "t"})
    with pytest.raises(PolicyError, match="unknown policy key 'target_size'"):
        lake.health("ns.t", {"target_size": 3})
    other = load_catalog("other", type="sql", uri=f"sqlite:///{tmp_path}/other.db")
    other.create_namespace("ns")
    stranger = other.register_table("ns.t", table.metadata_location)
    with pytest.raises(PolicyError, match=r"table ns\.t is of catalog 'other', not 'C'"):
        lake.maintain(stranger)
    with pytest.raises(PolicyError, match=r"^policy key min_input_files cannot be 'few' \(from this call\): "):
        lake.plan("ns.t", {"min_input_files": "few"})
    with pytest.raises(
        PolicyError, match=r"^policy key min_input_files cannot be 'few' \(from table property icekeeper"
    ):
        lake.policy_set("ns.t", {"min_input_files": "few"})
    with pytest.raises(PolicyError, match="files and prefixes are lists of paths, not a text"):
        lake.stage("ns.t", "load", files=f"{table.location()}/data/a.parquet")
    with pytest.raises(PolicyError, match="a pin holds for more than 0 s and at most 366 days, not -3600 s"):
        lake.pin("ns.t", timedelta(hours=-1))
    with pytest.raises(PolicyError, match="a pause ends at a time with its zone, not at 2099-01-01T00:00:00"):
        lake.pause("ns.t", datetime(2099, 1, 1))
    assert command("policy", "show", "ns.t", "--json").json["policy"]["min_input_files"]["source"] == "default"
    with pytest.raises(AttributeError, match="module 'icekeeper' has no attribute 'Icekeeeper'"):
        _ = icekeeper.Icekeeeper


def test_the_face_of_the_library_shows_its_names_and_one_line_for_an_outcome(command: Command, lake: Icekeeper) -> None:
    assert {"Icekeeper", "Policy", "errors"} <= set(dir(icekeeper))
    assert icekeeper.errors.LeaseHeld is LeaseHeld
    command.table(appends=6)
    calls: list[tuple[str, int, int]] = []
    chosen = {"operations": "compact,expire_snapshots"}
    planned = lake.plan("ns.t", chosen)
    outcome = lake.maintain("ns.t", chosen, progress=lambda *call: calls.append(call))
    done = "compact: compacted 6 files into 1 (across 1 bins); 1 skipped)"
    assert repr(planned) == f"PassOutcome(ns.t dry run succeeded: {done.replace('compacted', 'would compact')}"
    assert repr(outcome) == f"PassOutcome(ns.t succeeded: {done}"
    assert repr(outcome.operations[1]) == "OperationOutcome(expire_snapshots skipped: no snapshots to expire)"
    assert calls[0] == ("pass: compact,expire_snapshots", 0, 0)
    rewritten = [(done, total) for what, done, total in calls if what == "compact: rewriting"]
    assert rewritten[-1][0] == rewritten[-1][1] > 0


def test_the_library_protects_a_table_as_the_command_does(command: Command, lake: Icekeeper) -> None:
    table = command.table(appends=2)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    pinned = lake.pin(table, timedelta(hours=6), name="nightly")
    assert (pinned.name, pinned.snapshot_id) == ("nightly", snapshot.snapshot_id)
    longer = lake.pin("ns.t", timedelta(hours=7), snapshot=snapshot.snapshot_id, name="nightly")
    assert longer.expires_ms > pinned.expires_ms
    assert [pin.name for pin in lake.pin_list("ns.t")] == ["nightly"]
    assert lake.pin_warnings("ns.t") == ()
    assert lake.pin_remove("ns.t", "nightly").name == "nightly"
    assert not lake.pin_list("ns.t")
    lake.stage("ns.t", "load-1", files=[f"{table.location()}/data/a.parquet"])
    lake.stage("ns.t", "load-2", prefixes=[f"{table.location()}/data/load-2"])
    lake.stage_adopted("ns.t", "load-1")
    lake.stage_failed("ns.t", "load-2")
    loads = {load.name: str(load.state) for load in lake.stage_list("ns.t")}
    assert loads == {"load-1": "adopted", "load-2": "failed"}
    assert lake.policy_set("ns.t", {"min_input_files": 9, "operations": ["compact"]}).policy.min_input_files == 9
    assert command("policy", "show", "ns.t", "--json").json["policy"]["min_input_files"]["value"] == 9
    assert lake.policy_unset("ns.t", "min_input_files", "operations").policy.min_input_files == 5
    until = datetime(2099, 1, 1, tzinfo=UTC)
    assert lake.pause("ns.t", until, "a migration") == "2099-01-01T00:00:00Z"
    assert lake.history("ns.t")[0].summary.endswith("paused the table until 2099-01-01T00:00:00Z: a migration")
    assert "the table is paused until 2099-01-01T00:00:00Z" in lake.maintain("ns.t").summary
    assert lake.resume("ns.t") == "2099-01-01T00:00:00Z"
    assert lake.resume("ns.t") is None
    page = lake.report(fresh="*")
    assert page.startswith("<!doctype html>")
    assert "ns.t" in page


def test_a_pass_waits_for_the_holder_of_the_lease(
    command: Command, lake: Icekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.table(appends=2)
    runtime = lake._runtime  # the lease of another process
    loaded = runtime.catalog.load(lake._name("ns.t"))
    key = identity_of(runtime.catalog, loaded).lease_key
    lease = runtime.state.leases.acquire(key, "another", now_ms=runtime.clock(), ttl_ms=60_000, name="ns.t")
    with pytest.raises(LeaseHeld):
        lake.maintain("ns.t", {"operations": "compact"}, wait_s=0.1)
    runtime.state.leases.release(lease)
    assert lake.maintain("ns.t", {"operations": ["compact"], "min_input_files": 2}).status is PassStatus.SUCCEEDED


def test_the_library_imports_no_spark_and_starts_lazily(command: Command) -> None:
    command.table(appends=6)
    program = dedent("""
        import sys
        import icekeeper
        assert "icekeeper.runtime" not in sys.modules
        from icekeeper import Icekeeper
        lake = Icekeeper("C")
        assert [found.table for found in lake.detect().proposals] == ["ns.t"]
        print(lake.maintain("ns.t", {"operations": "compact"}).summary)
        assert "pyspark" not in sys.modules
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "compact: compacted 6 files into 1 (across 1 bins)\n"
