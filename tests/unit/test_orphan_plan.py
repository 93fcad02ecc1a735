"""Which unreferenced files go: a set of refusals."""

from __future__ import annotations

import gzip
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.errors import OperationRefused
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import leading_uuid
from icekeeper.operations.orphans import (
    MetadataOwner,
    OrphanPlan,
    is_metadata_file,
    plan_orphans,
    refuse_foreign_tables,
)
from icekeeper.storage_listing import ListedObject
from icekeeper.storage_paths import normalise
from support.tables import new_document, snapshot

LIMIT_MS = 1_000_000
OLDEST_SNAPSHOT_MS = 500_000
LOCATION = "s3://b/t"
UUID = "3f3f0000-0000-0000-0000-000000000001"


def table(**more: object) -> TableMetadata:
    raw = snapshot(1, format_version=2, timestamp_ms=OLDEST_SNAPSHOT_MS)
    return TableMetadata(new_document(LOCATION, 2, **{"snapshots": [raw], "table-uuid": UUID} | more))


def found(path: str, modified_ms: int | None = 1) -> ListedObject:
    return ListedObject(path, 10, modified_ms)


def plan(
    listed: Iterable[ListedObject],
    referenced: Iterable[str] = (),
    *,
    protected: Iterable[str] = (),
    metadata: TableMetadata | None = None,
) -> OrphanPlan:
    """What the operation does: drop what is referenced, plan the rest."""
    referenced = list(referenced)
    keys = {normalise(path) for path in referenced}
    unreferenced = [f for f in listed if normalise(f.path) not in keys]
    return plan_orphans(
        metadata or table(),
        unreferenced,
        referenced,
        owned=[LOCATION],
        older_than_ms=LIMIT_MS,
        protected_prefixes=protected,
    )


def test_the_old_and_unreferenced_go_in_order_of_path() -> None:
    planned = plan(
        [found(f"{LOCATION}/data/b"), found(f"{LOCATION}/data/a"), found(f"{LOCATION}/data/live")],
        [f"{LOCATION}/data/live"],
    )
    assert planned.paths == (f"{LOCATION}/data/a", f"{LOCATION}/data/b")
    assert (planned.too_young, planned.protected) == (0, 0)


@pytest.mark.parametrize(
    ("modified_ms", "young"), [(None, True), (LIMIT_MS, True), (LIMIT_MS + 1, True), (LIMIT_MS - 1, False)]
)
def test_the_limit_itself_is_young_and_so_is_an_unknown_age(modified_ms: int | None, young: bool) -> None:
    planned = plan([found(f"{LOCATION}/data/a", modified_ms)])
    assert (planned.too_young, len(planned.orphans)) == ((1, 0) if young else (0, 1))


@pytest.mark.parametrize(
    "reference",
    [
        "s3a://b/t/data/k=a b/f.parquet",
        "s3n://b/t/data/k=a b/f.parquet",
        "s3://b/t/data/k=a%20b/f.parquet",
        "s3://b/t//data/k=a%2520b//f.parquet",
        "S3://b/t/data/k=a b/f.parquet",
    ],
)
def test_a_reference_spelled_otherwise_protects(reference: str) -> None:
    assert plan([found("s3://b/t/data/k=a b/f.parquet")], [reference]).orphans == ()


@pytest.mark.parametrize("reference", ["s3://other/t/data/f", "gs://b/t/data/f", "hdfs://host:8020/t/data/f"])
def test_the_same_path_under_another_authority_is_refused(reference: str) -> None:
    """Even a young one: that somebody spells the table's files otherwise concerns them all."""
    for modified_ms in (1, None, LIMIT_MS):
        with pytest.raises(OperationRefused, match="nothing was deleted") as refusal:
            plan([found("s3://b/t/data/f", modified_ms)], [reference])
        assert reference in str(refusal.value)


def test_files_outside_the_location_are_never_planned() -> None:
    outside = ["s3://b/t2/f", "s3://b/f", "s3://b/t/../u/f", "s3://c/t/f", "/t/f", "s3a://b/u/f"]
    planned = plan([found(path) for path in outside])
    assert planned.orphans == ()
    assert planned.protected == len(outside)


@pytest.mark.parametrize("prefix", ["s3://b/t/keep", "s3a://b/t/keep/", "s3://b//t/keep", "s3://b/t/ke%65p"])
def test_protected_prefixes_hold_in_every_spelling(prefix: str) -> None:
    planned = plan([found(f"{LOCATION}/keep/a"), found(f"{LOCATION}/keeper")], protected=[prefix])
    assert planned.paths == (f"{LOCATION}/keeper",)
    assert planned.protected == 1


