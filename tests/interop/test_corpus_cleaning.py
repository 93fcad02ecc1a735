"""What expiry and orphan removal delete of tables that other engines wrote, beside what Iceberg-Java deletes."""

from __future__ import annotations

from pathlib import Path

import pytest

from icekeeper.metadata.table_reader import reachable_files
from icekeeper.policy import Operation
from support.corpus import (
    RelocatedTable,
    checks,
    corpus_table,
    expected,
)
from support.corpus_cases import TWO_HEADS, corpus_where, no_crash
from support.maintained_table import local_path, outcome_of, registered_table


def java_told(name: str, check: str, key: str) -> bool:
    """Whether the corpus holds the list of files that Iceberg-Java's own procedure removes."""
    procedure = {"expire": "expire_all_but_current", "orphans": "remove_orphan_files_dry"}[check]
    return checks(name)[check] == "known" and key in (expected(name)["java_maintenance"] or {}).get(procedure, {})


def files_in(found: RelocatedTable) -> set[str]:
    return {str(path.relative_to(found.folder)) for path in found.folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", corpus_where(lambda name: java_told(name, "expire", "deleted")))
def test_expiry_deletes_the_files_that_java_deletes(name: str, tmp_path: Path) -> None:
    """When all but the current snapshot expire."""
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    before = files_in(found)
    outcome = table.maintain(operations="expire_snapshots")
    no_crash(outcome)
    assert before - files_in(found) == set(expected(name)["java_maintenance"]["expire_all_but_current"]["deleted"])


@pytest.mark.parametrize("name", corpus_where(lambda name: checks(name)["expire"] == "java_refuses"))
def test_expiry_frees_legal_tables_on_which_java_fails(name: str, tmp_path: Path) -> None:
    """Nothing that the head needs goes, and nothing that only the expired snapshots needed stays."""
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    live, snapshots = table.live_files(), len(table.reader.metadata.snapshots)

    def unreachable() -> set[Path]:
        needed = {local_path(path) for path in reachable_files(table.reader, table.metadata_location)}
        return {path for path in found.folder.rglob("*") if path.is_file()} - needed

    before = unreachable()
    outcome = outcome_of(table.maintain(operations="expire_snapshots"), Operation.EXPIRE_SNAPSHOTS)
    if snapshots == 1:
        assert outcome.reason == "no snapshots to expire"
    else:
        assert outcome.metrics["expire_snapshots.snapshots_expired"] == snapshots - 1
    assert len(table.reader.metadata.snapshots) == 1
    assert table.live_files() == live
    assert not {path for path in live if not local_path(path).exists()}
    assert unreachable() <= before


@pytest.mark.parametrize("name", corpus_where(lambda name: java_told(name, "orphans", "orphans") and name != TWO_HEADS))
def test_the_orphans_are_those_that_java_finds(name: str, tmp_path: Path) -> None:
    """Except for metadata files.  The newest is told as an orphan by an artefact of the harness that asked Java, which
    looked at the table from outside a catalog; others that no log names are as young as a snapshot and so stay, because
    some catalogs' logs leave them out."""
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    before = files_in(found)
    outcome = table.maintain(operations="remove_orphans")
    no_crash(outcome)
    told = set(expected(name)["java_maintenance"]["remove_orphan_files_dry"]["orphans"])
    metadata = {path for path in told if path.endswith(".metadata.json")}
    assert before - files_in(found) == told - metadata
    kept = metadata - {expected(name)["metadata"]}
    assert outcome_of(outcome, Operation.REMOVE_ORPHANS).metrics["remove_orphans.files_protected"] == len(kept)
