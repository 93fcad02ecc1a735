"""A copy of some row groups of a file never gets a narrow bound from a doubtful bound
(rule: metrics-contain-every-value)."""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.metadata.types import encode
from icekeeper.model import DataFile
from icekeeper.operations.compaction.work.copy_row_groups import column_ranges
from icekeeper.row_group_copy.copyable import CopyableFile
from icekeeper.row_group_copy.footer import read_footer
from icekeeper.row_group_copy.footer_decisions import common_writer, has_right_statistics, hides_bounds
from icekeeper.row_group_copy.footer_structs import ColumnMetaData, FileMetaData, NotCopyable, Statistics
from icekeeper.row_group_copy.merge_files import copyable_file, copyable_part, merge_files
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.equality_deletes import ColumnRange, EqualityLookup, keys_within
from support.copied import STORAGE, copied, entry_of, mixed_rows, parquet_file, target_of, with_metadata
from support.rewrites import rewritten, rows, struct, written

# A copy of some row groups of a file is described only by metrics that are certain
# (rule: metrics-contain-every-value).

FLOATS = struct(
    (1, "id", "long"),
    (2, "x", "double"),
    (3, "t", "string"),
    (4, "tags", {"type": "list", "element-id": 5, "element": "int", "element-required": False}),
)


def judged(entry: DataFile, target: Any = None) -> CopyableFile:
    file = copyable_file(entry, target or target_of(), STORAGE, 1)
    assert not isinstance(file, NotCopyable), str(file)
    return file


def test_every_row_group_states_its_rows_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    with pq.ParquetWriter(path, mixed_rows(0, 0).schema, compression="zstd", store_decimal_as_integer=True) as writer:
        for count in (7, 0, 5, 9):
            writer.write_table(mixed_rows(0, count))
    file = judged(entry_of(path))
    assert [(group.number, group.positions) for group in file.groups] == [
        (0, range(7)),
        (2, range(7, 12)),
        (3, range(12, 21)),
    ]
    footer = pq.read_metadata(path)
    for group in file.groups:
        chunks = footer.row_group(group.number).to_dict()["columns"]
        assert group.copied_bytes == sum(chunk["total_compressed_size"] for chunk in chunks)
        assert file.only([group.number]).copied_bytes == group.copied_bytes
    part = file.only([3, 0])
    assert (part.row_count, part.row_groups, [group.number for group in part.groups]) == (16, 2, [0, 3])
    assert file.only([0, 2, 3]) == file
    with pytest.raises(ValueError, match="has no row group 1 to copy"):
        file.only([0, 1])


def floats(count: int, nan: int = -1) -> dict[str, list[Any]]:
    """Ten rows per row group; the second has neither texts nor numbers, and a value may be NaN."""
    numbers = range(count)
    return {
        "id": list(numbers),
        "x": [None if 10 <= n < 20 else math.nan if n == nan else n / 4 - 3 for n in numbers],
        "t": [None if 10 <= n < 20 else f"text number {n:04} and more than a bound holds" for n in numbers],
        "tags": [[n] for n in numbers],
    }


def whole(folder: Path, values: dict[str, list[Any]], change: Any = None, **options: Any) -> DataFile:
    """A file of several row groups, with the entry that a rewrite of its rows would have."""
    folder.mkdir()
    table = rows(FLOATS, values)
    path = parquet_file(folder / "whole.parquet", table, row_group_size=10, **options)
    if change is not None:
        with_metadata(path, change)
    entry = written(rewritten(FLOATS, [table], folder))
    named = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    return entry_of(path, **{name: getattr(entry, name) for name in named})


def without_nulls(metadata: FileMetaData) -> None:
    for group in metadata.row_groups:
        for chunk in group.columns[1:3]:
            assert chunk.meta_data.statistics is not None
            chunk.meta_data.statistics.null_count = None


def cut_texts(metadata: FileMetaData) -> None:
    for group in metadata.row_groups:
        statistics = group.columns[2].meta_data.statistics
        assert statistics is not None
        statistics.is_max_value_exact = False


def without_bounds(metadata: FileMetaData) -> None:
    statistics = metadata.row_groups[0].columns[0].meta_data.statistics
    assert statistics is not None
    statistics.min_value = statistics.max_value = None


