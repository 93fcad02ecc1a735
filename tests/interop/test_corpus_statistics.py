"""Statistics of tables that other engines wrote: as many distinct values as DuckDB's rows have, and Java reads on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from icekeeper.metadata.statistics import NOMINAL
from icekeeper.operations.statistics.plan_statistics import statistics_columns
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.corpus import corpus_params, corpus_table, expected
from support.duckdb_session import DuckDB
from support.maintained_table import local_path, outcome_of, registered_table
from support.readers import canonical

MANY_ROWS = 20_000


def forget_statistics(metadata_file: Path) -> None:
    """Those of Trino and Spark would be taken for what they are: up to date."""
    data = metadata_file.read_bytes()
    if data.startswith(b"{"):
        metadata_file.write_text(json.dumps({**json.loads(data), "statistics": []}))


@pytest.mark.parametrize("name", corpus_params())
def test_distinct_values_are_those_of_the_rows(name: str, tmp_path: Path, duckdb: DuckDB) -> None:
    told = expected(name)
    if not any(engine.startswith("duckdb") for engine in told["agree"]) or told["rows"] > MANY_ROWS:
        pytest.skip("no independent reader that is quick enough")
    copy = corpus_table(name, tmp_path)
    forget_statistics(local_path(copy.metadata_path))
    table = registered_table(copy.metadata_path, tmp_path)
    before = table.problems()
    outcome = outcome_of(table.maintain(operations="compute_statistics"), Operation.COMPUTE_STATISTICS)
    assert outcome.status is Status.SUCCEEDED, outcome.reason
    assert table.problems() == before
    metadata = table.reader.metadata
    names = {field["id"]: field["name"] for field in metadata.current_schema["fields"]}
    (entry,) = (e for e in metadata.statistics if e["snapshot-id"] == metadata.refs["main"].snapshot_id)
    ndv = {names[blob["fields"][0]]: int(blob["properties"]["ndv"]) for blob in entry["blob-metadata"]}
    rows = duckdb.rows(copy.metadata_path)
    assert outcome.metrics["compute_statistics.rows_read"] == len(rows) == told["rows"]
    columns = [names[i] for i in statistics_columns(metadata, ()).types]
    exact = {  # empty values do not count
        column: len(
            {str(v) for v in canonical({column: row[column]} for row in rows if row[column] not in (None, "", b""))}
        )
        for column in columns
    }
    assert {c: n for c, n in ndv.items() if exact[c] <= NOMINAL} == {c: n for c, n in exact.items() if n <= NOMINAL}
    for column, count in exact.items():
        assert ndv[column] == pytest.approx(count, rel=3 / 64)
    again = outcome_of(table.maintain(operations="compute_statistics"), Operation.COMPUTE_STATISTICS)
    assert again.reason == "statistics are up to date"
