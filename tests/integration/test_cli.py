"""The command's contracts: statuses, sentences, documents, exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from icekeeper.cli import main
from icekeeper.policy import ALL_OPERATIONS, POLICY_KEYS, Operation
from icekeeper.report import outcome as outcome_module
from support.command import EVERYTHING_IS_OLD, Answer, Command, arguments_of, local_path, one_sentence
from support.faults import closed_port

LOCAL = ("--engine", "local")
PASS = ("maintain", "ns.t", *LOCAL, *EVERYTHING_IS_OLD)
OPERATION_NAMES = [operation.value for operation in ALL_OPERATIONS]


def statuses(answer: Answer) -> dict[str, tuple[str, str | None]]:
    return {part["operation"]: (part["status"], part["reason"]) for part in answer.json["operations"]}


def summaries(answer: Answer) -> dict[str, str]:
    return {part["operation"]: part["summary"] for part in answer.json["operations"]}


def rows(command: Command, name: str = "ns.t") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = command.catalog.load_table(name).scan().to_arrow().to_pylist()
    return sorted(found, key=str)


# -- maintain


def test_a_pass_in_json(command: Command) -> None:
    table = command.table(appends=6)
    before = rows(command)
    inputs = {task.file.file_path for task in table.scan().plan_files()}

    answer = command(*PASS, "--json")

    assert answer.code == 0
    document = answer.json
    assert list(document) == [
        *("table", "catalog", "run_id", "dry_run", "status", "operations", "summary", "metrics"),
    ]
    assert {key: document[key] for key in ("table", "catalog", "dry_run", "status")} == {
        "table": "ns.t",
        "catalog": "C",
        "dry_run": False,
        "status": "succeeded",
    }
    assert [part["operation"] for part in document["operations"]] == OPERATION_NAMES
    for part in document["operations"]:
        assert list(part) == [
            *("operation", "status", "reason", "summary", "snapshot_id", "snapshot_id_text"),
            *("snapshot_ids", "snapshot_ids_text", "metrics", "files"),
        ]
        assert list(part["files"]) == ["planned", "deleted"]
        assert all(key.startswith(f"{part['operation']}.") for key in part["metrics"])
    assert document["summary"] == "; ".join(
        f"{part['operation']}: {part['summary']}" for part in document["operations"]
    )
    assert document["metrics"] == {k: v for part in document["operations"] for k, v in part["metrics"].items()}
    compact, _, expiry, orphans, manifests = document["operations"]
    head = command.catalog.load_table("ns.t").current_snapshot()
    assert head is not None
    assert (compact["status"], compact["reason"]) == ("succeeded", None)
    assert compact["summary"] == "compacted 6 files into 1 (across 1 bins)"
    assert compact["snapshot_ids"] == [compact["snapshot_id"]] == [head.snapshot_id]
    assert set(compact["files"]["planned"]) == inputs
    assert compact["files"]["deleted"] == []
    expected = {"compact.files_merged": 6, "compact.files_written": 1, "compact.bins": 1}
    assert compact["metrics"] | expected == compact["metrics"]
    # Six data files, their six manifests and six manifest lists.
    assert expiry["summary"] == "expired 6 snapshot(s), deleted 18 unreferenced file(s)"
    assert (expiry["snapshot_id"], expiry["snapshot_ids"]) == (None, [])
    assert sorted(expiry["files"]["deleted"]) == sorted(expiry["files"]["planned"])
    assert not any(local_path(path).exists() for path in expiry["files"]["deleted"])
    assert expiry["metrics"]["expire_snapshots.snapshots_expired"] == 6
    assert (orphans["status"], orphans["summary"]) == ("succeeded", "removed 0 orphan file(s)")
    assert manifests["status"] == "skipped"
    assert manifests["reason"].startswith("only ")
    assert head.summary is not None
    assert head.summary.operation.value == "replace"
    assert head.summary["icekeeper.run-id"] == document["run_id"]
    assert rows(command) == before


def test_a_second_pass_has_nothing_to_do(command: Command) -> None:
    command.table()
    command(*PASS)
    before = command.contents()
    answer = command(*PASS, "--json")
    assert answer.code == 0
    assert summaries(answer) == {
        "compact": "no files eligible for compaction",
        "rewrite_position_deletes": "no position delete files eligible for merging",
        "expire_snapshots": "no snapshots to expire",
        "remove_orphans": "removed 0 orphan file(s)",
        "rewrite_manifests": summaries(answer)["rewrite_manifests"],
    }
    assert [status for status, _ in statuses(answer).values()] == [
        "skipped",
        "skipped",
        "skipped",
        "succeeded",
        "skipped",
    ]
    assert command.contents() == before


def test_a_table_without_a_snapshot_is_skipped(command: Command) -> None:
    command.table(appends=0)
    answer = command(*PASS, "--json")
    assert answer.code == 0
    assert statuses(answer) == {
        "compact": ("skipped", "no current snapshot"),
        "rewrite_position_deletes": ("skipped", "no current snapshot"),
        "expire_snapshots": ("skipped", "no snapshots to expire"),
        "remove_orphans": ("succeeded", None),
        "rewrite_manifests": ("skipped", "no current snapshot"),
    }


def test_people_read_a_line_per_operation(command: Command) -> None:
    command.table()
    answer = command(*PASS)
    assert answer.code == 0
    assert [" ".join(line.split()) for line in answer.out.splitlines()][:5] == [
        "ns.t: succeeded",
        "compact succeeded compacted 6 files into 1 (across 1 bins)",
        "rewrite_position_deletes skipped no position delete files eligible for merging",
        "expire_snapshots succeeded expired 6 snapshot(s), deleted 18 unreferenced file(s)",
        "remove_orphans succeeded removed 0 orphan file(s)",
    ]
    assert answer.err == ""


def test_with_json_people_read_standard_error(command: Command) -> None:
    command.table()
    text, both = command(*PASS, "--dry-run"), command(*PASS, "--dry-run", "--json")
    assert both.err == text.out
    assert text.out.startswith("ns.t: succeeded (dry run: nothing was changed)\n")
    assert both.json["dry_run"] is True


@pytest.mark.parametrize("asked", ["rewrite_manifests,compact", "compact,rewrite_manifests", "compact , compact,all"])
def test_operations_run_in_canonical_order(command: Command, asked: str) -> None:
    command.table()
    answer = command(*PASS, "--dry-run", "--json", "--operations", asked)
    assert answer.code == 0
    wanted = OPERATION_NAMES if "all" in asked else ["compact", "rewrite_manifests"]
    assert list(statuses(answer)) == wanted


def test_a_dry_run_changes_nothing_and_lists_what_it_would(command: Command) -> None:
    table = command.table()
    orphan = local_path(table.location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"PAR1")
    os.utime(orphan, (1, 1))
    before = command.contents()

    answer = command(*PASS, "--dry-run", "--json")

    assert answer.code == 0
    assert command.contents() == before
    planned = {part["operation"]: part["files"]["planned"] for part in answer.json["operations"]}
    assert {name: len(paths) for name, paths in planned.items()} == {
        "compact": 6,
        "rewrite_position_deletes": 0,
        "expire_snapshots": 5,  # manifest lists: every data file and manifest is the head's too
        "remove_orphans": 1,
        "rewrite_manifests": 6,
    }
    assert planned["remove_orphans"] == [orphan.as_uri()]
    assert all(str(path) in before for paths in planned.values() for path in map(local_path, paths))
    assert all(part["files"]["deleted"] == [] for part in answer.json["operations"])
    assert all(part["snapshot_id"] is None for part in answer.json["operations"])
    assert summaries(answer) == {
        "compact": "would compact 6 files into 1 (across 1 bins)",
        "rewrite_position_deletes": "no position delete files eligible for merging",
        "expire_snapshots": "would expire 5 snapshot(s) and delete 5 unreferenced file(s)",
        "remove_orphans": "would remove 1 orphan file(s)",
        "rewrite_manifests": "would rewrite 6 manifests into 1",
    }


def test_what_a_dry_run_planned_is_what_happens(command: Command) -> None:
    """Operation by operation, since a pass changes what its later operations see."""
    table = command.table()
    orphan = local_path(table.location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"PAR1")
    os.utime(orphan, (1, 1))
    for name in OPERATION_NAMES:
        planned, done = (
            command(*PASS, "--operations", name, "--json", *dry).json["operations"][0] for dry in (["--dry-run"], [])
        )
        assert sorted(planned["files"]["planned"]) == sorted(done["files"]["planned"])
        assert (planned["status"], planned["reason"]) == (done["status"], done["reason"])
        if name in ("expire_snapshots", "remove_orphans"):
            assert sorted(done["files"]["deleted"]) == sorted(done["files"]["planned"])


def test_long_lists_of_files_go_to_a_file(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.table()
    monkeypatch.setattr(outcome_module, "MAX_INLINE_PATHS", 5)
    answer = command(*PASS, "--json")
    compact, _, expiry, orphans, _ = (part["files"] for part in answer.json["operations"])
    assert compact == {"listing": compact["listing"], "planned_count": 6, "deleted_count": 0}
    assert expiry == {"listing": expiry["listing"], "planned_count": 18, "deleted_count": 18}
    assert orphans == {"planned": [], "deleted": []}
    for files in (compact, expiry):
        path = Path(files["listing"])
        assert path.is_relative_to(command.state.parent)
        listing = json.loads(path.read_text())
        assert {key: len(paths) for key, paths in listing.items()} == {
            "planned": files["planned_count"],
            "deleted": files["deleted_count"],
        }


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("set", "--set"),
        ("property", "table property icekeeper.maintenance_enabled"),
        ("environment", "deployment ICEKEEPER_MAINTENANCE_ENABLED"),
        ("bound", "bound ICEKEEPER_BOUND_MAINTENANCE_ENABLED"),
    ],
)
def test_disabled_maintenance_skips_everything(
    command: Command, monkeypatch: pytest.MonkeyPatch, source: str, named: str
) -> None:
    properties = {"icekeeper.maintenance_enabled": "false"} if source == "property" else {}
    command.table(properties=properties)
    if source in ("environment", "bound"):
        prefix = "ICEKEEPER_" if source == "environment" else "ICEKEEPER_BOUND_"
        monkeypatch.setenv(f"{prefix}MAINTENANCE_ENABLED", "false")
    # A bound holds whatever the call asks for.
    extra = {"set": ("--set", "maintenance_enabled=false"), "bound": ("--set", "maintenance_enabled=true")}
    before = command.contents()
    answer = command(*PASS, "--json", *extra.get(source, ()))
    assert answer.code == 0
    assert answer.json["status"] == "succeeded"
    assert set(statuses(answer).values()) == {("skipped", f"maintenance is disabled ({named})")}
    assert command.contents() == before


def test_a_switch_skips_its_operation_alone(command: Command) -> None:
    command.table()
    answer = command(*PASS, "--json", "--dry-run", *arguments_of({"snapshot_expiry_enabled": "false"}))
    assert statuses(answer)["expire_snapshots"] == ("skipped", "snapshot_expiry_enabled is false (--set)")
    assert [status for status, _ in statuses(answer).values()].count("succeeded") == 3


def test_gc_disabled_skips_what_deletes(command: Command) -> None:
    command.table(properties={"gc.enabled": "false"})
    answer = command(*PASS, "--json")
    assert answer.code == 0
    told = "gc.enabled is false: this table's files must not be deleted"
    assert statuses(answer)["expire_snapshots"] == statuses(answer)["remove_orphans"] == ("skipped", told)
    assert statuses(answer)["compact"] == ("succeeded", None)


def test_a_table_of_a_newer_format_is_refused_by_every_operation(command: Command) -> None:
    metadata = local_path(command.table().metadata_location)
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "format-version": 4}))
    before = command.contents()
    answer = command(*PASS, "--json")
    told = "format version 4 is not maintained by this version of Icekeeper; the table was left alone"
    assert answer.code == 1
    assert answer.json["status"] == "partial"
    assert set(statuses(answer).values()) == {("refused", told)}
    assert answer.err.splitlines()[-1].startswith("error: ns.t: compact refused, ")
    assert command.contents() == before
    detection = command("detect", "--json", "--unsafe")
    assert (detection.code, detection.json["proposals"]) == (0, [])


def test_one_operation_that_is_refused_does_not_stop_the_next(command: Command) -> None:
    """A stray metadata file of another table: the orphan sweep refuses, the rest is done."""
    table, other = command.table(), command.table("ns.other", appends=1)
    stray = local_path(table.location()) / "metadata" / "00000-of-another.metadata.json"
    stray.write_bytes(local_path(other.metadata_location).read_bytes())
    answer = command(*PASS, "--json")
    assert answer.code == 1
    assert answer.json["status"] == "partial"
    told = [status for status, _ in statuses(answer).values()]
    assert told == ["succeeded", "skipped", "succeeded", "refused", "skipped"]
    reason = statuses(answer)["remove_orphans"][1]
    assert reason is not None
    assert f"{stray.as_uri()} belongs to another table" in reason
    assert answer.err.splitlines()[-1] == f"error: ns.t: remove_orphans refused: {reason}"
    assert stray.exists()


def test_a_pass_that_only_failed_is_failed(command: Command) -> None:
    table = command.table()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    local_path(snapshot.manifest_list).unlink()
    before = command.contents()
    answer = command(*PASS, "--json", "--operations", "compact,rewrite_manifests")
    assert (answer.code, answer.json["status"]) == (1, "failed")
    assert {status for status, _ in statuses(answer).values()} == {"failed"}
    assert command.contents() == before


def test_a_store_that_does_not_answer_fails_soon(
    table_bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The catalog answers, the bucket does not."""
    catalog = load_catalog("far", **table_bucket)
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    monkeypatch.setenv("ICEKEEPER_STATE", str(tmp_path / "state.db"))
    with closed_port() as endpoint:
        for key, value in {**table_bucket, "s3.endpoint": endpoint}.items():
            variable = key.upper().replace(".", "__").replace("-", "_")
            monkeypatch.setenv(f"PYICEBERG_CATALOG__FAR__{variable}", value)
        for arguments in (["maintain", "ns.t", *LOCAL], ["verify", "ns.t"]):
            started = time.monotonic()
            assert main([*arguments, "--catalog", "far"]) == 1
            assert time.monotonic() - started < 15
            captured = capsys.readouterr()
            assert f"nothing answers at {endpoint}" in one_sentence(captured.err)
    assert table.refresh().metadata.snapshots == table.metadata.snapshots