UNKNOWN: dict[str, tuple[dict[str, Any], list[int], str, str]] = {
    "NaN of a part": ({"nan": 25}, [2], "counts", "does not count the NaN of column x"),
    "NaN elsewhere": ({"nan": 25}, [0], "truncate(16)", "does not count the NaN of column x"),
    "nulls of a part": ({"change": without_nulls}, [0, 1], "counts", "does not count the nulls of column x"),
    "bounds that are cut": ({"change": cut_texts}, [0], "full", "without bounds of column t"),
    "bounds that one row group lacks": (
        {"change": without_bounds},
        [0, 2],
        "truncate(16)",
        "without bounds of column id",
    ),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_a_part_with_unknown_metrics_is_refused(what: str, tmp_path: Path) -> None:
    """The whole file can be copied; so can the part, if the manifest needs no metrics."""
    how, numbers, mode, sentence = UNKNOWN[what]
    entry = whole(tmp_path / "in", floats(30, how.get("nan", -1)), how.get("change"))
    target = target_of(FLOATS, mode=mode)
    file = judged(entry, target)
    to = tmp_path / "copy.parquet"
    expected = f"{entry.file_path} has a manifest entry that {sentence} for a part of its row groups"
    if sentence.startswith("without"):
        expected = expected.replace("entry that without", "entry without")
    assert str(copyable_part(entry, file, numbers, target)) == expected
    assert str(merge_files([(entry, file.only(numbers))], str(to), target, STORAGE)) == expected
    assert not to.exists()
    assert isinstance(merge_files([(entry, file)], str(to), target, STORAGE), DataFile)
    freely = merge_files([(entry, file.only(numbers))], str(to), target_of(FLOATS), STORAGE)
    assert isinstance(freely, DataFile)


def test_truncated_string_bounds_are_enough_if_the_manifest_truncates_them_too(tmp_path: Path) -> None:
    entry = whole(tmp_path / "in", floats(30), cut_texts)
    target = target_of(FLOATS, mode="truncate(16)")
    made = merge_files([(entry, judged(entry, target).only([2]))], str(tmp_path / "copy.parquet"), target, STORAGE)
    assert isinstance(made, DataFile), str(made)
    assert (made.lower_bounds or {})[3] == b"text number 0020"
    assert (made.upper_bounds or {})[3] == b"text number 002:"


def test_counts_of_a_part_are_known_if_all_values_are_null_or_nan(tmp_path: Path) -> None:
    """If all values are NaN, or all are null, the footer need not count them."""
    values = {**floats(30), "x": [math.nan] * 30, "t": [None] * 30}
    entry = whole(tmp_path / "in", values, without_nulls)
    target = target_of(FLOATS, mode="full")
    made = merge_files([(entry, judged(entry, target).only([1]))], str(tmp_path / "copy.parquet"), target, STORAGE)
    assert isinstance(made, DataFile), str(made)
    assert made.value_counts == {1: 10, 2: 10, 3: 10}
    assert made.null_value_counts == {1: 0, 2: 0, 3: 10}
    assert made.nan_value_counts == {2: 10}
    assert set(made.lower_bounds or {}) == set(made.upper_bounds or {}) == {1}


def test_a_zero_in_a_bound_of_a_part_gets_the_outer_sign(tmp_path: Path) -> None:
    """Some writers state the first zero that they saw, and the column has both signs."""

    def swapped(metadata: FileMetaData) -> None:
        statistics = metadata.row_groups[1].columns[1].meta_data.statistics
        assert statistics is not None
        statistics.min_value, statistics.max_value = encode("double", 0.0), encode("double", -0.0)

    values = {**floats(30), "x": [0.0, -0.0] * 15}
    entry = whole(tmp_path / "in", values, swapped)
    target = target_of(FLOATS, mode="full")
    made = merge_files([(entry, judged(entry, target).only([1]))], str(tmp_path / "copy.parquet"), target, STORAGE)
    assert isinstance(made, DataFile), str(made)
    assert (made.lower_bounds or {})[2] == encode("double", -0.0)
    assert (made.upper_bounds or {})[2] == encode("double", 0.0)


UNCOUNTED = struct(
    (1, "id", "long"),
    (2, "x", "double"),
    (3, "point", struct((4, "y.z", "float"), (5, "n", "int"))),
    (6, "none", "double"),
    (7, "list", {"type": "list", "element-id": 8, "element": "double", "element-required": False}),
)


def uncounted_rows() -> pa.Table:
    """Three row groups of ten rows; the second has NaN in ``x``, all have NaN in ``point``, which has a null struct."""
    numbers = range(30)
    return rows(
        UNCOUNTED,
        {
            "id": list(numbers),
            "x": [None if n == 4 else math.nan if n in (11, 17) else n / 4 - 3 for n in numbers],
            "point": [None if n % 10 == 3 else {"y.z": math.nan if n % 10 == 5 else n, "n": n} for n in numbers],
            "none": [math.nan if n % 2 else None for n in numbers],
            "list": [[math.nan]] * 30,
        },
    )


@pytest.mark.parametrize("has_bounds", [True, False], ids=["as PyIceberg", "without bounds"])
@pytest.mark.parametrize("numbers", [[0, 1, 2], [0], [1]])
def test_nan_missing_from_an_entry_are_counted(numbers: list[int], has_bounds: bool, tmp_path: Path) -> None:
    """Iceberg-Java reads an absent count as zero, and skips whole files because of it
    (rule: footer-bounds-by-known-writers)."""
    table = uncounted_rows()
    path = parquet_file(tmp_path / "in.parquet", table, row_group_size=10)
    rewrite = written(rewritten(UNCOUNTED, [table], tmp_path))
    bounds = [{i: v for i, v in (b or {}).items() if has_bounds or i not in (2, 4)} for b in _bounds_of(rewrite)]
    entry = entry_of(
        path,
        value_counts=rewrite.value_counts,
        null_value_counts=rewrite.null_value_counts,
        nan_value_counts={},
        lower_bounds=bounds[0],
        upper_bounds=bounds[1],
    )
    target = target_of(UNCOUNTED, mode="full")
    part = judged(entry, target).only(numbers)
    made = merge_files([(entry, part)], str(tmp_path / "copy.parquet"), target, STORAGE)

    assert isinstance(made, DataFile), str(made)
    (tmp_path / "anew").mkdir()
    kept = pa.concat_tables([table.slice(number * 10, 10) for number in numbers])
    rewrite = written(rewritten(UNCOUNTED, [kept], tmp_path / "anew", table_properties=FULL))
    for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
        assert getattr(made, name) == getattr(rewrite, name), name
    assert made.nan_value_counts == {2: 2 * (1 in numbers), 4: len(numbers), 6: 5 * len(numbers)}


FULL = {"write.metadata.metrics.default": "full"}


def _bounds_of(entry: DataFile) -> tuple[Any, Any]:
    return entry.lower_bounds, entry.upper_bounds


# Eight rows as DuckDB 2.0.0 writes them, with a NaN count in the footer and no bounds.
DUCKDB_2 = (
    "P(e~L6#x~C0TpH}6%Z8w6$TXs001bpFa01!RRI9V0ssI25CH%J00RI700jUB00#g70000000#hIU@$Nk7z_*svXGDgBNYG@Y!zB8"
    "6%Z8w6$TXs001bpFa01kB>@1y0ssI25CH-J0049_F)}kWH8uhO004A11_S~?zySsX+>|6002RIg6<jP85ETFw1{DSX04TLD{UBd0"
    "0RX5Y0000A0YL@;&_4k9e*oz4KluDV1^^%nFmPrv&>Rq4CXfRa02NFXR4f$`6#x|m6$StRD77#BASMj~0Js7G000mH0DwOL002M$"
    "0Kk8sKmY*XKm!0TLF@)yzz7ur8EiEG7!71~V{2q$Uvpz<Wo=;<2mloXB?1@%X=EiNH39$?3?%{>1axJ1bR_^a1OOEZB?1@)a$$67"
    "Z&d~WH2@d|aBpdDbQJ<c2mlobB?1@$c~uGk77!U68B8Vs92Eo^6#y9+0%>Fw3>FX;umKi|0VW7M7zhUd00000000;W0000000000"
    "762#+2LJ#7000007zh9W00000000pY02v$=02Kfg0ssI2CIB223>g&w85jg~Wq5QI3>FX;jsX^YCXxX>7y@)R7y@)K762#$bT=3R"
    "bTAPS02v$=02Kfg0ssI2CIB223K<mu85jj}VRUJ46$};-7UBUGfB`0s0z5VXW&!{i92Ec+02KlN001Tc92E!|6#yA11#oX^Zgc^8"
    "6$};-7H$@HCXNF<HUMS>02v$=02Kfg0ssI27LElL5GDu~`~v_eC`5H*YeYgIc4cyNX>V>Ib}}w7E-)Y{Vs&Y3WFTZUG-G07Wiw=E"
    "DH%*0000~S02}}S8~^|SjsXAwP(e~L"
)


def test_files_of_duckdb_2_are_copied(tmp_path: Path) -> None:
    """Its footers count NaN, in a field that readers know since 2026; a footer for several writers omits the field."""
    schema = struct(
        (1, "id", "long"), (2, "text", "string"), (3, "ratio", "double"), (4, "point", struct((5, "y", "float")))
    )
    theirs = tmp_path / "theirs.parquet"
    theirs.write_bytes(base64.b85decode(DUCKDB_2))
    counts = {"value_counts": dict.fromkeys((1, 2, 3, 5), 8), "null_value_counts": {1: 0, 2: 0, 3: 1, 5: 0}}
    lower, upper = ({1: encode("long", n), 2: b"t%d" % n} for n in (0, 7))
    entry = entry_of(theirs, **counts, lower_bounds=lower, upper_bounds=upper)
    target = target_of(schema, mode="full")
    made = merge_files([(entry, judged(entry, target))] * 2, str(tmp_path / "copy.parquet"), target, STORAGE)

    assert isinstance(made, DataFile), str(made)
    assert pq.read_metadata(made.file_path).created_by == "DuckDB version v2.0.0 (build d54cbbe3df)"
    found = pq.read_table(made.file_path).to_pylist()
    assert str(found) == str(pq.read_table(theirs).to_pylist() * 2)
    assert [row["id"] for row in found] == [*range(8)] * 2
    assert made.nan_value_counts == {3: 2, 5: 4}
    assert made.lower_bounds == lower | {3: encode("double", -0.0), 5: encode("float", -0.0)}
    assert made.upper_bounds == upper | {3: encode("double", 1.75), 5: encode("float", 7.0)}
    footer = read_footer(made.file_path, STORAGE)
    for group in footer.metadata().row_groups:
        assert [chunk.meta_data.statistics and chunk.meta_data.statistics.nan_count for chunk in group.columns] == [
            None
        ] * 4


def test_nan_counts_of_footers_are_used_if_entries_have_bounds(tmp_path: Path) -> None:
    """Nothing is decoded: a false count would be copied (rule: footer-bounds-by-known-writers)."""
    table = rows(FLOATS, floats(20))
    path = parquet_file(tmp_path / "in.parquet", table, row_group_size=10)
    rewrite = written(rewritten(FLOATS, [table], tmp_path))

    def count(metadata: FileMetaData) -> None:
        for group in metadata.row_groups:
            assert group.columns[1].meta_data.statistics is not None
            group.columns[1].meta_data.statistics.nan_count = 3

    with_metadata(path, count)
    names = ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
    entry = entry_of(path, **{name: getattr(rewrite, name) for name in names})
    target = target_of(FLOATS, mode="full")
    made = merge_files([(entry, judged(entry, target))], str(tmp_path / "copy.parquet"), target, STORAGE)
    assert isinstance(made, DataFile), str(made)
    assert made.nan_value_counts == {2: 3}  # the second row group contains only nulls


def test_a_float_column_that_cannot_be_decoded_is_refused(tmp_path: Path) -> None:
    schema = struct((1, "x", "double"))
    path = parquet_file(tmp_path / "in.parquet", rows(schema, {"x": [n / 3 for n in range(60)]}), use_dictionary=False)
    data = bytearray(path.read_bytes())
    first = pq.read_metadata(path).row_group(0).column(0)
    data[first.data_page_offset : first.data_page_offset + 8] = b"\xff" * 8
    path.write_bytes(data)
    entry = entry_of(path, value_counts={1: 60}, null_value_counts={1: 0})
    refused = copyable_file(entry, target_of(schema, mode="counts"), STORAGE)
    assert isinstance(refused, NotCopyable)
    assert str(refused).startswith(f"{path} cannot be read: ")


@pytest.mark.parametrize("counted", [{}, {1: 0}, {3: 1}, {1: 0, 3: 1}], ids=["none", "first", "second", "both"])
def test_columns_with_the_same_path_in_arrow_are_not_mixed_up(counted: dict[int, int], tmp_path: Path) -> None:
    """PyArrow treats a dot in a name as a path separator."""
    schema = struct((1, "a.b", "double"), (2, "a", struct((3, "b", "double"))))
    values: dict[str, list[Any]] = {"a.b": [1.0, 2.0, 3.0], "a": [{"b": math.nan}, {"b": 5.0}, None]}
    path = parquet_file(tmp_path / "in.parquet", rows(schema, values))
    file = copyable_file(entry_of(path, nan_value_counts=counted), target_of(schema, mode="counts"), STORAGE)
    if len(counted) == 1:
        assert str(file) == f"{path} has columns whose paths are the same for Arrow"
    else:
        assert isinstance(file, CopyableFile), str(file)
        assert {i: facts.nans for i, facts in file.groups[0].floats.items()} == ({} if counted else {1: 0, 3: 1})


# Missing statistics of a row group exclude no key (rule: copy-under-keys-only-if-none-match).


def row_group(**known: Any) -> Any:
    """A row group of one column with these statistics."""
    usual = {"has_null_count": True, "null_count": 0, "has_min_max": True, "min_raw": 3, "max_raw": 7, "num_values": 5}
    return SimpleNamespace(column=lambda number: SimpleNamespace(statistics=SimpleNamespace(**{**usual, **known})))


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, ColumnRange(3, 7, may_be_null=False)),
        ({"null_count": 1}, ColumnRange(3, 7)),
        ({"has_null_count": False}, ColumnRange(3, 7)),
        ({"has_min_max": False}, ColumnRange(may_be_null=False)),
        ({"has_min_max": False, "null_count": 5, "num_values": 0}, ColumnRange(may_have_values=False)),
        ({"has_min_max": False, "has_null_count": False, "num_values": 0}, ColumnRange()),
    ],
)
def test_missing_statistics_exclude_no_key(known: dict[str, Any], expected: ColumnRange) -> None:
    assert column_ranges(row_group(**known), leaf_columns(struct((1, "id", "long")))) == {1: expected}


