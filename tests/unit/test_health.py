"""Lake health: counters, warnings, clustering depth, and what is remembered of a lake."""

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

# How tables look to health: by a document, by the summary of its head.

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
    return of(table(SUMMARY if summary is None else summary, **more), resolved)


def of(metadata: TableMetadata, resolved: ResolvedPolicy | PolicyError | None = None, **more: Any) -> LakeStats:
    return examine(IDENTITY, metadata, resolved or policy(), now_ms=NOW_MS, **more)


# Lake health: counters that are absent where unknown, warnings by kind, and the sum of a lake.

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
        timeline={
            "from_ms": NOW_MS - 4 * HOUR_MS,
            "seconds": [0, 3600, 7200],
            "operations": "???",
            "refs": [["main", "branch", NOW_MS - 2 * HOUR_MS]],
        },
    )


OF_THE_DOCUMENT = {"lake_snapshots", "lake_refs", "lake_metadata_log", "lake_statistics_files"}


def test_unknown_counters_are_absent_and_never_zero() -> None:
    summaries: list[object] = [{}, [], "x", dict.fromkeys(SUMMARY, "many"), dict.fromkeys(SUMMARY, "-1")]
    for summary in summaries:
        found = health(summary)
        assert set(found.counters) == OF_THE_DOCUMENT | {"lake_oldest_snapshot_age_hours"}
        assert found.warnings == {}
    empty = health(snapshots=0)
    assert (empty.snapshot_id, empty.warnings, set(empty.counters)) == (None, {}, OF_THE_DOCUMENT)
    files = {"total-data-files": "4", "total-files-size": "8"}
    assert health(files, version=1).counters["lake_delete_files"] == 0
    assert health(files, version=1).counters["lake_average_file_bytes"] == 2
    assert "lake_average_file_bytes" not in health(files).counters


def test_history_is_what_other_snapshots_hold_alone() -> None:
    """What a snapshot removed, its parent holds; of another branch, what it added; of an old tag, it is unknown."""
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
        return of(made).counters.get("lake_history_bytes")

    assert history(*snapshots) == 6 + 7
    assert history(*snapshots[:3]) == 6
    assert history(snapshots[2]) == 0
    assert history(*snapshots[2:]) is None
    assert history(snapshots[0], {**snapshots[1], "summary": {}}, snapshots[2]) is None


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
        # As few as their size allows: thousands of files each.
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
def test_warnings_of_files_begin_at_their_thresholds(changes: dict[str, str], expected: dict[str, str]) -> None:
    assert health({**SUMMARY, **changes}).warnings == expected


def test_thresholds_are_those_of_the_policy_in_force() -> None:
    """Also where maintenance is disabled; wrong settings are a warning, and the others use the defaults."""
    small = {**SUMMARY, "total-files-size": str(10 * MB), "manifests-kept": "9"}
    assert set(health(small).warnings) == {"small_files", "manifest_sprawl"}
    assert health(small, policy(min_input_files=11, min_manifests_to_rewrite=11)).warnings == {}
    disabled = health(small, policy(maintenance_enabled="false"))
    assert set(disabled.warnings) == {"small_files", "manifest_sprawl"}
    assert disabled.policy == {"maintenance_enabled": {"source": "--set", "value": False}}
    wrong = health(small, PolicyError("no key 'x'"))
    assert set(wrong.warnings) == {"small_files", "manifest_sprawl", "wrong_settings"}
    assert wrong.warnings["wrong_settings"].endswith("so it is not maintained: no key 'x'")


def test_overdue_snapshots_are_a_warning_after_a_day() -> None:
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
        lake_clustering_depth=3.5,
    )
    # Its size is unknown, so it says nothing about the average.
    second = looks(lake_snapshots=1, lake_oldest_snapshot_age_hours=90.0, lake_data_files=1000, lake_delete_files=0)
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


