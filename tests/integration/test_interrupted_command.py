"""Ctrl-C and SIGTERM during a pass, in Python and in Spark."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from icekeeper.maintenance.pass_steps import OPERATIONS
from icekeeper.operation_facts import Operation
from icekeeper.pass_context.context import OperationContext
from icekeeper.report.outcome import OperationOutcome
from support.command import EVERYTHING_IS_OLD, Command, one_sentence
from support.examples import NIGHTLY
from support.interrupted_process import (
    has_ended,
    partitioned,
    processes_below,
    running,
    stall,
    started,
    unstall,
    wait_for,
    waits_for_a_pipe,
)
from support.readers import duckdb_rows

# Signals during a pass of a real process with workers; the terminal or systemd sends them to all processes.

EXIT_INTERRUPTED = 130
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
AT_ONCE_S = 5.0  # a group takes as long as its files are large
WORKERS = 2
PARTITIONS = 7


def data_files(command: Command) -> set[str]:
    return {str(path) for path in command.warehouse.rglob("*.parquet")}


def unreferenced(command: Command) -> set[str]:
    """The data files that the head does not reference."""
    files = command.catalog.load_table("ns.t").scan().plan_files()
    return data_files(command) - {task.file.file_path.removeprefix("file://") for task in files}


def sorted_rows(metadata_location: str) -> list[dict[str, Any]]:
    """Rows that DuckDB reads; it keeps no order of files."""
    return sorted(duckdb_rows(metadata_location), key=str)


def workers_of(pid: int) -> list[int]:
    """The workers of a process, which are forked from its server."""
    servers = processes_below(pid, b"forkserver")
    return [worker for server in servers for worker in processes_below(server, b"forkserver")]


@pytest.mark.skipif(
    sys.platform != "linux" or (os.cpu_count() or 1) < WORKERS, reason="one core: the engine starts no processes"
)
@SIGNALS
def test_an_interrupt_ends_a_compaction_within_seconds(command: Command, number: signal.Signals) -> None:
    table = partitioned(command, PARTITIONS)
    before, files = sorted_rows(table.metadata_location), data_files(command)
    stall(table)
    with running("maintain", "ns.t", "--engine", "local", "--json", with_workers=True) as process:
        wait_for(lambda: len(workers_of(process.pid)) == WORKERS)
        workers = workers_of(process.pid)
        wait_for(lambda: all(map(waits_for_a_pipe, workers)))
        started, children = time.monotonic(), processes_below(process.pid)
        os.killpg(process.pid, number)
        process.send_signal(number)  # as timeout(1) does
        out, err = process.communicate(timeout=30)
        seconds = time.monotonic() - started
    assert process.returncode == 128 + number
    found = one_sentence(err)
    assert found == (
        "interrupted during compact; no commit landed, the table is unchanged; this or a later pass deletes those of "
        "its 7 output file(s) that no snapshot references"
    )
    assert seconds < AT_ONCE_S
    document = json.loads(out)
    assert document["error"] == {"type": "Interrupted", "message": found}
    assert (document["table"], document["status"]) == ("ns.t", "failed")
    statuses = [part["status"] for part in document["operations"]]
    assert statuses == ["failed", "skipped", "skipped", "skipped", "skipped"]
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    wait_for(lambda: all(map(has_ended, children)))
    unstall(table)
    assert data_files(command) == files, "its own files are gone"
    assert command.catalog.load_table("ns.t").metadata_location == table.metadata_location
    (item,) = command("history", "ns.t", "--json").json["passes"]
    assert (item["run_id"], item["status"]) == (document["run_id"], "failed")
    assert item["summary"].startswith("compact: interrupted; no commit landed, the table is unchanged; ")
    again = command("maintain", "ns.t", "--engine", "local", "--json")  # the lease was released
    assert next(part["status"] for part in again.json["operations"]) == "succeeded"
    assert sorted_rows(command.catalog.load_table("ns.t").metadata_location) == before


# Signals that a process sends to itself at a named moment.

_AT_A_MOMENT = """
import os, signal, sys, time
from icekeeper_command import main
from icekeeper.deletion import delete
from support.moments import Moment, at

delete._BATCH = delete._IN_FLIGHT = 1

def act():
    os.kill(os.getpid(), signal.SIGTERM)
    ACT

