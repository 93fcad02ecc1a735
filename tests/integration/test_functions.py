"""Every function, called as Lambda calls it with its event of events/: answer, log lines and metrics, exactly."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.errors import MaintenanceError, PlanStale, PolicyError, StorageError
from icekeeper.pipeline.events import Item, parse_event
from icekeeper.state.identity import TableIdentity
from icekeeper.state.lake_stats import LakeStats
from local_stack.moto_server import REGION, MotoServer
from local_stack.template import load_template
from support.cloudformation import local_environment
from support.lambda_functions import FUNCTIONS, Answer, LambdaFunctions, sample
from support.maintained_table import MaintainedTable, new_table
from support.state_tables import a_table, state_address

EVENTS_FOLDER = Path(__file__).parents[2] / "events"
RUN = "by-hand-1"
SECRETS = (
    "token-that-nobody-may-see",
    "key-that-nobody-may-see",
    "password-that-nobody-may-see",
    "header/that-nobody-may-see",
)
ROLES = sorted(path.parent.name for path in FUNCTIONS.glob("*/handler.py"))
EVENTS = {
    **{role: role for role in ROLES if role not in ("lease", "report")},
    "lease_acquire": "lease",
    "lease_release": "lease",
    "report_table": "report",
    "report_run": "report",
    "detect_forced": "detect",
}
"""Sample → function."""
STEPS = {
    "expire_partitions": "expire_partitions",
    "compact": "compact_small",
    "expire_snapshots": "expire_snapshots",
    "remove_orphans": "remove_orphans",
    "rewrite_manifests": "rewrite_manifests",
    "clean_staged": "clean_staged",
}


class Functions(LambdaFunctions):
    """The functions of a deployment whose one table lies on this disk."""

    def __init__(self, table: MaintainedTable, folder: Path, state: str, *more: Any, **environment: str) -> None:
        self.table = table
        self.control = folder / "control"
        self.item: Mapping[str, Any] = {}
        self.plan: Mapping[str, Any] = {}
        (folder / "pyiceberg.yaml").write_text(
            f"catalog:\n  local:\n    type: sql\n    uri: sqlite:///{folder / 'catalog.db'}\n"
            f"    warehouse: {(folder / 'warehouse').as_uri()}\n    token: {SECRETS[0]}\n"
            f"    s3.secret-access-key: {SECRETS[1]}\n"
        )
        settings = {
            "ICEKEEPER_MIN_INPUT_FILES": "2",
            "ICEKEEPER_MIN_MANIFESTS_TO_REWRITE": "2",
            "ICEKEEPER_MAX_SNAPSHOTS_TO_KEEP": "1",
            "ICEKEEPER_SNAPSHOT_RETENTION_HOURS": "0",
            "ICEKEEPER_CONTROL_BUCKET": str(self.control),
            "ICEKEEPER_CATALOG_FILE": str(folder / "pyiceberg.yaml"),
            "ICEKEEPER_STATE": state,
        }
        super().__init__({**settings, **environment}, *more)

    def send(self, name: str, **changed: Any) -> Answer:
        """Send a sample of events/ that is about this deployment's table."""
        event = sample(name)
        if "item" in event:
            event["item"] |= self.item
        if "plan" in event:
            event["plan"] |= self.plan
        return self.call(EVENTS[name], {**event, **changed})

    @property
    def identity(self) -> TableIdentity:
        """Of its table, as the state knows it."""
        return parse_event(Item, self.item).identity

    def remembered(self) -> list[LakeStats]:
        """How the tables of the catalog looked when they were last seen."""
        (address,) = self.deployment.addresses()
        catalog = self.deployment.runtime_at(address).catalog
        return list(self.deployment.state.lake_stats.of_catalog(catalog.name, catalog.warehouse))

    def begin(self, run_id: str = RUN) -> None:
        """Up to a plan."""
        wanted = {"table": "ns.t", "catalog": "local"}
        found = self.send("detect_forced", run_id=run_id, input=wanted)
        assert found.error is None
        (self.item,) = json.loads((self.control / found.result["proposals"]["key"]).read_text())
        assert self.send("lease_acquire", run_id=run_id).result["holder"] == run_id
        self.plan = self.send("plan", run_id=run_id).result


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    table = new_table(local_catalog, tmp_path)
    table.fill(5)
    return table


