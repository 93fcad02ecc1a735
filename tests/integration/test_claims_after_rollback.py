"""Where a table has files is known although its catalog entry went back to an older state (rule 89)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.report.outcome import Status
from icekeeper.storage.paths import normalise
from support.maintained_table import ID_AND_PART, new_table
from support.served import files_of, ids, maintain

GUEST = "ns.guest"


@pytest.mark.parametrize("format_version", ["1", "2"])
def test_expiry_spares_what_a_guest_took_in_after_it_went_back(
    local_catalog: SqlCatalog, tmp_path: Path, format_version: str
) -> None:
    """Sequence numbers begin again below those that a pass has seen: the backup of a catalog was restored."""
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    catalog = table.pyiceberg
    guest = catalog.create_table(GUEST, schema=ID_AND_PART, properties={"format-version": format_version})
    guest.append(table.new_rows(70))
    backup = guest.metadata_location
    for number in range(3):
        guest.append(table.new_rows(80 + number))
    maintain(table, catalog, GUEST, operations="expire_snapshots", max_snapshots_to_keep="9")
    given_up = guest.metadata_location
    catalog.drop_table(GUEST)
    guest = catalog.register_table(GUEST, backup)
    for file in Path(normalise(given_up)).parent.glob("*.metadata.json"):
        if file.name > Path(backup).name:
            file.unlink()
    guest.add_files(files_of(table.table))

    maintain(table, catalog, GUEST, operations="expire_snapshots", max_snapshots_to_keep="9")
    outcomes = maintain(table, catalog, "ns.t")
    assert outcomes["expire_snapshots"].status is Status.SUCCEEDED
    assert ids(catalog.load_table(GUEST)) == [0, 1, 10, 11, 20, 21, 70]
