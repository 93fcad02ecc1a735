"""The states of a run: which tables need work, then a pass over each of them, then the run's report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from state_machine.one_call import pass_of_small_table
from state_machine.table_pass import DATA_AT_FIRST, THIS_TABLE, table_pass
from state_machine.tasks import FUNCTION_S, REPORT_S, State, States, catch, function_task, given_up, wave_task

_ANY_SMALL_FOR_WAVE: State = {"Variable": "$.small.plans[0]", "IsPresent": True, "Next": "GatherWave"}
_NOTHING_YET: State = {
    "small": {"results": [], "plans": []},
    "earlier": [],
    "tables": [],
    "waiting": {"plans": []},
}
_ANY_REST: State = {"Variable": "$.rest.count", "NumericGreaterThan": 0, "Next": "MaintainTables"}


def fleet_run() -> State:
    """The whole definition.

    A payload holds 256 KB.  A table's result is its name, status and summary; with 100 tables a summary must stay below
    1 KB.  A table whose execution failed has no result in the Map's output, but a description or nothing: Report finds
    it among the proposals and counts it as failed.
    """
    return {
        "Comment": "Keeps Iceberg tables healthy, one pass per table that needs it",
        "StartAt": "Detect",
        "TimeoutSeconds": 43200,
        "States": {**_detect(), **_maintain_tables(), **_wave(), **_report(), **_ends()},
    }


def _detect() -> States:
    detect = function_task(
        "detect",
        {"run_id.$": "$$.Execution.Name", "input.$": "$"},
        comment="Which tables need work and why; or the one table that was asked for",
        timeout_s=FUNCTION_S,
        answers=["run_id", "proposals", "in_one_call", "rest", "reason", "forced"],
    )
    return {
        "Detect": {
            **detect,
            # What ended in one call, or before a wave, is kept beside what follows it.
            "ResultSelector": {**detect["ResultSelector"], **_NOTHING_YET},
            "ResultPath": "$",
            "Catch": [given_up(to="ReportUnread", into="$.failed")],
            "Next": "AnyProposals",
        },
        "AnyProposals": {
            "Type": "Choice",
            "Comment": "Nothing to do is an outcome, not an error",
            "Choices": [
                {"Variable": "$.in_one_call.count", "NumericGreaterThan": 0, "Next": "MaintainSmallTables"},
                _ANY_REST,
            ],
            "Default": "NothingToDo",
        },
        "NothingToDo": {"Type": "Succeed", "Comment": "The output says why"},
    }


def _maintain_tables() -> States:
    """Two maps: the passes that may end in one call, each one state; then the others, and what such a call has left."""
    return {
        "MaintainSmallTables": {
            **_map("MaintainSmallTables", of="in_one_call", comment="One call per table that may be enough for it"),
            "ResultSelector": {"results.$": "$", "left.$": "$[*].left", "plans.$": "$[*].plan"},
            "ResultPath": "$.small",
            "Next": "AnyLeft",
            "ItemProcessor": pass_of_small_table(THIS_TABLE),
        },
        "AnyLeft": {
            "Type": "Choice",
            "Comment": "What one call did not end goes on in states of its own",
            "Choices": [
                {"Variable": "$.small.left[0]", "IsPresent": True, "Next": "TakeUpRest"},
                _ANY_REST,
                _ANY_SMALL_FOR_WAVE,
            ],
            "Default": "Report",
        },
        "TakeUpRest": {
            **function_task(
                "plan",
                {"run_id.$": "$.run_id", "left.$": "$.small.left"},
                comment="They join the tables whose passes have not begun, in the control bucket",
                timeout_s=FUNCTION_S,
                answers=["bucket", "key", "count"],
            ),
            "ResultPath": "$.rest",
            # They have no report of their own then, by which the run's report knows that they failed.
            "Catch": [given_up(to="Report", into="$.not_taken_up")],
            "Next": "MaintainTables",
        },
        "MaintainTables": {
            **_map("MaintainTables", of="rest", comment="One child execution per table, the neediest first"),
            "ResultPath": "$.tables",
            "Next": "LeftToWave",
            "ItemProcessor": table_pass(),
        },
    }


def _map(label: str, *, of: str, comment: str) -> State:
    """A map over a list of tables in the control bucket; ``of`` is where it is in the data.  No ``ResultPath`` yet."""
    not_read = ["States.ItemReaderFailed", "States.ExceedToleratedFailureThreshold", "States.TaskFailed"]
    return {
        "Type": "Map",
        "Label": label,
        "Comment": comment,
        "MaxConcurrency": "${MaxConcurrentTables}",
        # One table that fails never stops the others.  A fraction, because moto knows no other.
        "ToleratedFailurePercentage": 100.0,
        "ItemReader": {
            "Resource": "arn:aws:states:::s3:getObject",
            "ReaderConfig": {"InputType": "JSON"},
            "Parameters": {"Bucket.$": f"$.{of}.bucket", "Key.$": f"$.{of}.key"},
        },
        "ItemSelector": DATA_AT_FIRST,
        "Catch": [
            catch([*not_read, "States.Timeout"], to="ReportUnread", into="$.failed"),
            # Together the results are too long; the tables were maintained, and their reports are in the bucket.
            catch(["States.DataLimitExceeded"], to="ResultsTooLong", into="$.failed"),
        ],
    }


def _wave() -> States:
    """One Glue run for all tables that are too large for functions; then the map again, for the rest of their passes.

    An execution of the map cannot go on where it ended, so each plans anew what is left of its pass.
    """
    return {
        "LeftToWave": {
            "Type": "Pass",
            "Comment": "The tables whose passes ended at a step that the run's wave does",
            # Others have no such field; a path with a wildcard finds an array, also an empty one.
            "Parameters": {"plans.$": "$.tables[*].plan"},
            "ResultPath": "$.waiting",
            "Next": "AnyLeftToWave",
        },
        "AnyLeftToWave": {
            "Type": "Choice",
            "Comment": "Without large tables there is no Glue run; after the wave there is none left",
            "Choices": [
                {"Variable": "$.waiting.plans[0]", "IsPresent": True, "Next": "GatherWave"},
                _ANY_SMALL_FOR_WAVE,
            ],
            "Default": "Report",
        },
        "GatherWave": {
            **function_task(
                "plan",
                {"run_id.$": "$.run_id", "wave.$": "$.waiting.plans", "in_one_call.$": "$.small.plans"},
                comment="One document of all their plans, in the control bucket, and how many workers they need",
                timeout_s=FUNCTION_S,
                answers=["key", "digest", "workers", "proposals"],
            ),
            "ResultPath": "$.wave",
            # They have no report of their own then, by which the run's report knows that they failed.
            "Catch": [given_up(to="Report", into="$.not_gathered")],
            "Next": "CompactWave",
        },
        "CompactWave": {
            **wave_task(
                "compact_data_files", comment="Merge small data files and apply deletes, of many tables at once"
            ),
            "ResultPath": "$.wave.job",
            # What of them ended is in the control bucket, and so are the reasons of the rest
            # (rule: wave-tables-are-independent).
            "Catch": [given_up(to="RestOfPasses", into="$.wave.job")],
            "Next": "RestOfPasses",
        },
        "RestOfPasses": {
            "Type": "Pass",
            "Comment": "The tables of the wave go on behind it; the others have ended",
            "Parameters": {
                "run_id.$": "$.run_id",
                "proposals.$": "$.proposals",
                "rest.$": "$.wave.proposals",
                "small": {"results.$": "$.small.results", "plans": []},
                "reason.$": "$.reason",
                "forced.$": "$.forced",
                "earlier.$": "$.tables",
            },
            "Next": "MaintainTables",
        },
    }


def _report() -> States:
    return {
        "ResultsTooLong": {
            "Type": "Pass",
            "Comment": "Report reads how each table's pass ended",
            "Result": [],
            "ResultPath": "$.tables",
            "Next": "Report",
        },
        "ReportUnread": _report_task(
            # The input may hold anything but the run's name.
            {"run_id.$": "$$.Execution.Name", "tables": [], "failure.$": "$.failed"},
            comment="No table's pass is known; the run is still reported",
            to="WhatFailed",
        ),
        "WhatFailed": {
            "Type": "Choice",
            "Comment": "There were proposals, or detection itself did not end",
            "Choices": [{"Variable": "$.proposals", "IsPresent": True, "Next": "TablesNotRead"}],
            "Default": "DetectionFailed",
        },
        "DetectionFailed": _fail(
            "DetectionFailed",
            "No table was looked at or changed; the event of Detect in this execution says why",
        ),
        "Report": _report_task(
            {
                "run_id.$": "$.run_id",
                "tables.$": "$.tables",
                "earlier.$": "$.earlier",
                "in_one_call.$": "$.small.results",
            },
            comment="Totals of the run",
            to="HowItWent",
        ),
    }


def _report_task(payload: Mapping[str, Any], *, comment: str, to: str) -> State:
    answers = ["status", "summary"]
    return {
        **function_task("report", payload, comment=comment, timeout_s=REPORT_S, answers=answers),
        "ResultPath": "$.report",
        "Catch": [given_up(to="RunNotReported", into="$.failure")],
        "Next": to,
    }


def _ends() -> States:
    return {
        "HowItWent": {
            "Type": "Choice",
            "Comment": "A partial run is told by its report and metrics; only one where all failed is red",
            "Choices": [
                {"Variable": "$.report.status", "StringEquals": "failed", "Next": "RunFailed"},
                # To whoever asked for this very table that is a failure; a scheduled run comes again.
                {
                    "And": [
                        {"Variable": "$.forced", "BooleanEquals": True},
                        {"Variable": "$.report.status", "StringEquals": "refused"},
                    ],
                    "Next": "RunRefused",
                },
            ],
            "Default": "Done",
        },
        "Done": {"Type": "Succeed"},
        "RunFailed": _fail("PassesFailed", "Every table that was attempted failed; the output of Report says more"),
        "RunRefused": _fail("LeaseHeld", 'Another run maintains the table now; start again later, or with "wait" true'),
        "RunNotReported": _fail(
            "ReportFailed", "The run's report could not be written; its tables may have been maintained all the same"
        ),
        "TablesNotRead": _fail(
            "TablesNotRead",
            "The proposals of this run could not be read; no table was maintained, or none of their results came back",
        ),
    }


def _fail(error: str, cause: str) -> State:
    return {"Type": "Fail", "Error": error, "Cause": cause}
