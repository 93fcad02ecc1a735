"""Files that compaction writes: the same bytes on any number of cores, and batches joined in order."""

from __future__ import annotations

import datetime
import decimal
import random
import tempfile
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from struct import pack
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.machine.resources import on_cores
from icekeeper.model import DataFile
from icekeeper.operations.compaction.work import side_by_side
from icekeeper.operations.compaction.work import write_file as row_group_writer
from icekeeper.operations.compaction.work.proof import COUNTS, RowProof
from icekeeper.operations.compaction.work.side_by_side import column_runs, encoded_columns
from icekeeper.operations.compaction.work.write_file import write_data_file
from icekeeper.row_group_copy.footer import read_footer
from icekeeper.row_group_copy.footer_structs import CannotCopy
from icekeeper.rows.arrow_schema import StoredVariant
from icekeeper.rows.read_task import with_lineage
from icekeeper.storage.storage import Storage
from support.copied import mixed_fields
from support.examples import examples
from support.rewrites import rows, struct, task

# A data file has the same bytes and the same manifest entry on any number of cores.

NAN = float("nan")
KINDS: Mapping[str, Any] = {
    "boolean": (True, False),
    "int": (-(2**31), -1, 0, 7, 2**31 - 1),
    "long": (-(2**40), -1, 0, 7, 2**63 - 1),
    "float": (1.5, -0.0, 0.0, NAN, float("-inf"), 7.0),
    "double": (1.5, -0.0, 0.0, NAN, float("inf"), 0.1),
    "string": ("", "a", "ab", "fünfzehn Zeichen 😀 und mehr", "0123456789abcde\U0010ffff and on"),
    "date": (datetime.date(2024, 2, 29), datetime.date(1969, 12, 31)),
    "timestamptz": (datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC),),
    "timestamp_ns": (-1_000_000_001, 0, 1_709_209_815_123_456_789),
    "decimal(9, 2)": tuple(decimal.Decimal(n).scaleb(-2) for n in (-350, 0, 999999999)),
    "decimal(38, 3)": tuple(decimal.Decimal(n).scaleb(-3) for n in (-(10**30), 0, 1)),
    "uuid": tuple(n.to_bytes(16, "big") for n in (0, 1 << 63, 2**128 - 1)),
    "fixed[3]": (b"\x00\x00\x00", b"\xff\xff\xff"),
    "binary": (b"", b"\xff" * 20),
    "geometry": (b"", b"\x01" * 20),
}
POINT = struct((100, "x", "long"), (101, "label", "string"))
NUMBERS = {"type": "list", "element-id": 102, "element": "double", "element-required": False}
PRICES = {"type": "map", "key-id": 103, "key": "string", "value-id": 104, "value": "long", "value-required": False}
ELEMENT = pa.struct([("value", pa.binary()), ("typed_value", pa.float64())])
VARIANT = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.list_(ELEMENT))])
NESTED: Mapping[str, tuple[Any, Any]] = {
    "point": (POINT, ({"x": 1, "label": "a"}, {"x": None, "label": "b"}, {"x": 7, "label": None})),
    "numbers": (NUMBERS, ([], [1.5], [None, 2.0, NAN])),
    "prices": (PRICES, ([], [("a", 1)], [("b", None), ("c", 2**40)])),
    "variant": (
        StoredVariant(VARIANT),
        (
            {"metadata": b"\x01", "value": b"x" * 20, "typed_value": None},
            {"metadata": b"\x01", "value": None, "typed_value": [{"value": None, "typed_value": 1.5}, {"value": b"y"}]},
        ),
    ),
}
CODECS = st.sampled_from(["zstd", "gzip", "snappy", "lz4", "brotli", "uncompressed"])


def a_table(chance: random.Random, kinds: list[str], count: int) -> tuple[dict[str, Any], pa.Table]:
    """Rows with columns of these types, with and without nulls, of few or of many distinct values."""
    fields: list[tuple[Any, ...]] = []
    values: dict[str, list[Any]] = {}
    for number, kind in enumerate(kinds, start=1):
        name = kind if kind in NESTED else f"c{number}.{kind}"
        declared, domain = NESTED[kind] if kind in NESTED else (kind, KINDS[kind])
        nulls = chance.choice([0.0, 0.2, 1.0])
        fields.append((number, name, declared))
        found = [None if chance.random() < nulls else chance.choice(domain) for _ in range(count)]
        if kind == "long" and chance.random() < 0.5:
            found = [None if value is None else chance.randrange(2**62) for value in found]
        values[name] = found
    schema = struct(*fields)
    return schema, rows(schema, values)