def lookup(*values: Any, kind: pa.DataType) -> EqualityLookup:
    return EqualityLookup.build([1], [pa.array(values, kind)], pa.array([2] * len(values), pa.int64()))


def test_keys_within_bounds_are_counted() -> None:
    """A truncated lower bound does not limit the greatest value, an invalid bound is ignored, and a column without
    bounds may contain every key."""
    keys = lookup("aa", "ab", "zz", kind=pa.string())
    assert keys_within(keys, {1: ColumnRange(least=b"ab")}, 1) == 2
    assert keys_within(keys, {1: ColumnRange(most=b"ab")}, 1) == 2
    assert keys_within(keys, {1: ColumnRange(b"ab", b"ab")}, 1) == 1
    for bound, kind in ((math.nan, pa.float64()), (10**9, pa.decimal128(5, 2)), (2**40, pa.int32())):
        assert keys_within(lookup(1, 2, kind=kind), {1: ColumnRange(bound, bound)}, 1) == 2
    assert keys_within(lookup(1, None, kind=pa.int64()), {2: ColumnRange(5, 6, may_be_null=False)}, 1) == 2


# Wrong bounds never become narrow bounds of a copy, of a part, or of the rows that keys may match.

FLOAT_COLUMN = struct((1, "x", "double"))


