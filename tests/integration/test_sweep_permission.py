"""A sweep requires that the table is certainly an Iceberg table, and that its writers give such file names.

Lance Namespace registers a dataset as an Iceberg table without snapshots: property ``table_type=lance``, location at
the dataset's root ("Apache Iceberg REST Catalog", "Table Definition").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.catalogs.load import open_catalog
from icekeeper.report.outcome import Status
from support.command import Command, local_path
from support.maintained_table import MaintainedTable, assert_refused, grow_old, new_table, sweep
from support.moments import Moment, at
from support.scripted_rest import hostile_rest

DATASET = (
    *("data/1011011.lance", "data/0100110.lance", "_versions/1.manifest", "_versions/2.manifest"),
    *(
        "_versions/latest_version_hint.json",
        "_transactions/0-6f1c.txn",
        "_deletions/0-1-2.arrow",
        "_indices/6f1c/page.lance",
    ),
)
SWEEPS = {
    "maintain": ("maintain", "ns.t"),
    "maintain by name": ("maintain", "ns.t", "--operations", "remove_orphans"),
    "maintain --all": ("maintain", "--all"),
    "orphans": ("orphans",),
}


@pytest.fixture(params=["sql", "rest"])
def command(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """The command with two catalogs over the same tables; the chosen catalog is ``C``."""
    made = Command(tmp_path, monkeypatch, capsys)
    with hostile_rest(open_catalog("C", made.properties)) if request.param == "rest" else nullcontext() as server:
        if server is not None:
            monkeypatch.setenv("PYICEBERG_CATALOG__C__TYPE", "rest")
            monkeypatch.setenv("PYICEBERG_CATALOG__C__URI", server.url)
        yield made


def put(table: Table, *names: str) -> set[str]:
    """Write old files below the location; return their paths."""
    paths = [local_path(table.location()) / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    grow_old(paths)
    return {str(path) for path in paths}


def swept(command: Command, kind: str, *more: str) -> tuple[set[str], dict[str, Any]]:
    """The deleted files and the outcome of a sweep of ``ns.t``."""
    before = command.contents().keys()
    bucket = ("--bucket", command.warehouse.as_uri()) if kind == "orphans" else ()
    answer = command(*SWEEPS[kind], *bucket, "--json", *more).json
    table = next((item for item in answer.get("tables", ()) if item["table"] == "ns.t"), answer)
    (outcome,) = [
        item for item in table.get("operations", [table]) if item.get("operation", "remove_orphans") == "remove_orphans"
    ]
    return before - command.contents().keys(), {"metrics": answer.get("metrics"), **outcome}


@pytest.mark.parametrize("kind", SWEEPS)
def test_a_lance_dataset_registered_as_an_iceberg_table_keeps_its_files(command: Command, kind: str) -> None:
    table = command.table(appends=0, properties={"table_type": "lance", "managed_by": "storage"})
    put(table, *DATASET)
    for more in (["--dry-run"], []):
        gone, outcome = swept(command, kind, *more)
        assert (gone, outcome["status"], outcome["files"]["planned"]) == (set(), "refused", [])
        assert outcome["reason"].startswith("table property table_type is 'lance': ")


@pytest.mark.parametrize("kind", SWEEPS)
def test_a_table_without_history_is_swept_only_on_an_explicit_request(command: Command, kind: str) -> None:
    """Files may be older than the table (rule: sweep-iceberg-tables-only)."""
    files = put(command.table(appends=0), "data/a.parquet", "metadata/b.avro")
    gone, outcome = swept(command, kind)
    if kind == "maintain by name":
        assert (gone, outcome["status"]) == (files, "succeeded")
        return
    assert (gone, outcome["status"]) == (set(), "skipped")
    assert "run icekeeper maintain ns.t --catalog" in outcome["reason"]
    if kind == "maintain --all":
        assert swept(command, kind, "--operations", "remove_orphans")[0] == set()


@pytest.mark.parametrize("kind", SWEEPS)
def test_files_not_named_by_an_iceberg_writer_are_kept_and_counted(command: Command, kind: str) -> None:
    table = command.table(appends=1)
    put(table, "data/a.lance", "data/b.lance", "data/model.bin", "metadata/README")
    orphan = put(table, "data/orphan.parquet")
    gone, outcome = swept(command, kind)
    assert gone == orphan
    assert outcome["metrics"]["remove_orphans.files_of_other_names"] == 4
    sentence = (
        "data/a.lance, have names that no Iceberg writer gives (.lance 2, .bin 1, no ending 1): they stay, unless"
    )
    assert sentence in outcome["summary"]
    more = put(table, "data/c.bin") | {str(local_path(table.location()) / "data/model.bin")}
    assert swept(command, kind, "--set", "orphan_file_endings=bin")[0] == more


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    made = new_table(local_catalog, tmp_path, appends=2)
    grow_old(Path(path) for path in made.files())
    return made


def set_type(table: MaintainedTable, **more: str) -> None:
    with table.table.transaction() as change:
        change.set_properties({"Table-Type": "fact", **more})


def test_only_the_operator_waives_another_type_and_adds_endings(table: MaintainedTable) -> None:
    own = {"icekeeper.orphan_table_types": "fact", "icekeeper.orphan_file_endings": "bin"}
    set_type(table, **own)
    assert_refused(table, "table property Table-Type is 'fact'")
    kept = table.plant("data/a.bin")
    assert len(sweep(table, orphan_table_types="fact").files_deleted) == 1  # the planted orphan
    assert kept in table.files()


@pytest.mark.parametrize("moment", [Moment.AFTER_LISTING, Moment.DELETION_DECIDED])
def test_a_type_that_is_set_during_the_sweep_stops_it(table: MaintainedTable, moment: Moment) -> None:
    orphan = table.plant("data/orphan.parquet")
    with at(moment, lambda: set_type(table)):
        assert sweep(table).status is Status.REFUSED
    assert orphan in table.files()


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update({"snapshots": [], "refs": {}, "snapshot-log": []}),
        lambda document: document.update({"last-sequence-number": 0, "snapshot-log": []}),
        lambda document: document.update({"last-sequence-number": 0, "snapshots": [], "refs": {}}),
    ],
    ids=["sequence number", "snapshots", "snapshot log"],
)
def test_each_trace_of_a_commit_is_history(table: MaintainedTable, change: Callable[[dict[str, Any]], object]) -> None:
    table.rewrite_document(change)
    assert table.metadata.has_history
    table.rewrite_document(
        lambda document: document.update({"last-sequence-number": 0, "snapshots": [], "refs": {}, "snapshot-log": []})
    )
    assert not table.metadata.has_history