def files(
    schema: dict[str, Any], batches: list[pa.RecordBatch], folder: Path, properties: dict[str, str]
) -> Iterator[tuple[bytes, DataFile]]:
    """The file's bytes and its entry, written on one, three and five cores."""
    for cores in (1, 3, 5):
        target = folder / "file.parquet"
        with on_cores(cores), mock.patch.object(row_group_writer, "_WORTH_THREADS_BYTES", 0):
            entry = write_data_file(
                str(target), batches, task(schema, [], folder, table_properties=properties), Storage({})
            )
        assert entry is not None
        yield target.read_bytes(), entry


@settings(max_examples=examples(20), deadline=None)
@given(
    kinds=st.lists(st.sampled_from([*KINDS, "long", "string"]), min_size=1, max_size=6),
    nested=st.sets(st.sampled_from(sorted(NESTED))),
    codec=CODECS,
    count=st.integers(1, 400),
    step=st.integers(1, 400),
    group=st.sampled_from(["1", "4096", "100000000"]),
    more=st.sets(st.sampled_from(["small pages", "small dictionary", "Bloom filters", "no metrics"])),
    seed=st.integers(0, 2**48),
)
def test_a_file_has_the_same_bytes_on_any_number_of_cores(
    kinds: list[str], nested: set[str], codec: str, count: int, step: int, group: str, more: set[str], seed: int
) -> None:
    chance = random.Random(seed)
    schema, table = a_table(chance, [*kinds, *sorted(nested)], count)
    wanted = {"compression-codec": codec, "row-group-size-bytes": group}
    if "small pages" in more:
        wanted["page-row-limit"] = "7"
    if "small dictionary" in more:
        wanted["dict-size-bytes"] = "64"
    if "Bloom filters" in more:
        names = [name for name in table.schema.names if name not in NESTED] + ["point.label"]
        wanted |= {f"bloom-filter-enabled.column.{name}": "true" for name in names}
    properties = {f"write.parquet.{key}": value for key, value in wanted.items()}
    if "no metrics" in more:
        properties["write.metadata.metrics.default"] = "none"
    (whole,) = table.combine_chunks().to_batches()
    batches = [whole.slice(start, step) for start in range(0, count, step)]
    with tempfile.TemporaryDirectory() as folder:
        expected, *others = files(schema, batches, Path(folder), properties)
        footer = read_footer(str(Path(folder) / "file.parquet"), Storage({}))
    assert mixed_fields(footer.metadata()) == []
    for other in others:
        assert other == expected


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 20))
def test_runs_hold_every_column_once_in_order(sizes: list[int], parts: int) -> None:
    runs = column_runs(sizes, parts)
    assert [column for run in runs for column in run] == list(range(len(sizes)))
    assert all(len(run) == 1 or sum(sizes[run.start : run.stop]) * parts <= sum(sizes) for run in runs)
    assert all(runs)
    assert len(runs) <= 2 * parts


def test_duckdb_finds_rows_by_every_index(tmp_path: Path) -> None:
    """The file has several row groups and pages, Bloom filters and row lineage columns."""
    schema = with_lineage(struct((1, "id", "long"), (2, "word", "string")))
    count = 3000
    values: dict[str, list[Any]] = {
        "id": list(range(count)),
        "word": [f"w{n % 97}" for n in range(count)],
        "_row_id": list(range(count)),
        "_last_updated_sequence_number": [7] * count,
    }
    (batch,) = rows(schema, values).to_batches()
    properties = {
        "write.parquet.row-group-size-bytes": "1",
        "write.parquet.page-row-limit": "100",
        "write.parquet.bloom-filter-enabled.column.word": "true",
    }
    batches = [batch.slice(start, 1000) for start in range(0, count, 1000)]
    path = tmp_path / "file.parquet"
    with mock.patch.object(side_by_side, "encoded_columns", side_effect=encoded_columns) as encoded:
        first, *_ = files(schema, batches, tmp_path, properties)
    assert encoded.call_count > 2 * len(values)  # on three and on five cores, each column is encoded separately
    assert pq.read_metadata(path).num_row_groups == 3
    with duckdb.connect() as connection:
        for where in ("id = 1234", "word = 'w13' AND id > 2900", "_row_id BETWEEN 990 AND 1010", "word = 'none'"):
            found = connection.execute(f"SELECT id FROM read_parquet('{path}') WHERE {where} ORDER BY id").fetchall()
            everything = connection.execute(f"SELECT id FROM batch WHERE {where} ORDER BY id").fetchall()
            assert found == everything
    assert first[1].record_count == count