# -- detect


def test_detection_in_json(command: Command) -> None:
    command.table("ns.idle", appends=1)
    command.table("ns.busy", appends=7)
    answer = command("detect", "--json", "--unsafe", *EVERYTHING_IS_OLD[1:])
    assert answer.code == 0
    document = answer.json
    assert list(document) == ["catalog", "scanned", "proposals", "skipped", "status"]
    assert (document["catalog"], document["scanned"]) == ("C", 2)
    assert [list(found) for found in document["proposals"]] == [["table", "reasons", "priority"]]
    proposal = document["proposals"][0]
    assert proposal["table"] == "ns.busy"
    assert proposal["reasons"][0] == "7 snapshots exceed max_snapshots_to_keep 1"
    assert 0 < proposal["priority"] < 1
    assert document["skipped"] == [{"table": "ns.idle", "reason": "no sign of work"}]
    assert answer.err.startswith("2 table(s) scanned, 1 need work\n")


def test_detection_goes_quiet_after_a_pass(command: Command) -> None:
    command.table()
    settings = EVERYTHING_IS_OLD
    assert len(command("detect", "--json", *settings).json["proposals"]) == 1
    assert command(*PASS).code == 0
    assert command("detect", "--json", *settings).json["proposals"] == []


def test_detection_takes_filters(command: Command) -> None:
    command.table("ns.one")
    command.table("ns.two")
    answer = command("detect", "--json", *arguments_of({"table_filter": "t*,x?"}))
    assert answer.json["scanned"] == 1
    assert [found["table"] for found in answer.json["proposals"]] == ["ns.two"]