with at(Moment.MOMENT, act):
    sys.exit(main())
"""


def terminated_at(command: Command, moment: str, *arguments: str, act: str = "") -> tuple[int, str, float]:
    """Run ``maintain ns.t``, which gets SIGTERM at a moment and then does ``act``: exit code, sentence, seconds."""
    script = _AT_A_MOMENT.replace("MOMENT", moment, 1).replace("ACT", act)
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n{script}"
    begun = time.monotonic()
    with started([sys.executable, "-c", script, "maintain", "ns.t", "--catalog", "C", *arguments]) as process:
        _, err = process.communicate(timeout=60)
    return process.returncode, one_sentence(err) if err else "", time.monotonic() - begun


def test_a_commit_that_has_begun_is_completed(command: Command) -> None:
    table = command.table()
    before = sorted_rows(table.metadata_location)
    assert terminated_at(command, "BEFORE_COMMIT", "--set", "min_input_files=2")[:2] == (
        143,
        "interrupted during compact; 1 complete commit(s) of it landed; this or a later pass deletes those of its 1 "
        "output file(s) that no snapshot references",
    )
    head = command.catalog.load_table("ns.t")
    assert len(list(head.scan().plan_files())) == 1
    assert sorted_rows(head.metadata_location) == before
    assert len(data_files(command)) == 7


def test_deletions_that_were_terminated_are_finished_by_the_next_pass(command: Command) -> None:
    table = command.table()
    before = sorted_rows(table.metadata_location)
    assert command("maintain", "ns.t", "--operations", "compact", "--set", "min_input_files=2").code == 0
    settings = (*EVERYTHING_IS_OLD, "--operations", "expire_snapshots")
    assert terminated_at(command, "AFTER_DELETION", *settings)[:2] == (
        143,
        "interrupted during expire_snapshots; the commit that expired snapshots landed; the next expire_snapshots "
        "deletes the files that are no longer referenced",
    )
    head = command.catalog.load_table("ns.t")
    assert sorted_rows(head.metadata_location) == before
    assert command("verify", "ns.t").code == 0
    assert unreferenced(command) != set()
    again = command("maintain", "ns.t", *settings, "--json")
    assert again.code == 0
    assert again.json["metrics"]["expire_snapshots.files_resumed"] > 0
    assert unreferenced(command) == set()


@pytest.mark.parametrize(
    ("act", "options", "sentence"),
    [
        ("time.sleep(30)", ("--grace", "1s"), "interrupted; the command did not finish within 1 s (--grace)"),
        ("time.sleep(1.1); os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", (), ""),
    ],
    ids=["the grace is over", "a second signal"],
)
def test_a_hanging_process_exits(command: Command, act: str, options: tuple[str, ...], sentence: str) -> None:
    table = command.table(appends=2)
    settings = ("--set", "min_input_files=2", *options)
    code, found, seconds = terminated_at(command, "BEFORE_COMMIT", *settings, act=act)
    assert (code, found) == (143, sentence)
    assert seconds < 20
    assert command.catalog.load_table("ns.t").metadata_location == table.metadata_location


def interrupt_in(monkeypatch: pytest.MonkeyPatch, operation: Operation, *, after: bool) -> None:
    """Ctrl-C before or after the work of one operation."""
    path, *_ = OPERATIONS[operation]
    place = f"icekeeper.operations.{path}"
    module, _, name = place.rpartition(".")
    work = getattr(import_module(module), name)

    def interrupted(context: OperationContext) -> OperationOutcome:
        if after:
            work(context)
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupted)


INTERRUPTS = {
    "after its commit": (
        *(Operation.COMPACT, True),
        "interrupted during compact; 1 complete commit(s) of it landed; nothing is left to clean",
    ),
    "behind operations that landed": (
        *(Operation.REMOVE_ORPHANS, False),
        "interrupted during remove_orphans; it makes no commit and deletes only unneeded files; nothing is left to "
        "clean; finished before: compact, expire_snapshots",
    ),
    "after the commit that expires": (
        *(Operation.EXPIRE_SNAPSHOTS, True),
        "interrupted during expire_snapshots; the commit that expired snapshots landed; nothing is left to clean; "
        "finished before: compact",
    ),
}


def test_commits_before_an_interrupt_are_reported_and_recorded(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = command.table()
    before = command.contents()
    with monkeypatch.context() as patch:
        interrupt_in(patch, Operation.COMPACT, after=False)
        for call in (("maintain", "ns.t", "--dry-run"), ("plan", "ns.t")):
            answer = command(*call, "--engine", "local")
            assert (answer.code, one_sentence(answer.err)) == (
                EXIT_INTERRUPTED,
                "interrupted during compact; the table is unchanged (dry run); nothing is left to clean",
            )
    assert command.contents() == before
    assert command("history", "ns.t", "--json").json["passes"] == []

    for operation, after, sentence in INTERRUPTS.values():
        with monkeypatch.context() as patch:
            interrupt_in(patch, operation, after=after)
            answer = command("maintain", "ns.t", "--engine", "local", *EVERYTHING_IS_OLD, "--json")
        assert (answer.code, one_sentence(answer.err)) == (EXIT_INTERRUPTED, sentence)
        part = next(part for part in answer.json["operations"] if part["operation"] == operation.value)
        assert part["status"] == "failed"
        head = table.refresh().current_snapshot()
        assert head is not None
        assert part["snapshot_ids"] == ([head.snapshot_id] if operation is Operation.COMPACT else [])
        item, *_ = command("history", "ns.t", "--json").json["passes"]
        assert (item["run_id"], item["status"], item["summary"]) == tuple(
            answer.json[key] for key in ("run_id", "status", "summary")
        )
        rows = table.scan().to_arrow().slice(0, 3)
        for _ in range(6):
            table.append(rows)


# Ctrl-C while Spark works: PySpark's own handler would turn it into an error, and the pass would continue.


@pytest.mark.usefixtures("java_and_servers")
@pytest.mark.parametrize("number", [signal.SIGINT, *([signal.SIGTERM] if NIGHTLY else [])])
def test_an_interrupt_ends_the_work_of_spark(command: Command, number: signal.Signals) -> None:
    """Java and its workers print nothing, and no process is left."""
    table = partitioned(command)
    before = sorted_rows(table.metadata_location)
    stall(table)
    with running("maintain", "ns.t", "--engine", "spark", "--json") as process:
        wait_for(lambda: any(map(waits_for_a_pipe, processes_below(process.pid, b"pyspark.daemon"))), seconds=120)
        started = processes_below(process.pid)
        process.send_signal(number) if number == signal.SIGTERM else os.killpg(process.pid, number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    found = one_sentence(err)
    assert found == (
        "interrupted during compact; no commit landed, the table is unchanged; this or a later pass deletes those of "
        "its 2 output file(s) that no snapshot references"
    )
    document = json.loads(out)
    assert document["error"] == {"type": "Interrupted", "message": found}
    assert [part["status"] for part in document["operations"]] == ["failed", *["skipped"] * 4]
    assert len(started) >= 3, "Java, the daemon that starts workers, and a worker"
    wait_for(lambda: all(map(has_ended, started)))
    (item,) = command("history", "ns.t", "--json").json["passes"]
    assert (item["run_id"], item["status"]) == (document["run_id"], "failed")
    unstall(table)
    head = command.catalog.load_table("ns.t").metadata_location
    assert head == table.metadata_location
    assert sorted_rows(head) == before


_START = """
import sys, time
import icekeeper_command

class Held:
    def find_spec(self, name, path=None, target=None):
        if name == HELD:
            print("held", file=sys.stderr, flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Held())
sys.argv[0] = "icekeeper"
sys.exit(icekeeper_command.main())
"""


@pytest.mark.parametrize(
    ("held", "as_json", "number"),
    [("typer", False, signal.SIGINT), ("icekeeper.detection.detect", True, signal.SIGTERM)],
)
def test_an_interrupt_during_start_up_is_one_sentence(
    command: Command, held: str, as_json: bool, number: signal.Signals
) -> None:
    """While the command is imported, and while it imports the modules of its work."""
    arguments = ["detect", "--catalog", "C", *(["--json"] if as_json else [])]
    sentence = "interrupted; the command did not finish"
    with started([sys.executable, "-c", _START.replace("HELD", repr(held)), *arguments]) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "held\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, f"error: {sentence}\n")
    if as_json:
        assert json.loads(out) == {"error": {"type": "Interrupted", "message": sentence}}
