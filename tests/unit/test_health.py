"""Lake health: counters that are absent where unknown, warnings by kind, and the sum of a lake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icekeeper.errors import PolicyError
from icekeeper.health.examine import lake_totals
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import ManifestContent, ManifestFile
from icekeeper.state.store import LakeStats
from support.looked_at import IDENTITY, SUMMARY, health, of
from support.settings import MB, NOW_MS, policy, table

KEEP_SHORT_LOG = "write.metadata.delete-after-commit.enabled"


def manifest(content: ManifestContent) -> ManifestFile:
    return ManifestFile(manifest_path="m", manifest_length=1, partition_spec_id=0, content=content, added_snapshot_id=1)


def test_counters_are_those_of_the_document_and_of_the_heads_summary() -> None:
    assert health(snapshots=3, age_hours=2) == LakeStats(
        identity=IDENTITY,
        observed_ms=NOW_MS,
        snapshot_id=3,
        counters={
            "lake_snapshots": 3,
            "lake_refs": 1,
            "lake_metadata_log": 0,
            "lake_statistics_files": 0,
            "lake_oldest_snapshot_age_hours": 4.0,
            "lake_data_files": 10,
            "lake_delete_files": 0,
            "lake_position_deletes": 0,
            "lake_equality_deletes": 0,
            "lake_records": 1000,
            "lake_bytes": 10 * 400 * MB,
            "lake_average_file_bytes": 400 * MB,
            "lake_manifests": 3,
        },
    )


OF_THE_DOCUMENT = {"lake_snapshots", "lake_refs", "lake_metadata_log", "lake_statistics_files"}


@pytest.mark.parametrize("summary", [{}, [], "x", dict.fromkeys(SUMMARY, "many"), dict.fromkeys(SUMMARY, "-1")])
def test_unknown_counters_are_absent_and_never_zero(summary: object) -> None:
    found = health(summary)
    assert set(found.counters) == OF_THE_DOCUMENT | {"lake_oldest_snapshot_age_hours"}
    assert found.warnings == {}


def test_history_is_what_other_snapshots_hold_alone() -> None:
    """What a snapshot removed, its parent holds; of another branch, what it added; of an old tag, nobody knows."""
    raw = [
        {"snapshot-id": 1, "summary": {"total-files-size": "10", "added-files-size": "10", "removed-files-size": "99"}},
        {"snapshot-id": 2, "parent-snapshot-id": 1, "summary": {"total-files-size": "15", "added-files-size": "5"}},
        {"snapshot-id": 3, "parent-snapshot-id": 2, "summary": {"total-files-size": "9", "removed-files-size": "6"}},
        {"snapshot-id": 4, "parent-snapshot-id": 2, "summary": {"total-files-size": "22", "added-files-size": "7"}},
    ]
    document = dict(table(SUMMARY, snapshots=1).document)
    common = dict(document["snapshots"][0])
    snapshots = [{**common, **one} for one in raw]

    def history(*snapshots: dict[str, object]) -> object:
        refs = {"main": {"snapshot-id": 3, "type": "branch"}}
        made = TableMetadata({**document, "snapshots": [*snapshots], "current-snapshot-id": 3, "refs": refs})
        return of(made).counters.get("lake_history_bytes")

    assert history(*snapshots) == 6 + 7
    assert history(*snapshots[:3]) == 6
    assert history(snapshots[2]) == 0
    assert history(*snapshots[2:]) is None
    assert history(snapshots[0], {**snapshots[1], "summary": {}}, snapshots[2]) is None


def test_v1_tables_have_no_delete_files_whatever_their_summary_says() -> None:
    summary = {"total-data-files": "4", "total-files-size": "8"}
    assert health(summary, version=1).counters["lake_delete_files"] == 0
    assert health(summary, version=1).counters["lake_average_file_bytes"] == 2
    assert "lake_average_file_bytes" not in health(summary).counters


def test_an_empty_table_is_healthy() -> None:
    found = health(snapshots=0)
    assert (found.snapshot_id, found.warnings, set(found.counters)) == (None, {}, OF_THE_DOCUMENT)


def test_a_manifest_list_that_was_read_beats_the_summary() -> None:
    manifests = [manifest(ManifestContent.DATA)] * 4 + [manifest(ManifestContent.DELETES)]
    found = of(table(SUMMARY), manifests=manifests)
    assert (found.counters["lake_manifests"], found.counters["lake_delete_manifests"]) == (5, 1)
    assert list(found.warnings) == ["manifest_sprawl"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"total-delete-files": "4"}, {}),
        (
            {"total-delete-files": "5"},
            {"delete_debt": "5 delete files lie beside 10 data files: every reader has to apply them"},
        ),
        ({"total-data-files": "51", "total-files-size": str(51 * 400 * MB), "total-delete-files": "5"}, {}),
        ({"total-delete-files": "1", "total-position-deletes": "299"}, {}),
        (
            {"total-delete-files": "1", "total-position-deletes": "200", "total-equality-deletes": "100"},
            {
                "delete_debt": "300 deletes stand against 1000 records, which reaches delete_compaction_min_ratio 0.3: "
                "every reader has to apply them"
            },
        ),
        ({"manifests-kept": "3"}, {}),
        (
            {"manifests-kept": "4"},
            {"manifest_sprawl": "5 manifests for 10 data files reach min_manifests_to_rewrite 5"},
        ),
        # As few as their size allows: thousands of files each.
        (
            {"manifests-kept": "9", "total-data-files": "10000", "total-files-size": str(10000 * 400 * MB)},
            {},
        ),
        (
            {"manifests-kept": "9", "total-data-files": "9999", "total-files-size": str(9999 * 400 * MB)},
            {"manifest_sprawl": "10 manifests for 9999 data files reach min_manifests_to_rewrite 5"},
        ),
        ({"total-files-size": str(10 * 192 * MB)}, {}),
        (
            {"total-files-size": str(10 * 191 * MB)},
            {"small_files": "10 data files of 191 MB on average are below 192 MB"},
        ),
        ({"total-data-files": "4", "total-files-size": "4"}, {}),
    ],
)
def test_warnings_of_files_begin_at_their_thresholds(changes: dict[str, str], expected: dict[str, str]) -> None:
    assert health({**SUMMARY, **changes}).warnings == expected


def test_thresholds_are_those_of_the_policy_in_force() -> None:
    small = {**SUMMARY, "total-files-size": str(10 * MB), "manifests-kept": "9"}
    assert set(health(small).warnings) == {"small_files", "manifest_sprawl"}
    assert health(small, policy(min_input_files=11, min_manifests_to_rewrite=11)).warnings == {}


def test_health_does_not_ask_whether_maintenance_is_enabled() -> None:
    small = {**SUMMARY, "total-files-size": str(10 * MB)}
    found = health(small, policy(maintenance_enabled="false"))
    assert set(found.warnings) == {"small_files"}
    assert found.policy == {"maintenance_enabled": {"source": "--set", "value": False}}


def test_snapshots_that_nobody_expires_are_a_warning_after_a_day() -> None:
    """Seven snapshots an hour apart, the newest is the head; five are kept whatever their age."""
    late = 168 + 24
    sentence = "6 snapshots are more than a day past snapshot_retention_hours 168"
    assert health(snapshots=7, age_hours=late).warnings == {"snapshot_sprawl": sentence}
    assert health(snapshots=7, age_hours=late - 1).warnings == {}
    assert health(snapshots=6, age_hours=late + 100).warnings == {}
    assert health(snapshots=7, age_hours=late, resolved=policy(max_snapshots_to_keep=6)).warnings == {}


def log_of(count: int, **properties: str) -> TableMetadata:
    entries = [{"metadata-file": f"m{n}", "timestamp-ms": n} for n in range(count)]
    return TableMetadata({**table(SUMMARY).document, "metadata-log": entries, "properties": properties})


def test_a_full_metadata_log_is_a_warning_unless_old_files_are_deleted() -> None:
    assert of(log_of(99)).warnings == {}
    assert of(log_of(100)).warnings == {
        "metadata_sprawl": f"the metadata log is full with 100 files and {KEEP_SHORT_LOG} is off: every commit leaves "
        "a metadata file behind; set that property to true"
    }
    assert of(log_of(100, **{KEEP_SHORT_LOG: "true"})).warnings == {}
    assert set(of(log_of(10, **{"write.metadata.previous-versions-max": "10"})).warnings) == {"metadata_sprawl"}
    assert of(log_of(100, **{"write.metadata.previous-versions-max": "200"})).warnings == {}


def test_wrong_settings_are_a_warning_and_the_others_use_the_defaults() -> None:
    found = health({**SUMMARY, "total-files-size": str(10 * MB)}, PolicyError("no key 'x'"))
    assert set(found.warnings) == {"small_files", "wrong_settings"}
    assert found.warnings["wrong_settings"].endswith("so it is not maintained: no key 'x'")


def test_the_branch_that_is_maintained_is_the_one_looked_at() -> None:
    document = {**table(SUMMARY, snapshots=2).document, "refs": {"audit": {"snapshot-id": 1, "type": "branch"}}}
    assert of(TableMetadata(document), policy(branch="audit")).snapshot_id == 1
    assert of(TableMetadata(document), policy(branch="gone")).snapshot_id == 2


def looks(**counters: float) -> LakeStats:
    return LakeStats(identity=IDENTITY, observed_ms=NOW_MS, snapshot_id=None, counters=counters)


def test_a_lake_is_the_sum_of_its_tables() -> None:
    first = looks(
        lake_snapshots=3,
        lake_oldest_snapshot_age_hours=4.5,
        lake_data_files=3,
        lake_delete_files=1,
        lake_bytes=400,
        lake_average_file_bytes=100,
    )
    # Its size is unknown, so it says nothing about the average.
    second = looks(lake_snapshots=1, lake_oldest_snapshot_age_hours=90.0, lake_data_files=1000, lake_delete_files=0)
    assert lake_totals([first, replace(second, warnings={"small_files": "…", "delete_debt": "…"})]) == {
        "lake_tables": 2,
        "lake_tables_warned": 1,
        "lake_snapshots": 4,
        "lake_oldest_snapshot_age_hours": 90.0,
        "lake_data_files": 1003,
        "lake_delete_files": 1,
        "lake_bytes": 400,
        "lake_average_file_bytes": 100,
    }
    assert lake_totals([]) == {"lake_tables": 0, "lake_tables_warned": 0}