def test_detection_goes_on_after_a_damaged_table(command: Command) -> None:
    command.table("ns.good")
    bad = local_path(command.table("ns.bad").metadata_location)
    bad.write_bytes(bad.read_bytes()[:500])
    answer = command("detect", "--json")
    assert answer.code == 1
    assert [found["table"] for found in answer.json["proposals"]] == ["ns.good"]
    assert [skip["table"] for skip in answer.json["skipped"]] == ["ns.bad"]
    assert "cannot be parsed" in answer.json["skipped"][0]["reason"]
    assert answer.err.splitlines()[-1] == "error: 1 table(s) could not be assessed: ns.bad"


# -- verify


def test_verification_in_json(command: Command) -> None:
    command.table(appends=3)
    before = command.contents()
    answer = command("verify", "ns.t", "--json")
    assert answer.code == 0
    assert answer.json == {
        "table": "ns.t",
        "ok": True,
        "problems": [],
        "checked": {"snapshots": 3, "manifests": 3, "files": 3},
        "catalog": "C",
        "status": "succeeded",
    }
    assert answer.err == "ns.t: ok (3 snapshots, 3 manifests, 3 files)\n"
    assert command("verify", "ns.t").out == answer.err
    assert command.contents() == before


def test_damage_in_json(command: Command) -> None:
    table = command.table(appends=3)
    path = next(iter(table.scan().plan_files())).file.file_path
    local_path(path).unlink()
    answer = command("verify", "ns.t", "--json")
    assert answer.code == 1
    problem = {"kind": "missing_file", "path": path, "detail": "it is referenced but does not exist"}
    assert answer.json["problems"] == [problem]
    assert answer.json["ok"] is False
    assert answer.err.splitlines() == [
        "ns.t: damaged (3 snapshots, 3 manifests, 3 files)",
        f"  missing_file {path}: it is referenced but does not exist",
        "error: ns.t is damaged: 1 problem(s) found",
    ]


