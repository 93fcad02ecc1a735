"""What merges have shown of sizes, recorded in snapshots and read again (rule 236)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icekeeper.model import EntryStatus, ManifestEntry
from icekeeper.operations.compaction.candidates import AS_THEY_ARE, SIZES_KEY, OutputSizes, recorded_sizes
from support.plans import HEAD, MB, data_file, table
from support.tables import snapshot

KB = 1024


def known(*records: str | None, version: int = 2) -> OutputSizes:
    """Of a branch whose snapshots, the oldest first, record this."""
    metadata = table(version)
    raw = [
        snapshot(number, format_version=version, sequence_number=number, timestamp_ms=number)
        | {"parent-snapshot-id": number - 1, "summary": {} if text is None else {SIZES_KEY: text}}
        for number, text in enumerate(records, start=1)
    ]
    document = dict(metadata.document) | {"snapshots": raw}
    changed = type(metadata)(document)
    return OutputSizes.of(changed, changed.snapshots[len(records)])


def rewritten(size: int, snapshot_id: int) -> ManifestEntry:
    return ManifestEntry(EntryStatus.EXISTING, snapshot_id, 5, 9, data_file("f", size))


def test_the_newest_record_counts_and_each_snapshot_tells_how_much_less_came_out() -> None:
    found = known("0.500 planned 1.000 of 1000", "0.450 planned 0.500 of 2000", None)
    assert (found.ratio, found.file_bytes) == (0.45, 2000)
    assert found.shrank == {1: 0.5, 2: pytest.approx(0.9)}
    assert known(None, None) == known("0.500 planned 1.000 of 1000", version=1) == AS_THEY_ARE


@pytest.mark.parametrize(
    "text", ["", "0.5", "nan", "7.000 planned 1.000 of 9", "0.000 planned 0.000 of 0", "0.100 planned 1.000 of 9"]
)
def test_what_is_no_record_tells_nothing(text: str) -> None:
    assert known(text) == AS_THEY_ARE


def test_only_files_alike_that_are_decoded_for_the_first_time_shrink() -> None:
    sizes = OutputSizes(0.5, 100 * KB)
    assert sizes.expected(data_file("f", 80 * KB), is_rewritten=False, is_copied=False) == 40 * KB
    assert sizes.expected(data_file("f", 80 * KB), is_rewritten=True, is_copied=False) == 80 * KB
    assert sizes.expected(data_file("f", 80 * KB), is_rewritten=False, is_copied=True) == 80 * KB
    assert sizes.expected(data_file("f", 401 * KB), is_rewritten=False, is_copied=False) == 401 * KB
    assert AS_THEY_ARE.expected(data_file("f", 7), is_rewritten=False, is_copied=False) == 7


def test_what_came_out_smaller_than_planned_is_not_small_unless_by_far() -> None:
    sizes = replace(AS_THEY_ARE, shrank={HEAD: 0.5, 7: 0.2})
    assert not sizes.is_small(rewritten(450 * KB, HEAD), 768 * KB)
    assert sizes.is_small(rewritten(350 * KB, HEAD), 768 * KB)  # it was planned with 700 KB
    assert sizes.is_small(rewritten(450 * KB, 8), 768 * KB)  # nothing is known of its snapshot
    assert sizes.is_small(rewritten(300 * KB, 7), 768 * KB)  # two fill one that is not small
    fresh = ManifestEntry(EntryStatus.EXISTING, HEAD, 9, 9, data_file("f", 450 * KB))
    assert sizes.is_small(fresh, 768 * KB)


def test_a_record_is_of_bytes_and_stays_where_nothing_new_is_shown() -> None:
    assert recorded_sizes(AS_THEY_ARE, []) is None
    text = recorded_sizes(AS_THEY_ARE, [(4, 4 * MB, MB), (6, 6 * MB, 4 * MB)])
    assert text == f"0.500 planned 1.000 of {MB}"
    assert recorded_sizes(known(text), []) == f"0.500 planned 0.500 of {MB}"
    assert recorded_sizes(known(text), [(2, 2000, 2400)]) == "1.000 planned 0.500 of 1000"
    assert recorded_sizes(AS_THEY_ARE, [(2, 2000, 20)]) == "0.250 planned 1.000 of 1000"
