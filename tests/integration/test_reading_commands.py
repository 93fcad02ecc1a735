"""Commands that only read: detect, verify, policy show, advise, health, history, report."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from icekeeper.cli.console import with_id_texts
from icekeeper.machine.clock import iso_utc, system_clock
from icekeeper.model import CatalogId, TableName
from icekeeper.policy import POLICY_KEYS
from icekeeper.state.identity import TableIdentity
from icekeeper.state.leases import take_slot
from icekeeper.state.open import open_state
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import PassRecord
from icekeeper.storage.paths import normalise
from support.command import CATALOG, EVERYTHING_IS_OLD, Command, arguments_of, local_path, one_sentence

# ``icekeeper detect``, ``verify`` and ``policy show`` on a local catalog, in JSON.

# -- detect


def test_detect_prints_its_proposals_as_json(command: Command) -> None:
    command.table("ns.idle", appends=1)
    command.table("ns.busy", appends=7)
    answer = command("detect", "--json", "--unsafe", *EVERYTHING_IS_OLD[1:])
    assert answer.code == 0
    document = answer.json
    assert list(document) == ["catalog", "scanned", "proposals", "skipped", "next_run", "status"]
    assert (document["catalog"], document["scanned"]) == ("C", 2)
    assert [list(found) for found in document["proposals"]] == [["table", "reasons", "priority"]]
    proposal = document["proposals"][0]
    assert proposal["table"] == "ns.busy"
    assert proposal["reasons"][0] == "7 snapshots exceed max_snapshots_to_keep 1"
    assert 0 < proposal["priority"] < 1
    assert document["skipped"] == [{"table": "ns.idle", "reason": "no sign of work"}]
    assert answer.err.startswith("2 tables scanned, 1 needs work\n")


def test_tables_beyond_the_limit_of_a_scan_need_work_too(command: Command) -> None:
    for name in ("ns.a", "ns.b", "ns.c"):
        command.table(name, appends=7)
    answer = command("detect", "--json", *arguments_of({"max_jobs_per_detection": "1"}))
    assert (len(answer.json["proposals"]), answer.json["beyond_limit"]) == (1, 2)
    assert answer.err.startswith("3 tables scanned, 3 need work, 2 of them beyond max_jobs_per_detection\n")
    once = command("run", "--once", "--engine", "local", *arguments_of({"max_jobs_per_detection": "1"}))
    assert "3 tables scanned, 3 need maintenance, 2 of them beyond max_jobs_per_detection\n" in once.out


def test_detection_continues_after_a_damaged_table(command: Command) -> None:
    command.table("ns.good")
    bad = local_path(command.table("ns.bad").metadata_location)
    bad.write_bytes(bad.read_bytes()[:500])
    answer = command("detect", "--json")
    assert answer.code == 1
    assert [found["table"] for found in answer.json["proposals"]] == ["ns.good"]
    assert [skip["table"] for skip in answer.json["skipped"]] == ["ns.bad"]
    assert "cannot be parsed" in answer.json["skipped"][0]["reason"]
    assert answer.err.splitlines()[-1] == "error: 1 table could not be assessed: ns.bad; the lines above say why"


# -- verify


def test_verify_prints_each_problem_as_json(command: Command) -> None:
    table = command.table(appends=3)
    before = command.contents()
    answer = command("verify", "ns.t", "--json")
    assert answer.code == 0
    assert answer.json == {
        "table": "ns.t",
        "ok": True,
        "problems": [],
        "checked": {"snapshots": 3, "manifests": 3, "files": 3},
        "superseded": 0,
        "catalog": "C",
        "status": "succeeded",
    }
    assert answer.err == "ns.t: ok (3 snapshots, 3 manifests, 3 files)\n"
    assert command("verify", "ns.t").out == answer.err
    assert command.contents() == before

    path = next(iter(table.scan().plan_files())).file.file_path
    local_path(path).unlink()
    answer = command("verify", "ns.t", "--json")
    assert answer.code == 1
    problem = {"kind": "missing_file", "path": path, "detail": "it is referenced but does not exist"}
    assert answer.json["problems"] == [problem]
    assert (answer.json["ok"], answer.json["status"]) == (False, "failed")
    assert answer.err.splitlines() == [
        "ns.t: damaged (3 snapshots, 3 manifests, 3 files)",
        f"  missing_file {path}: it is referenced but does not exist",
        "what to do about missing_file: `icekeeper repair` looks for a copy; else restore the object, "
        "roll back to a snapshot without it, or repair with `--drop-missing`",
        "error: ns.t is damaged: 1 problem found; the lines above say what to do",
    ]
    for metadata_file in command.warehouse.rglob("*.metadata.json"):
        metadata_file.write_text("{")
    assert command("detect", "--json").json["status"] == "partial"


# -- policy


def test_policy_show_prints_values_with_their_sources(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEKEEPER_MIN_INPUT_FILES", "7")
    own = {"max_snapshots_to_keep": "9", "min_file_size_ratio": "0.5", "rewrite_all": "true"}
    properties = {f"icekeeper.{key}": value for key, value in own.items()}
    command.table(properties={"write.target-file-size-bytes": "1048576", **properties})
    answer = command("policy", "show", "ns.t", "--json", *arguments_of({"max_commit_retries": "2"}))
    assert answer.code == 0
    assert list(answer.json) == ["table", "catalog", "status", "policy", "ignored"]
    policy = answer.json["policy"]
    assert tuple(policy) == POLICY_KEYS
    expected = {
        "target_file_size_mb": {"value": 1, "source": "table property write.target-file-size-bytes"},
        "min_input_files": {"value": 7, "source": "deployment ICEKEEPER_MIN_INPUT_FILES"},
        "max_snapshots_to_keep": {"value": 9, "source": "table property icekeeper.max_snapshots_to_keep"},
        "min_file_size_ratio": {"value": 0.5, "source": "table property icekeeper.min_file_size_ratio"},
        "rewrite_all": {"value": True, "source": "table property icekeeper.rewrite_all"},
    }
    assert {key: policy[key] for key in policy if policy[key]["source"] != "default"} == {
        **expected,
        "max_commit_retries": {"value": 2, "source": "this call"},
    }
    assert command("health", "ns.t", "--json").json["policy"] == expected
    assert [policy[key]["value"] for key in ("snapshot_retain_max", "table_filter")] == [None, []]
    assert policy["operations"]["value"][0] == "compact"
    text = command("policy", "show", "ns.t")
    lines = [line.split() for line in text.out.splitlines()]
    assert lines[0] == ["key", "value", "source", "meaning"]
    assert [line[0] for line in lines[1:-1]] == [key for key in POLICY_KEYS if key in expected]
    assert " ".join(lines[-1]) == f"{len(POLICY_KEYS) - 5} settings have their defaults; --all prints them, too"
    lines = [line.split() for line in command("policy", "show", "ns.t", "--all").out.splitlines()]
    assert [line[0] for line in lines[1:]] == list(POLICY_KEYS)
    assert next(line for line in lines if line[0] == "min_input_files")[1:4] == [
        *("7", "deployment", "ICEKEEPER_MIN_INPUT_FILES")
    ]


# ``icekeeper advise`` on real tables.


def test_advice_is_given_with_its_numbers_and_changes_nothing(command: Command) -> None:
    command.table(appends=9, properties={"write.metadata.previous-versions-max": "5"})
    before = command.contents()
    answer = command("advise", "ns.t", "--json")
    assert answer.code == 0, answer.err
    document = answer.json
    assert list(document) == ["table", "catalog", "status", "advice"]
    assert (document["table"], document["catalog"], document["status"]) == ("ns.t", "C", "succeeded")
    (advice,) = document["advice"]
    assert list(advice) == ["table", "kind", "severity", "reason", "numbers", "gain", "statement"]
    assert advice["kind"] == "metadata_log"
    assert advice["numbers"] == {"metadata_log": 5, "limit": 5}
    assert command.contents() == before
    text = command("advise", "ns.t")
    assert text.out.startswith("ns.t: 1 to consider\n  metadata_log: the metadata log is full with 5 files")
    assert f"    do:   {advice['statement']}\n" in text.out


def test_advice_for_all_tables_names_a_table_that_cannot_be_read(command: Command) -> None:
    command.table(appends=1)
    for wrong in ((), ("ns.t", "--all"), ("--all", "--set", "min_input_files=x"), ("ns.gone",)):
        assert command("advise", *wrong).code == 2
    assert command("advise", "--all").out == "ns.t: nothing to advise\n"
    whole = command("advise", "--all", "--json").json
    assert whole == {
        "catalog": "C",
        "status": "succeeded",
        "advice": [],
        "tables": [{"table": "ns.t", "status": "succeeded", "advice": []}],
    }
    for path in command.warehouse.rglob("snap-*.avro"):
        path.unlink()
    broken = command("advise", "--all", "--json")
    assert broken.code == 1
    assert [table["status"] for table in broken.json["tables"]] == ["failed"]
    reported = one_sentence(broken.err)
    assert reported.startswith("1 table could not be read: ns.t: manifest list file://")
    assert reported.endswith(".avro does not exist")


# ``icekeeper detect`` reports what the deployment would do (requests, limits, filters) and records health.


@pytest.fixture
def two_tables(command: Command) -> Command:
    command.table("ns.busy", appends=7)
    command.table("ns.idle", appends=1)
    return command


def test_a_requested_table_comes_first_with_its_settings(two_tables: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one slot the run begins with it and the needier table waits; the filter leaves out neither."""
    monkeypatch.setenv("ICEKEEPER_MAX_CONCURRENT_JOBS", "1")
    assert two_tables("request", "add", "ns.idle", "--operations", "rewrite_manifests").code == 0
    answer = two_tables("detect", "--json", "--set", "table_filter=busy")
    first, second = answer.json["proposals"]
    assert (first["table"], first["reasons"][0]) == ("ns.idle", "requested by a person")
    assert (first["requested"], first["settings"]) == (True, {"operations": "rewrite_manifests"})
    assert (second["table"], "requested" in second) == ("ns.busy", False)
    next_run = answer.json["next_run"]
    assert (next_run["begins"], next_run["waits"], next_run["at_work"]) == (["ns.idle"], ["ns.busy"], 0)
    assert next_run["limits"]["max_concurrent_jobs"] == {
        "source": "deployment ICEKEEPER_MAX_CONCURRENT_JOBS",
        "value": 1,
    }
    assert next_run["filters"] == {"table_filter": {"source": "this call", "value": ["busy"]}}
    assert answer.err.splitlines()[-2:] == [
        "a scheduled run would begin with ns.idle; 1 more waits for a pass to end: max_concurrent_jobs 1 "
        "(deployment ICEKEEPER_MAX_CONCURRENT_JOBS)",
        "other tables are left out by table_filter busy (this call)",
    ]


