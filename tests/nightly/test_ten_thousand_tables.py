"""A run of 10,000 tables without bytes: gathering and reporting end within a function's time and memory.

Every request to the control bucket and the state takes 30 ms more, as in S3 and DynamoDB.  The process is measured as a
whole: imports, documents and threads.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.stack_template import PARAMETERS

TABLES = 10_000
FUNCTION_S = 900
# gather, then report: seconds, MB at the highest, and what each says.
RUN = """
import json, resource, sys, threading, time
from unittest.mock import patch

from icekeeper.operation_facts import Operation
from icekeeper.pipeline.control_bucket import PassDocuments, PlanDocument, proposals_key
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import Item, ReportEvent, RunEvent
from icekeeper.pipeline.gather import gather
from icekeeper.pipeline.report import report_run, report_table
from icekeeper.report.outcome import succeeded
from icekeeper.state.sqlite.store import SqliteTable
from icekeeper.storage.storage import Storage

LATENCY_S = 0.03

counted = threading.local()

def slowly(method):
    def slow(*given, **named):
        time.sleep(LATENCY_S)
        return method(*given, **named)
    return slow

def counting(method, requests):
    # SQLite locks its file where DynamoDB does not, so the time of its requests follows each table.
    def count(*given, **named):
        counted.requests = getattr(counted, "requests", 0) + requests
        return method(*given, **named)
    return count

def with_latency(method):
    def late(*given, **named):
        counted.requests = 0
        try:
            return method(*given, **named)
        finally:
            time.sleep(counted.requests * LATENCY_S)
    return late

def main(part, folder, tables):
    settings = {"ICEKEEPER_CONTROL_BUCKET": f"{folder}/control", "ICEKEEPER_STATE": f"{folder}/state.db"}
    deployment, started_ms = Deployment.open(settings), 1_800_000_000_000
    if part == "fill":
        items = [
            Item(
                catalog="lake", warehouse="arn:aws:s3tables:us-east-1:111122223333:bucket/lake",
                table=f"sales.table_{number}", uuid=f"00000000-0000-0000-0000-{number:012}",
                location=f"s3://lake/sales/table_{number}", reasons=("25 small files", "snapshots to expire"),
                priority=float(number), detected_ms=started_ms,
            )
            for number in range(tables)
        ]
        deployment.control.write(proposals_key("run"), [item.model_dump(mode="json") for item in items])
        routes = {"compact": "glue", "expire_snapshots": "function", "rewrite_manifests": "function"}
        outcomes = {step: succeeded(Operation(step), "did it", metrics={f"{step}.duration_ms": 9}) for step in routes}
        for item in items:
            documents = PassDocuments(deployment.control, "run", item)
            documents.write_plan(PlanDocument(started_ms=started_ms, routes=routes, size_bytes=50 << 20))
            for step, outcome in outcomes.items():
                documents.write_outcome(step, outcome.to_json("run", documents.listings()))
        return {}
    patches = [patch.object(Storage, name, slowly(getattr(Storage, name))) for name in ("read", "write")]
    patches += [
        patch.object(SqliteTable, name, counting(getattr(SqliteTable, name), requests))
        for name, requests in (("get", 1), ("put", 1), ("add", 1), ("delete", 1), ("change", 2), ("set_if", 1))
    ]
    patches.append(patch("icekeeper.pipeline.report.report_table", with_latency(report_table)))
    for each in patches:
        each.start()
    begun_s = time.monotonic()
    if part == "gather":
        stages = gather(deployment, RunEvent(run_id="run", started_ms=started_ms))
        answer = {stage: found["count"] for stage, found in stages.items() if found["count"]}
    else:
        event = ReportEvent.model_validate({"run_id": "run", "state": {}})
        answer = report_run(deployment, event, lambda: 900 - (time.monotonic() - begun_s)).answer
        answer = {name: answer[name] for name in ("status", "left", "summary")}
    seconds = time.monotonic() - begun_s
    mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": round(seconds, 1), "mb": round(mb), "answer": answer}

print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
"""


def run(part: str, folder: Path) -> Any:
    command = [sys.executable, "-c", RUN, part, str(folder), str(TABLES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * FUNCTION_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_run_of_the_most_tables_is_gathered_and_reported_by_functions(tmp_path: Path) -> None:
    assert PARAMETERS["MaxTablesPerRun"]["MaxValue"] == TABLES
    run("fill", tmp_path)
    for part, most_mb, expected in (
        ("gather", 1024, {"compaction": TABLES, "sweep": TABLES}),
        ("report", 1024, {"status": "succeeded", "left": 0, "summary": f"{TABLES} succeeded"}),
    ):
        found = run(part, tmp_path)
        print(part, found)
        assert found["answer"] == expected
        assert found["seconds"] < FUNCTION_S
        assert found["mb"] < most_mb
