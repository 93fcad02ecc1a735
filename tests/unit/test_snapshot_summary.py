"""Totals of snapshot summaries: they add up, and what is not known is not made up (rule 40)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from icekeeper.commit.snapshot import snapshot_summary
from icekeeper.metadata.document import Snapshot
from icekeeper.model import FileContent
from support.plans import data_file
from support.tables import snapshot


def summary(before: Mapping[str, str], counted: Mapping[str, int] | None = None) -> dict[str, str]:
    """Two data files of 10 rows become one, and a delete file of 3 rows goes."""
    parent = Snapshot(snapshot(1, format_version=2, summary={"operation": "append", **before}))
    delete = replace(data_file("d", 30, records=3), content=FileContent.EQUALITY_DELETES)
    removed = [(0, data_file("a", 100)), (0, data_file("b", 200)), (0, delete)]
    return snapshot_summary("replace", parent, [(0, data_file("c", 250, records=20))], removed, {}, counted or {})


def totals(found: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in found.items() if key.startswith("total-")}


def test_totals_follow_the_parents() -> None:
    before = {
        "total-data-files": "7",
        "total-delete-files": "1",
        "total-records": "70",
        "total-files-size": "1000",
        "total-equality-deletes": "3",
        "total-position-deletes": "0",
    }
    found = summary(before)
    assert totals(found) == {
        "total-data-files": "6",
        "total-delete-files": "0",
        "total-records": "70",
        "total-files-size": "920",
        "total-equality-deletes": "0",
        "total-position-deletes": "0",
    }
    assert {key: found[key] for key in ("added-records", "deleted-records", "removed-equality-deletes")} == {
        "added-records": "20",
        "deleted-records": "20",
        "removed-equality-deletes": "3",
    }


@pytest.mark.parametrize(
    "said", [{}, {"total-data-files": "many"}, {"total-data-files": "0"}, {"total-data-files": ""}]
)
def test_a_total_that_is_missing_or_cannot_be_is_left_out(said: Mapping[str, str]) -> None:
    """Made up once, it would be carried on for ever."""
    assert totals(summary(said)) == {}


def test_what_manifests_tell_beats_what_the_parent_said() -> None:
    assert totals(summary({"total-data-files": "99"}, {"total-data-files": 1})) == {"total-data-files": "1"}