def test_tables_at_work_take_the_room_and_health_is_recorded(two_tables: Command) -> None:
    for number in range(4):
        take_slot(open_state(os.environ).leases, f"run {number}", 4, now_ms=system_clock(), ttl_ms=3_600_000)
    answer = two_tables("detect", "--json")
    assert (answer.json["next_run"]["begins"], answer.json["next_run"]["at_work"]) == ([], 4)
    assert answer.err.splitlines()[-2:] == [
        "scheduled runs maintain 4 tables now, of max_concurrent_jobs 4 (default)",
        "a scheduled run would begin with no table now: 1 table would wait for a pass to end",
    ]
    stats = open_state(os.environ).lake_stats.of_catalog(CatalogId("C", two_tables.warehouse.as_uri()))
    recorded = {item.identity.table.name: item.counters["lake_snapshots"] for item in stats}
    assert recorded == {"busy": 7, "idle": 1}


# Every JSON document has its table or catalog, a status, and ids that no reader rounds.


@pytest.mark.parametrize("snapshot_id", [2**53 + 1, None])
def test_ids_are_also_written_as_text(snapshot_id: int | None) -> None:
    text = None if snapshot_id is None else "9007199254740993"
    assert with_id_texts({"a": [{"snapshot_id": snapshot_id, "b": 1}], "snapshot_ids": [2**53 + 1]}) == {
        "a": [{"snapshot_id": snapshot_id, "snapshot_id_text": text, "b": 1}],
        "snapshot_ids": [2**53 + 1],
        "snapshot_ids_text": ["9007199254740993"],
    }


