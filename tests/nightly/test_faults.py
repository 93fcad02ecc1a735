"""A pass that is killed or interrupted, or loses its store or its exchange, at any step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from icekeeper.demo.seaweedfs import SeaweedFSServer
from support.command import CATALOG, Command, one_sentence
from support.failed_passes import FailedPasses
from support.interrupted_process import has_ended, partitioned, processes_below, running, started, wait_for
from support.killed_processes import Begin, KilledRuns, in_a_wave, in_functions
from support.proxies import Fault, WireRequest
from support.readers import duckdb_rows

# Functions or a wave that are killed at any step (rule: failures-cost-no-row).


@pytest.mark.parametrize(("run", "apart"), [(in_functions, 1), (in_a_wave, 5)])
def test_a_process_that_is_killed_at_any_step_loses_no_row(tmp_path: Path, run: Begin, apart: int) -> None:
    """The threads of a wave take their steps in another order each time, so that every fifth number is enough."""
    runs = KilledRuns(tmp_path, run)
    last = next(number for number in count(1, apart) if not runs.survive(number))
    assert last > 60


# A store that fails at any request of a pass costs no row (rule: failures-cost-no-row).


@pytest.mark.parametrize("fault", Fault)
def test_a_store_fault_at_any_request_costs_no_row(seaweedfs: SeaweedFSServer, tmp_path: Path, fault: Fault) -> None:
    passes = FailedPasses(seaweedfs, tmp_path)
    for first in count():
        done = passes.run(fault, partial(_is_number, first))
        if done.hit is None:
            break
        wrong = [text for text in done.messages if "ExpiredToken" not in text or "sign in again" not in text]
        assert wrong == [], f"{fault.name} from request {first} on, {done.hit}"
        assert bool(done.messages) is (fault is Fault.EXPIRED)
    assert first > 30


def _is_number(first: int, number: int, _: WireRequest) -> bool:
    return number == first


# Ctrl-C while Spark starts, and before and after the commit.

EXIT_INTERRUPTED = 130
UNCHANGED = "interrupted during compact; no commit landed, the table is unchanged; "
# A terminal sends the signal to the process group: the command and all processes that it has started.
SCRIPT = """
import os, signal, sys
from icekeeper.cli import main
from support.moments import Moment, at

with at(Moment[sys.argv.pop(1)], lambda: os.killpg(0, signal.SIGINT)):
    sys.exit(main())
"""


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
    [("BEFORE_COMMIT", UNCHANGED), ("AFTER_COMMIT", "interrupted during compact; 1 complete commit(s) of it landed; ")],
)
def test_an_interrupt_around_the_commit_reports_whether_it_landed(
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
    (recorded,) = command("history", "ns.t", "--json").json["passes"]
    assert recorded["run_id"] == document["run_id"]


# On our own Spark session, Icekeeper itself restarts parts that lose their input, with new attempt numbers.

EXCHANGE_SCRIPT = """
import json, sys
from dataclasses import dataclass, replace
from pathlib import Path
from icekeeper.engines.spark import SparkEngine, local_session

@dataclass(frozen=True)
class Part:
    folder: str
    attempt: int = 0

    def in_attempt(self, attempt):
        return replace(self, attempt=attempt)

def digits(number):
    for digit in str(number):
        yield int(digit), number

def losing(part, items):
    found = sorted(items)
    mark = Path(part.folder) / "lost"
    if not mark.exists():
        mark.touch()
        for path in Path(part.folder).glob("**/shuffle_*"):
            path.unlink()
    return part.attempt, found

with local_session() as session:
    settings = session.sparkContext.getConf()
    engine = SparkEngine(session.sparkContext)
    found = engine.exchange(digits, [10, 21, 32, 43, 54], losing, [Part(sys.argv[1])] * 6, lambda done: None)
    (large,) = engine.map(str.encode, ["x" * 2_000_000], lambda done: None)
    print(json.dumps([settings.get("spark.stage.maxConsecutiveAttempts"), len(large), found]))
"""


def test_spark_retries_no_stage_on_our_own_session(tmp_path: Path) -> None:
    """The fault aborts Spark's job; the second run's attempts count from 4, and large results arrive as before."""
    done = subprocess.run(
        [sys.executable, "-c", EXCHANGE_SCRIPT, str(tmp_path)],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    attempts, large, found = json.loads(done.stdout.splitlines()[-1])
    assert attempts == "1"
    assert large == 2_000_000
    assert found == [[4, numbers] for numbers in ([10], [10, 21], [21, 32], [32, 43], [43, 54], [54])]
