"""Commits whose answers lie: lost while others build on them and expire them, wrong statuses, claims of success."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog as PyIcebergCatalog

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import CommitConflict, CommitStateUnknown
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.maintained_table import MaintainedTable, maintained_table, new_table, outcome_of
from support.scripted_rest import CommitScript, error_document, scripted_rest

SCHEMA = pa.schema([pa.field("id", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    with maintained_table(tmp_path) as made:
        made.create(SCHEMA)
        for number in range(4):
            made.table.append(pa.table({"id": [number]}, schema=SCHEMA))
        yield made


@pytest.mark.parametrize("answer", [CommitStateUnknown, CommitConflict])
@pytest.mark.parametrize("operation", [Operation.COMPACT, Operation.REWRITE_MANIFESTS])
def test_what_landed_unseen_and_was_built_upon_is_not_taken_for_lost(
    table: MaintainedTable, operation: Operation, answer: type[Exception]
) -> None:
    """A writer appends to our snapshot, and an engine that knows no pins expires it, before we look."""

    def lost_answer(base: LoadedTable, requirements: Any, updates: Any) -> LoadedTable:
        landed = table.catalog.inner.commit(base, requirements, updates)
        table.catalog.commit_instead = None
        ours = landed.metadata.current_snapshot
        assert ours is not None
        table.table.append(pa.table({"id": [99]}, schema=SCHEMA))
        table.table.maintenance.expire_snapshots().by_id(ours.snapshot_id).commit()
        raise answer("no answer came")

    table.catalog.commit_instead = lost_answer
    outcome = outcome_of(table.maintain(operations=operation.value), operation)
    table.assert_sound()
    assert [dict(row)["id"] for row in table.rows()] == ["0", "1", "2", "3", "99"]
    assert outcome.status is Status.FAILED
    assert "cannot be told, because snapshots that came after its base have expired" in outcome.summary


@pytest.mark.parametrize(
    "script",
    [
        CommitScript(status=408, body=error_document(408, "RequestTimeoutException")),
        CommitScript(status=404, body=error_document(404, "NoSuchTableException")),
        CommitScript(status=403, body=error_document(403, "ForbiddenException")),
        CommitScript(status=429, body=error_document(429, "TooManyRequestsException")),
        CommitScript(status=200, body=b"done"),
    ],
    ids=lambda script: str(script.status),
)
def test_what_was_carried_out_is_kept_whatever_the_server_answers(
    local_catalog: PyIcebergCatalog, tmp_path: Path, script: CommitScript
) -> None:
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    rows = table.ids()
    with scripted_rest(table.catalog) as server:
        server.scripts.append(script)
        outcome = table.run(Operation.COMPACT, catalog=server.open())
    assert table.readers_agree() == rows
    assert (len(table.data_files()), table.unreferenced()) == (1, set())
    assert outcome.status is Status.SUCCEEDED
    assert server.requests.count("POST tables/t") == 1


@pytest.mark.parametrize("status", [301, 200])
def test_success_is_believed_only_when_the_table_shows_it(
    local_catalog: PyIcebergCatalog, tmp_path: Path, status: int
) -> None:
    """A redirect that is followed as a GET is answered with the table as it was, which looks like success."""
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    before, files = table.ids(), table.files()
    with scripted_rest(table.catalog) as server:
        catalog = server.open()
        _, _, as_it_was = server.answer("GET", "/v1/namespaces/ns/tables/t", b"")
        redirect = {"Location": f"{server.url}/v1/namespaces/ns/tables/t"}
        server.scripts.append(CommitScript(acts=False, status=status, body=as_it_was, headers=redirect))
        outcome = table.run(Operation.COMPACT, catalog=catalog)
    assert (outcome.status, outcome.snapshot_ids) == (Status.FAILED, ())
    assert table.readers_agree() == before
    # It may still land: its files are left to the orphan pass.
    assert len({path for path in table.files() - files if path.endswith(".parquet")}) == 1


def test_a_refusal_that_is_repeated_leaves_nothing_behind(local_catalog: PyIcebergCatalog, tmp_path: Path) -> None:
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    before = table.files()
    for status in (403, 429):
        with scripted_rest(table.catalog) as server:
            refusal = CommitScript(acts=False, status=status, body=error_document(status, message="not on a Sunday"))
            server.scripts += [refusal] * 99
            outcome = table.run(Operation.COMPACT, catalog=server.open(), max_commit_retries="3")
        assert outcome.status is Status.FAILED
        assert "not on a Sunday" in outcome.summary
        assert (server.requests.count("POST tables/t") == 1) is (status == 403)
        assert table.files() == before
    # Who hears "too many requests" waits for seconds, and in all for half a minute.
    assert 30 <= sum(table.waits) < 50


@pytest.mark.parametrize(
    ("status", "lag", "landed"), [(404, 3, True), (404, 99, False), (429, 3, True), (429, 99, False)]
)
def test_a_refused_commit_that_a_replica_shows_late_or_never_loses_nothing(
    local_catalog: PyIcebergCatalog, tmp_path: Path, status: int, lag: int, landed: bool
) -> None:
    """Carried out, answered with a refusal, and for some looks, or for ever, the table is shown as it was."""
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    rows = table.ids()
    with scripted_rest(table.catalog) as server:
        server.scripts.append(CommitScript(status=status, body=error_document(status, message="not on a Sunday")))
        server.lagging_loads = lag
        outcome = table.run(Operation.COMPACT, catalog=server.open(), max_commit_retries="2")
    assert table.readers_agree() == rows
    assert (len(table.data_files()), table.unreferenced()) == (1, set())
    assert outcome.status is (Status.SUCCEEDED if landed else Status.FAILED)
    assert landed or "whether" in outcome.summary


def test_a_refusal_by_a_catalog_that_cannot_be_asked_keeps_the_files(
    local_catalog: PyIcebergCatalog, tmp_path: Path
) -> None:
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    rows = table.ids()
    with scripted_rest(table.catalog) as server:
        server.scripts.append(CommitScript(status=404, body=error_document(404, "NoSuchTableException")))
        server.broken_loads = 9
        outcome = table.run(Operation.COMPACT, catalog=server.open())
    assert outcome.status is Status.FAILED
    assert "cannot be read to make sure of it" in outcome.summary
    assert table.readers_agree() == rows
    assert (len(table.data_files()), table.unreferenced()) == (1, set())
