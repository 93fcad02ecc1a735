"""The scan of one catalog as `icekeeper detect` tells it; filters; what an assessor asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.detection.assessor import assessor
from icekeeper.detection.list_tables import selects_bucket, selects_table
from icekeeper.detection.proposal import CatalogReport, Proposal, Skip
from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.policy import resolve
from icekeeper.runtime import Runtime
from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import LastSeen, MaintenanceRequest, Pin
from support.scans import PreparedCatalog
from support.settings import MB, NOW_MS, policy, resolved, small_files, table


@pytest.fixture
def state(tmp_path: Path) -> SqliteStateStore:
    return SqliteStateStore(tmp_path / "state.db")


def with_uuid(metadata: TableMetadata, uuid: str) -> TableMetadata:
    return TableMetadata({**metadata.document, "table-uuid": uuid})


def detected(catalog: PreparedCatalog, state: SqliteStateStore, **settings: str) -> CatalogReport:
    """What ``icekeeper detect`` finds."""
    return Runtime(catalog, state, environment={}, clock=lambda: NOW_MS).detect(settings)


def test_a_report_ranks_proposals_and_gives_a_reason_for_every_other_table(state: SqliteStateStore) -> None:
    catalog = PreparedCatalog(
        {
            "ns.few": table(small_files(10, MB)),
            "ns.many": with_uuid(table(small_files(1000, MB)), "u1"),
            "ns.also_many": with_uuid(table(small_files(1000, MB)), "u2"),
            "ns.quiet": table(),
            "a.damaged": MetadataUnreadable("metadata file m cannot be parsed: it ends early"),
            "a.odd": KeyError("snapshot-id"),
        }
    )
    assert detected(catalog, state, max_jobs_per_detection="2").to_json() == {
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
        "beyond_limit": 1,
        "skipped": [
            {"table": "a.damaged", "reason": "metadata file m cannot be parsed: it ends early"},
            {"table": "a.odd", "reason": "the metadata does not follow the specification: KeyError 'snapshot-id'"},
            {"table": "ns.few", "reason": "beyond max_jobs_per_detection 2"},
            {"table": "ns.quiet", "reason": "no sign of work"},
        ],
    }


def test_a_catalog_that_cannot_be_listed_fails_the_scan(state: SqliteStateStore) -> None:
    class Unreachable(PreparedCatalog):
        def list_tables(self) -> Iterator[TableName]:
            raise StorageError("it does not answer")

    with pytest.raises(StorageError, match=r"^C: the catalog cannot be scanned: it does not answer$"):
        detected(Unreachable({}), state)


def test_the_command_scans_as_the_pipeline_does(state: SqliteStateStore) -> None:
    """It records how tables look, puts first what people asked for, and leaves out what is being maintained."""
    busy = table(small_files(9, MB))
    tables = {"ns.a": with_uuid(busy, "ns.a"), "ns.b": with_uuid(busy, "ns.b"), "ns.quiet": table()}
    catalog = PreparedCatalog(tables)
    asked, held = (identity_of(catalog, catalog.load(TableName.parse(name))) for name in ("ns.b", "ns.a"))
    state.requests.file(MaintenanceRequest(identity=asked, requested_ms=1))
    state.leases.acquire(held.lease_key, "run-7", now_ms=NOW_MS - 1, ttl_ms=1000)
    report = detected(catalog, state)
    assert [(found.table, found.reasons[0]) for found in report.proposals] == [("ns.b", "requested by a person")]
    assert report.skipped[0] == Skip("ns.a", "being maintained by run-7")
    seen = state.lake_stats.of_catalog("C", catalog.warehouse)
    assert sorted(str(stats.identity.table) for stats in seen) == ["ns.a", "ns.b", "ns.quiet"]


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
            resolve_policy=lambda loaded: resolved(loaded.metadata.properties, orphan_sweep_interval_hours="0"),
            store=store,
            now_ms=NOW_MS,
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