def file_of(path: Path, values: list[float], bounds: tuple[float, float], **options: Any) -> DataFile:
    parquet_file(path, rows(FLOAT_COLUMN, {"x": values}), **options)
    return entry_of(
        path,
        value_counts={1: len(values)},
        null_value_counts={1: 0},
        nan_value_counts={1: sum(map(math.isnan, values))},
        lower_bounds={1: encode("double", bounds[0])},
        upper_bounds={1: encode("double", bounds[1])},
    )


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_nan_bounds_are_ignored(order: tuple[int, ...], tmp_path: Path) -> None:
    """Some writers give such bounds to files with NaN and other values; they are ignored
    (rule: metrics-contain-every-value).

    Bounds of the footer are used, if it has any.
    """
    inputs = [
        file_of(tmp_path / "a.parquet", [3.0, 4.0], (3.0, 4.0)),
        file_of(tmp_path / "b.parquet", [math.nan, -9.0, 99.0], (math.nan, math.nan)),
        file_of(tmp_path / "c.parquet", [5.0, 6.0], (5.0, 6.0)),
    ]
    made = copied([inputs[i] for i in order], tmp_path / "copy.parquet", target_of(FLOAT_COLUMN, mode="full"))
    assert isinstance(made, DataFile), str(made)
    assert (made.lower_bounds, made.upper_bounds) == ({1: encode("double", -9.0)}, {1: encode("double", 99.0)})
    inputs[1] = file_of(tmp_path / "b.parquet", [math.nan, -9.0, 99.0], (math.nan, math.nan), write_statistics=False)
    blind = copied([inputs[i] for i in order], tmp_path / "copy.parquet", target_of(FLOAT_COLUMN, mode="full"))
    assert str(blind) == f"{tmp_path / 'b.parquet'} has a manifest entry without bounds of column x"


