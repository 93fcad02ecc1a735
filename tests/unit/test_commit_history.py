"""What snapshots tell of a commit whose answer was lost."""

from __future__ import annotations

import pytest

from icekeeper.commit.attempt import shows_every_commit_since, shows_snapshot
from icekeeper.metadata.document import TableMetadata
from support.tables import new_document, snapshot

BASE = {1, 2}


def after(**parents: int | None) -> TableMetadata:
    """The state in which these snapshots, ``s3=2``, came after 2, a child of 1, which has expired."""
    made = {2: 1} | {int(name.removeprefix("s")): parent for name, parent in parents.items()}
    found = [snapshot(i, format_version=2, sequence_number=i, parent_id=parent) for i, parent in made.items()]
    return TableMetadata(new_document("s3://b/t", 2, snapshots=found))


@pytest.mark.parametrize(
    ("parents", "landed", "whole"),
    [
        ({}, False, True),
        ({"s3": 2}, False, True),
        ({"s3": 1}, False, True),
        ({"s3": 2, "s4": 3}, False, True),
        ({"s9": 2}, True, True),
        ({"s9": 2, "s10": 9}, True, True),
        ({"s10": 9}, True, False),
        ({"s11": 10}, False, False),
        ({"s3": None}, False, False),
    ],
)
def test_nine_landed_if_it_or_a_child_is_there_and_may_have_if_a_newer_parent_is_gone(
    parents: dict[str, int | None], landed: bool, whole: bool
) -> None:
    metadata = after(**parents)
    assert (shows_snapshot(9, metadata), shows_every_commit_since(BASE, metadata)) == (landed, whole)
