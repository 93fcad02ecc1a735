"""Which unreferenced files are deleted, and which sweeps are refused."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.deletion.foreign_tables import ForeignMetadata, refuse_foreign, unexplained
from icekeeper.deletion.neighbours import find_prefix_mismatch
from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.deletion.sweep_permission import ending_of, is_of_iceberg, refuse_other_type
from icekeeper.errors import MetadataUnreadable, OperationRefused
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import is_metadata_file, leading_uuid
from icekeeper.operations.orphans.orphan_rules import (
    OrphanCandidates,
    OrphanPlan,
    find_candidates,
    plan_orphans,
    refuse_mass_deletion,
    without_young_asides,
)
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import PathSet, normalise
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


def candidates(listed: Iterable[ListedObject], referenced: Iterable[str] = ()) -> OrphanCandidates:
    return find_candidates(listed, ReferencedPaths(LOCATION, referenced), LIMIT_MS)


def plan(
    listed: Iterable[ListedObject],
    referenced: Iterable[str] = (),
    *,
    protected: Iterable[str] = (),
    others: Iterable[str] = (),
    metadata: TableMetadata | None = None,
    swept: Iterable[str] = (LOCATION,),
) -> OrphanPlan:
    """Plan as the operation does: leave out referenced and young files, plan the rest."""
    left = candidates(listed, referenced)
    return plan_orphans(
        metadata or table(), left.unreferenced, protected=PathSet(protected), other_tables=others, swept=swept
    )


def test_metadata_that_a_rollback_copied_aside_stays_for_a_time_of_its_own() -> None:
    """Whatever its ending (rule: the-old-head-stays)."""
    aside = [f"{LOCATION}/metadata/icekeeper-aside/7-1/{name}" for name in ("00001.metadata.json.copy", "m0.avro")]
    month_ms = 30 * 24 * 3_600_000
    elsewhere = f"{LOCATION}/data/icekeeper-aside/7-1/m0.avro"
    listed = [found(path, 10) for path in (*aside, elsewhere)]
    assert without_young_asides(table(), listed, 10 + month_ms) == [found(elsewhere, 10)]
    assert without_young_asides(table(), listed, 11 + month_ms) == listed
    assert without_young_asides(table(), [found(aside[0], None)], 11 + month_ms) == []


def test_old_and_unreferenced_files_are_orphans_in_order_of_path() -> None:
    planned = plan(
        [found(f"{LOCATION}/data/{name}.parquet") for name in ("b", "a", "live")], [f"{LOCATION}/data/live.parquet"]
    )
    assert planned.paths == (f"{LOCATION}/data/a.parquet", f"{LOCATION}/data/b.parquet")
    assert (planned.protected, planned.of_other_tables) == (0, 0)


@pytest.mark.parametrize(
    ("modified_ms", "young"), [(None, True), (LIMIT_MS, True), (LIMIT_MS + 1, True), (LIMIT_MS - 1, False)]
)
def test_a_file_at_the_limit_or_of_unknown_age_is_young(modified_ms: int | None, young: bool) -> None:
    left = candidates([found(f"{LOCATION}/data/a", modified_ms)])
    assert (left.too_young, len(left.unreferenced)) == ((1, 0) if young else (0, 1))


@pytest.mark.parametrize("reference", ["s3://other/t/data/f", "gs://b/t/data/f", "hdfs://host:8020/t/data/f"])
def test_the_same_path_under_another_authority_is_detected(reference: str) -> None:
    """This includes young files, because another spelling of the table's files affects all of them."""
    for modified_ms in (1, None, LIMIT_MS):
        listed = [found("s3://b/t/data/f", modified_ms), found("s3://b/t/data/g", modified_ms)]
        assert candidates(listed, [reference]).prefix_mismatches == ["s3://b/t/data/f"]
        assert find_prefix_mismatch(["s3://b/t/data/g", "s3://b/t/data/f"], [reference]) == (
            "s3://b/t/data/f",
            reference,
        )


def test_a_named_folder_is_swept_only_in_this_spelling() -> None:
    named, other = (f"{LOCATION}/{name}/f.orc" for name in ("k=\u00e9", "k=e\u0301"))
    planned = plan([found(named), found(other)], swept=[f"{LOCATION}/k=\u00e9"])
    assert (planned.paths, planned.in_other_folders) == ((named,), (other,))


def test_a_path_is_not_its_own_twin() -> None:
    assert candidates([found("s3://b/t/data/f")], ["s3a://b/t/data/g"]).prefix_mismatches == []
    assert find_prefix_mismatch(["s3://b/t/data/f"], ["s3a://b/t//data/f", "s3://b/u/data/f"]) is None


