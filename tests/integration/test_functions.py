"""Every function as Lambda calls it: passes, metrics, and repeated calls."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError

from icekeeper.errors import MaintenanceError, PolicyError, StorageError
from icekeeper.operation_facts import STEP_FACTS, Operation
from icekeeper.pipeline.events import Item
from icekeeper.pipeline.report import RunReport, TableReport
from icekeeper.report.outcome import PassOutcome, refused
from local_stack.template import load_template
from support.lambda_functions import Answer, sample
from support.maintained_table import MaintainedTable
from support.stack_template import local_environment
from support.table_functions import EVENTS, RUN, SECRETS, Functions

EVENTS_FOLDER = Path(__file__).parents[2] / "events"


def test_every_function_takes_the_environment_that_sam_local_makes_of_the_template(
    table_of_five: MaintainedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For ``AWS::NoValue``, ``sam local invoke`` sets an empty variable, which counts as not set."""
    given_by_hand = json.loads((EVENTS_FOLDER / "environment.json").read_text())["Parameters"]
    environment = {
        name: value for name, value in local_environment(load_template()).items() if name not in given_by_hand
    }
    assert {name for name, value in environment.items() if not value} >= {
        "ICEKEEPER_BOUND_MAX_SNAPSHOTS_TO_KEEP",
        "ICEKEEPER_BOUND_MAINTENANCE_ENABLED",
        "ICEKEEPER_REQUESTS_MAY",
    }
    nothing_named = dict.fromkeys(("ICEKEEPER_CATALOGS", "ICEKEEPER_TABLE_BUCKETS", "ICEKEEPER_POLICY_FILE"), "")
    functions = Functions(
        table_of_five, tmp_path, str(tmp_path / "state.db"), monkeypatch, capsys, **environment, **nothing_named
    )
    functions.begin()
    samples = {path.stem for path in EVENTS_FOLDER.glob("*.json")}
    assert samples - EVENTS.keys() == {
        *("environment", "machine_forced", "machine_forced_wait", "machine_rhythm", "machine_schedule")
    }
    begun = {"detect_forced", "plan"}
    # A scan under the same run id would replace the run of this table.
    for name in ("gather", *sorted(EVENTS.keys() - begun - {"gather", "report", "detect"}), "report"):
        assert functions.send(name).error is None, name
    assert functions.send("detect", run_id="another").error is None
    functions.end()


