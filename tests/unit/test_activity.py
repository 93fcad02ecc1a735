"""Log lines of activity: their text, their fields, and their number."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from typing import Any

import pytest

from icekeeper.errors import StorageError
from icekeeper.operation_facts import Operation
from icekeeper.report.activity import (
    PASS,
    REWRITING,
    JsonLines,
    PassShare,
    Spent,
    operation_finished,
    operation_started,
    progress_of,
)


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "icekeeper.activity")


def test_the_start_and_end_of_an_operation_are_logged_with_fields(caplog: pytest.LogCaptureFixture) -> None:
    names = "ns.t", "compact", "run-1"
    operation_started(*names)
    operation_finished(*names, status="succeeded", summary="compacted 2 files", seconds=1.23456)
    started, finished = caplog.records
    assert started.getMessage() == "ns.t: compact started"
    assert finished.getMessage() == "ns.t: compact succeeded: compacted 2 files"
    common = {"table": "ns.t", "operation": "compact", "run_id": "run-1"}
    for record, more in (
        (started, {"event": "operation_started"}),
        (finished, {"event": "operation_finished", "status": "succeeded", "seconds": 1.235}),
    ):
        assert {key: vars(record)[key] for key in {**common, **more}} == {**common, **more}


def test_the_seconds_of_an_operation_are_those_of_loads_plan_and_commits() -> None:
    now_s, passed = [0.0], list[Any]()
    spent = Spent(lambda: now_s[0])
    progress = spent.noting(lambda *what: passed.append(what))

    def after(seconds: float) -> None:
        now_s[0] += seconds

    with spent.loading():
        after(2)
    progress("compact: planning", 0, 0)
    after(3)
    progress("compact: footers", 1, 1)
    after(4)
    progress(REWRITING, 0, 8)
    after(100)
    for _ in range(2):
        with spent.loading():
            after(1)
        with suppress(StorageError), spent.committing():
            after(5)
            raise StorageError("a failed commit counts, too")
    assert spent.fields() == {"load_s": 4, "plan_s": 7, "commit_s": 10}
    assert passed == [("compact: planning", 0, 0), ("compact: footers", 1, 1), (REWRITING, 0, 8)]
    idle = Spent(lambda: now_s[0])
    after(6)
    assert idle.fields() == {"load_s": 0, "plan_s": 6, "commit_s": 0}


def progressed(total: int, seconds_each: float, *, steps: int | None = None) -> list[tuple[str, int, int]]:
    """What the next callback receives when the logging callback is called ``steps`` times."""
    now_s = [0.0]
    passed: list[tuple[str, int, int]] = []

    def and_then(*what: Any) -> None:
        passed.append(what)

    progress = progress_of("ns.t", "compact", "run-1", and_then, PassShare(), monotonic_s=lambda: now_s[0])
    for done in range((total if steps is None else steps) + 1):
        progress("compact: file groups", done, total)
        now_s[0] += seconds_each
    return passed


def test_each_tenth_of_the_work_logs_a_line(caplog: pytest.LogCaptureFixture) -> None:
    assert progressed(1000, 0.1) == [("compact: file groups", done, 1000) for done in range(1001)]
    assert [vars(record)["done"] for record in caplog.records] == list(range(100, 1001, 100))
    assert caplog.records[0].getMessage() == "ns.t: compact: file groups 100 of 1000"
    assert vars(caplog.records[0])["event"] == "progress"


def test_a_line_shows_the_finished_share_of_the_pass(caplog: pytest.LogCaptureFixture) -> None:
    """The console shows the same; an operation that runs alone in a function belongs to no pass."""
    for begun in ((), (PASS + "compact,expire_snapshots", 0, 0)):
        share = PassShare()
        if begun:
            share.note(*begun)
        progress_of("ns.t", "compact", "run-1", lambda *what: None, share)(REWRITING, 2**30, 2**30)
    alone, whole = caplog.records
    assert (alone.getMessage(), vars(alone)["percent"]) == ("ns.t: compact: rewriting 1 GB of 1 GB", 0)
    message = "ns.t: compact: rewriting 1 GB of 1 GB, 96 % of the pass"
    assert (whole.getMessage(), vars(whole)["percent"]) == (message, 96)


def shares_of(*steps: tuple[str, int, int]) -> list[int]:
    share, found = PassShare(), list[int]()
    for step in steps:
        share.note(*step)
        found.append(share.percent)
    return found


def test_the_share_of_a_pass_grows_with_bytes_and_never_reaches_100_percent() -> None:
    every = [operation.value for operation in Operation]
    steps = [("compact: planning", 0, 0), ("compact: footers", 9, 9), (REWRITING, 1, 2), (REWRITING, 2, 2)]
    steps += [("compact: committing", 0, 0)]
    steps += [(f"{name}: files", done, 4) for name in every[2:] for done in range(5)]
    shares = shares_of((PASS + ",".join(every), 0, 0), *steps)
    assert shares[:6] == [0, 2, 2, 41, 80, 80]
    assert shares == sorted(shares)
    assert shares[-1] == 99


def test_the_share_counts_only_operations_of_the_pass_and_restarts_with_each_pass() -> None:
    single, double = (PASS + "compact", 0, 0), (PASS + "compact,expire_snapshots,compact", 0, 0)
    half, end = (REWRITING, 1, 2), (REWRITING, 2, 2)
    assert shares_of(single, half, end) == [0, 50, 99]
    assert shares_of(single, end, single, half) == [0, 99, 0, 50]
    assert shares_of(double, end, ("expire_snapshots: planning", 0, 0), ("compact: planning", 0, 0), half) == [
        *(0, 49, 49, 50, 75)
    ]
    assert shares_of(single, ("verify: files", 1, 2)) == [0, 0]


def test_quick_work_is_logged_only_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    progressed(100_000, 0.000001)
    assert [vars(record)["done"] for record in caplog.records] == [100_000]


def test_slow_work_is_logged_every_thirty_seconds(caplog: pytest.LogCaptureFixture) -> None:
    progressed(100_000, 10, steps=9)
    assert [vars(record)["done"] for record in caplog.records] == [3, 6, 9]


def test_work_without_items_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    progressed(0, 100)
    assert caplog.records == []


def test_a_jobs_lines_are_json_with_the_keys_of_the_functions_lines(caplog: pytest.LogCaptureFixture) -> None:
    lines = JsonLines()
    operation_started("ns.t", "compact", "run-1")
    (record,) = caplog.records
    assert "run_id" not in json.loads(lines.format(logging.makeLogRecord({"msg": "no %s", "args": ("extra",)})))
    lines.about(run_id="another", catalog="C", table="ns.u")
    line = json.loads(lines.format(record))
    assert line.pop("timestamp").startswith("20")
    assert line == {
        "level": "INFO",
        "message": "ns.t: compact started",
        "name": "icekeeper.activity",
        "catalog": "C",
        # Fields of the record override the defaults.
        "event": "operation_started",
        "table": "ns.t",
        "operation": "compact",
        "run_id": "run-1",
    }


def test_a_jobs_failure_is_a_single_line_with_its_traceback() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, "f", 1, "it broke", (), sys.exc_info())
    text = JsonLines().format(record)
    assert "\n" not in text
    assert json.loads(text)["exception"].endswith("ValueError: two\n    lines")
