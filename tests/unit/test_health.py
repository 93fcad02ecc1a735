"""Lake health: counters, warnings, clustering depth, and stored lake stats."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icekeeper.errors import PolicyError, StorageError
from icekeeper.health.examine import DEPTH_COUNTER, examine, lake_counters, lake_totals
from icekeeper.health.lake_log import LakeLog
from icekeeper.health.layout import LayoutTally, layout_facts, timeline
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.overlap_depth import DEPTH_KEY
from icekeeper.model import (
    CatalogId,
    DataFile,
    EntryStatus,
    FileContent,
    LiveEntry,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    TableName,
)
from icekeeper.operations.compaction.plan.plan_clustering import ClusteringDepth, Layout
from icekeeper.operations.compaction.terms.recipe import KeyColumn
from icekeeper.policy import ResolvedPolicy
from icekeeper.state.findings import Verdict
from icekeeper.state.identity import TableIdentity
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.sqlite.store import SqliteStateStore
from support.plans import candidate, data_file
from support.settings import MB, NOW_MS, policy, table
from support.state_stores import trend_rows

IDENTITY = TableIdentity(CatalogId("C", "s3://prod-lake/"), TableName(("ns",), "t"), "u")
SUMMARY = {
    "total-data-files": "10",
    "total-delete-files": "0",
    "total-position-deletes": "0",
    "total-equality-deletes": "0",
    "total-records": "1000",
    "total-files-size": str(10 * 400 * MB),
    "manifests-created": "1",
    "manifests-kept": "2",
}


def health(summary: object = None, resolved: ResolvedPolicy | PolicyError | None = None, **more: Any) -> LakeStats:
    return health_of(table(SUMMARY if summary is None else summary, **more), resolved)


def health_of(metadata: TableMetadata, resolved: ResolvedPolicy | PolicyError | None = None, **more: Any) -> LakeStats:
    return examine(IDENTITY, metadata, resolved or policy(), now_ms=NOW_MS, **more)


# Counters of tables and lakes, and warnings.

KEEP_SHORT_LOG = "write.metadata.delete-after-commit.enabled"


def manifest(content: ManifestContent) -> ManifestFile:
    return ManifestFile(manifest_path="m", manifest_length=1, partition_spec_id=0, content=content, added_snapshot_id=1)


def test_counters_come_from_the_document_and_the_heads_summary() -> None:
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
        timeline={
            "from_ms": NOW_MS - 4 * HOUR_MS,
            "seconds": [0, 3600, 7200],
            "operations": "???",
            "refs": [["main", "branch", NOW_MS - 2 * HOUR_MS]],
        },
    )


DOCUMENT_COUNTERS = {"lake_snapshots", "lake_refs", "lake_metadata_log", "lake_statistics_files"}


def test_unknown_counters_are_absent() -> None:
    summaries: list[object] = [{}, [], "x", dict.fromkeys(SUMMARY, "many"), dict.fromkeys(SUMMARY, "-1")]
    for summary in summaries:
        found = health(summary)
        assert set(found.counters) == DOCUMENT_COUNTERS | {"lake_oldest_snapshot_age_hours"}
        assert found.warnings == {}
    empty = health(snapshots=0)
    assert (empty.snapshot_id, empty.warnings, set(empty.counters)) == (None, {}, DOCUMENT_COUNTERS)
    files = {"total-data-files": "4", "total-files-size": "8"}
    assert health(files, version=1).counters["lake_delete_files"] == 0
    assert health(files, version=1).counters["lake_average_file_bytes"] == 2
    assert "lake_average_file_bytes" not in health(files).counters


def test_history_bytes_are_those_that_only_other_snapshots_reference() -> None:
    """Bytes that the head removed, plus bytes that another branch added; unknown without the summaries in between."""
    raw = [
        {"snapshot-id": 1, "summary": {"total-files-size": "10", "added-files-size": "10", "removed-files-size": "99"}},
        {"snapshot-id": 2, "parent-snapshot-id": 1, "summary": {"total-files-size": "15", "added-files-size": "5"}},
        {"snapshot-id": 3, "parent-snapshot-id": 2, "summary": {"total-files-size": "9", "removed-files-size": "6"}},
        {"snapshot-id": 4, "parent-snapshot-id": 2, "summary": {"total-files-size": "22", "added-files-size": "7"}},
    ]
    document = dict(table(SUMMARY, snapshots=1).document)
    common = dict(document["snapshots"][0])
    snapshots = [{**common, **item} for item in raw]

    def history(*snapshots: dict[str, object]) -> object:
        refs = {"main": {"snapshot-id": 3, "type": "branch"}}
        made = TableMetadata({**document, "snapshots": [*snapshots], "current-snapshot-id": 3, "refs": refs})
        return health_of(made).counters.get("lake_history_bytes")

    assert history(*snapshots) == 6 + 7
    assert history(*snapshots[:3]) == 6
    assert history(snapshots[2]) == 0
    assert history(*snapshots[2:]) is None
    assert history(snapshots[0], {**snapshots[1], "summary": {}}, snapshots[2]) is None


def test_manifests_that_were_read_override_the_summary() -> None:
    manifests = [manifest(ManifestContent.DATA)] * 4 + [manifest(ManifestContent.DELETES)]
    found = health_of(table(SUMMARY), manifests=manifests)
    assert (found.counters["lake_manifests"], found.counters["lake_delete_manifests"]) == (5, 1)
    assert list(found.warnings) == ["manifest_sprawl"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"total-delete-files": "4"}, {}),
        (
            {"total-delete-files": "5"},
            {"delete_debt": "there are 5 delete files for 10 data files: every reader has to apply them"},
        ),
        ({"total-data-files": "51", "total-files-size": str(51 * 400 * MB), "total-delete-files": "5"}, {}),
        ({"total-delete-files": "1", "total-position-deletes": "299"}, {}),
        (
            {"total-delete-files": "1", "total-position-deletes": "200", "total-equality-deletes": "100"},
            {
                "delete_debt": "there are 300 deletes for 1000 records, which reaches delete_compaction_min_ratio 0.3: "
                "every reader has to apply them"
            },
        ),
        ({"manifests-kept": "3"}, {}),
        (
            {"manifests-kept": "4"},
            {"manifest_sprawl": "5 manifests for 10 data files reach min_manifests_to_rewrite 5"},
        ),
        # Manifests with thousands of files each.
        ({"manifests-kept": "9", "total-data-files": "10000", "total-files-size": str(10000 * 400 * MB)}, {}),
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
def test_warnings_about_files_begin_at_their_thresholds(changes: dict[str, str], expected: dict[str, str]) -> None:
    assert health({**SUMMARY, **changes}).warnings == expected


def test_thresholds_come_from_the_tables_policy() -> None:
    """Also if maintenance is disabled; wrong settings give a warning, and the other warnings use the defaults."""
    small = {**SUMMARY, "total-files-size": str(10 * MB), "manifests-kept": "9"}
    assert set(health(small).warnings) == {"small_files", "manifest_sprawl"}
    assert health(small, policy(min_input_files=11, min_manifests_to_rewrite=11)).warnings == {}
    disabled = health(small, policy(maintenance_enabled="false"))
    assert set(disabled.warnings) == {"small_files", "manifest_sprawl"}
    assert disabled.policy == {"maintenance_enabled": {"source": "this call", "value": False}}
    wrong = health(small, PolicyError("no key 'x'"))
    assert set(wrong.warnings) == {"small_files", "manifest_sprawl", "wrong_settings"}
    assert wrong.warnings["wrong_settings"].endswith("so it is not maintained: no key 'x'")


def test_overdue_snapshots_are_a_warning_after_a_day() -> None:
    """Of seven hourly snapshots, five are kept at any age."""
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
    assert health_of(log_of(99)).warnings == {}
    assert health_of(log_of(100)).warnings == {
        "metadata_sprawl": f"the metadata log is full with 100 files and {KEEP_SHORT_LOG} is off: every commit leaves "
        "a metadata file behind; set that property to true"
    }
    assert health_of(log_of(100, **{KEEP_SHORT_LOG: "true"})).warnings == {}
    assert set(health_of(log_of(10, **{"write.metadata.previous-versions-max": "10"})).warnings) == {"metadata_sprawl"}
    assert health_of(log_of(100, **{"write.metadata.previous-versions-max": "200"})).warnings == {}


def test_health_examines_the_maintained_branch() -> None:
    document = {**table(SUMMARY, snapshots=2).document, "refs": {"audit": {"snapshot-id": 1, "type": "branch"}}}
    assert health_of(TableMetadata(document), policy(branch="audit")).snapshot_id == 1
    assert health_of(TableMetadata(document), policy(branch="gone")).snapshot_id == 2


def stats(**counters: float) -> LakeStats:
    return LakeStats(identity=IDENTITY, observed_ms=NOW_MS, snapshot_id=None, counters=counters)


def test_a_lake_is_the_sum_of_its_tables() -> None:
    first = stats(
        lake_snapshots=3,
        lake_oldest_snapshot_age_hours=4.5,
        lake_data_files=3,
        lake_delete_files=1,
        lake_bytes=400,
        lake_average_file_bytes=100,
        lake_clustering_depth=3.5,
    )
    # Its size is unknown, so it does not count for the average.
    second = stats(lake_snapshots=1, lake_oldest_snapshot_age_hours=90.0, lake_data_files=1000, lake_delete_files=0)
    second = replace(second, counters={**second.counters, "lake_clustering_depth": 2.0})
    assert lake_totals([first, replace(second, warnings={"small_files": "…", "delete_debt": "…"})]) == {
        "lake_tables": 2,
        "lake_tables_warned": 1,
        "lake_snapshots": 4,
        "lake_oldest_snapshot_age_hours": 90.0,
        "lake_data_files": 1003,
        "lake_delete_files": 1,
        "lake_bytes": 400,
        "lake_average_file_bytes": 100,
        "lake_clustering_depth": 3.5,
    }
    assert lake_totals([]) == {"lake_tables": 0, "lake_tables_warned": 0}


# Overlap depth before a plan, and with its outputs.

LONG = struct.Struct("<q")
BY_ID = Layout((KeyColumn(1), KeyColumn(2)), {1: "long", 2: "long"})
CURVE = Layout((KeyColumn(1), KeyColumn(2)), {1: "long", 2: "long"}, is_curve=True)


def file(path: str, *ranges: tuple[int, int]) -> DataFile:
    lower, upper = ({n: LONG.pack(r[side]) for n, r in enumerate(ranges, 1)} for side in (0, 1))
    return data_file(path, 10 * MB, lower_bounds=lower, upper_bounds=upper)


def depth(layout: Layout, *partitions: Sequence[DataFile]) -> ClusteringDepth:
    candidates = [[candidate(f, extents=layout.leading_extents(f)) for f in files] for files in partitions]
    return ClusteringDepth.of(candidates, layout)


SPREAD = [file(f"f{n}", (0, 100), (0, 100)) for n in range(4)]
ALL = [f.file_path for f in SPREAD]


def test_a_curve_is_measured_by_all_of_its_columns() -> None:
    before = depth(CURVE, SPREAD)
    assert before.now() == 4.0
    quarters = [file(f"o{n}", (50 * (n % 2), 50 * (n % 2) + 50), (50 * (n // 2), 50 * (n // 2) + 50)) for n in range(4)]
    assert before.with_outputs([(ALL, quarters)]) == 2.0


def test_a_sort_order_is_measured_by_its_first_column() -> None:
    before = depth(BY_ID, SPREAD, [file("other", (0, 100), (0, 100))])
    assert before.now() == (4 * 4 + 1) / 5
    assert before.with_outputs([(ALL, [file(f"o{n}", (25 * n, 25 * n + 25), (0, 100)) for n in range(4)])]) == 1.0
    assert before.with_outputs([]) == before.now()
    unknown = depth(BY_ID, [data_file("u", 10 * MB), *SPREAD[:1]])
    assert unknown.now() == 2.0


def depths_of(*depths: str | None) -> dict[str, int | float]:
    """The depth of a table with these snapshots: the last but one is the head, earlier snapshots are its ancestors."""
    summaries: list[dict[str, str]] = [{} if depth is None else {DEPTH_KEY: depth} for depth in depths]
    raw = [
        {"snapshot-id": n, "timestamp-ms": n, "summary": summary, "parent-snapshot-id": n - 1 if n else None}
        for n, summary in enumerate(summaries)
    ]
    document = {"format-version": 2, "location": "s3://b/t", "snapshots": raw, "current-snapshot-id": len(raw) - 2}
    metadata = TableMetadata(document)
    counters = lake_counters(metadata, metadata.current_snapshot, now_ms=9)
    return {name: value for name, value in counters.items() if name == DEPTH_COUNTER}


def test_the_depth_comes_from_the_newest_ancestor_with_a_valid_depth() -> None:
    assert depths_of("5.5", "2.5", None, None) == {DEPTH_COUNTER: 2.5}
    assert depths_of("5.5", "much", None, None) == {DEPTH_COUNTER: 5.5}
    assert depths_of(None, None, None) == {}
    assert depths_of(None, None, "3.5") == {}  # not an ancestor of the head


# Stored lake stats: warnings are logged when they appear and end, and changed stats are written.


@pytest.fixture
def store(tmp_path: Path) -> SqliteStateStore:
    return SqliteStateStore(tmp_path / "state.db")


def open_log(store: SqliteStateStore) -> LakeLog:
    return LakeLog(store, IDENTITY.catalog)


def observe(log: LakeLog, stats: LakeStats) -> None:
    """A scan of one table."""
    log.observe(stats)
    log.finish()


SMALL = {**SUMMARY, "total-files-size": str(10 * MB)}
SENTENCE = "ns.t: 10 data files of 1 MB on average are below 192 MB"


def logged(records: Iterable[logging.LogRecord]) -> list[tuple[str, str]]:
    """Records of Icekeeper's loggers; Spark's gateway may log from another thread."""
    return [(record.levelname, record.getMessage()) for record in records if record.name.startswith("icekeeper.")]


def test_a_warning_is_logged_when_it_appears_and_when_it_ends(
    store: SqliteStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    observe(open_log(store), health(SMALL))
    assert logged(caplog.records) == [("WARNING", SENTENCE)]
    fields = next(vars(item) for item in caplog.records if item.name.startswith("icekeeper."))
    expected = {"event": "lake_warning", "catalog": "C", "table": "ns.t", "warning": "small_files"}
    assert {key: fields[key] for key in expected} == expected
    # A later scan of another snapshot does not log the same warning again.
    observe(open_log(store), health(SMALL, snapshots=2))
    assert len(logged(caplog.records)) == 1
    observe(open_log(store), health())
    assert logged(caplog.records)[1:] == [("INFO", "ns.t: the warning small_files is gone")]


def test_stats_are_written_if_more_than_ages_changed(store: SqliteStateStore) -> None:
    observe(open_log(store), health())
    hour_later = replace(
        health(), observed_ms=NOW_MS + HOUR_MS, counters={**health().counters, "lake_oldest_snapshot_age_hours": 2.0}
    )
    observe(open_log(store), hour_later)
    stored = store.lake_stats.of_table(IDENTITY)
    assert stored is not None
    assert stored.observed_ms == NOW_MS
    for changed in (
        replace(hour_later, snapshot_id=9),
        replace(hour_later, counters={**hour_later.counters, "lake_refs": 2}),
        replace(hour_later, policy={"branch": "b (this call)"}),
        replace(hour_later, warnings={"small_files": "so"}),
    ):
        observe(open_log(store), changed)
        assert store.lake_stats.of_table(IDENTITY) == changed


def test_a_verdict_is_written_again_if_more_than_its_wait_changed(store: SqliteStateStore) -> None:
    def found(hours: int, **more: Any) -> LakeStats:
        reasons = (f"the last sweep for orphans was {hours} hours ago",)
        verdict = Verdict(reasons=reasons, priority=hours / 100, **more)
        return replace(health(), observed_ms=NOW_MS + hours, verdict=verdict)

    observe(open_log(store), found(24))
    observe(open_log(store), found(25))
    assert store.lake_stats.of_table(IDENTITY) == found(24)
    observe(open_log(store), found(25, sweep_due_ms=NOW_MS))
    assert store.lake_stats.of_table(IDENTITY) == found(25, sweep_due_ms=NOW_MS)


def test_an_unread_table_keeps_its_stats_and_recovers_when_read(store: SqliteStateStore) -> None:
    observe(open_log(store), health())
    log = open_log(store)
    log.unread(IDENTITY.table, "StorageError: v9.json is missing", NOW_MS + 1)
    log.finish()
    stored = {item.identity.uuid: item for item in store.lake_stats.of_catalog(CatalogId("C", "s3://prod-lake/"))}
    assert stored["u"] == health()
    assert stored[""].verdict == Verdict(left_alone="StorageError: v9.json is missing", is_unread=True)
    assert lake_totals(stored.values()) == lake_totals([health()])
    observe(open_log(store), health())  # unchanged, so nothing else is written
    assert list(store.lake_stats.of_catalog(CatalogId("C", "s3://prod-lake/"))) == [health()]


def test_the_timeline_has_the_newest_snapshots_and_the_refs() -> None:
    metadata = table(snapshots=60)
    found = timeline(metadata)
    times = sorted(metadata.snapshot_times_ms)[-40:]
    assert [found["from_ms"] + seconds * 1000 for seconds in found["seconds"]] == times
    assert found["refs"] == [["main", "branch", times[-1]]]
    assert timeline(TableMetadata({"format-version": 2, "location": "s3://b/t"})) == {}


def test_a_layout_counts_files_by_size_and_partition() -> None:
    data, deletes = manifest(ManifestContent.DATA), manifest(ManifestContent.DELETES)

    def live(health_of: ManifestFile, size: int, partition: int) -> LiveEntry:
        content = FileContent.DATA if health_of is data else FileContent.POSITION_DELETES
        file = replace(data_file("f", size), content=content, partition=(partition,))
        return LiveEntry(health_of, ManifestEntry(EntryStatus.EXISTING, 1, 1, 1, file))

    entries = [live(data, 1024, 1), live(data, 2047, 1), live(data, 2048, 2), live(deletes, 10, 2)]
    assert layout_facts(entries, lambda spec, values: f"{spec}:day={values[0]!r}") == {
        "sizes": [[10, 2, 3071], [11, 1, 2048]],
        "partitions": [["0:day=1", 2, 3071, 0], ["0:day=2", 1, 2048, 1]],
        "partition_count": 2,
    }
    many = layout_facts([live(data, 1, n % 200) for n in range(300)], lambda spec, values: str(values[0]).zfill(3))
    assert [name for name, *_ in many["partitions"]] == [f"{n:03}" for n in range(96)]  # with two files each
    assert many["partition_count"] == 200


def test_a_tally_follows_replaced_files_up_to_a_number_of_files() -> None:
    data = manifest(ManifestContent.DATA)
    small = [replace(data_file(f"f{n}", 1024), partition=(n % 2,)) for n in range(4)]
    entries = [LiveEntry(data, ManifestEntry(EntryStatus.EXISTING, 1, 1, 1, item)) for item in small]
    tally, beyond = LayoutTally(), LayoutTally()
    assert list(tally.watch(entries, 4)) == list(beyond.watch(entries, 3)) == entries
    assert (tally.is_whole, beyond.is_whole) == (True, False)
    for item in small[::2]:
        tally.remove(0, item.partition, item.file_size_in_bytes)
    tally.add(0, replace(data_file("merged", 2048), partition=(0,)))
    assert tally.facts(lambda spec, values: str(values[0]))["partitions"] == [["0", 1, 2048, 0], ["1", 2, 2048, 0]]


def test_a_change_adds_a_trend_row_and_a_dropped_table_is_forgotten(store: SqliteStateStore) -> None:
    for day, files in ((0, 1), (1, 1), (2, 2)):
        counters = {**health().counters, "lake_data_files": files}
        observe(open_log(store), replace(health(), observed_ms=NOW_MS + day * 24 * HOUR_MS, counters=counters))
    rows = trend_rows(store.trends, IDENTITY)
    assert [(row.observed_ms, row.data_files) for row in rows] == [(NOW_MS, 1), (NOW_MS + 48 * HOUR_MS, 2)]
    other = replace(IDENTITY, table=TableName(("ns",), "other"))
    observe(open_log(store), replace(health(), identity=other))
    open_log(store).forget_all_but({other.table})
    assert trend_rows(store.trends, IDENTITY) == []
    assert [stats.identity for stats in store.lake_stats.of_catalog(IDENTITY.catalog)] == [other]


def test_stats_too_large_to_store_do_not_stop_other_tables(
    store: SqliteStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    """DynamoDB would refuse the item of a long property, and with it the batch."""
    log, large = open_log(store), {"where": {"source": "table property", "value": "x" * 400_000}}
    other = replace(IDENTITY, table=TableName(("ns",), "other"), uuid="other")
    log.observe(replace(health(), policy=large))
    log.observe(replace(health(), identity=other))
    log.finish()
    kept = store.lake_stats.of_catalog(IDENTITY.catalog)
    assert [str(item.identity.table) for item in kept] == ["ns.other"]
    ((level, message),) = logged(caplog.records)
    assert (level, message.startswith("ns.t: its lake stats have 4000"), len(message) < 100) == ("WARNING", True, True)


def test_a_failed_store_of_stats_logs_one_message(
    store: SqliteStateStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> Any:
        raise StorageError("the disk is full")

    log = open_log(store)
    monkeypatch.setattr(store.lake_stats, "record", lost)
    observe(log, health(SMALL))
    observe(log, replace(health(SMALL), identity=replace(IDENTITY, uuid="v")))
    log.forget_all_but(())
    assert logged(caplog.records) == [
        ("WARNING", "lake stats cannot be written, so this scan leaves them: the disk is full")
    ]
    monkeypatch.setattr(store.lake_stats, "of_catalog", lost)
    observe(open_log(store), health(SMALL))
    assert caplog.records[-1].getMessage().startswith("lake stats cannot be read")