@pytest.mark.parametrize("name", ["v3.metadata.json", "00003-x.gz.metadata.json", "v3.metadata.json.gz"])
def test_metadata_files_newer_than_the_oldest_snapshot_stay(name: str) -> None:
    """Some catalogs keep an incomplete metadata log."""
    assert is_metadata_file(f"{LOCATION}/metadata/{name}")
    newer = found(f"{LOCATION}/metadata/{name}", OLDEST_SNAPSHOT_MS)
    older = found(f"{LOCATION}/metadata/{name}", OLDEST_SNAPSHOT_MS - 1)
    assert plan([newer]).protected == 1
    assert plan([older]).orphans == (older,)


def test_without_snapshots_metadata_files_newer_than_the_table_stay() -> None:
    empty = table(snapshots=[], **{"last-updated-ms": 700_000})
    planned = plan([found(f"{LOCATION}/metadata/v1.metadata.json", 700_000)], metadata=empty)
    assert planned.protected == 1


def test_another_tables_metadata_is_refused_by_its_uuid() -> None:
    ours = MetadataOwner(f"{LOCATION}/metadata/v1.metadata.json", UUID, LOCATION)
    theirs = MetadataOwner(f"{LOCATION}/x/v1.metadata.json", "other-uuid", "s3://b/t/x")
    refuse_foreign_tables(table(), [ours])
    with pytest.raises(OperationRefused, match=r"other-uuid.*s3://b/t/x.*nothing was deleted"):
        refuse_foreign_tables(table(), [ours, theirs])


def test_tables_without_a_uuid_are_told_apart_by_location() -> None:
    nameless = TableMetadata({key: value for key, value in table().document.items() if key != "table-uuid"})
    refuse_foreign_tables(nameless, [MetadataOwner("p", None, LOCATION)])
    for other in (MetadataOwner("p", None, "s3://b/t/nested"), MetadataOwner("p", UUID, LOCATION)):
        with pytest.raises(OperationRefused):
            refuse_foreign_tables(nameless, [other])
    with pytest.raises(OperationRefused):
        refuse_foreign_tables(table(), [MetadataOwner("p", None, LOCATION)])


segments = st.sampled_from(
    ["data", "metadata", "a b", "a%20b", "a%2520b", "k=1", "..", ".", "", "é", "v1.metadata.json"]
)
keys = st.lists(segments, min_size=1, max_size=4).map("/".join)
roots = st.sampled_from(["s3://b/t/", "s3a://b/t/", "s3://b/t//", "s3://b/", "s3://other/t/", "file:/t/"])
paths = st.builds(str.__add__, roots, keys)


@given(
    st.lists(st.builds(found, paths, st.one_of(st.none(), st.integers(0, 2 * LIMIT_MS))), max_size=15),
    st.lists(paths, max_size=8),
    st.lists(paths, max_size=2),
)
def test_orphans_and_references_never_meet(
    listed: list[ListedObject], referenced: list[str], protected: list[str]
) -> None:
    try:
        planned = plan(listed, referenced, protected=protected)
    except OperationRefused:
        return
    assert not {normalise(path) for path in planned.paths} & {normalise(path) for path in referenced}
    for orphan in planned.orphans:
        assert orphan in listed
        assert orphan.modified_ms is not None
        assert orphan.modified_ms < LIMIT_MS
        assert orphan.path.startswith(("s3://b/t/", "s3a://b/t/"))
        assert not any(normalise(orphan.path).startswith(f"{normalise(p)}/") for p in protected)


@pytest.mark.parametrize(
    ("beginning", "uuid"),
    [
        (b'{"format-version":2,"table-uuid":"abc-1","location":"s3://b/t"', "abc-1"),
        (b'{ "location" : "s3://b/t",\n "table-uuid" : "abc-1", "prop', "abc-1"),
        (gzip.compress(b'{"table-uuid":"abc-1","x":' + bytes(5000), mtime=0)[:-9], "abc-1"),
        (b'{"properties":{"table-uuid":"abc-1"},"table-uuid":"other"}', None),
        (b'{"a":["x"],"table-uuid":"abc-1"}', None),
        (b'{"a":"\\"","table-uuid":"abc-1"}', None),
        (b'{"format-version":2,"table-uuid":"abc-', None),
        (b'["table-uuid":"abc-1"', None),
        (b"\x1f\x8bnot gzip at all", None),
        (b"", None),
    ],
    ids=str,
)
def test_the_first_bytes_of_a_metadata_file_tell_its_table_or_nothing(beginning: bytes, uuid: str | None) -> None:
    """A UUID that belongs to something inside the document must never pass for the table's."""
    assert leading_uuid(beginning) == uuid
