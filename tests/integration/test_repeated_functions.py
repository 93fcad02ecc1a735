"""A function that is called again: it waits for the first attempt, answers the same, and does nothing twice."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError

from icekeeper.errors import MaintenanceError, PlanStale, StorageError
from support.lambda_functions import Answer, sample
from support.table_functions import RUN, STEPS, Functions

# Sample, the module that does the work, and the use case there.
WORK = {
    "detect_forced": ("detect.handler", "detect_tables"),
    "plan": ("plan.handler", "plan_table"),
    "list_orphans": ("list_orphans.handler", "list_orphans"),
    "report_table": ("table_report", "report_table"),
    **dict.fromkeys(STEPS.values(), ("steps", "run_step")),
}


def test_a_second_attempt_waits_while_the_first_is_at_work(
    aws_functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_functions.begin()
    for name, (module, use_case) in WORK.items():
        tried: list[Answer] = []

        def work(*given: Any, sample_: str = name, tried: list[Answer] = tried, **more: Any) -> Any:
            tried.append(aws_functions.send(sample_, **changed(sample_)))
            raise MaintenanceError("seen enough")

        with monkeypatch.context() as patch:
            patch.setattr(importlib.import_module(module), use_case, work)
            first = aws_functions.send(name, **changed(name))
        assert [type(one.error) for one in tried] == [IdempotencyAlreadyInProgressError], name
        assert [(line["level"], line["run_id"]) for line in tried[0].lines] == [("WARNING", RUN)], name
        assert str(first.error) == "seen enough", name


def changed(name: str) -> dict[str, Any]:
    """So that it has not been done before."""
    others: dict[str, dict[str, Any]] = {"detect_forced": {"input": {"table": "ns.t"}}, "plan": {"attempt": 2}}
    return others.get(name, {})


def test_nobody_waits_for_an_attempt_whose_time_is_up(
    aws_functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that was killed forgets nothing: its deadline does."""
    aws_functions.begin()

    class Killed(BaseException):
        pass

    def killed(*given: Any, **more: Any) -> Any:
        raise Killed

    event = sample("compact_small")
    event["item"], event["plan"] = (
        event["item"] | aws_functions.item,
        event["plan"] | aws_functions.plan,
    )
    for run_id, seconds in ((RUN, 0.0), ("another", 900.0)):
        with monkeypatch.context() as patch:
            patch.setattr(importlib.import_module("steps"), "run_step", killed)
            with pytest.raises(Killed):
                aws_functions.call("compact_small", {**event, "run_id": run_id}, seconds=seconds)
    assert aws_functions.send("compact_small").result["status"] == "succeeded"
    assert isinstance(aws_functions.send("compact_small", run_id="another").error, IdempotencyAlreadyInProgressError)


def test_a_repetition_answers_the_same_and_does_nothing(aws_functions: Functions) -> None:
    aws_functions.begin()
    first, told = aws_functions.send("compact_small"), aws_functions.send("report_table")
    aws_functions.table.fill(5, start=50)
    again, told_again = aws_functions.send("compact_small"), aws_functions.send("report_table")
    assert again.result == first.result
    assert (again.lines, len(aws_functions.table.data_files())) == ([], 6)
    assert (told_again.result, told_again.metrics) == (told.result, [])
    assert len(aws_functions.deployment.state.history(aws_functions.identity)) == 1
    # Without what DynamoDB remembers, the outcome in the control bucket says the same.
    importlib.import_module("idempotency")._memory.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ICEKEEPER_STATE", "")
        assert aws_functions.send("compact_small").result == first.result


def test_an_answer_never_hides_what_is_still_to_be_done(aws_functions: Functions) -> None:
    aws_functions.begin()
    with aws_functions.table.table.transaction() as change:
        change.set_properties({"icekeeper.target_file_size_mb": "64"})
    for _ in range(2):  # an attempt that raised is forgotten
        assert isinstance(aws_functions.send("compact_small").error, PlanStale)
    digest = aws_functions.plan["digest"]
    aws_functions.plan = aws_functions.send("plan", attempt=2).result
    assert aws_functions.plan["digest"] != digest
    assert aws_functions.send("compact_small").result["summary"] == "compacted 5 files into 1 (across 1 bins)"


def test_a_state_table_that_fails_stops_what_has_not_begun_only(
    aws_functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_functions.begin()
    store = type(importlib.import_module("idempotency")._memory())

    def fail(*given: Any, **more: Any) -> Any:
        raise ConnectionError("no route")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_put_record", fail)
        told = aws_functions.send("compact_small")
    assert isinstance(told.error, StorageError)
    assert "whether compact is being done already" in str(told.error)
    assert len(aws_functions.table.data_files()) == 5
    with monkeypatch.context() as patch:  # what went wrong is told, not that it could not be forgotten
        patch.setattr(store, "_delete_record", fail)
        told = aws_functions.send(
            "plan", attempt=2, item={**sample("plan")["item"], **aws_functions.item, "catalog": "elsewhere"}
        )
    assert isinstance(told.error, MaintenanceError)
    assert "no route" not in str(told.error)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_update_record", fail)
        told = aws_functions.send("compact_small")
    assert told.result["status"] == "succeeded"
    assert [line["level"] for line in told.lines if "could not be remembered" in line["message"]] == ["WARNING"]
