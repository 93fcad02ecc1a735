"""Ctrl-C while Spark works: PySpark would make an error of it, and the pass would go on (platform 43)."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from support.command import Command, one_sentence
from support.interrupted_process import (
    has_ended,
    partitioned,
    processes_below,
    running,
    stall,
    unstall,
    wait_for,
    waits_for_a_pipe,
)
from support.readers import duckdb_rows

EXIT_INTERRUPTED = 130


def sorted_rows(metadata_location: str) -> list[dict[str, Any]]:
    """As DuckDB reads them, which keeps no order of files."""
    return sorted(duckdb_rows(metadata_location), key=lambda row: (int(row["id"]), int(row["p"])))


@pytest.mark.usefixtures("java_and_servers")
def test_an_interrupt_ends_the_work_of_spark(command: Command) -> None:
    """Without a word of Java or of its workers; none of them is left."""
    table = partitioned(command)
    before = sorted_rows(table.metadata_location)
    stall(table)
    with running("maintain", "ns.t", "--engine", "spark", "--json") as process:
        wait_for(lambda: any(map(waits_for_a_pipe, processes_below(process.pid, b"pyspark.daemon"))), seconds=120)
        started = processes_below(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_INTERRUPTED
    told = one_sentence(err)
    assert told == (
        "interrupted during compact; nothing landed, the table is unchanged; "
        "what was written of 2 output file(s) is on record, and a later pass deletes it"
    )
    document = json.loads(out)
    assert document["error"] == {"type": "Interrupted", "message": told}
    assert [part["status"] for part in document["operations"]] == ["failed", *["skipped"] * 4]
    assert len(started) >= 3, "Java, the daemon that starts workers, and a worker"
    wait_for(lambda: all(map(has_ended, started)))
    (one,) = command("history", "ns.t", "--json").json["passes"]
    assert (one["run_id"], one["status"]) == (document["run_id"], "failed")
    unstall(table)
    head = command.catalog.load_table("ns.t").metadata_location
    assert head == table.metadata_location
    assert sorted_rows(head) == before