# -- policy


def test_a_policy_in_json(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEKEEPER_MIN_INPUT_FILES", "7")
    command.table(properties={"write.target-file-size-bytes": "1048576", "icekeeper.max_snapshots_to_keep": "9"})
    answer = command("policy", "show", "ns.t", "--json", *arguments_of({"max_commit_retries": "2"}))
    assert answer.code == 0
    assert list(answer.json) == ["table", "catalog", "status", "policy"]
    policy = answer.json["policy"]
    assert tuple(policy) == POLICY_KEYS
    assert {key: policy[key] for key in policy if policy[key]["source"] != "default"} == {
        "target_file_size_mb": {"value": 1, "source": "table property write.target-file-size-bytes"},
        "min_input_files": {"value": 7, "source": "deployment ICEKEEPER_MIN_INPUT_FILES"},
        "max_snapshots_to_keep": {"value": 9, "source": "table property icekeeper.max_snapshots_to_keep"},
        "max_commit_retries": {"value": 2, "source": "--set"},
    }
    text = command("policy", "show", "ns.t")
    lines = [line.split() for line in text.out.splitlines()]
    assert lines[0] == ["key", "value", "source", "meaning"]
    assert [line[0] for line in lines[1:]] == list(POLICY_KEYS)
    assert next(line for line in lines if line[0] == "min_input_files")[1:4] == [
        *("7", "deployment", "ICEKEEPER_MIN_INPUT_FILES"),
    ]


# -- names


def test_everything_before_the_last_dot_is_the_namespace(command: Command) -> None:
    command.catalog.create_namespace("a.b")
    command.table("a.b.t")
    assert command("verify", "a.b.t", "--json").json["table"] == "a.b.t"
    assert command("detect", "--json").json["proposals"][0]["table"] == "a.b.t"
    assert command("maintain", "a.b.t", *LOCAL, "--json").json["table"] == "a.b.t"


def test_odd_names_stay_whole(command: Command) -> None:
    name = "ns.[bold]t ü"
    command.table(name)
    assert command("verify", name).out == f"{name}: ok (6 snapshots, 6 manifests, 6 files)\n"
    answer = command("maintain", name, *LOCAL, "--json")
    assert (answer.code, answer.json["table"]) == (0, name)


# -- the console script, terminals


def test_the_console_script(command: Command) -> None:
    command.table()
    answer = command.script(*PASS, "--catalog", "C", "--json")
    assert (answer.code, answer.json["status"]) == (0, "succeeded")
    assert "\x1b" not in answer.out + answer.err
    assert [line.split()[0] for line in answer.err.splitlines()] == ["ns.t:", *OPERATION_NAMES]

    wrong = command.script("maintain", "ns.none", "--catalog", "C", "--json")
    assert wrong.code == 2
    message = "there is no table ns.none in catalog C"
    assert wrong.json == {"error": {"type": "PolicyError", "message": message}}
    assert one_sentence(wrong.err) == message


@pytest.mark.slow
def test_the_spark_engine_is_silent_on_standard_output(command: Command) -> None:
    command.table()
    answer = command.script(*PASS, "--catalog", "C", "--json", "--engine", "spark")
    assert answer.code == 0
    assert summaries(answer)["compact"] == "compacted 6 files into 1 (across 1 bins)"
    assert [line.split()[0] for line in answer.err.splitlines()] == ["ns.t:", *OPERATION_NAMES]


def on_terminal(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output from a pipe, and what a terminal on standard error saw."""
    controller, terminal = pty.openpty()
    script = str(Path(sys.executable).parent / "icekeeper")
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen([script, *arguments], stdout=subprocess.PIPE, stderr=terminal, env=environment) as process:
        os.close(terminal)
        assert process.stdout is not None
        seen = b""
        with open(controller, "rb", buffering=0) as screen:
            while True:
                try:
                    part = screen.read(65536)
                except OSError:  # Linux says EIO when the last writer has closed
                    break
                if not part:
                    break
                seen += part
        out = process.stdout.read()
    return process.returncode, out.decode(), seen.decode()


SLEEPING_POOL = """
import os, sys, time
from icekeeper.engines.local import LocalEngine

def work(path):
    open(os.path.join(path, str(os.getpid())), "w").close()
    time.sleep(600)

if __name__ == "__main__":
    LocalEngine(2).map(work, [sys.argv[1]] * 2, lambda done: None)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_when_the_command_is_killed(how: signal.Signals, tmp_path: Path) -> None:
    script, started = tmp_path / "pool.py", tmp_path / "started"
    script.write_text(SLEEPING_POOL)
    started.mkdir()
    with subprocess.Popen([sys.executable, str(script), str(started)]) as parent:
        assert wait_until(lambda: len(list(started.iterdir())) == 2)
        parent.send_signal(how)
    assert wait_until(lambda: not any(alive(int(path.name)) for path in started.iterdir()))


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def alive(pid: int) -> bool:
    """A process that has ended and was not waited for has no command line any more."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_progress_and_colours_are_for_terminals(command: Command) -> None:
    command.table()
    code, out, screen = on_terminal(*PASS, "--catalog", "C", "--json")
    assert code == 0
    assert json.loads(out)["status"] == "succeeded"
    assert "compact: file groups" in screen
    assert "\x1b[32msucceeded" in screen
    # Piped, the same pass shows neither (see the console script above).


def test_helping(command: Command) -> None:
    for arguments in (["--help"], ["maintain", "--help"], ["policy", "show", "--help"]):
        answer = command(*arguments, catalog=None)
        assert (answer.code, answer.err) == (0, "")
        assert answer.out.startswith("Usage: icekeeper")
    for arguments in ([], ["policy"]):
        answer = command(*arguments, catalog=None)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith("Usage: icekeeper")


def test_every_operation_of_the_vocabulary_can_be_asked_for(command: Command) -> None:
    command.table()
    for operation in Operation:
        answer = command("maintain", "ns.t", *LOCAL, "--dry-run", "--operations", operation.value)
        assert (answer.code, answer.err) == (0, "")


def test_many_small_appends_of_different_schemas_keep_their_rows(command: Command) -> None:
    table = command.table(appends=3)
    with table.update_schema() as update:
        update.rename_column("name", "label")
    table = command.catalog.load_table("ns.t")
    for _ in range(3):
        table.append(pa.table({"id": pa.array([4], pa.int64()), "label": ["d"]}))
    before = rows(command)
    assert command(*PASS).code == 0
    assert rows(command) == before