# ``icekeeper health``, and the activity of a whole pass, on real tables.


def test_health_counts_and_warns_and_changes_nothing(command: Command) -> None:
    table = command.table(appends=6, properties={"icekeeper.maintenance_enabled": "false"})
    before = command.contents()
    answer = command("health", "ns.t", "--json")
    assert answer.code == 0
    document = answer.json
    assert list(document) == [
        *("table", "catalog", "status", "snapshot_id", "snapshot_id_text"),
        *("observed_ms", "counters", "warnings", "policy", "verified_ms"),
    ]
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    assert (document["table"], document["catalog"], document["snapshot_id"]) == ("ns.t", "C", snapshot.snapshot_id)
    counters = document["counters"]
    expected = {"lake_snapshots": 6, "lake_data_files": 6, "lake_records": 18, "lake_manifests": 6}
    assert {key: counters[key] for key in expected} == expected
    assert counters["lake_delete_manifests"] == 0
    assert [warning["kind"] for warning in document["warnings"]] == ["manifest_sprawl", "small_files"]
    source = "table property icekeeper.maintenance_enabled"
    assert document["policy"] == {"maintenance_enabled": {"value": False, "source": source}}
    assert command.contents() == before

    text = command("health", "ns.t")
    assert text.code == 0
    assert text.out.startswith(
        "ns.t: 2 warnings, never verified\n  manifest_sprawl: 6 manifests for 6 data files reach"
    )