def test_files_outside_the_location_are_never_planned() -> None:
    outside = ["s3://b/t2/f", "s3://b/f", "s3://b/t/../u/f", "s3://c/t/f", "/t/f", "s3a://b/u/f"]
    planned = plan([found(path) for path in outside])
    assert planned.orphans == ()
    assert planned.protected == len(outside)


@pytest.mark.parametrize("prefix", ["s3://b/t/keep", "s3a://b/t/keep/", "s3://b//t/keep", "s3://b/t/ke%65p"])
def test_protected_prefixes_apply_in_every_spelling(prefix: str) -> None:
    planned = plan([found(f"{LOCATION}/keep/a.avro"), found(f"{LOCATION}/keeper.avro")], protected=[prefix])
    assert planned.paths == (f"{LOCATION}/keeper.avro",)
    assert planned.protected == 1


@pytest.mark.parametrize("name", ["v3.metadata.json", "00003-x.gz.metadata.json", "v3.metadata.json.gz"])
def test_metadata_files_newer_than_the_oldest_snapshot_are_kept(name: str) -> None:
    """Some catalogs keep an incomplete metadata log."""
    assert is_metadata_file(f"{LOCATION}/metadata/{name}")
    newer = found(f"{LOCATION}/metadata/{name}", OLDEST_SNAPSHOT_MS)
    older = found(f"{LOCATION}/metadata/{name}", OLDEST_SNAPSHOT_MS - 1)
    assert plan([newer]).protected == 1
    assert plan([older]).orphans == (older,)


def test_thousands_of_branches_without_main_are_visited_once() -> None:
    count = 3_000
    snapshots = [
        snapshot(n, format_version=2, timestamp_ms=500_000 + n, parent_id=n - 1 or None) for n in range(1, count + 1)
    ]
    refs = {f"b{n}": {"type": "branch", "snapshot-id": n} for n in range(1, count + 1)}
    metadata = TableMetadata({**table(snapshots=snapshots).document, "refs": refs, "current-snapshot-id": -1})
    started_s = time.process_time()
    left = plan([found(f"{LOCATION}/data/a.parquet")], metadata=metadata)
    assert time.process_time() - started_s < 1
    assert [item.path for item in left.orphans] == [f"{LOCATION}/data/a.parquet"]


@pytest.mark.parametrize("branch", ["main", "other"])
@pytest.mark.parametrize(("parent", "goes"), [(1, False), (99, True)])
def test_an_old_tag_keeps_no_metadata_files(branch: str, parent: int, goes: bool) -> None:
    """Its snapshot is no longer in the history of main, or of a branch if there is no main."""
    of_history = ((1, 100_000, None), (2, 500_000, parent), (3, 600_000, 2))
    snapshots = [snapshot(n, format_version=2, timestamp_ms=ms, parent_id=before) for n, ms, before in of_history]
    refs = {branch: {"type": "branch", "snapshot-id": 3}, "audit": {"type": "tag", "snapshot-id": 1}}
    older, newer = (found(f"{LOCATION}/metadata/v{ms}.metadata.json", ms) for ms in (499_999, 500_000))
    planned = plan([older, newer], metadata=table(snapshots=snapshots, refs=refs))
    assert planned.orphans == ((older,) if goes else ())


def test_tags_alone_keep_metadata_files_newer_than_their_oldest_snapshot() -> None:
    names = {n: found(f"{LOCATION}/metadata/v{n}.metadata.json", OLDEST_SNAPSHOT_MS + n) for n in (-1, 0)}
    planned = plan(names.values(), metadata=table(refs={"audit": {"type": "tag", "snapshot-id": 1}}))
    assert planned.orphans == (names[-1],)


def test_without_snapshots_metadata_files_newer_than_the_table_are_kept() -> None:
    empty = table(snapshots=[], **{"last-updated-ms": 700_000})
    planned = plan([found(f"{LOCATION}/metadata/v1.metadata.json", 700_000)], metadata=empty)
    assert planned.protected == 1


def test_another_tables_metadata_is_refused_by_its_uuid() -> None:
    theirs = ForeignMetadata(f"{LOCATION}/x/v1.metadata.json", "other-uuid", "s3://b/t/x")
    assert unexplained([theirs], [f"{LOCATION}/y", "s3a://b/t/x/"]) == []
    assert unexplained([theirs], [f"{LOCATION}/y"]) == [theirs]
    with pytest.raises(OperationRefused, match=r"other-uuid.*s3://b/t/x.*nothing was deleted"):
        refuse_foreign([theirs])


