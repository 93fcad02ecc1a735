"""The library does what the command does and returns typed results."""

from __future__ import annotations

import subprocess
import sys
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
    assert {key for key, source in resolved.sources.items() if source == "--set"} == {
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
    with pytest.raises(AttributeError, match="module 'icekeeper' has no attribute 'Icekeeeper'"):
        _ = icekeeper.Icekeeeper


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