def test_wrong_settings_of_a_table_are_a_warning_and_of_the_call_an_error(command: Command) -> None:
    command.table(appends=1, properties={"icekeeper.min_input_files": "few"})
    command.table("ns.misfit", appends=1, properties={"icekeeper.branch": "audit"})
    for name in ("ns.t", "ns.misfit"):
        answer = command("health", name, "--json")
        assert answer.code == 0
        assert [warning["kind"] for warning in answer.json["warnings"]] == ["wrong_settings"]
    wrong = command("health", "ns.t", "--set", "min_input_files=x")
    assert wrong.code == 2
    assert one_sentence(wrong.err).startswith("policy key min_input_files cannot be")
    assert command("health", "ns.gone").code == 2


def test_ignored_settings_of_a_table_are_a_warning(command: Command) -> None:
    settings = {"icekeeper.operations": "all,expire_partitions", "icekeeper.orphan_max_delete_ratio": "1"}
    command.table(appends=1, properties=settings)
    (warning,) = command("health", "ns.t", "--json").json["warnings"]
    assert warning["kind"] == "ignored_settings"
    assert warning["message"].startswith(
        "table property icekeeper.operations 'all,expire_partitions' is ignored: operations is "
    )
    assert warning["message"].endswith("; and 1 more (icekeeper policy show says why)")


# ``icekeeper history``: the journal of a table, as JSON and as text.

NOON_MS = 1_767_268_800_000