def test_if_a_row_group_has_no_bounds_all_row_groups_have_none(tmp_path: Path) -> None:
    """Arrow writes no bounds for such a row group; DataFusion would then use those of the others for the file."""
    schema = struct((1, "id", "long"), (2, "text", "string"), (3, "x", "double"), (4, "gone", "long"))
    values: dict[str, list[Any]] = {
        "id": list(range(6)),
        "text": ["a" * 5000, "b", "c", "d", None, None],
        "x": [NAN, NAN, 5.0, 6.0, 7.0, 8.0],
        "gone": [None, None, 1, 2, 3, 4],
    }
    (batch,) = rows(schema, values).to_batches()
    batches = [batch.slice(start, 2) for start in range(0, 6, 2)]
    item, *others = files(schema, batches, tmp_path, {"write.parquet.row-group-size-bytes": "1"})
    assert all(other == item for other in others)
    footer = pq.read_metadata(tmp_path / "file.parquet")
    statistics = [[footer.row_group(g).column(c).statistics for g in range(3)] for c in range(4)]
    assert [[item.has_min_max for item in column] for column in statistics] == [
        [True] * 3,
        [False] * 3,
        [False] * 3,
        [False, True, True],  # a row group of nulls has no bounds
    ]
    assert [[item.null_count for item in column] for column in statistics] == [[0] * 3, [0, 0, 2], [0] * 3, [2, 0, 0]]
    assert pq.read_table(tmp_path / "file.parquet").to_pylist()[2:] == batch.to_pylist()[2:]
    entry = item[1]
    assert (entry.lower_bounds or {})[3] == pack("<d", 5.0)  # the manifest's bounds leave NaN out


def test_arrow_encodes_a_file_with_fields_we_do_not_know(tmp_path: Path) -> None:
    """A newer Arrow may write fields that our Thrift structures lack; then Arrow encodes the whole file."""
    schema, table = a_table(random.Random(1), ["long", "string"], 50)
    with mock.patch.object(side_by_side, "encoded_columns", side_effect=CannotCopy("is new")) as tried:
        first, second, third = files(schema, table.to_batches(), tmp_path, {})
    assert first == second == third
    assert tried.call_count == 2


# Small batches are joined before they reach the writer; rows and their order are unchanged
# (rule: prove-before-commit).

_MIB = 1024 * 1024


_SCHEMA = struct((1, "n", "long"), (2, "b", "binary"))


def _batch(first: int, rows: int, row_bytes: int) -> pa.RecordBatch:
    """Rows numbered from ``first``, each of ``row_bytes`` bytes."""
    numbers = pa.array(range(first, first + rows), pa.int64())
    return pa.record_batch({"n": numbers, "b": pa.array([b"x" * row_bytes] * rows, pa.binary())})


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([1, 1_000, 600_000])), max_size=30))
def test_small_batches_are_joined_and_rows_keep_their_order(sizes: list[tuple[int, int]]) -> None:
    given_batches, first = [], 0
    for count, row_bytes in sizes:
        given_batches.append(_batch(first, count, row_bytes))
        first += count
    joined = list(RowProof(_SCHEMA, COUNTS).watch(given_batches, 4 * _MIB))
    assert [n for batch in joined for n in batch["n"].to_pylist()] == list(range(first))
    assert all(batch.num_rows for batch in joined)
    # Two neighbouring batches together have at least 4 MiB; otherwise they would be joined.
    for before, after in pairwise(joined):
        assert before.nbytes + after.nbytes >= 4 * _MIB
    assert all(batch.nbytes < 8 * _MIB for batch in joined)


def test_a_large_batch_is_not_copied() -> None:
    small, large = _batch(0, 2, 10), _batch(2, 8, _MIB)
    first, second, third = RowProof(_SCHEMA, COUNTS).watch([small, large, small], 4 * _MIB)
    assert first is small
    assert second is large
    assert third is small