@pytest.fixture
def functions(
    table: MaintainedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Functions]:
    functions = Functions(table, tmp_path, str(tmp_path / "state.db"), monkeypatch, capsys)
    yield functions
    functions.end()


@pytest.fixture
def shared(
    table: MaintainedTable,
    tmp_path: Path,
    moto_dynamodb: MotoServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Functions]:
    """With the state where it is on AWS."""
    aws = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing-secret", "AWS_REGION": REGION}
    state = state_address(moto_dynamodb, a_table(moto_dynamodb))
    functions = Functions(table, tmp_path, state, monkeypatch, capsys, **aws)
    yield functions
    functions.end()


def test_a_pass_by_the_functions_alone(shared: Functions) -> None:
    orphan = shared.table.plant("data/orphan.parquet")
    rows = shared.table.ids()
    shared.begin()
    answers = {name: shared.send(name) for name in ("compact_small", "expire_snapshots", "list_orphans")}
    answers |= {name: shared.send(name) for name in ("remove_orphans", "rewrite_manifests", "clean_staged")}
    idle = shared.send("compact_small", operation="rewrite_position_deletes")
    told = shared.send("report_table", failures={})
    assert {name: answer.result for name, answer in answers.items()} == {
        "compact_small": {"status": "succeeded", "summary": "compacted 5 files into 1 (across 1 bins)"},
        "expire_snapshots": {
            "status": "succeeded",
            "summary": "expired 5 snapshot(s), deleted 15 unreferenced file(s)",
        },
        "list_orphans": {"status": "succeeded", "summary": "would remove 1 orphan file(s)", "count": 1},
        "remove_orphans": {"status": "succeeded", "summary": "removed 1 orphan file(s)"},
        "rewrite_manifests": {"status": "succeeded", "summary": "rewrote 2 manifests into 1 (1 entries)"},
        "clean_staged": {"status": "succeeded", "summary": "no files of failed loads to clean"},
    }
    assert idle.result == {"status": "skipped", "summary": "no position delete files eligible for merging"}
    assert (told.result["table"], told.result["status"]) == ("ns.t", "succeeded")
    assert shared.send("report_run", tables=[told.result]).result == {
        "run_id": RUN,
        "status": "succeeded",
        "summary": "1 succeeded",
        "tables": {"succeeded": 1},
    }
    assert shared.send("lease_release").result == {"released": True}
    assert shared.table.ids() == rows
    assert not Path(orphan).exists()

    for name, answer in answers.items():
        operation = "remove_orphans" if name == "list_orphans" else sample(name)["operation"]
        started, finished = answer.lines_of("operation_started"), answer.lines_of("operation_finished")
        assert [line["operation"] for line in (*started, *finished)] == [operation] * 2, name
        assert finished[0]["status"] == "succeeded"
        for line in answer.lines:
            assert (line["run_id"], line["correlation_id"]) == (RUN, RUN)
            assert (line["catalog"], line["table"]) == ("local", "ns.t")
            assert (line["service"], line["function_name"]) == ("icekeeper", f"icekeeper-{EVENTS[name]}")
    (progress,) = answers["compact_small"].lines_of("progress")
    assert (progress["work"], progress["done"], progress["total"]) == ("compact: file groups", 1, 1)
    assert progress["name"] == "icekeeper.activity"

    (record,) = shared.deployment.state.history(shared.identity)
    assert record.status == "succeeded"
    done = {name: value for name, value in record.metrics.items() if value}
    assert done["compact.files_merged"] == 5
    assert told.values("service", "catalog", "table") == done
    assert {(m.dimensions["catalog"], m.dimensions["table"]) for m in told.metrics if "table" in m.dimensions} == {
        ("local", "ns.t")
    }
    assert told.values("service") == {**done, "PassesSucceeded": 1, "OrphanRemovalsRefused": 0}


