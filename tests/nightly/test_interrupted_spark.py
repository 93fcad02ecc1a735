"""Ctrl-C while Spark starts, and around the commit of what it wrote."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import CATALOG, Command, one_sentence
from support.interrupted_process import has_ended, partitioned, processes_below, running, started, wait_for
from support.readers import duckdb_rows

EXIT_INTERRUPTED = 130
UNCHANGED = "interrupted during compact; nothing landed, the table is unchanged; "
# Everything that the process has begun is its group: the terminal sends the signal to all of them.
SCRIPT = """
import os, signal, sys
from icekeeper.cli import main
from support.moments import Moment, at

with at(Moment[sys.argv.pop(1)], lambda: os.killpg(0, signal.SIGINT)):
    sys.exit(main())
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    called = Command(tmp_path, monkeypatch, capsys)
    yield called
    called.catalog.close()


@pytest.fixture
def interrupted_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    script = tmp_path / "interrupted.py"
    script.write_text(SCRIPT)
    return str(script)


@pytest.mark.usefixtures("java_and_servers")
@pytest.mark.parametrize("seconds", [0.5, 1.5, 2.5])
def test_an_interrupt_while_java_starts_leaves_no_java(command: Command, seconds: float) -> None:
    table = partitioned(command)
    with running("maintain", "ns.t", "--engine", "spark", "--json") as process:
        wait_for(lambda: bool(processes_below(process.pid, b"pyspark-shell")))
        time.sleep(seconds)
        begun = processes_below(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, one_sentence(err)[: len(UNCHANGED)]) == (EXIT_INTERRUPTED, UNCHANGED)
    assert json.loads(out)["status"] == "failed"
    wait_for(lambda: all(map(has_ended, begun)))
    assert command.catalog.load_table("ns.t").metadata_location == table.metadata_location


@pytest.mark.usefixtures("java_and_servers")
@pytest.mark.parametrize(
    ("moment", "sentence"),
    [
        ("BEFORE_COMMIT", UNCHANGED),
        ("AFTER_COMMIT", "interrupted during compact; 1 commit(s) of it landed, every one of them whole; "),
    ],
)
def test_an_interrupt_around_the_commit_says_what_landed(
    command: Command, interrupted_script: str, moment: str, sentence: str
) -> None:
    table = partitioned(command)
    before = duckdb_rows(table.metadata_location)
    call = [sys.executable, interrupted_script, moment, "maintain", "ns.t", "--catalog", CATALOG]
    with started([*call, "--engine", "spark", "--json"]) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, one_sentence(err)[: len(sentence)]) == (EXIT_INTERRUPTED, sentence)
    document = json.loads(out)
    head = command.catalog.load_table("ns.t")
    landed = [head.metadata.current_snapshot_id] if moment == "AFTER_COMMIT" else []
    assert document["operations"][0]["snapshot_ids"] == landed
    assert sorted(duckdb_rows(head.metadata_location), key=str) == sorted(before, key=str)
    (one,) = command("history", "ns.t", "--json").json["passes"]
    assert one["run_id"] == document["run_id"]
