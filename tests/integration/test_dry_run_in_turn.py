"""A dry run plans each operation on what those before would leave, as the pass runs them."""

from __future__ import annotations

from pathlib import Path

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.report.planned_order import order_json
from support.dry_runs import assert_agree, dry_run
from support.maintained_table import maintained_table
from support.outcomes import outcome_of


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