def test_unparsable_metadata_is_refused_with_a_remedy() -> None:
    torn = ForeignMetadata(f"{LOCATION}/metadata/x.metadata.json", None, "", "it cannot be parsed")
    assert unexplained([torn], [f"{LOCATION}/metadata"]) == []
    assert unexplained([torn], []) == [torn]
    with pytest.raises(MetadataUnreadable, match=r"cannot be parsed.*orphan_protected_prefixes"):
        refuse_foreign([torn])


def test_files_below_another_tables_folder_are_counted_and_kept() -> None:
    planned = plan([found(f"{LOCATION}/{of}/f.orc") for of in ("sub", "subway")], others=["s3a://b/t/sub/"])
    assert planned.paths == (f"{LOCATION}/subway/f.orc",)
    assert (planned.of_other_tables, planned.protected) == (1, 0)


@pytest.mark.parametrize(
    ("key", "stays"),
    [
        ("_delta_log/00000000000000000000.json", True),
        (".hoodie/hoodie.properties", True),
        ("_SUCCESS", True),
        ("data/_temporary/0/f.parquet", True),
        ("data/p=1/.staging/f.parquet", True),
        ("metadata/.tmp/x.avro", True),
        ("data/_region=1/f.parquet", False),  # a partition field of an older spec
        ("data/p=1/_region=1/f.parquet", False),
        ("data/_region=1/_temporary/f.parquet", True),
        ("data/_regions=1/f.parquet", True),
        ("data/_region/f.parquet", True),
        ("data/_part=1/f.parquet", True),  # no partition field has this name
        ("data/.f.parquet.crc", False),
        ("data/_region=1/_f.parquet", False),
        ("a_b/f.parquet", False),
    ],
)
def test_hidden_files_of_other_formats_and_engines_are_kept(key: str, stays: bool) -> None:
    fields = [{"name": name, "source-id": 1, "field-id": 1000, "transform": "identity"} for name in ("p", "_region")]
    specs = [{"spec-id": 0, "fields": fields[1:]}, {"spec-id": 1, "fields": fields[:1]}]
    planned = plan([found(f"{LOCATION}/{key}")], metadata=table(**{"partition-specs": specs, "default-spec-id": 1}))
    assert (planned.protected, len(planned.orphans)) == ((1, 0) if stays else (0, 1))


OF_ICEBERG = (
    *(
        "00000-0-6f1c-00001.parquet",
        "part-0.c000.snappy.parquet",
        "20240101_000000_00001_abcde-6f1c.orc",
        "f.zstd.avro",
    ),
    *("5d4b-0_0_data.0.parq", "00000-0-6f1c-deletes.puffin", "20240101_000000_00001_abcde-6f1c.stats"),
    *("000000_0", "000012_0_copy_3", "0000000123_14", "snap-1-1-6f1c.avro", "6f1c-m0.avro", "version-hint.text"),
    *("00001-6f1c.metadata.json", "00001-6f1c.gz.metadata.json", "v1.metadata.json.gz", "6f1c-version-hint.temp"),
    ".00001-6f1c.metadata.json.0123456789abcdef0123456789abcdef.unfinished",  # written by Icekeeper
)
OF_OTHERS = {
    "1011.lance": ".lance",
    "1.manifest": ".manifest",
    "00000.parquet.tmp": ".tmp",
    "f.PARQUET": ".PARQUET",
    "f.parquet.crc": ".crc",  # Hadoop's file begins with a dot
    ".f.lance.crc": ".crc",
    ".f.parquet.0123.unfinished": ".unfinished",
    "model.bin": ".bin",
    "notes.txt": ".txt",
    "00000000000000000000.json": ".json",
    "00_0": "no ending",
    "000000_0_x": "no ending",
    "000000_\N{ARABIC-INDIC DIGIT ONE}": "no ending",
    "old-version-hint.text": ".text",
    "parquet": "no ending",
    "f.": "no ending",
    "f.an ending": "no ending",
    "f.lengthyending1": "no ending",
    "": "no ending",
}


def test_only_files_named_by_iceberg_writers_are_swept() -> None:
    """Files that Lance or a person keeps beside a table are kept and counted (rule: sweep-iceberg-tables-only)."""
    assert [name for name in OF_ICEBERG if not is_of_iceberg(name)] == []
    assert [name for name in OF_OTHERS if is_of_iceberg(name)] == []
    assert {name: ending_of(f"{LOCATION}/a.b/{name}") for name in OF_OTHERS} == OF_OTHERS
    kept = [f"{LOCATION}/data/{name}" for name in OF_OTHERS if name]
    planned = plan([*map(found, kept), *(found(f"{LOCATION}/data/{name}") for name in OF_ICEBERG)])
    assert planned.of_other_names == tuple(sorted(kept))
    assert planned.paths == tuple(sorted(f"{LOCATION}/data/{name}" for name in OF_ICEBERG))