def test_every_function_takes_the_environment_that_sam_local_makes_of_the_template(
    table: MaintainedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the template leaves out (``AWS::NoValue``) is there for ``sam local invoke``, but empty: not set."""
    given_by_hand = json.loads((EVENTS_FOLDER / "environment.json").read_text())["Parameters"]
    environment = {
        name: value for name, value in local_environment(load_template()).items() if name not in given_by_hand
    }
    assert {name for name, value in environment.items() if not value} >= {
        "ICEKEEPER_BOUND_MAX_SNAPSHOTS_TO_KEEP",
        "ICEKEEPER_BOUND_MAINTENANCE_ENABLED",
        "ICEKEEPER_TABLE_FILTER",
    }
    nothing_named = dict.fromkeys(("ICEKEEPER_CATALOGS", "ICEKEEPER_TABLE_BUCKETS", "ICEKEEPER_POLICY_FILE"), "")
    functions = Functions(
        table, tmp_path, str(tmp_path / "state.db"), monkeypatch, capsys, **environment, **nothing_named
    )
    functions.begin()
    samples = {path.stem for path in EVENTS_FOLDER.glob("*.json")}
    assert samples - EVENTS.keys() == {"environment", "machine_forced", "machine_forced_wait", "machine_schedule"}
    assert set(EVENTS.values()) == set(ROLES)
    begun, last = {"detect_forced", "lease_acquire", "plan"}, ["report_table", "report_run", "lease_release"]
    for name in (*sorted(EVENTS.keys() - begun - {*last}), *last):
        assert functions.send(name).error is None, name
    functions.end()


@pytest.mark.parametrize("empty", ["", "  "])
def test_a_variable_that_is_empty_is_not_set(functions: Functions, empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ("ICEKEEPER_STATE", "ICEKEEPER_CONTROL_BUCKET", "ICEKEEPER_CATALOG_FILE")
    for name in local_environment(load_template()):
        if name not in needed and not name.startswith("POWERTOOLS_"):
            monkeypatch.setenv(name, empty)
    assert functions.send("detect").error is None
    functions.begin()
    assert functions.send("compact_small").error is None


def test_partitions_expire_where_a_retention_says_so(functions: Functions) -> None:
    functions.begin()
    assert functions.send("expire_partitions").result == {
        "status": "skipped",
        "summary": "no partition_retention_hours is set",
    }


# Sample, the module that does the work, and the use case there.
WORK = {
    "detect_forced": ("detect.handler", "detect_tables"),
    "plan": ("plan.handler", "plan_table"),
    "list_orphans": ("list_orphans.handler", "list_orphans"),
    "report_table": ("report.handler", "report_table"),
    **dict.fromkeys(STEPS.values(), ("steps", "run_step")),
}


def test_a_second_attempt_waits_while_the_first_is_at_work(shared: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.begin()
    for name, (module, use_case) in WORK.items():
        tried: list[Answer] = []

        def work(*given: Any, sample_: str = name, tried: list[Answer] = tried, **more: Any) -> Any:
            tried.append(shared.send(sample_, **changed(sample_)))
            raise MaintenanceError("seen enough")

        with monkeypatch.context() as patch:
            patch.setattr(importlib.import_module(module), use_case, work)
            first = shared.send(name, **changed(name))
        assert [type(one.error) for one in tried] == [IdempotencyAlreadyInProgressError], name
        assert [(line["level"], line["run_id"]) for line in tried[0].lines] == [("WARNING", RUN)], name
        assert str(first.error) == "seen enough", name


def changed(name: str) -> dict[str, Any]:
    """So that it has not been done before."""
    others: dict[str, dict[str, Any]] = {"detect_forced": {"input": {"table": "ns.t"}}, "plan": {"attempt": 2}}
    return others.get(name, {})


def test_nobody_waits_for_an_attempt_whose_time_is_up(shared: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that was killed forgets nothing: its deadline does."""
    shared.begin()

    class Killed(BaseException):
        pass

    def killed(*given: Any, **more: Any) -> Any:
        raise Killed

    event = sample("compact_small")
    event["item"], event["plan"] = event["item"] | shared.item, event["plan"] | shared.plan
    for run_id, seconds in ((RUN, 0.0), ("another", 900.0)):
        with monkeypatch.context() as patch:
            patch.setattr(importlib.import_module("steps"), "run_step", killed)
            with pytest.raises(Killed):
                shared.call("compact_small", {**event, "run_id": run_id}, seconds=seconds)
    assert shared.send("compact_small").result["status"] == "succeeded"
    assert isinstance(shared.send("compact_small", run_id="another").error, IdempotencyAlreadyInProgressError)


def test_a_repetition_answers_the_same_and_does_nothing(shared: Functions) -> None:
    shared.begin()
    first, told = shared.send("compact_small"), shared.send("report_table")
    shared.table.fill(5, start=50)
    again, told_again = shared.send("compact_small"), shared.send("report_table")
    assert again.result == first.result
    assert (again.lines, len(shared.table.data_files())) == ([], 6)
    assert (told_again.result, told_again.metrics) == (told.result, [])
    assert len(shared.deployment.state.history(shared.identity)) == 1
    # Without what DynamoDB remembers, the outcome in the control bucket says the same.
    importlib.import_module("idempotency")._memory.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ICEKEEPER_STATE", "")
        assert shared.send("compact_small").result == first.result


def test_an_answer_never_hides_what_is_still_to_be_done(shared: Functions) -> None:
    shared.begin()
    with shared.table.table.transaction() as change:
        change.set_properties({"icekeeper.target_file_size_mb": "64"})
    for _ in range(2):  # an attempt that raised is forgotten
        assert isinstance(shared.send("compact_small").error, PlanStale)
    digest = shared.plan["digest"]
    shared.plan = shared.send("plan", attempt=2).result
    assert shared.plan["digest"] != digest
    assert shared.send("compact_small").result["summary"] == "compacted 5 files into 1 (across 1 bins)"


def test_a_state_table_that_fails_stops_what_has_not_begun_only(
    shared: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.begin()
    store = type(importlib.import_module("idempotency")._memory())

    def fail(*given: Any, **more: Any) -> Any:
        raise ConnectionError("no route")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_put_record", fail)
        told = shared.send("compact_small")
    assert isinstance(told.error, StorageError)
    assert "whether compact is being done already" in str(told.error)
    assert len(shared.table.data_files()) == 5
    with monkeypatch.context() as patch:  # what went wrong is told, not that it could not be forgotten
        patch.setattr(store, "_delete_record", fail)
        told = shared.send("plan", attempt=2, item={**sample("plan")["item"], **shared.item, "catalog": "elsewhere"})
    assert isinstance(told.error, MaintenanceError)
    assert "no route" not in str(told.error)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_update_record", fail)
        told = shared.send("compact_small")
    assert told.result["status"] == "succeeded"
    assert [line["level"] for line in told.lines if "could not be remembered" in line["message"]] == ["WARNING"]


def test_a_malformed_event_is_one_sentence_that_names_the_field(functions: Functions) -> None:
    def refused(event: Any) -> tuple[str, list[Mapping[str, Any]]]:
        told = functions.call(role, event)
        assert isinstance(told.error, PolicyError), name
        return str(told.error), told.lines

    for name, role in EVENTS.items():
        event = sample(name)
        run_id = event.pop("run_id")
        sentence, (line,) = refused(event)
        assert sentence == "malformed event: run_id: Field required"
        assert (line["level"], line["message"]) == ("ERROR", f"PolicyError: {sentence}")
        sentence, (line,) = refused({**sample(name), "surprise": 1})
        assert sentence == "malformed event: surprise: Extra inputs are not permitted"
        assert line["run_id"] == run_id
        assert refused([])[0].startswith("malformed event: the event: Input should be a valid dictionary")
        if "item" in event:
            del event["item"]["uuid"]
            assert refused({**event, "run_id": RUN})[0] == "malformed event: item.uuid: Field required"
        if role in STEPS.values():
            other = "compact" if name == "clean_staged" else "clean_staged"
            sentence, (line,) = refused({**sample(name), "operation": other})
            assert re.fullmatch(rf"malformed event: operation: this function does [a-z_, ]+, not {other}", sentence)
            assert (line["operation"], line["table"]) == (other, "sales.orders")


def test_a_warm_function_keeps_nothing_of_the_call_before(functions: Functions) -> None:
    functions.begin()
    first = functions.send("compact_small", run_id="run-1").lines[0]
    assert (first["table"], first["operation"], first["cold_start"]) == ("ns.t", "compact", False)
    assert functions.call("detect", {"run_id": "run-2"}).lines[0].keys().isdisjoint({"table", "catalog", "operation"})
    line = functions.send("detect", run_id="run-2").lines[0]
    assert (line["run_id"], line["correlation_id"]) == ("run-2", "run-2")
    assert line.keys().isdisjoint({"table", "catalog", "operation"})


def test_a_bug_is_one_line_that_says_which_run(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **more: Any) -> Any:
        raise RuntimeError("not thought of")

    functions.begin()
    monkeypatch.setattr(importlib.import_module("steps"), "run_step", broken)
    told = functions.send("compact_small")
    (line,) = told.lines
    assert (line["level"], line["message"], line["run_id"]) == ("ERROR", "icekeeper-compact_small broke", RUN)
    assert (line["table"], line["exception_name"]) == ("ns.t", "RuntimeError")
    assert line["exception"].endswith("RuntimeError: not thought of")


def test_the_first_call_says_that_it_is(functions: Functions) -> None:
    assert [functions.send("detect").lines[0]["cold_start"] for _ in range(2)] == [True, False]


def test_secrets_are_told_to_nobody(functions: Functions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "pyiceberg.yaml").open("a") as file:
        file.write(
            f"  closed:\n    type: rest\n    uri: http://user:{SECRETS[2]}@127.0.0.1:9/\n    token: {SECRETS[0]}\n"
            f"    s3.secret-access-key: {SECRETS[1]}\n    header.x-key: {SECRETS[3]}\n"
        )
    monkeypatch.setenv("PYICEBERG_CATALOG__CLOSED__TOKEN", SECRETS[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS[1])
    monkeypatch.setenv("POWERTOOLS_LOG_LEVEL", "DEBUG")
    told = [functions.send("detect", run_id="first"), functions.send("report_run", run_id="first", tables=[])]
    assert [
        line["message"]
        for line in told[0].lines
        if "nothing answers at http://user:***@127.0.0.1:9/" in line["message"]
    ]
    functions.begin()
    told += [functions.send(name) for name in EVENTS if name not in ("detect", "report_run", "lease_release")]
    told.append(functions.send("plan", item={**sample("plan")["item"], **functions.item, "catalog": "closed"}))
    assert told[-1].error is not None
    everything = [f"{answer.output} {answer.result} {answer.error!r}" for answer in told]
    everything += [path.read_text() for path in functions.control.rglob("*.json")]
    assert not [text for text in everything for secret in SECRETS if secret in text]


@pytest.mark.parametrize("wanted", ["none", "passes", "all"])
def test_a_scan_is_counted_and_the_lake_is_told(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setenv("METRICS_PER_TABLE", wanted)
    other = functions.table.create_beside("ns.other", str(functions.table.folder.parent / "other"))
    other.append(functions.table.new_rows(1, 2))
    told = functions.send("detect")
    looks = {str(stats.identity.table): stats for stats in functions.remembered()}
    assert looks["ns.t"].counters["lake_data_files"] == 5
    assert (list(looks["ns.t"].warnings), list(looks["ns.other"].warnings)) == (["small_files"], [])
    totals = told.values("service")
    assert {name: value for name, value in totals.items() if not name.startswith("lake_")} == {
        "TablesScanned": 2,
        "TablesProposed": 1,
        "TablesNotReached": 0,
        "TablesNotReadable": 0,
    }
    assert (totals["lake_tables"], totals["lake_tables_warned"]) == (2, 1)
    assert (totals["lake_data_files"], totals["lake_snapshots"], totals["lake_records"]) == (6, 6, 12)
    assert totals.keys() > looks["ns.t"].counters.keys()
    by_table = {
        (metric.dimensions["table"], metric.name): metric.value for metric in told.metrics if len(metric.dimensions) > 1
    }
    expected = {(table, name): value for table, stats in looks.items() for name, value in stats.counters.items()}
    expected |= {("ns.t", "lake_warnings"): 1, ("ns.other", "lake_warnings"): 0}
    assert by_table == (expected if wanted == "all" else {})
    functions.begin("another run")
    functions.send("compact_small", run_id="another run")
    told = functions.send("report_table", run_id="another run")
    assert bool(told.values("service", "catalog", "table")) == (wanted != "none")
    assert told.values("service")["compact.files_merged"] == 5


def test_a_scan_says_when_it_begins_and_ends_and_once_what_is_wrong_with_a_table(functions: Functions) -> None:
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
    (warning,) = first.lines_of("lake_warning")
    assert (warning["level"], warning["table"], warning["catalog"], warning["run_id"]) == (
        *("WARNING", "ns.t", "local", RUN),
    )
    assert warning["warning"] == "small_files"
    assert second.lines_of("lake_warning") == []


def test_a_lake_that_cannot_be_read_costs_no_scan(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> Any:
        raise KeyError("counters")  # an entry that is not as this version writes it

    monkeypatch.setattr(importlib.import_module("cloudwatch"), "lake_totals", fail)
    told = functions.send("detect")
    assert told.result["proposals"]["count"] == 1
    (line,) = (line for line in told.lines if line["level"] == "WARNING" and "event" not in line)
    assert line["message"] == "how the lake looks cannot be told: KeyError 'counters'"


def test_a_pass_that_could_not_tell_that_it_failed_is_counted_by_the_run(functions: Functions) -> None:
    """The run is partial, which is green: no alarm would ever have heard of it."""
    results = [
        {"table": "ns.a", "status": "succeeded", "summary": ""},
        {"table": "ns.b", "status": "failed", "summary": "compact: StorageError: told by its own report"},
        {"table": "ns.c", "status": "failed", "summary": "the pass could not be reported"},
        {"Input": '{"item": {"table": "ns.d"}}', "Status": "ABORTED"},
    ]
    told = functions.send("report_run", tables=results)
    assert (told.result["status"], told.result["untold"]) == ("partial", 2)
    assert told.values("service") == {"PassesFailed": 2}
    assert "summary: the pass could not be reported" in (FUNCTIONS / "maintain_tables.asl.yaml").read_text()


def test_alarms_and_dashboard_ask_for_what_is_told(functions: Functions) -> None:
    functions.table.plant("data/orphan.parquet")
    answers = [functions.send("detect", run_id="first"), functions.send("report_run", run_id="first", tables=[])]
    functions.begin()
    answers += [functions.send(name) for name in ("compact_small", "expire_snapshots", "remove_orphans")]
    answers += [functions.send("report_table"), functions.send("report_table", plan=None, run_id="failed")]
    answers.append(functions.send("rewrite_manifests"))
    answers.append(functions.send("compact_small", operation="rewrite_position_deletes"))
    answers.append(functions.send("report_table", failures={}))
    told = {(m.name, frozenset(m.dimensions)) for answer in answers for m in answer.metrics}
    assert [metric for metric in asked_for() if metric not in told] == []


def asked_for() -> Iterator[tuple[str, frozenset[str]]]:
    """Every metric of ours that the template's alarms and dashboard name, with the names of its dimensions."""
    resources = load_template()["Resources"]
    for resource in resources.values():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::CloudWatch::Alarm" and properties["Namespace"] == "Icekeeper":
            yield properties["MetricName"], frozenset(d["Name"] for d in properties["Dimensions"])
    for widget in json.loads(resources["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"])["widgets"]:
        for metric in widget["properties"]["metrics"]:
            if metric[0] == "Icekeeper":
                yield metric[1], frozenset(metric[2::2])
            elif isinstance(metric[0], dict):
                (found,) = re.findall(r"{Icekeeper,([\w,]+)} MetricName=\"([\w.]+)\"", metric[0]["expression"])
                yield found[1], frozenset(found[0].split(","))