TEXTS = struct((1, "id", "long"), (2, "name", "string"), (3, "x", "double"), (4, "price", "decimal(9,2)"))


def with_exchanged_bounds(path: Path) -> Path:
    """Exchange the minimum and the maximum in the statistics of the first row group."""
    prices = [Decimal("-1.25"), Decimal("3.50"), Decimal("7.00"), Decimal("8.00")]
    values: dict[str, Any] = {
        "id": [1, 9, 20, 21],
        "name": ["a", "z", "b", "c"],
        "x": [-1.0, 2.0, 3.0, 4.0],
        "price": prices,
    }
    parquet_file(path, rows(TEXTS, values), row_group_size=2)

    def turn(footer: FileMetaData) -> None:
        for chunk in footer.row_groups[0].columns:
            statistics = chunk.meta_data.statistics
            assert statistics is not None
            statistics.min_value, statistics.max_value = statistics.max_value, statistics.min_value

    return with_metadata(path, turn)


def test_exchanged_statistics_exclude_no_key(tmp_path: Path) -> None:
    """Deleted rows do not return because a writer compares values differently
    (rule: copy-under-keys-only-if-none-match)."""
    footer = pq.read_metadata(with_exchanged_bounds(tmp_path / "a.parquet"))
    first, second = (column_ranges(footer.row_group(number), leaf_columns(TEXTS)) for number in range(2))
    assert set(first.values()) == {ColumnRange(may_be_null=False)}
    assert (second[1].least, second[1].most, second[2].least) == (20, 21, b"b")


