"""``job_timeout_s`` and ``job_retry_limit`` outside of the stack: a pass ends in good order, and is tried again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icekeeper.errors import StorageError
from icekeeper.maintenance import table_lease as attempts
from icekeeper.maintenance.table_lease import AttemptLimits, Turn, attempted
from icekeeper.model import TableName
from icekeeper.operations.compaction import run_groups as in_commits
from icekeeper.operations.compaction.run_groups import rewrite_groups
from icekeeper.report.outcome import PassOutcome, PassStatus
from icekeeper.runtime import Runtime
from support.command import Command
from support.deletes import create_by_region, region_rows
from support.maintained_table import maintained_table

LOCAL = ("maintain", "ns.t", "--engine", "local")


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_RETRY_PAUSE_S", 0)


class Failing:
    """``Runtime.maintain``, whose first calls fail."""

    def __init__(self, times: int) -> None:
        self.left, self.calls, self._maintain = times, 0, Runtime.maintain

    def __call__(self, *args: Any, **more: Any) -> PassOutcome:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise StorageError("the store is busy")
        return self._maintain(*args, **more)


@pytest.mark.parametrize(
    ("setting", "fails", "code", "calls"),
    [((), 1, 1, 1), (("--set", "job_retry_limit=2"), 2, 0, 3), (("--set", "job_retry_limit=1"), 2, 1, 2)],
)
def test_maintain_tries_a_failed_pass_again_as_often_as_said(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    setting: tuple[str, ...],
    fails: int,
    code: int,
    calls: int,
) -> None:
    """Unless told otherwise it leaves that to whoever called it, who sees why it failed."""
    command.table(appends=6)
    failing = Failing(fails)
    monkeypatch.setattr(Runtime, "maintain", lambda *args, **more: failing(*args, **more))
    answer = command(*LOCAL, "--operations", "compact", *setting)
    assert (answer.code, failing.calls) == (code, calls)
    assert answer.err.count("the pass failed and is tried again in 0 s: the store is busy") == calls - 1


def test_a_pass_whose_time_is_over_begins_no_further_operation_and_says_so(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operation at work is finished; a later pass does the rest."""
    command.table(appends=6)
    monkeypatch.setenv("ICEKEEPER_JOB_TIMEOUT_S", "60")
    clock = iter((0.0, 0.0, *[61.0] * 100))  # it is asked at the beginning, and before each operation
    monkeypatch.setattr(attempts, "monotonic", lambda: next(clock))
    answer = command(*LOCAL, "--json")
    assert answer.code == 0
    found = {part["operation"]: part for part in answer.json["operations"]}
    assert found["compact"]["status"] == "succeeded"
    assert {part["reason"] for name, part in found.items() if name != "compact"} == {"job_timeout_s 60 is over"}


def test_without_the_setting_a_pass_of_a_person_takes_its_time(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.table(appends=6)
    clock = iter(range(0, 10**9, 100_000))
    monkeypatch.setattr(attempts, "monotonic", lambda: next(clock))
    document = command(*LOCAL, "--json").json
    assert not any("job_timeout_s" in (part["reason"] or "") for part in document["operations"])


def test_the_time_of_all_attempts_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 10.0, 61.0))
    monkeypatch.setattr(attempts, "monotonic", lambda: next(clock))
    calls: list[Turn] = []

    def failing(turn: Turn) -> PassOutcome:
        calls.append(turn)
        raise StorageError("busy")

    told: list[str] = []
    with pytest.raises(StorageError):
        attempted(failing, Turn(), AttemptLimits(60, 9), tell=told.append, wait=lambda seconds: None)
    assert (len(calls), len(told)) == (2, 1)


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turn]:
    """A turn that ends while its first round of groups is rewritten."""
    rounds: list[int] = []
    rewrite = rewrite_groups

    def counted(*args: Any) -> Any:
        rounds.append(len(args[3]))
        return rewrite(*args)

    monkeypatch.setattr(in_commits, "rewrite_groups", counted)
    monkeypatch.setattr(in_commits, "_ROUND_BYTES", 1)
    yield Turn(why_stop=lambda: "job_timeout_s 60 is over" if rounds else None)
    assert rounds == [1]


@pytest.mark.parametrize("partial_progress", ["0", "1"])
def test_groups_behind_the_end_are_left_and_what_is_ready_is_committed(
    tmp_path: Path, stopping: Turn, partial_progress: str
) -> None:
    with maintained_table(tmp_path) as table:
        create_by_region(table, 3)
        before = region_rows(table)
        settings = {"operations": "compact", "min_input_files": "2", "partial_progress": partial_progress}
        outcome = table.runtime_with().maintain(TableName(("ns",), "t"), settings, table.engine, turn=stopping)
        (compact,) = outcome.operations
        assert outcome.status is PassStatus.SUCCEEDED
        assert compact.summary == (
            "compacted 3 files into 1 (across 1 bins); 1 bin(s) wait for the next run, as job_timeout_s 60 is over"
        )
        assert (len(table.data_files()), region_rows(table)) == (4, before)
