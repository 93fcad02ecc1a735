"""The pipeline's scan: what it proposes, and where the next one goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from icekeeper.detection.proposal import FleetReport
from icekeeper.machine.clock import system_clock
from icekeeper.pipeline.events import (
    ReportRunEvent,
)
from icekeeper.pipeline.report_table import report_run
from icekeeper.pipeline.run_leases import acquire_table_lease
from icekeeper.state.store import MaintenanceRequest
from support.pipeline_deployment import RUN, Pipeline


def test_a_scan_proposes_what_needs_work_and_what_was_requested(pipeline: Pipeline) -> None:
    answer, items = pipeline.detect()
    assert answer["reason"] == "1 of 1 table(s) need maintenance"
    assert [(item.table, item.catalog, item.forced) for item in items] == [("ns.t", "local", False)]
    report_run(pipeline.deployment, ReportRunEvent(run_id=RUN))
    request = MaintenanceRequest(identity=items[0].identity, requested_ms=1, settings={"operations": "compact"})
    pipeline.deployment.state.requests.file(request)
    (asked,) = pipeline.detect("run-3")[1]
    assert (asked.forced, asked.priority, dict(asked.settings)) == (True, 1.0, {"operations": "compact"})
    acquire_table_lease(pipeline.deployment, "run-3", asked)
    plan = pipeline.plan(asked, "run-3")
    assert {step for step, route in plan.routes.items() if route != "none"} == {"compact"}
    assert pipeline.deployment.state.requests.pending() == ()


def test_a_scan_goes_on_where_the_last_one_stopped(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, str] | None] = []

    def stops(*arguments: Any, cursor: tuple[str, str] | None, **options: Any) -> FleetReport:
        given.append(cursor)
        return FleetReport(scanned=1, listed=2, proposals=(), skipped=(), cursor=("local", "ns.t"), not_reached=1)

    monkeypatch.setattr("icekeeper.pipeline.detect_tables.detect", stops)
    pipeline.detect()
    pipeline.detect("run-2")
    cursor = pipeline.control / "detection" / "cursor.json"
    for damaged in ("", '{"after": ["loc', "[]", "{}", '{"after": "ns.t"}', '{"after": ["ns.t"]}', '{"after": null}'):
        cursor.write_text(damaged)
        pipeline.detect("run-3")
    assert given == [None, ("local", "ns.t"), *[None] * 7]


def test_why_each_table_was_proposed_or_not_can_be_read(pipeline: Pipeline) -> None:
    pipeline.table.create_beside("ns.quiet", str(pipeline.table.folder.parent / "quiet"))
    pipeline.clock.now_ms = system_clock()  # a table so young need not be swept
    pipeline.detect()
    told = json.loads((pipeline.control / "runs" / RUN / "detection.json").read_text())
    assert [one["proposal"]["table"] for one in told["proposals"]] == ["ns.t"]
    assert told["skipped"] == [
        {
            "catalog": "local",
            "table": "ns.quiet",
            "reason": "no current snapshot",
            "is_error": False,
            "warning": None,
        }
    ]


def test_a_catalog_that_does_not_answer_does_not_stop_the_others(pipeline: Pipeline) -> None:
    path = Path(pipeline.environment["ICEKEEPER_CATALOG_FILE"])
    path.write_text(path.read_text() + "  broken:\n    type: rest\n    uri: http://127.0.0.1:9/\n")
    _, items = pipeline.detect()
    assert [item.catalog for item in items] == ["local"]
