"""A listing that lacks what is there: something else answers in the store's place (rule 175)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.deletion.shared_references import list_beside
from icekeeper.policy import Operation
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.maintained_table import MaintainedTable, new_table


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    made = new_table(local_catalog, tmp_path)
    made.fill(3)
    return made


def test_an_empty_listing_is_no_proof_that_there_is_no_newer_head(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As boto3 reads a proxy's page, or an answer without a body, with status 200."""
    monkeypatch.setattr(Storage, "list", lambda self, prefix: iter(()))
    before = table.files()
    outcome = table.run(Operation.EXPIRE_SNAPSHOTS)
    assert (outcome.status.value, before - table.files()) == ("refused", set())
    assert f"lacks {table.metadata_location}, which is there" in (outcome.reason or "")
    monkeypatch.undo()
    assert table.run(Operation.EXPIRE_SNAPSHOTS).status.value == "succeeded"


def test_a_metadata_file_that_is_gone_by_now_is_not_missed(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many commits of others later the catalog has dropped it."""
    loaded, list_all = table.loaded, Storage.list_if_allowed
    current = Path(normalise(loaded.metadata_location))

    def late(self: Storage, prefix: str) -> Sequence[ListedObject] | None:
        current.unlink()
        return list_all(self, prefix)

    monkeypatch.setattr(Storage, "list_if_allowed", late)
    assert len(list_beside(table.storage, loaded)) == 3
