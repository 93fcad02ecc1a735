"""Which delete applies to which data file, and paths in other spellings."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.delete_scope import (
    DELETE_FILE_PATH_ID,
    DeleteIndex,
    DeleteIndexBuilder,
    is_unpartitioned,
    named_file,
    partition_key,
)
from icekeeper.model import EntryStatus, FileContent, ManifestEntry
from icekeeper.operations.compaction.plan.candidates import path_hash, well_spelled
from icekeeper.rows.apply_deletes import SpelledFiles
from support.plans import data_file, path_bounds

# Which delete applies to which data file: a test per clause of the specification's scan planning.

LONGS = {1: "long"}


def entry(content: FileContent, path: str, number: int, **more: Any) -> ManifestEntry:
    file = data_file(path, 1, records=1, content=content, **{"partition": ("a",), **more})
    return ManifestEntry(EntryStatus.ADDED, 1, number, number, file)


def data(number: int = 5, path: str = "d", **more: Any) -> ManifestEntry:
    return entry(FileContent.DATA, path, number, **more)


def equality(number: int, **more: Any) -> ManifestEntry:
    return entry(FileContent.EQUALITY_DELETES, "e", number, **{"equality_ids": (1,), **more})


def position(number: int, **more: Any) -> ManifestEntry:
    return entry(FileContent.POSITION_DELETES, "p", number, **more)


def longs(low: int, high: int) -> Mapping[str, Any]:
    return {
        "lower_bounds": {1: struct.pack("<q", low)},
        "upper_bounds": {1: struct.pack("<q", high)},
        "null_value_counts": {1: 0},
    }


def index(*deletes: ManifestEntry, spec_id: int = 0, is_global: bool = False) -> DeleteIndex:
    builder = DeleteIndexBuilder()
    for delete in deletes:
        builder.add(spec_id, delete, is_unpartitioned=is_global)
    return builder.build()


def reaches(found: DeleteIndex, file: ManifestEntry, spec_id: int = 0) -> bool:
    return bool(list(found.needed_by(file, spec_id, LONGS)))


def test_equality_deletes_apply_only_to_strictly_older_rows() -> None:
    assert [reaches(index(equality(number)), data(5)) for number in (4, 5, 6)] == [False, False, True]


def test_position_deletes_also_apply_to_rows_of_the_same_commit() -> None:
    """This holds with and without the name of the data file."""
    for named in ({}, {"referenced_data_file": "d"}):
        found = [reaches(index(position(number, **named)), data(5)) for number in (4, 5, 6)]
        assert found == [False, True, True], named


def test_a_delete_applies_only_to_its_own_partition_and_spec() -> None:
    for delete in (equality(9), position(9)):
        assert reaches(index(delete), data())
        assert not reaches(index(delete), data(partition=("b",)))
        assert not reaches(index(delete), data(), spec_id=1)


def test_equality_deletes_of_an_unpartitioned_spec_apply_to_every_partition() -> None:
    found = index(equality(9, partition=()), spec_id=3, is_global=True)
    assert reaches(found, data(partition=("b",)), spec_id=1)
    for fields, answer in (([], True), (["void", "void"], True), (["void", "identity"], False)):
        assert is_unpartitioned({"fields": [{"transform": transform} for transform in fields]}) is answer


@pytest.mark.parametrize("name", [{"referenced_data_file": "d"}, path_bounds("d")], ids=["field", "bounds"])
def test_a_position_delete_that_names_its_file_applies_to_it_alone_in_any_partition(name: dict[str, Any]) -> None:
    """Java, DuckDB and PyIceberg go by the name."""
    found = index(position(9, partition=("elsewhere",), **name), spec_id=3)
    assert reaches(found, data(path="d"))
    assert not reaches(found, data(path="e", partition=("elsewhere",)), spec_id=3)
    assert [reaches(found, data(number, path="d")) for number in (9, 10)] == [True, False]


def test_a_position_delete_applies_to_files_within_its_bounds_of_paths() -> None:
    bounds = {"lower_bounds": {DELETE_FILE_PATH_ID: b"b"}, "upper_bounds": {DELETE_FILE_PATH_ID: b"d"}}
    found = index(position(9, **bounds))
    assert [reaches(found, data(path=path)) for path in ("a", "b", "c", "d", "da")] == [False, True, True, True, False]


def test_bounds_that_may_be_truncated_name_no_file() -> None:
    """A truncated upper bound is rounded up, so it equals no lower bound.  An equality delete names no file."""
    for low, high in ((b"s3://b/t/da", b"s3://b/t/db"), (b"d", None), (b"", b""), (b"d\xc3", b"d\xc3")):
        bounds = {"lower_bounds": {DELETE_FILE_PATH_ID: low}}
        if high is not None:
            bounds["upper_bounds"] = {DELETE_FILE_PATH_ID: high}
        assert named_file(position(9, **bounds).file) is None, (low, high)
    assert named_file(equality(9, **path_bounds("d")).file) is None


@pytest.mark.parametrize("arrived", [None, 4, 9, 10])
def test_file_sequence_numbers_decide_nothing(arrived: int | None) -> None:
    """Readers use data sequence numbers; early writers of v2 lost or invented file sequence numbers."""
    file = replace(data(5), file_sequence_number=arrived)
    assert reaches(index(position(9)), file)
    assert reaches(index(position(9, **path_bounds("d"))), file)
    assert not reaches(index(position(4)), file)


def test_an_equality_delete_applies_only_to_files_within_its_bounds() -> None:
    def reached(delete: Mapping[str, Any], file: Mapping[str, Any]) -> bool:
        return reaches(index(equality(9, **delete)), data(**file))

    assert reached(longs(1, 5), longs(5, 9))
    assert not reached(longs(1, 4), longs(5, 9))
    assert not reached(longs(10, 11), longs(5, 9))
    assert reached(longs(1, 4), {})  # the file has no metrics
    nulls = {"null_value_counts": {1: 1}}
    assert reached({**longs(1, 4), **nulls}, {**longs(5, 9), **nulls})  # null equals null
    assert not reached({**longs(1, 4), **nulls}, longs(5, 9))


def test_bounds_from_before_a_promotion_are_compared_by_value() -> None:
    """Large longs are not compared by the 32 bits that the former int had."""
    low, high = ({1: struct.pack("<i", value)} for value in (-3, -1))
    file = data(lower_bounds=low, upper_bounds=high, null_value_counts={1: 0})
    assert reaches(index(equality(9, **longs(-2, -2))), file)
    assert not reaches(index(equality(9, **longs(0, 9))), file)
    far = 2**40
    assert reaches(index(equality(9, **longs(far, far))), data(5, **longs(far, far + 1)))
    assert not reaches(index(equality(9, **longs(far, far))), data(5, **longs(0, 10)))


def test_bounds_in_days_exclude_nothing_once_the_column_counts_microseconds() -> None:
    """A date that became a timestamp: read as microseconds, its days would be in January 1970
    (rule: promoted-values-keep-old-width)."""
    low, high = ({1: struct.pack("<i", days)} for days in (20_000, 20_001))
    file = data(lower_bounds=low, upper_bounds=high, null_value_counts={1: 0})
    noon = 20_000 * 86_400_000_000 + 43_200_000_000
    assert list(index(equality(9, **longs(noon, noon))).needed_by(file, 0, {1: "timestamp"}))


@pytest.mark.parametrize("kind", ["uuid", "double", "variant", "geometry(srid:3857)"])
def test_bounds_of_types_without_a_common_order_exclude_nothing(kind: str) -> None:
    assert list(index(equality(9, **longs(1, 4))).needed_by(data(**longs(5, 9)), 0, {1: kind}))


def test_a_deletion_vector_replaces_the_position_deletes_of_its_file() -> None:
    vector = position(9, referenced_data_file="d", content_offset=4)
    found = index(position(8), vector)
    assert list(found.applying_to(data().file, 0, 5)) == [vector]


def test_a_data_file_with_two_vectors_is_refused() -> None:
    """It is unknown which of them is wrong (rule: deletes-reach-by-sequence-number)."""
    first, second = (position(9, referenced_data_file="d", content_offset=offset) for offset in (4, 40))
    with pytest.raises(MetadataUnreadable, match=r"^d has two deletion vectors"):
        index(first, second)
    other = position(9, referenced_data_file="e", content_offset=40)
    assert len(index(first, other).vectors) == 2


def test_an_index_returns_every_entry() -> None:
    given = [position(9, referenced_data_file="d", content_offset=4), position(8), equality(7)]
    found = index(*given)
    assert not found.is_empty
    assert {e.file.file_path for e in found.entries} == {"p", "e"}
    assert len(list(found.entries)) == 3
    assert index().is_empty
    nan = float("nan")
    assert partition_key(0, (nan,)) == partition_key(0, (nan,)), "partitions are compared bit for bit"
    assert partition_key(0, (0.0,)) != partition_key(0, (-0.0,))


# Deletes whose data file is spelled differently are distinguished from deletes whose data file is gone
# (rule: unreadable-delete-blocks-its-files).

PAIRS = [
    ("s3a://b/t/f", "s3://b/t/f"),
    ("s3://b/t/f", "s3n://b/t/f"),
    ("s3://b/t//f", "s3://b/t/f"),
    ("s3://b/t/k=a%20b/f", "s3a://b/t/k=a b/f"),
    ("/w/t/f", "file:///w/t/f"),
    ("file:/w/t/f", "file:///w/t/f"),
    ("file:///w/t/f", "/w/t/f"),
]
OTHERS = ["s3://b/t/g", "s3://c/t/f", "s3://b/u/f", "/w/u/f"]


def vector(of: str) -> ManifestEntry:
    where = {"referenced_data_file": of, "content_offset": 4, "content_size_in_bytes": 40}
    return position(1, partition=(), file_format="PUFFIN", **where)


@pytest.mark.parametrize(("named", "live"), PAIRS)
def test_a_vector_is_not_dangling_if_its_file_is_spelled_differently(named: str, live: str) -> None:
    builder, delete = DeleteIndexBuilder(), vector(named)
    builder.add(0, delete, is_unpartitioned=True)
    index, listed = builder.build(), [*map(path_hash, OTHERS), path_hash(live)]
    with pytest.raises(MetadataUnreadable, match=f"deletes rows of {named}, which the manifests spell {live}: "):
        well_spelled({delete.file.key: 0}, index, listed)
    for needs, beside in (({delete.file.key: 1}, listed), ({delete.file.key: 0}, listed[:-1])):
        assert well_spelled(needs, index, beside) == needs


@pytest.mark.parametrize(("named", "live"), PAIRS)
def test_a_row_that_names_a_file_in_another_spelling_is_refused(named: str, live: str) -> None:
    with pytest.raises(MetadataUnreadable, match=f"d deletes rows of {named}, which the manifests spell {live}: "):
        SpelledFiles([*OTHERS, live]).refuse("d", named)
    SpelledFiles([*OTHERS, named]).refuse("d", named)
    SpelledFiles(OTHERS).refuse("d", named)