def test_a_part_does_not_use_exchanged_statistics(tmp_path: Path) -> None:
    path = with_exchanged_bounds(tmp_path / "a.parquet")
    nothing = dict.fromkeys(range(1, 5), 0)
    entry = entry_of(path, value_counts=dict.fromkeys(nothing, 4), null_value_counts=nothing, nan_value_counts=nothing)
    target = target_of(TEXTS, mode="counts")
    file = copyable_file(entry, target, STORAGE)
    assert isinstance(file, CopyableFile), str(file)
    full = target_of(TEXTS, mode="full")
    assert str(copyable_part(entry, file, [0], full)).endswith("bounds of column id for a part of its row groups")
    assert isinstance(copyable_part(entry, file, [1], full), CopyableFile)


@pytest.mark.parametrize(
    ("writer", "is_right"),
    [
        ("parquet-mr version 1.10.0 (build x)", False),
        ("parquet-mr version 1.10.1 (build x)", True),
        ("parquet-mr-trino version 476 (build n/a)", False),
        ("DuckDB version v1.5.4 (build x)", False),
        ("DuckDB version v2.0.0 (build x)", True),
        ("somebody version 9.9.9", False),
        ("parquet-mr", False),
        ("", False),
    ],
)
def test_writers_with_correct_statistics_are_known_by_name_and_version(writer: str, is_right: bool) -> None:
    """(rule: footer-bounds-by-known-writers)."""
    assert has_right_statistics(writer.encode()) is is_right


