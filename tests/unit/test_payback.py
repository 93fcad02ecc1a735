"""A rewrite is done where it saves its readers more than it costs, the best first (rule 125)."""

from __future__ import annotations

import pytest

from icekeeper.metadata.delete_scope import DeleteIndexBuilder
from icekeeper.model import EntryStatus, FileContent, LiveEntry, ManifestEntry, Nothing
from icekeeper.operations.compaction.candidates import TableState
from icekeeper.operations.compaction.plan_groups import CompactionPlan, NothingToCompact, plan_compaction
from icekeeper.policy import Policy
from support.plans import HEAD, HEAD_MS, MB, data_file, live_file, manifest, policy, table

# Two gets and 4 MB read: what opening a file costs.
OPEN = 2 * 0.0004 / 1000 + 4 / 1024 * 0.005


def of(*sizes_mb: int, partition: str = "p") -> list[LiveEntry]:
    return [live_file(data_file(f"{partition}{i}", size * MB, [partition]), age=i) for i, size in enumerate(sizes_mb)]


def plan(
    files: list[LiveEntry], settings: Policy, deletes: list[ManifestEntry] | None = None
) -> CompactionPlan | Nothing:
    builder = DeleteIndexBuilder()
    for entry in deletes or []:
        builder.add(0, entry, is_unpartitioned=False)
    state = TableState(table(), table().snapshots[HEAD], [manifest()], files, builder.build())
    return plan_compaction(state, settings, now_ms=HEAD_MS)


def test_the_worth_of_a_group_is_what_its_readers_save_and_what_it_costs() -> None:
    """Six files of 53 MB become one: five opens in each of 200 scans, against 53 MB, twelve gets and one put.

    Four of the files, 45 MB, are copied.
    """
    planned = plan(of(10, 5, 8, 12, 3, 15), policy(min_row_group_copy_bytes=8 * MB))
    assert isinstance(planned, CompactionPlan)
    worth = planned.groups[0].worth
    assert worth is not None
    assert (worth.opens_saved, worth.bytes_saved, worth.bytes_rewritten, worth.requests) == (5, 0, 53 * MB, 13)
    assert worth.saving == pytest.approx(200 * 5 * OPEN)
    assert worth.cost == pytest.approx((8 * 0.005 + 45 * 0.001) / 1024 + 12 * 0.0004 / 1000 + 0.005 / 1000)
    assert worth.pays


def test_what_costs_more_than_it_saves_is_left_and_said() -> None:
    """Three files of 190 MB become two: one open saved for 570 MB, which takes 138 scans where they are decoded."""
    files = of(*[190] * 6)
    assert isinstance(plan(files, policy(expected_scans=138, min_row_group_copy_bytes=None)), CompactionPlan)
    found = plan(files, policy(expected_scans=137, min_row_group_copy_bytes=None))
    assert isinstance(found, NothingToCompact)
    assert found.reason == "no files eligible for compaction (merging 6 file(s) costs more than it saves)"
    assert [(left.reason, left.files, left.bytes) for left in found.left] == [
        ("merging them costs more than it saves in expected_scans 137", 6, 1140 * MB)
    ]


def test_files_that_can_be_copied_pay_with_fewer_scans() -> None:
    """The same 570 MB for a fifth of the price; a file of small row groups beside them is decoded."""
    files = of(*[190] * 6)
    assert isinstance(plan(files, policy(expected_scans=28)), CompactionPlan)
    assert isinstance(plan(files, policy(expected_scans=27)), NothingToCompact)
    assert isinstance(plan(files, policy(expected_scans=28, price_per_gb_copied=0.002)), NothingToCompact)


@pytest.mark.parametrize(
    "settings",
    [
        {"expected_scans": "none"},
        {"price_per_gb_copied": 0, "price_per_1000_puts": 0, "price_per_1000_gets": 0},
        {"price_per_gb_scanned": "0.05"},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_prices_are_settings(settings: dict[str, object]) -> None:
    assert isinstance(plan(of(*[190] * 6), policy(expected_scans=20)), Nothing)
    assert isinstance(plan(of(*[190] * 6), policy(**{"expected_scans": 20, **settings})), CompactionPlan)


def test_what_is_asked_for_by_name_is_done_whatever_it_costs() -> None:
    assert isinstance(plan(of(*[190] * 6), policy(expected_scans=1, rewrite_all=True)), CompactionPlan)


def test_deletes_have_a_budget_of_their_own() -> None:
    file = data_file("d", 1000, ["p"])
    values = {name: getattr(file, name) for name in file.__slots__}
    delete = type(file)(**values | {"content": FileContent.POSITION_DELETES, "referenced_data_file": "p0"})
    entry = ManifestEntry(EntryStatus.ADDED, HEAD, 60, 60, delete)
    planned = plan(of(2000), policy(expected_scans=1), [entry])
    assert isinstance(planned, CompactionPlan)
    assert not planned.groups[0].worth or planned.groups[0].worth.opens_saved == 1


def test_what_saves_most_per_byte_comes_first_and_fills_the_caps() -> None:
    files = [*of(*[40] * 6, partition="a"), *of(*[1] * 5, partition="b"), *of(*[8] * 5, partition="c")]

    def order(**settings: object) -> list[object]:
        planned = plan(files, policy(**settings))
        return [] if isinstance(planned, Nothing) else [group.partition[0] for group in planned.groups]

    assert order() == ["b", "c", "a"]
    assert order(max_files_to_rewrite=10) == ["b", "c"]
    assert order(max_bytes_to_rewrite=44 * MB) == ["b"]
    assert order(rewrite_job_order="bytes-desc") == ["a", "c", "b"]