def test_an_empty_variable_counts_as_not_set(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ("ICEKEEPER_STATE", "ICEKEEPER_CONTROL_BUCKET", "ICEKEEPER_CATALOG_FILE")
    for empty in ("", "  "):
        for name in local_environment(load_template()):
            if name not in needed and not name.startswith("POWERTOOLS_"):
                monkeypatch.setenv(name, empty)
        assert functions.send("detect").error is None
    functions.begin()
    assert functions.send("compact").error is None


def test_log_lines_name_call_run_and_table(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [functions.send("detect").lines[0]["cold_start"] for _ in range(2)] == [True, False]
    functions.begin()
    assert functions.send("expire_partitions").result == {}, "the plan has no step for it"

    def broken(*given: Any, **more: Any) -> Any:
        raise RuntimeError("not thought of")

    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("steps"), "run_steps", broken)
        (line,) = functions.send("compact").lines
    assert (line["level"], line["message"], line["run_id"]) == ("ERROR", "icekeeper-commit broke", RUN)
    assert (line["table"], line["exception_name"]) == ("ns.t", "RuntimeError")
    assert line["exception"].endswith("RuntimeError: not thought of")

    # A warm function keeps nothing of the previous call.
    first = functions.send("compact").lines[0]
    assert (first["table"], first["operation"], first["cold_start"]) == ("ns.t", "compact", False)
    malformed = functions.call("read", {"step": "detect", "run_id": "run-2"}).lines[0]
    assert malformed.keys().isdisjoint({"table", "catalog", "operation"})
    line = functions.send("detect", run_id="run-2").lines[0]
    assert (line["run_id"], line["correlation_id"]) == ("run-2", "run-2")
    assert line.keys().isdisjoint({"table", "catalog", "operation"})


def test_a_malformed_event_is_one_sentence_that_names_the_field(functions: Functions) -> None:
    def refused_as(role: str, event: Any) -> tuple[str, list[Mapping[str, Any]]]:
        shown = functions.call(role, event)
        assert isinstance(shown.error, PolicyError), role
        return str(shown.error), shown.lines

    for name, role in EVENTS.items():
        event = sample(name)
        del event["step"]
        assert refused_as(role, event)[0] == "malformed event: step: Field required"
        event = sample(name)
        run_id = event.pop("run_id")
        sentence, (line,) = refused_as(role, event)
        assert sentence == "malformed event: run_id: Field required"
        assert (line["level"], line["message"]) == ("ERROR", f"PolicyError: {sentence}")
        sentence, (line,) = refused_as(role, {**sample(name), "surprise": 1})
        assert sentence == "malformed event: surprise: Extra inputs are not permitted"
        assert line["run_id"] == run_id
        assert refused_as(role, [])[0].startswith("malformed event: the event: Input should be a valid dictionary")
        if "item" in event:
            del event["item"]["uuid"]
            assert refused_as(role, {**event, "run_id": RUN})[0] == "malformed event: item.uuid: Field required"


def test_no_log_line_answer_or_document_shows_a_secret(
    functions: Functions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "pyiceberg.yaml").open("a") as file:
        file.write(
            f"  closed:\n    type: rest\n    uri: http://user:{SECRETS[2]}@127.0.0.1:9/\n    token: {SECRETS[0]}\n"
            f"    s3.secret-access-key: {SECRETS[1]}\n    header.x-key: {SECRETS[3]}\n"
        )
    monkeypatch.setenv("PYICEBERG_CATALOG__CLOSED__TOKEN", SECRETS[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS[1])
    monkeypatch.setenv("POWERTOOLS_LOG_LEVEL", "DEBUG")
    shown = [functions.send("detect", run_id="first"), functions.send("report", run_id="first")]
    assert any("nothing answers at http://user:***@127.0.0.1:9/" in line["message"] for line in shown[0].lines)
    functions.begin()
    shown += [functions.send(name) for name in EVENTS if name != "detect"]
    shown.append(functions.send("plan", item={**sample("plan")["item"], **functions.item, "catalog": "closed"}))
    assert shown[-1].error is not None
    everything = [f"{answer.output} {answer.result} {answer.error!r}" for answer in shown]
    everything += [path.read_text() for path in functions.control.rglob("*.json")]
    assert not [text for text in everything for secret in SECRETS if secret in text]


# A repeated call waits for the first attempt, returns the same answer, and does no work twice.

# By sample: the module that does the work, and the use case there.
WORK = {
    "detect_forced": ("read", "detect_tables"),
    "plan": ("read", "plan_table"),
    "list_orphans": ("read", "list_orphans"),
    **dict.fromkeys(sorted({step.call for step in STEP_FACTS} - {"clean_staged"}), ("steps", "run_steps")),
    "clean_staged": ("delete", "clean_tables"),
    "gather": ("read", "gather"),
}


def test_a_second_attempt_waits_while_the_first_is_at_work(
    aws_functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt blocks others until its deadline, because a killed function leaves its record."""
    aws_functions.begin()
    fresh: dict[str, dict[str, Any]] = {"detect_forced": {"input": {"table": "ns.t"}}, "plan": {"run_id": "another"}}
    for name, (module, use_case) in WORK.items():
        tried: list[Answer] = []
        changed = fresh.get(name, {})  # an event that was not handled before

        def work(*given: Any, name: str = name, more: Any = changed, tried: list[Answer] = tried, **_: Any) -> Any:
            tried.append(aws_functions.send(name, **more))
            raise MaintenanceError("seen enough")

        with monkeypatch.context() as patch:
            patch.setattr(importlib.import_module(module), use_case, work)
            first = aws_functions.send(name, **changed)
        assert [type(entry.error) for entry in tried] == [IdempotencyAlreadyInProgressError], name
        run_id = changed.get("run_id", RUN)
        assert [(line["level"], line["run_id"]) for line in tried[0].lines] == [("WARNING", run_id)], name
        assert str(first.error) == "seen enough", name

    class Killed(BaseException):
        pass

    def killed(*given: Any, **more: Any) -> Any:
        raise Killed

    event = sample("compact")
    event["item"] |= aws_functions.item
    for run_id, seconds in ((RUN, 0.0), ("killed", 900.0)):
        with monkeypatch.context() as patch:
            patch.setattr(importlib.import_module("steps"), "run_steps", killed)
            with pytest.raises(Killed):
                aws_functions.call("commit", {**event, "run_id": run_id}, seconds=seconds)
    assert aws_functions.send("compact").result["compact"].startswith("succeeded: ")
    assert isinstance(aws_functions.send("compact", run_id="killed").error, IdempotencyAlreadyInProgressError)


def test_a_repeated_call_returns_the_same_answer_and_does_nothing(aws_functions: Functions) -> None:
    aws_functions.begin()
    first, shown = aws_functions.send("compact"), aws_functions.send("report")
    aws_functions.table.fill(5, start=50)
    again, reported_again = aws_functions.send("compact"), aws_functions.send("report")
    assert again.result == first.result
    assert (again.lines, len(aws_functions.table.data_files())) == ([], 6)
    assert (reported_again.result, reported_again.metrics) == (shown.result, [])
    assert len(aws_functions.deployment.state.history(aws_functions.identity)) == 1
    # Without the record in DynamoDB, the outcome in the control bucket prevents a repetition.
    importlib.import_module("idempotency")._memory.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ICEKEEPER_STATE", "")
        assert aws_functions.send("compact").result == {}
    assert len(aws_functions.table.data_files()) == 6


def test_a_changed_policy_or_failing_state_table_stops_only_new_work(
    aws_functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_functions.begin("before")
    with aws_functions.table.table.transaction() as change:
        change.set_properties({"icekeeper.target_file_size_mb": "64"})
    shown = aws_functions.send("compact", run_id="before")
    assert shown.result["compact"] == "left to a later run: the policy of ns.t changed since it was planned"

    aws_functions.begin()
    store = type(importlib.import_module("idempotency")._memory())

    def fail(*given: Any, **more: Any) -> Any:
        raise ConnectionError("no route")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_put_record", fail)
        shown = aws_functions.send("compact")
    assert isinstance(shown.error, StorageError)
    assert "whether compact is running already" in str(shown.error)
    assert len(aws_functions.table.data_files()) == 5
    with monkeypatch.context() as patch:  # the error of the work is reported, not the error of its record
        patch.setattr(store, "_delete_record", fail)
        shown = aws_functions.send(
            "plan", run_id="another", item={**sample("plan")["item"], **aws_functions.item, "catalog": "elsewhere"}
        )
    assert isinstance(shown.error, MaintenanceError)
    assert "no route" not in str(shown.error)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_update_record", fail)
        shown = aws_functions.send("compact")
    assert shown.result["compact"].startswith("succeeded: compacted 5")
    assert [line["level"] for line in shown.lines if "could not be recorded" in line["message"]] == ["WARNING"]


# The metrics of Icekeeper that the template's alarms and dashboard read.


def metrics_of_template() -> Iterator[tuple[str, frozenset[str]]]:
    """Every metric of Icekeeper in the template's alarms and dashboard, with the names of its dimensions."""
    resources = load_template()["Resources"]
    for resource in resources.values():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::CloudWatch::Alarm" and properties.get("Namespace") == "Icekeeper":
            yield properties["MetricName"], frozenset(d["Name"] for d in properties["Dimensions"])
    for widget in json.loads(resources["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"])["widgets"]:
        for metric in widget["properties"]["metrics"]:
            if metric[0] == "Icekeeper":
                yield metric[1], frozenset(metric[2::2])
            elif isinstance(metric[0], dict):
                (found,) = re.findall(r"{Icekeeper,([\w,]+)} MetricName=\"([\w.]+)\"", metric[0]["expression"])
                yield found[1], frozenset(found[0].split(","))


# By default functions write a few totals only: each metric is billed for every hour in which it has data.

AFTER_A_PASS = {"PassesPartial": 1, "compact.files_merged": 5}


def _counted(shown: Any, name: str) -> Any:
    """The value of a total that is in a log line and not a metric."""
    (value,) = (line[name] for line in map(json.loads, shown.output.splitlines()) if name in line)
    return value


def test_a_pass_writes_the_metrics_of_alarms_and_dashboard_and_logs_the_others(functions: Functions) -> None:
    functions.begin()
    functions.send("compact")
    shown = functions.send("report")
    written = shown.values("service")
    assert written.keys() == {*AFTER_A_PASS, "compact.bytes_written"}
    assert {name: written[name] for name in AFTER_A_PASS} == AFTER_A_PASS
    (record,) = functions.deployment.state.history(functions.identity)
    logged = {name: value for name, value in record.metrics.items() if value and name not in written}
    assert logged["compact.files_written"] == 1
    assert {name: _counted(shown, name) for name in logged} == logged


def of_run(answer: Mapping[str, Any], *tables: TableReport, is_scan: bool = True, failed_jobs: int = 0) -> RunReport:
    return RunReport({"status": "succeeded", "left": 0, **answer}, tables, is_scan, failed_jobs)


def table_of(name: str, status: str, *operations: Any, **failures: int) -> TableReport:
    item = Item(catalog="lake", warehouse="w", table=name, uuid="u", location="s3://lake/t")
    outcome = PassOutcome(table=name, catalog="lake", run_id="r", dry_run=False, operations=operations)
    return TableReport(item, status, "", outcome if operations else None, failures)


def emitted(functions: Functions, report: RunReport) -> Answer:
    functions._capture.readouterr()
    importlib.import_module("cloudwatch").emit_run(report)
    return Answer(None, None, functions._capture.readouterr().out)


def test_metrics_of_a_run_are_sums_over_its_tables(functions: Functions) -> None:
    """The last call counts the end of the run; each call writes one sum over its tables."""
    for report, expected in (
        (of_run({}), {"RunsSucceeded": 1}),
        (of_run({"status": "partial"}), {"RunsSucceeded": 1}),
        (of_run({"status": "failed"}, failed_jobs=2), {"RunsFailed": 1, "JobsFailed": 2}),
        # A forced run, even with a wrong input, does not count for the schedule.
        (of_run({"status": "failed"}, is_scan=False), {}),
        (of_run({}, is_scan=False, failed_jobs=1), {"JobsFailed": 1}),
        (of_run({"status": "running", "left": 3}), {}),
    ):
        assert emitted(functions, report).values("service") == expected

    compacted = replace(refused(Operation.COMPACT, "no"), metrics={"compact.files_merged": 5})
    orphans = refused(Operation.REMOVE_ORPHANS, "no")
    shown = emitted(
        functions,
        of_run(
            {"left": 1},
            table_of("ns.a", "partial", compacted, orphans),
            table_of("ns.b", "partial", compacted),
            table_of("ns.c", "failed"),
            table_of("ns.d", "succeeded"),
            table_of("ns.e", "refused"),
        ),
    )
    assert shown.values("service") == {
        "PassesPartial": 2,
        "PassesFailed": 1,
        "PassesSucceeded": 1,
        "OrphanRemovalsRefused": 1,
        "compact.files_merged": 10,
    }
    assert len(shown.output.splitlines()) == 1

    # An operation that failed in several passes in a row is counted and named.
    shown = emitted(
        functions,
        of_run(
            {},
            table_of("ns.a", "partial", compact=3, expire_snapshots=4),
            table_of("ns.b", "partial", compact=2),
            table_of("ns.c", "failed", remove_orphans=3, compact=1),
        ),
    )
    assert shown.values("service")["OperationsFailedRepeatedly"] == 3
    (line,) = (line for line in shown.lines if line["level"] == "ERROR")
    assert line["message"] == (
        "failed in several passes in a row: lake ns.a: compact 3 times, expire_snapshots 4 times; "
        "lake ns.c: remove_orphans 3 times"
    )
    tables = [table_of(f"ns.t{number}", "partial", compact=3) for number in range(102)]
    (line,) = (line for line in emitted(functions, of_run({}, *tables)).lines if line["level"] == "ERROR")
    assert line["message"].endswith("lake ns.t99: compact 3 times; and 2 table(s) more")

    # Each metric beyond those of the template costs 30 cents per month and stack.
    totals = {name for name, dimensions in metrics_of_template() if dimensions == {"service"}}
    assert totals == importlib.import_module("cloudwatch")._ASKED_FOR


# Metrics of scans and of the lake, and all metrics of alarms and dashboard.


@pytest.mark.parametrize("wanted", ["all", "passes", "tables"])
def test_a_scan_is_counted_and_describes_the_lake(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setenv("METRICS", wanted)
    other = functions.table.create_beside("ns.other", str(functions.table.folder.parent / "other"))
    other.append(functions.table.new_rows(1, 2))
    shown = functions.send("detect")
    looks = {str(stats.identity.table): stats for stats in functions.remembered()}
    assert looks["ns.t"].counters["lake_data_files"] == 5
    warnings = {table: list(stats.warnings) for table, stats in looks.items()}
    assert warnings == {"ns.t": ["manifest_sprawl", "small_files"], "ns.other": []}
    totals = shown.values("service")
    assert {name: value for name, value in totals.items() if not name.startswith("lake_")} == {
        "TablesScanned": 2,
        "TablesProposed": 1,
        "TablesNotReached": 0,
        "TablesNotReadable": 0,
        "CatalogsEmpty": 0,
    }
    assert (totals["lake_tables"], totals["lake_tables_warned"]) == (2, 1)
    assert (totals["lake_data_files"], totals["lake_snapshots"], totals["lake_records"]) == (6, 6, 12)
    assert totals.keys() > looks["ns.t"].counters.keys()
    by_table = {
        (metric.dimensions["table"], metric.name): metric.value
        for metric in shown.metrics
        if len(metric.dimensions) > 1
    }
    expected = {(table, name): value for table, stats in looks.items() for name, value in stats.counters.items()}
    expected |= {("ns.t", "lake_warnings"): 2, ("ns.other", "lake_warnings"): 0}
    assert by_table == (expected if wanted == "tables" else {})
    functions.begin("another-run")
    functions.send("compact", run_id="another-run")
    shown = functions.send("report", run_id="another-run")
    assert bool(shown.values("service", "catalog", "table")) == (wanted != "all")
    assert shown.values("service")["compact.files_merged"] == 5


def test_a_scan_logs_its_start_and_end_and_each_warning_once(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = functions.send("detect"), functions.send("detect", run_id="run-2")
    (started,), (finished,) = first.lines_of("scan_started"), first.lines_of("scan_finished")
    assert (started["catalogs"], started["run_id"]) == (1, RUN)
    assert {name: finished[name] for name in ("listed", "tables", "proposals", "skipped", "errors")} == {
        "listed": 1,
        "tables": 1,
        "proposals": 1,
        "skipped": 0,
        "errors": 0,
    }
    warnings = first.lines_of("lake_warning")
    assert [(line["level"], line["table"], line["catalog"], line["run_id"], line["warning"]) for line in warnings] == [
        ("WARNING", "ns.t", "local", RUN, warning) for warning in ("manifest_sprawl", "small_files")
    ]
    assert second.lines_of("lake_warning") == []
    # The only zero that is written ends an alarm.
    assert first.values("service") == {
        "TablesNotReadable": 0,
        "lake_tables": 1,
        "lake_tables_warned": 1,
        "lake_data_files": 5,
        "lake_snapshots": 5,
    }
    assert (_counted(first, "TablesScanned"), _counted(first, "TablesProposed")) == (1, 1)
    assert _counted(first, "lake_records") == 10

    def fail(*given: Any) -> Any:
        raise KeyError("counters")  # an entry of another version

    monkeypatch.setattr(importlib.import_module("cloudwatch"), "lake_totals", fail)
    shown = functions.send("detect", run_id="run-3")
    assert [line["tables"] for line in shown.lines_of("scan_finished")] == [1]
    (line,) = (line for line in shown.lines if line["level"] == "WARNING" and "event" not in line)
    assert line["message"] == "the health of the lake cannot be reported: KeyError 'counters'"


def test_all_metrics_of_alarms_and_dashboard_are_written(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRICS", "passes")
    functions.table.plant("data/orphan.parquet")
    answers = [functions.send("detect", run_id="first")]
    (item,) = json.loads((functions.control / answers[0].result["tables"]["key"]).read_text())
    functions.item = item
    answers.append(functions.send("report", run_id="first"))  # nothing was planned
    functions.begin()
    answers += [functions.send(name) for name in ("compact", "expire_snapshots", "list_orphans")]
    answers.append(functions.send("remove_orphans", listed=answers[-1].result["listed"]))
    answers += [functions.send(name) for name in ("rewrite_manifests", "report")]
    bad = of_run({"status": "failed"}, table_of("ns.a", "partial", compact=3), failed_jobs=1)
    answers += [emitted(functions, of_run({})), emitted(functions, bad)]
    shown = {(m.name, frozenset(m.dimensions)) for answer in answers for m in answer.metrics}
    assert [metric for metric in metrics_of_template() if metric not in shown] == []
