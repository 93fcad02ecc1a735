"""A scan over a whole catalog: ranking, filters, the time budget, and tables that cannot be assessed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.detection import DetectionReport, Proposal, Skip, assess, assessor, scan
from icekeeper.detection.filters import selects_bucket, selects_table
from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.fleet import choose_clustering
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.operations.expiry.retention import plan_expiry
from icekeeper.policy import Policy, resolve
from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import LastSeen, Pin
from support.prepared_catalog import PreparedCatalog
from support.settings import MB, NOW_MS, policy, resolved, small_files, table


def by_summary(loaded: LoadedTable) -> Proposal | Skip:
    return assess(str(loaded.name), loaded.metadata, policy(), now_ms=NOW_MS, expirable=0)


def run(
    tables: Mapping[str, TableMetadata | Exception],
    assessor: Callable[[LoadedTable], Proposal | Skip] = by_summary,
    **values: object,
) -> DetectionReport:
    return scan(PreparedCatalog(tables), assessor, policy(**values).policy)


def test_a_scan_ranks_proposals_and_gives_a_reason_for_every_other_table() -> None:
    report = run(
        {
            "ns.few": table(small_files(10, MB)),
            "ns.many": table(small_files(1000, MB)),
            "ns.also_many": table(small_files(1000, MB)),
            "ns.quiet": table(),
            "a.damaged": MetadataUnreadable("metadata file m cannot be parsed: it ends early"),
            "a.odd": KeyError("snapshot-id"),
        },
        max_jobs_per_detection=2,
    )
    assert report.to_json() == {
        "catalog": "C",
        "scanned": 6,
        "proposals": [
            {
                "table": "ns.also_many",
                "reasons": ["1000 data files of 1 MB on average are below 192 MB"],
                "priority": 0.995,
            },
            {
                "table": "ns.many",
                "reasons": ["1000 data files of 1 MB on average are below 192 MB"],
                "priority": 0.995,
            },
        ],
        "skipped": [
            {"table": "a.damaged", "reason": "metadata file m cannot be parsed: it ends early"},
            {"table": "a.odd", "reason": "the metadata does not follow the specification: KeyError 'snapshot-id'"},
            {"table": "ns.few", "reason": "beyond max_jobs_per_detection 2"},
            {"table": "ns.quiet", "reason": "no sign of work"},
        ],
    }
    assert report.has_errors


def test_a_scan_of_healthy_tables_has_no_errors() -> None:
    assert run({"ns.quiet": table()}) == DetectionReport("C", 1, (), (Skip("ns.quiet", "no sign of work"),))
    assert not run({"ns.quiet": table()}).has_errors


def test_filters_decide_what_is_scanned_at_all() -> None:
    tables = {"ns.clicks": table(), "ns.orders": table(), "other.clicks": table()}
    assert run(tables, namespace_filter="ns", table_filter="cl*, x").scanned == 1
    assert run(tables, bucket_filter="staging-*").scanned == 0
    assert run(tables, bucket_filter="staging-*,prod-*").scanned == 3


def test_tables_not_reached_in_time_are_skipped_with_that_reason() -> None:
    release = threading.Event()

    def stuck(loaded: LoadedTable) -> Skip:
        if loaded.name.name == "stuck":
            release.wait(30)
        return Skip(str(loaded.name), "assessed")

    try:
        report = run({"ns.stuck": table(), "ns.fine": table()}, stuck, detection_timeout_s=1)
    finally:
        release.set()
    assert report.scanned == 1
    assert report.skipped == (
        Skip("ns.fine", "assessed"),
        Skip("ns.stuck", "not reached within detection_timeout_s 1"),
    )


def test_a_catalog_that_cannot_be_listed_fails_the_scan() -> None:
    class Unreachable(PreparedCatalog):
        def list_tables(self) -> Iterator[TableName]:
            raise StorageError("the catalog does not answer")

    with pytest.raises(StorageError, match=r"^the catalog does not answer$"):
        scan(Unreachable({}), by_summary, Policy())


@pytest.mark.parametrize(
    ("warehouse", "selected"),
    [
        ("s3://prod-lake/", True),
        ("s3://prod-lake/deep/prefix", True),
        ("arn:aws:s3tables:eu-west-1:123456789012:bucket/prod-lake", True),
        ("/data/prod-lake", True),
        ("s3://lake/prod-x", False),
        ("s3://Prod-lake", False),
    ],
)
def test_a_bucket_is_matched_by_its_name(warehouse: str, selected: bool) -> None:
    assert selects_bucket(policy(bucket_filter="prod-*").policy, warehouse) is selected


def test_an_assessor_joins_policy_memory_pins_and_the_expiry_plan(tmp_path: Path) -> None:
    """A pin stops the expiry proposal, an idle pass the summary's, and the table's own property the whole."""
    store = SqliteStateStore(tmp_path / "state.db")
    metadata = table(small_files(400, MB), snapshots=60, age_hours=200)
    loaded = LoadedTable(TableName(("ns",), "t"), metadata, "m", "m", {})
    identity = TableIdentity("C", "w", loaded.name, "", "s3://b/t")

    def assessed(table: LoadedTable = loaded) -> Proposal | Skip:
        judge = assessor(
            PreparedCatalog({}, warehouse="w"),
            resolve_policy=lambda loaded: resolved(loaded.metadata.properties),
            store=store,
            now_ms=NOW_MS,
            plan_expiry=plan_expiry,
            choose_clustering=choose_clustering,
        )
        return judge(table)

    snapshots = "60 snapshots exceed max_snapshots_to_keep 5"
    old = "60 snapshots are older than snapshot_retention_hours 168"
    files = "400 data files of 1 MB on average are below 192 MB"
    first = assessed()
    assert isinstance(first, Proposal)
    assert first.reasons == (snapshots, old, files)

    store.add_pin(Pin(identity=identity, name="p", snapshot_id=1, metadata_location="m", expires_ms=NOW_MS + 1))
    pinned = assessed()
    assert isinstance(pinned, Proposal)
    assert pinned.reasons == (files,)

    fingerprint = resolve([]).fingerprint()
    store.remember(identity, LastSeen(snapshot_id=60, fingerprint=fingerprint, finished_ms=NOW_MS, idle=True))
    assert assessed() == Skip("ns.t", "unchanged since the last pass found nothing to do")

    disabled = TableMetadata({**metadata.document, "properties": {"icekeeper.maintenance_enabled": "false"}})
    assert assessed(LoadedTable(loaded.name, disabled, "m", "m", {})) == Skip(
        "ns.t", "maintenance is disabled (table property icekeeper.maintenance_enabled)"
    )


def test_only_star_and_question_mark_are_wildcards() -> None:
    settings = policy(namespace_filter="a.b?", table_filter="t[1]*").policy
    assert selects_table(settings, TableName(("a", "bc"), "t[1]x"))
    assert not selects_table(settings, TableName(("a", "bc"), "t1x"))
    assert not selects_table(settings, TableName(("a",), "t[1]"))