# How deep partitions overlap before a plan, as it expects to leave them, and as its outputs really lie.

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
    """Four files become two by two stretches: two files over any value of either column."""
    before = depth(CURVE, SPREAD)
    assert before.now() == 4.0
    assert before.as_planned([(ALL, 4)]) == 2.0
    quarters = [file(f"o{n}", (50 * (n % 2), 50 * (n % 2) + 50), (50 * (n // 2), 50 * (n // 2) + 50)) for n in range(4)]
    assert before.with_outputs([(ALL, quarters)]) == 2.0


def test_a_sort_order_is_measured_by_its_first_column() -> None:
    before = depth(BY_ID, SPREAD, [file("other", (0, 100), (0, 100))])
    assert before.now() == (4 * 4 + 1) / 5
    assert before.as_planned([(ALL, 4)]) == 1.0
    assert before.with_outputs([(ALL, [file(f"o{n}", (25 * n, 25 * n + 25), (0, 100)) for n in range(4)])]) == 1.0
    assert before.with_outputs([]) == before.now()
    unknown = depth(BY_ID, [data_file("u", 10 * MB), *SPREAD[:1]])
    assert unknown.now() == unknown.as_planned([(["u", "f0"], 2)]) == 2.0


def depths_of(*depths: str | None) -> dict[str, int | float]:
    """The depth of a table with these snapshots; the head is the last but one, which follows those before it."""
    summaries: list[dict[str, str]] = [{} if depth is None else {DEPTH_KEY: depth} for depth in depths]
    raw = [
        {"snapshot-id": n, "timestamp-ms": n, "summary": summary, "parent-snapshot-id": n - 1 if n else None}
        for n, summary in enumerate(summaries)
    ]
    document = {"format-version": 2, "location": "s3://b/t", "snapshots": raw, "current-snapshot-id": len(raw) - 2}
    metadata = TableMetadata(document)
    counters = lake_counters(metadata, metadata.current_snapshot, now_ms=9)
    return {name: value for name, value in counters.items() if name == DEPTH_COUNTER}


def test_the_depth_is_that_of_the_newest_pass_that_left_one() -> None:
    assert depths_of("5.5", "2.5", None, None) == {DEPTH_COUNTER: 2.5}
    assert depths_of("5.5", "much", None, None) == {DEPTH_COUNTER: 5.5}
    assert depths_of(None, None, None) == {}
    assert depths_of(None, None, "3.5") == {}  # of a snapshot that the head does not follow


# What is stored of a lake: a warning is logged when it appears and when it ends, changed stats are stored.


@pytest.fixture
def store(tmp_path: Path) -> SqliteStateStore:
    return SqliteStateStore(tmp_path / "state.db")


def opened(store: SqliteStateStore) -> LakeLog:
    return LakeLog(store, IDENTITY.catalog)


def observe(log: LakeLog, stats: LakeStats) -> None:
    """A scan that meets one table."""
    log.observe(stats)
    log.finish()


SMALL = {**SUMMARY, "total-files-size": str(10 * MB)}
SENTENCE = "ns.t: 10 data files of 1 MB on average are below 192 MB"


def shown(records: Iterable[logging.LogRecord]) -> list[tuple[str, str]]:
    """What the product logged; Spark's gateway may log its end from another thread."""
    return [(record.levelname, record.getMessage()) for record in records if record.name.startswith("icekeeper.")]


def test_a_warning_is_logged_when_it_appears_and_when_it_goes_and_not_between(
    store: SqliteStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    observe(opened(store), health(SMALL))
    assert shown(caplog.records) == [("WARNING", SENTENCE)]
    fields = next(vars(item) for item in caplog.records if item.name.startswith("icekeeper."))
    expected = {"event": "lake_warning", "catalog": "C", "table": "ns.t", "warning": "small_files"}
    assert {key: fields[key] for key in expected} == expected
    # A later scan, another snapshot: the same warning is no news.
    observe(opened(store), health(SMALL, snapshots=2))
    assert len(shown(caplog.records)) == 1
    observe(opened(store), health())
    assert shown(caplog.records)[1:] == [("INFO", "ns.t: the warning small_files is gone")]


def test_stats_are_written_when_something_changed_and_age_alone_is_no_change(store: SqliteStateStore) -> None:
    observe(opened(store), health())
    hour_later = replace(
        health(), observed_ms=NOW_MS + HOUR_MS, counters={**health().counters, "lake_oldest_snapshot_age_hours": 2.0}
    )
    observe(opened(store), hour_later)
    known = store.lake_stats.of_table(IDENTITY)
    assert known is not None
    assert known.observed_ms == NOW_MS
    for news in (
        replace(hour_later, snapshot_id=9),
        replace(hour_later, counters={**hour_later.counters, "lake_refs": 2}),
        replace(hour_later, policy={"branch": "b (--set)"}),
        replace(hour_later, warnings={"small_files": "so"}),
    ):
        observe(opened(store), news)
        assert store.lake_stats.of_table(IDENTITY) == news


def test_a_conclusion_is_written_again_when_it_changed_and_not_when_a_wait_grew(store: SqliteStateStore) -> None:
    def found(hours: int, **more: Any) -> LakeStats:
        reasons = (f"the last sweep for orphans was {hours} hours ago",)
        verdict = Verdict(reasons=reasons, priority=hours / 100, **more)
        return replace(health(), observed_ms=NOW_MS + hours, verdict=verdict)

    observe(opened(store), found(24))
    observe(opened(store), found(25))
    assert store.lake_stats.of_table(IDENTITY) == found(24)
    observe(opened(store), found(25, sweep_due_ms=NOW_MS))
    assert store.lake_stats.of_table(IDENTITY) == found(25, sweep_due_ms=NOW_MS)


def test_an_unread_table_keeps_what_was_known_and_is_well_again_when_read(store: SqliteStateStore) -> None:
    observe(opened(store), health())
    log = opened(store)
    log.unread(IDENTITY.table, "StorageError: v9.json is missing", NOW_MS + 1)
    log.finish()
    known = {item.identity.uuid: item for item in store.lake_stats.of_catalog(CatalogId("C", "s3://prod-lake/"))}
    assert known["u"] == health()
    assert known[""].verdict == Verdict(left_alone="StorageError: v9.json is missing", is_unread=True)
    assert lake_totals(known.values()) == lake_totals([health()])
    observe(opened(store), health())  # as before, so that nothing else is written
    assert list(store.lake_stats.of_catalog(CatalogId("C", "s3://prod-lake/"))) == [health()]


def test_the_time_line_holds_the_newest_snapshots_and_the_refs() -> None:
    metadata = table(snapshots=60)
    found = timeline(metadata)
    times = sorted(metadata.snapshot_times_ms)[-40:]
    assert [found["from_ms"] + seconds * 1000 for seconds in found["seconds"]] == times
    assert found["refs"] == [["main", "branch", times[-1]]]
    assert timeline(TableMetadata({"format-version": 2, "location": "s3://b/t"})) == {}


def test_a_layout_counts_files_by_size_and_partition() -> None:
    data, deletes = manifest(ManifestContent.DATA), manifest(ManifestContent.DELETES)

    def live(of: ManifestFile, size: int, partition: int) -> LiveEntry:
        content = FileContent.DATA if of is data else FileContent.POSITION_DELETES
        file = replace(data_file("f", size), content=content, partition=(partition,))
        return LiveEntry(of, ManifestEntry(EntryStatus.EXISTING, 1, 1, 1, file))

    entries = [live(data, 1024, 1), live(data, 2047, 1), live(data, 2048, 2), live(deletes, 10, 2)]
    assert layout_facts(entries, lambda spec, values: f"{spec}:day={values[0]!r}") == {
        "sizes": [[10, 2, 3071], [11, 1, 2048]],
        "partitions": [["0:day=1", 2, 3071, 0], ["0:day=2", 1, 2048, 1]],
        "partition_count": 2,
    }
    many = layout_facts([live(data, 1, n % 200) for n in range(300)], lambda spec, values: str(values[0]).zfill(3))
    assert [name for name, *_ in many["partitions"]] == [f"{n:03}" for n in range(96)]  # those with two files first
    assert many["partition_count"] == 200


def test_a_tally_follows_what_a_pass_replaces_up_to_a_number_of_files() -> None:
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


def test_a_change_adds_a_row_to_the_trend_and_a_table_that_is_gone_is_forgotten(store: SqliteStateStore) -> None:
    for day, files in ((0, 1), (1, 1), (2, 2)):
        counters = {**health().counters, "lake_data_files": files}
        observe(opened(store), replace(health(), observed_ms=NOW_MS + day * 24 * HOUR_MS, counters=counters))
    rows = trend_rows(store.trends, IDENTITY)
    assert [(row.observed_ms, row.data_files) for row in rows] == [(NOW_MS, 1), (NOW_MS + 48 * HOUR_MS, 2)]
    other = replace(IDENTITY, table=TableName(("ns",), "other"))
    observe(opened(store), replace(health(), identity=other))
    opened(store).forget_all_but({other.table})
    assert trend_rows(store.trends, IDENTITY) == []
    assert [stats.identity for stats in store.lake_stats.of_catalog(IDENTITY.catalog)] == [other]


def test_a_table_with_too_much_to_keep_costs_the_others_nothing(
    store: SqliteStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Its property would be an item that DynamoDB refuses, and with it the batch."""
    log, large = opened(store), {"where": {"source": "table property", "value": "x" * 400_000}}
    other = replace(IDENTITY, table=TableName(("ns",), "other"), uuid="other")
    log.observe(replace(health(), policy=large))
    log.observe(replace(health(), identity=other))
    log.finish()
    kept = store.lake_stats.of_catalog(IDENTITY.catalog)
    assert [str(item.identity.table) for item in kept] == ["ns.other"]
    ((level, message),) = shown(caplog.records)
    assert (level, message.startswith("ns.t: its lake stats have 4000"), len(message) < 100) == ("WARNING", True, True)


def test_stats_that_cannot_be_kept_cost_one_message(
    store: SqliteStateStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> Any:
        raise StorageError("the disk is full")

    log = opened(store)
    monkeypatch.setattr(store.lake_stats, "record", lost)
    observe(log, health(SMALL))
    observe(log, replace(health(SMALL), identity=replace(IDENTITY, uuid="v")))
    log.forget_all_but(())
    assert shown(caplog.records) == [
        ("WARNING", "lake stats cannot be written, so this scan leaves them: the disk is full")
    ]
    monkeypatch.setattr(store.lake_stats, "of_catalog", lost)
    observe(opened(store), health(SMALL))
    assert caplog.records[-1].getMessage().startswith("lake stats cannot be read")
