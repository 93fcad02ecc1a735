"""A table that no pass has looked at since takes in files of another one; the owner's passes know it (rule 184)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.storage.paths import normalise
from support.maintained_table import ID_AND_PART, MaintainedTable, new_table
from support.served import age_everything, files_of, ids, maintain


@pytest.fixture
def owner(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Three appends."""
    made = new_table(local_catalog, tmp_path)
    made.fill(3)
    return made


def test_orphan_removal_spares_what_a_guest_has_taken_in_since(owner: MaintainedTable) -> None:
    guest = owner.pyiceberg.create_table("ns.guest", schema=ID_AND_PART)
    guest.append(owner.new_rows(99))
    maintain(owner, owner.pyiceberg, "ns.guest", operations="compact", min_input_files="9")
    theirs = Path(owner.plant("data/theirs.parquet"))
    theirs.write_bytes(Path(files_of(owner.table)[0].removeprefix("file://")).read_bytes())
    guest.add_files([theirs.as_uri()])
    orphan = owner.plant("data/orphan.parquet")
    age_everything(owner)
    outcome = maintain(owner, owner.pyiceberg, "ns.t", operations="remove_orphans")["remove_orphans"]
    assert [Path(path).name for path in outcome.files_deleted] == [Path(orphan).name]
    assert ids(guest) == [20, 21, 99]


def test_expiry_spares_what_a_guest_has_taken_in_that_nobody_looked_at(owner: MaintainedTable) -> None:
    """An earlier pass over the owner has heard of it, by its document alone."""
    guest = owner.pyiceberg.create_table("ns.guest", schema=ID_AND_PART)
    guest.add_files(files_of(owner.table))
    maintain(owner, owner.pyiceberg, "ns.t")
    assert ids(guest) == ids(owner.table) == [0, 1, 10, 11, 20, 21]


def test_a_manifest_that_is_gone_hides_no_other_one(owner: MaintainedTable) -> None:
    """Nobody can read the guest's old snapshot any more; its head is whole."""
    guest = owner.pyiceberg.create_table("ns.guest", schema=ID_AND_PART)
    guest.append(owner.new_rows(99))
    head = guest.current_snapshot()
    assert head is not None
    (gone,) = head.manifests(guest.io)
    guest.overwrite(owner.new_rows(98))
    guest.add_files(files_of(owner.table))
    Path(gone.manifest_path.removeprefix("file://")).unlink()
    maintain(owner, owner.pyiceberg, "ns.t", operations="compact")
    orphan = Path(owner.plant("data/orphan.parquet"))
    age_everything(owner)
    outcome = maintain(owner, owner.pyiceberg, "ns.t", operations="remove_orphans")["remove_orphans"]
    assert outcome.reason is None or gone.manifest_path in outcome.reason
    assert ids(guest) == [0, 1, 10, 11, 20, 21, 98]
    claims = owner.state.claims.of_entry((owner.catalog.name, owner.catalog.warehouse, "ns.guest"))
    assert claims is not None
    assert (set(claims.folders), claims.is_looked_into) == ({normalise(f"{owner.metadata.location}/data")}, False)
    assert orphan.exists() == (outcome.reason is not None)
