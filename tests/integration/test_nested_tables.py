"""A table inside the location of another one, which took some of its files in."""

from __future__ import annotations

from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.report.outcome import Status
from support.maintained_table import new_table
from support.served import files_of, ids, maintain


def test_expiry_spares_what_the_table_around_it_took_in(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """Once a pass has seen the table around it, only what is recorded of that one tells where it lies (rule 88)."""
    inner = new_table(local_catalog, tmp_path)
    inner.fill(3)
    outer = inner.create_beside("ns.outer", inner.table.location().rpartition("/")[0])
    outer.add_files(files_of(inner.table))
    maintain(inner, local_catalog, "ns.outer", operations="expire_snapshots")
    outcomes = maintain(inner, local_catalog, "ns.t")
    assert outcomes["expire_snapshots"].status is Status.SUCCEEDED
    assert outcomes["expire_snapshots"].metrics["expire_snapshots.snapshots_expired"] > 0
    assert ids(outer) == ids(inner.table) == [0, 1, 10, 11, 20, 21]
