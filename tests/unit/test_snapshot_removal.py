"""The commit that removes snapshots: what it asks of the table, and what it takes out."""

from __future__ import annotations

import pytest

from icekeeper.errors import CommitConflict
from icekeeper.metadata.document import TableMetadata, apply_updates, check_requirements
from icekeeper.operations.expiry.commit_expiry import removal_of
from icekeeper.operations.expiry.retention import ExpiryPlan
from icekeeper.operations.expiry.unreferenced import UnusedMetadata
from support.tables import new_document, snapshot

REFS = {
    "main": {"type": "branch", "snapshot-id": 3},
    "audit": {"type": "branch", "snapshot-id": 2},
    "release": {"type": "tag", "snapshot-id": 2},
    "old": {"type": "tag", "snapshot-id": 1, "max-ref-age-ms": 1},
}
PLAN = ExpiryPlan((1,), ("old",))


def table(refs: dict[str, dict[str, object]]) -> TableMetadata:
    document = new_document("s3://b/t", 2, **{"table-uuid": "u", "refs": refs, "last-sequence-number": 3})
    document["snapshots"] = [snapshot(i, format_version=2, sequence_number=i) for i in (1, 2, 3)]
    document |= {
        "current-snapshot-id": 3,
        "statistics": [{"snapshot-id": i, "statistics-path": f"s3://b/t/metadata/{i}.stats"} for i in (1, 3)],
    }
    return TableMetadata(document)


@pytest.mark.parametrize("name", REFS)
def test_every_ref_that_is_known_must_be_where_it_was(name: str) -> None:
    """Some catalogs drop a ref together with its snapshot: one that moved meanwhile may need what goes (rule 77)."""
    commit = removal_of(table(REFS), PLAN, UnusedMetadata())
    check_requirements(table(REFS), commit.requirements)
    moved = REFS | {name: REFS[name] | {"snapshot-id": 1 if name != "old" else 2}}
    with pytest.raises(CommitConflict, match=f"ref '{name}' is at snapshot"):
        check_requirements(table(moved), commit.requirements)


def test_it_must_be_the_same_table() -> None:
    commit = removal_of(table(REFS), PLAN, UnusedMetadata())
    other = TableMetadata({**table(REFS).document, "table-uuid": "another"})
    with pytest.raises(CommitConflict, match="the table was replaced"):
        check_requirements(other, commit.requirements)


def test_snapshots_go_with_their_statistics_and_aged_refs() -> None:
    """Said by updates of their own: a catalog need not know what goes with a snapshot (rule 43)."""
    commit = removal_of(table(REFS), PLAN, UnusedMetadata())
    assert [update["action"] for update in commit.updates] == [
        "remove-snapshot-ref",
        "remove-statistics",
        "remove-snapshots",
    ]
    after = apply_updates(table(REFS), commit.updates, metadata_location=None, now_ms=0)
    assert commit.landed(after)
    assert not commit.landed(table(REFS))
    assert (set(after.snapshots), set(after.refs)) == ({2, 3}, {"main", "audit", "release"})
    assert [entry["snapshot-id"] for entry in after.statistics] == [3]
