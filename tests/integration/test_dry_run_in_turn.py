"""A dry run plans each operation on what those before would leave, as the pass runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

from icekeeper.operations.compaction import compact
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status, in_turn, order_json
from icekeeper.storage.paths import normalise
from support.maintained_table import assert_agree, dry_run, maintained_table, outcome_of
from support.moments import Moment, at
from support.v3 import delete_positions, file_of, upgraded_table, with_row_ids


def test_manifests_that_compaction_merges_are_not_rewritten_again(tmp_path: Path) -> None:
    """On the table as it is there are 12 manifests to merge; compaction leaves too few of them."""
    with maintained_table(tmp_path) as made:
        made.create()
        made.fill(12)
        alone = dry_run(made, "rewrite_manifests", min_manifests_to_rewrite="5")
        assert alone.operations[0].summary == "would rewrite 12 manifests into 1"
        would = dry_run(made, min_manifests_to_rewrite="5")
        manifests = outcome_of(would, Operation.REWRITE_MANIFESTS)
        assert (manifests.status, manifests.planned_after) == (
            Status.SKIPPED,
            (Operation.COMPACT, Operation.EXPIRE_SNAPSHOTS),
        )
        assert order_json(would.operations) == {}
        assert_agree(would, made.maintain(min_manifests_to_rewrite="5"))


def test_the_snapshot_before_compaction_expires_in_the_same_pass(tmp_path: Path) -> None:
    """One snapshot more than the table has now, and with it the files that compaction replaces."""
    with maintained_table(tmp_path) as made:
        made.create()
        made.fill(3)
        inputs = made.live_files()
        would = dry_run(made, "compact,expire_snapshots")
        expiry = outcome_of(would, Operation.EXPIRE_SNAPSHOTS)
        assert expiry.summary.startswith("would expire 3 snapshot(s)")
        assert inputs <= set(expiry.files_planned)
        assert_agree(would, made.maintain("compact,expire_snapshots"))


def test_partitions_that_would_go_are_not_compacted_first(tmp_path: Path) -> None:
    """The snapshot that the first operation makes expires in the same pass, with files that are not there yet."""
    with maintained_table(tmp_path) as made:
        made.create()
        with made.table.update_spec() as update:
            update.add_identity("part")
        for number in range(3):
            made.append(number, part="2020-01-01")
            made.append(10 + number, part="2999-01-01")
        asked = "expire_partitions,compact,expire_snapshots,rewrite_manifests"
        old = {"partition_retention_hours": "24", "partition_time_column": "part"}
        settings: dict[str, Any] = {**old, "partition_time_pattern": "%Y-%m-%d"}
        would = dry_run(made, asked, **settings)
        assert outcome_of(would, Operation.COMPACT).summary == "would compact 3 files into 1 (across 1 bins)"
        expiry = outcome_of(would, Operation.EXPIRE_SNAPSHOTS)
        assert all(Path(normalise(path)).exists() for path in expiry.files_planned)
        assert_agree(would, made.maintain(asked, **settings))


def test_deletion_vectors_of_compacted_files_are_gone(tmp_path: Path) -> None:
    with upgraded_table(tmp_path) as made:
        with_row_ids(made)
        delete_positions(made, {file_of(made, 0): [0], file_of(made, 100): [1, 2]})
        assert_agree(dry_run(made), made.maintain())


def test_a_schedule_finds_what_another_one_would_leave(tmp_path: Path) -> None:
    """Of the manifest of each file the hourly compaction leaves two, one of them of what went."""
    schedules = {
        "operations": "compact,rewrite_manifests",
        "schedules.hourly.interval": "1h",
        "schedules.hourly.operations": "compact",
        "schedules.nightly.interval": "24h",
        "schedules.nightly.operations": "rewrite_manifests",
    }
    with maintained_table(tmp_path) as made:
        made.create(properties={f"icekeeper.{key}": value for key, value in schedules.items()})
        made.fill(4)
        would = dry_run(made)
        nightly = next(one for one in would.operations if one.schedule == "nightly")
        assert (nightly.summary, nightly.planned_after) == ("would rewrite 2 manifests into 1", (Operation.COMPACT,))
        assert not nightly.files_planned  # they have no names yet
        assert_agree(would, made.maintain())


def test_a_commit_that_lands_meanwhile_is_seen_and_what_is_not_known_is_said(tmp_path: Path) -> None:
    """What was planned before that commit is no longer what the pass would find: the rest looks at the table."""
    with maintained_table(tmp_path) as made:
        made.create()
        made.fill(4)
        with at(Moment.AFTER_LISTING, lambda: made.append(99)):
            would = in_turn(made.maintain("compact,remove_orphans,rewrite_manifests", dry_run=True))
        manifests = outcome_of(would, Operation.REWRITE_MANIFESTS)
        assert (manifests.summary, manifests.planned_after) == ("would rewrite 5 manifests into 1", ())
        assert order_json(would.operations) == {"rewrite_manifests": ["compact"]}


def test_a_change_that_cannot_be_told_leaves_plans_on_what_is_there(tmp_path: Path) -> None:
    """The plan itself stands; what follows is planned on the table as it is, and said to be planned anew."""
    with maintained_table(tmp_path) as made:
        made.create()
        made.fill(4)
        with mock.patch.object(compact, "expected_result", side_effect=KeyError("a document that breaks the rules")):
            would = dry_run(made, "compact,rewrite_manifests")
        assert [one.summary for one in would.operations] == [
            "would compact 4 files into 1 (across 1 bins)",
            "would rewrite 4 manifests into 1",
        ]
        assert order_json(would.operations) == {"rewrite_manifests": ["compact"]}