@pytest.mark.parametrize(("writer", "is_known"), [("somebody version 9.9.9", False), ("DuckDB version v2.0.0", True)])
def test_only_footers_of_known_writers_supply_bounds_and_counts(writer: str, is_known: bool, tmp_path: Path) -> None:
    """Plausible but wrong bounds would hide rows from filters."""
    path = parquet_file(tmp_path / "a.parquet", rows(FLOAT_COLUMN, {"x": [1.0, 2.0, 3.0, 4.0]}), row_group_size=2)

    def claim(footer: FileMetaData) -> None:
        footer.created_by = writer.encode()
        for group in footer.row_groups:
            statistics = group.columns[0].meta_data.statistics
            assert statistics is not None
            statistics.min_value, statistics.max_value = packed(70.0), packed(80.0)

    with_metadata(path, claim)
    full = entry_of(
        path,
        value_counts={1: 4},
        null_value_counts={1: 0},
        nan_value_counts={1: 0},
        lower_bounds={1: encode("double", 1.0)},
        upper_bounds={1: encode("double", 4.0)},
    )
    target = target_of(FLOAT_COLUMN, mode="full")
    for lacking, why in (
        (replace(full, lower_bounds=None, upper_bounds=None), "without bounds of column x"),
        (replace(full, null_value_counts=None), "that does not count the nulls of column x"),
    ):
        made = copied([lacking], tmp_path / "copy.parquet", target)
        if is_known:
            assert isinstance(made, DataFile), str(made)
        else:
            assert str(made) == f"{path} has a manifest entry {why}"
    part = copyable_part(full, judged(full, target), [0], target)
    if is_known:
        assert isinstance(part, CopyableFile), str(part)
    else:
        assert str(part) == f"{path} has a manifest entry without bounds of column x for a part of its row groups"


def test_a_copy_from_unknown_writers_has_an_unknown_writer() -> None:
    known, unknown = b"parquet-cpp-arrow version 26.0.1", b"somebody version 9.9.9"
    assert has_right_statistics(common_writer({known, b"DuckDB version v2.0.0"}))
    assert not has_right_statistics(common_writer({known, unknown}))
    assert not has_right_statistics(common_writer({common_writer({known, unknown}), known}))


def packed(value: float | None) -> bytes | None:
    return None if value is None else pack("<d", value)


@pytest.mark.parametrize(
    ("least", "most", "hidden"),
    [
        (None, None, False),
        (None, 1.0, False),
        (1.0, None, False),
        (1.0, 2.0, False),
        (1.0, 1.0, True),
        (-0.0, 0.0, True),
        (2.0, 1.0, True),
        (math.nan, math.nan, True),
        (math.nan, 1.0, True),
    ],
)
@pytest.mark.parametrize("deprecated", [False, True])
def test_bounds_of_floats_are_stated_only_if_the_upper_exceeds_the_lower(
    least: float | None, most: float | None, hidden: bool, deprecated: bool
) -> None:
    """No reader takes a single bound for a single value."""
    statistics = Statistics(min=packed(least), max=packed(most))
    if not deprecated:
        statistics = Statistics(min_value=packed(least), max_value=packed(most))
    (leaf,) = leaf_columns(FLOAT_COLUMN)
    assert hides_bounds(ColumnMetaData(statistics=statistics), leaf) is hidden
    # Without NaN, equal bounds are the only value, except for zeros, which have two signs.
    is_single = least == most != 0
    assert hides_bounds(ColumnMetaData(statistics=statistics), leaf, may_be_nan=False) is (hidden and not is_single)
    assert not hides_bounds(ColumnMetaData(statistics=None), leaf)