def record(command: Command, run_id: str, started_ms: int, status: str = "succeeded") -> PassRecord:
    metadata = command.catalog.load_table("ns.t").metadata
    identity = TableIdentity(
        CatalogId(CATALOG, command.warehouse.as_uri()),
        TableName(("ns",), "t"),
        str(metadata.table_uuid),
        normalise(metadata.location),
    )
    made = PassRecord(
        identity=identity,
        run_id=run_id,
        started_ms=started_ms,
        finished_ms=started_ms + 2_340,
        status=status,
        summary=f"compact: [{run_id}]",
        metrics={"compact.files_merged": 15, "compact.ratio": 0.1},
        engine="local",
    )
    SqliteStateStore(command.state).record_pass(made)
    return made


def cost(metrics: dict[str, Any], *, gets: int, puts: int) -> float:
    """Default prices in USD: 0.0004 and 0.005 for 1,000 requests, 0.001 for a GB copied, 0.005 for a GB decoded."""
    copied = metrics["compact.bytes_copied"]
    decoded = metrics["compact.bytes_read"] - copied
    return (gets * 0.0004 + puts * 0.005) / 1000 + float(copied * 0.001 + decoded * 0.005) / 2**30


def test_history_has_the_figures_of_a_pass(command: Command) -> None:
    command.table(appends=6)
    ran = command("maintain", "ns.t", "--engine", "local", "--operations", "compact", "--json")
    answer = command("history", "ns.t", "--json")
    (item,) = answer.json["passes"]
    assert (answer.code, answer.json["table"], answer.json["catalog"]) == (0, "ns.t", "C")
    assert item == {
        "run_id": ran.json["run_id"],
        "started_ms": item["started_ms"],
        "finished_ms": item["finished_ms"],
        "duration_ms": item["finished_ms"] - item["started_ms"],
        "status": "succeeded",
        "summary": ran.json["summary"],
        "engine": "local",
        "metrics": ran.json["metrics"],
        "table": "ns.t",
        "catalog": "C",
        "bytes_freed": 0,
        "files_before": 6,
        "files_after": 1,
        "requests_saved": 10,
        "cost_usd": pytest.approx(cost(ran.json["metrics"], gets=12, puts=1), abs=1e-9),
    }
    assert item["cost_usd"] > 0
    sums = {key: item[key] for key in ("bytes_freed", "files_before", "files_after", "requests_saved", "cost_usd")}
    assert answer.json["totals"] == {"passes": 1, "failed": 0, **sums}


def test_history_as_text_has_a_line_for_each_pass(command: Command) -> None:
    command.table(appends=0)
    record(command, "a", NOON_MS, "partial")
    record(command, "b", NOON_MS + 3_600_000)
    answer = command("history", "ns.t")
    assert answer.out.splitlines() == [
        f"2026-01-01T13:00:00Z  2.3 s  succeeded  {EFFECT}; compact: [b]",
        f"2026-01-01T12:00:00Z  2.3 s  partial    {EFFECT}; compact: [a]",
        "2 passes, 1 not succeeded: 30 → 0 files, 60 requests fewer per full scan, estimated cost less than $0.0001",
    ]
    for number in range(20):
        record(command, f"run-{number}", NOON_MS - number)
    assert len(command("history", "ns.t").out.splitlines()) == 20 + 1


EFFECT = "15 → 0 files, 30 requests fewer per full scan, estimated cost less than $0.0001"