@given(
    st.one_of(st.sampled_from([*OF_ICEBERG, *OF_OTHERS]), st.text(st.characters(exclude_characters="/"))),
    st.text(),
    st.lists(st.sampled_from(["bin", ".lance", "tar.gz"])),
)
def test_only_the_name_decides_and_further_endings_only_add(name: str, folder: str, further: list[str]) -> None:
    permitted = is_of_iceberg(name)
    assert is_of_iceberg(f"{folder}/{name}") == permitted
    assert name.endswith((".crc", ".unfinished")) or is_of_iceberg(f"{folder}/.{name}.crc") == permitted
    bare = name[1:-4] if name.startswith(".") and name.endswith(".crc") else name
    added = any(bare.endswith(f".{ending.removeprefix('.')}") for ending in further)
    assert is_of_iceberg(name, further) == (permitted or added)


@pytest.mark.parametrize("key", ["table_type", "TABLE_TYPE", "table-type", "tableType", "Table Type"])
def test_a_table_of_another_type_is_not_swept(key: str) -> None:
    """This holds for any spelling of the type (rule: sweep-iceberg-tables-only)."""
    for value in ("iceberg", "ICEBERG", " Iceberg "):
        refuse_other_type(table(properties={key: value}), ())
    for value in ("lance", "Lance", "fact", "", "iceberg2", "EXTERNAL_TABLE"):
        of_both = table(properties={"table_type": "ICEBERG", key: value})
        with pytest.raises(OperationRefused, match=rf"^table property {key} is '{value}': .*orphan_table_types"):
            refuse_other_type(of_both, ["dimension"])
        refuse_other_type(of_both, ["dimension", value.upper()])


@pytest.mark.parametrize(
    ("orphans", "listed", "limit", "source", "refused"),
    [
        (1000, 1000, Fraction(1, 2), "default", False),  # so few may come from a failed job beside a small table
        (1001, 2001, Fraction(1, 2), "default", True),
        (1001, 2002, Fraction(1, 2), "default", False),
        (2, 3, Fraction(1, 2), "this call", True),  # set on purpose
        (1, 2, Fraction(1, 2), "this call", False),
        (5000, 5000, Fraction(1), "table property", False),
        (0, 0, Fraction(1, 2), "this call", False),
        (2, 3, Fraction(1, 2), "default, some missing", True),  # a faulty copy of a small table
        (1, 2, Fraction(1, 2), "default, some missing", False),
    ],
)
def test_too_large_a_share_is_refused(orphans: int, listed: int, limit: Fraction, source: str, refused: bool) -> None:
    """The sweep is refused if the share of orphans exceeds the limit."""
    source, _, missing = source.partition(", ")
    if not refused:
        refuse_mass_deletion(orphans, listed, limit, source, any_missing=bool(missing))
        return
    with pytest.raises(OperationRefused, match=rf"{orphans} of {listed} .*orphan_max_delete_ratio 0.5 \({source}\)"):
        refuse_mass_deletion(orphans, listed, limit, source, any_missing=bool(missing))


segments = st.sampled_from(
    ["data", "metadata", "a b", "a%20b", "a%2520b", "k=1", "..", ".", "", "é", "v1.metadata.json"]
)
endings = st.sampled_from(["", "", "/f.parquet", "/f%20g.parquet", "/f g.parquet", ".orc", ".lance"])
keys = st.builds(str.__add__, st.lists(segments, min_size=1, max_size=4).map("/".join), endings)
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
    planned = plan(listed, referenced, protected=protected)
    assert not {normalise(path) for path in planned.paths} & {normalise(path) for path in referenced}
    for orphan in planned.orphans:
        assert orphan in listed
        assert orphan.modified_ms is not None
        assert orphan.modified_ms < LIMIT_MS
        assert orphan.path.startswith(("s3://b/t/", "s3a://b/t/"))
        assert not any(normalise(orphan.path).startswith(f"{normalise(p)}/") for p in protected)
        assert is_of_iceberg(orphan.path)


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
def test_the_uuid_is_read_from_the_first_bytes_of_a_metadata_file(beginning: bytes, uuid: str | None) -> None:
    """The UUID of an object inside the document must not be taken for the table's."""
    assert leading_uuid(beginning) == uuid