def test_history_without_a_table_covers_all_catalogs_of_the_state(command: Command) -> None:
    command.table(appends=0)
    now_ms = system_clock()
    hour_ms = 3_600_000
    ended = {"old": now_ms - 30 * hour_ms, "bad": now_ms - 5 * hour_ms, "new": now_ms - hour_ms}
    for run, at in ended.items():
        record(command, run, at, "failed" if run == "bad" else "succeeded")
    there = SqliteStateStore(command.state)
    (item, *_) = there.passes(now_ms - 2 * hour_ms, now_ms=now_ms)
    freed = {"expire_snapshots.bytes_freed": 2048, "remove_orphans.bytes_freed": 1024}
    elsewhere = replace(item.identity, catalog=item.identity.catalog._replace(name="D"))
    at_ms = now_ms - 2 * hour_ms
    there.record_pass(
        replace(item, identity=elsewhere, run_id="d", metrics=freed, started_ms=at_ms - 2_340, finished_ms=at_ms)
    )

    def runs(*arguments: str) -> list[str]:
        return [item["run_id"] for item in command("history", "--json", *arguments, catalog=None).json["passes"]]

    assert runs() == ["new", "d", "bad"]
    assert runs("--since", "7d") == ["new", "d", "bad", "old"]
    assert runs("--since", iso_utc(ended["old"] - 24 * hour_ms)[:10]) == ["new", "d", "bad", "old"]
    assert runs("--since", "90m", "--catalog", "C") == ["new"]
    assert runs("--failed") == ["bad"]
    assert runs("--limit", "1") == ["new"]
    reported = command("history", catalog="D").out.splitlines()
    assert [line[22:] for line in reported[:1]] == ["2.3 s  succeeded  D ns.t  3 KB freed; compact: [new]"]
    assert reported[1:] == ["1 pass: 3 KB freed"]
    assert runs("ns.?") == runs("ns.u", "ns.t") == ["new", "d", "bad"]
    assert runs("other.*") == []
    assert command("history", catalog="E").out == "no pass is recorded in this period\n"


def test_history_may_be_empty_and_wrong_calls_are_errors(command: Command) -> None:
    command.table(appends=0)
    assert command("history", "ns.t", "--json").json == {
        "table": "ns.t",
        "catalog": "C",
        "status": "succeeded",
        "passes": [],
        "totals": dict.fromkeys(
            ("passes", "failed", "bytes_freed", "files_before", "files_after", "requests_saved", "cost_usd"), 0
        ),
    }
    assert command("history", "ns.t").out == "no pass that changed something is recorded\n"
    for since in ("yesterday", "2019-01-01", "2999-01-01", "0h"):
        answer = command("history", "ns.t", "--since", since)
        assert answer.code == 2
        assert one_sentence(answer.err).startswith("--since takes a ")
    for arguments in (("ns.unknown",), ("ns.t", "--limit", "0"), ("t",)):
        answer = command("history", *arguments)
        assert answer.code == 2
        assert one_sentence(answer.err)


# ``icekeeper report``: a page of real tables.


@pytest.fixture
def lake(command: Command) -> Command:
    """A table that needs work, and a table that does not."""
    for name, appends in (("messy", 12), ("calm", 1)):
        command.table(f"ns.{name}", appends=appends)
    return command


def page_of(command: Command, *arguments: str, code: int = 0, says: str = "") -> Any:
    """Write the page with ``icekeeper report`` and return its data by table."""
    page = command.folder / "lake.html"
    answer = command("report", "--output", str(page), *arguments)
    assert (answer.code, says in answer.out + answer.err) == (code, True), answer
    document = json.loads(page.read_text().split(' id="data">')[1].split("</script>")[0])
    return {table["name"]: table for catalog in document["catalogs"] for table in catalog["tables"]}


def test_a_page_shows_the_records_of_the_last_scan_and_passes(lake: Command) -> None:
    page, metadata = lake.folder / "lake.html", lake.warehouse
    answer = lake("report", "--output", str(page))
    assert (answer.code, page.exists()) == (1, False)
    assert "no scan of catalog C is recorded: run icekeeper detect --catalog C first" in answer.err
    assert lake("detect").code == 0
    metadata.rename(metadata.with_name("away"))  # the report reads no table
    found = page_of(lake, says=f"{page}: 2 tables, 0 in trouble, 1 with work due\n")
    metadata.with_name("away").rename(metadata)
    assert "12 data files of" in found["ns.messy"]["reasons"][0]
    assert found["ns.messy"]["counters"]["lake_data_files"] == 12
    assert "layout" not in found["ns.messy"]
    assert lake("maintain", "ns.messy", "--engine", "local").code == 0
    left = page_of(lake)["ns.messy"]["layout"]
    assert list(left) == ["files"]  # as the pass left them
    found = page_of(lake, "--fresh", "ns.m*")
    messy = found["ns.messy"]
    assert {**messy["layout"]["files"], "observed_ms": 0} == {**left["files"], "observed_ms": 0}
    assert messy["counters"]["lake_data_files"] == 1
    assert messy["last_pass"]["lines"][0] == "compact: compacted 12 files into 1"
    assert [files for _, files, _ in messy["layout"]["files"]["sizes"]] == [1]
    assert messy["layout"]["holders"]["refs"][0][:3] == ["main", "branch", 13]
    assert "layout" not in found["ns.calm"]
    assert list(lake.folder.glob(".lake.html*")) == []


def test_a_table_that_cannot_be_read_is_in_trouble_until_a_scan_reads_it(lake: Command) -> None:
    assert lake("detect").code == 0
    newest = local_path(lake.catalog.load_table("ns.calm").metadata_location)
    text = newest.read_text()
    newest.write_text("{")
    calm = page_of(lake, "--fresh", "*", code=1, says="error: 1 table could not be read: ns.calm: ")["ns.calm"]
    assert (calm["state"], calm["counters"]["lake_data_files"]) == ("unreadable", 1)
    assert calm["trouble"].startswith("cannot be read: ")
    newest.write_text(text)
    assert page_of(lake, "--fresh", "*")["ns.calm"]["state"] == "well"
    page_of(lake, "--fresh", "ns.other", code=2, says="no table of catalog C matches 'ns.other'")


def test_bytes_are_counted_as_live_historical_or_orphaned(lake: Command) -> None:
    """Older snapshots hold the inputs of the compaction; nothing references the stray file."""
    folder = local_path(lake.catalog.load_table("ns.messy").location()) / "data"
    history = sum(file.stat().st_size for file in folder.glob("*.parquet"))
    (folder / "stray.parquet").write_bytes(b"x" * 20_000)
    assert lake("maintain", "ns.messy", "--engine", "local").code == 0
    live = sum(file.stat().st_size for file in folder.glob("compact-*.parquet"))
    counters = page_of(lake, "--fresh", "*")["ns.messy"]["counters"]
    stored = {"lake_bytes": live, "lake_history_bytes": history, "lake_orphan_bytes": 20_000}
    assert {name: counters[name] for name in stored} == stored


def test_small_files_that_no_pass_would_merge_are_no_warning(lake: Command) -> None:
    """Each of the six partitions has one file."""
    table = lake.catalog.load_table("ns.calm")
    with table.update_spec() as update:
        update.add_identity("id")
    table.append(pa.table({"id": [*range(6)], "name": ["a"] * 6}))

    def warnings() -> list[str]:
        return [item["kind"] for item in lake("health", "ns.calm", "--json").json["warnings"]]

    assert warnings() == ["small_files"]
    assert lake("maintain", "ns.calm", "--engine", "local").code == 0
    assert warnings() == []
    assert "warnings" not in page_of(lake, "--fresh", "*")["ns.calm"]
    for _ in range(6):
        lake.catalog.load_table("ns.calm").append(pa.table({"id": [1], "name": ["a"]}))
    assert "small_files" in warnings()


def test_the_page_shows_more_tables_than_one_scan_proposes(lake: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.table("ns.busy", appends=11)
    monkeypatch.setenv("ICEKEEPER_MAX_JOBS_PER_DETECTION", "1")
    assert lake("detect").code == 0
    found = page_of(lake, says=": 3 tables, 0 in trouble, 2 with work due\n")
    assert [name for name, table in found.items() if "left_alone" not in table] == ["ns.messy", "ns.busy"]
