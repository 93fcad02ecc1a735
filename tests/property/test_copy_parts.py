"""Whatever row groups of whatever files are copied, rows, row ids and last changes are those that a reader finds in the
inputs; what a file claims of them is refused, or true (rule 129, rule 130)."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.errors import StorageError
from icekeeper.metadata.single_value import encode
from icekeeper.model import DataFile
from icekeeper.row_group_copy.footer import Footer, read_footer
from icekeeper.row_group_copy.footer_structs import NotCopyable
from support.copied import (
    STORAGE,
    Input,
    entry_of,
    lineage_file,
    lineage_target,
    merged,
    mixed_rows,
    parquet_file,
    plain_file,
    resolved,
    row_ids,
)
from support.damaged_parquet import CHANGES, rows_of
from support.examples import examples
from support.mixed_footers import mixed_fields
from support.rewrites import rewritten, rows, struct, written

SHAPES = st.fixed_dictionaries(
    {
        "row_group_size": st.sampled_from([1, 3, 7, 1000]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "use_dictionary": st.booleans(),
        "write_page_index": st.booleans(),
        "write_statistics": st.booleans(),
        "max_rows_per_page": st.sampled_from([1, 2, 1000]),
    }
)
IDS = st.none() | st.integers(0, 2**62)
STORED = st.lists(st.tuples(IDS, IDS), min_size=0, max_size=12)
FILES = st.tuples(st.none() | STORED, st.integers(0, 12), SHAPES, st.integers(0, 2**62), st.integers(0, 2**40))


def drawn(folder: Path, number: int, file: tuple[Any, ...], chance: random.Random) -> Input:
    """A file, of which all or some row groups are wanted."""
    stored, count, options, first, sequence_number = file
    path = folder / f"{number}.parquet"
    if stored is None:
        made = plain_file(path, number * 12, first, sequence_number, rows=count, **options)
    else:
        columns = [one for one, _ in stored], [one for _, one in stored]
        made = lineage_file(path, number * 12, columns, (first, sequence_number), **options)
    footer = pq.read_metadata(path)
    numbers = [n for n in range(footer.num_row_groups) if footer.row_group(n).num_rows]
    return made if chance.random() < 0.4 else made._replace(only=[n for n in numbers if chance.random() < 0.6])


def assert_true_of_all_rows(path: str) -> None:
    """What some row groups state of a column holds for the file: there are readers that take it so (platform 100)."""
    footer, table = pq.read_metadata(path), pq.read_table(path).flatten()
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for column in range(footer.num_columns):
        name = groups[0].column(column).path_in_schema
        if name not in table.column_names or name == "key":  # of uuids Arrow compares bytes
            continue
        told = [group.column(column).statistics for group in groups]
        counts = [one.null_count for one in told if one is not None and one.has_null_count]
        bounds = [(one.min, one.max) for one in told if one is not None and one.has_min_max]
        values = [value for value in table[name].to_pylist() if value is not None]
        assert not counts or sum(counts) == table.num_rows - len(values)
        if bounds:
            assert min(values) == min(low for low, _ in bounds)
            assert max(values) == max(high for _, high in bounds)


@settings(max_examples=examples(12), deadline=None)
@given(files=st.lists(FILES, min_size=1, max_size=3), seed=st.integers(0, 2**32))
def test_rows_and_their_lineage_are_those_of_the_inputs(files: list[tuple[Any, ...]], seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        inputs = [drawn(Path(name), number, file, chance) for number, file in enumerate(files)]
        made = merged(inputs, Path(name) / "copy.parquet")
        wanted = [row for one in inputs for row in resolved(one)]
        if not wanted:
            assert made is None
            return
        assert isinstance(made, DataFile), str(made)
        assert made.record_count == len(wanted)
        assert pq.read_table(made.file_path).to_pylist() == wanted
        with duckdb.connect() as connection:
            columns = "id, _row_id, _last_updated_sequence_number"
            assert connection.sql(f"SELECT {columns} FROM '{made.file_path}'").fetchall() == row_ids(made.file_path)
        footer = read_footer(made.file_path, STORAGE)
        assert isinstance(footer, Footer), footer
        assert mixed_fields(footer.metadata()) == []  # (rule 200)
        assert_true_of_all_rows(made.file_path)
        again = merged([Input(entry_of(Path(made.file_path), first_row_id=5), 5)], Path(name) / "again.parquet")
        assert isinstance(again, DataFile), str(again)
        assert Path(again.file_path).read_bytes() == Path(made.file_path).read_bytes()


VALUES = struct((1, "n", "int"), (2, "x", "double"), (3, "t", "string"), (4, "raw", "binary"))
ROW = st.tuples(
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.none() | st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan]),
    st.none() | st.text(max_size=4),
    st.none() | st.binary(max_size=4),
)


@settings(max_examples=examples(12), deadline=None)
@given(content=st.lists(ROW, min_size=1, max_size=12), options=SHAPES, seed=st.integers(0, 2**32))
def test_metrics_of_a_part_are_those_of_its_rows(
    content: list[tuple[Any, ...]], options: dict[str, Any], seed: int
) -> None:
    """Exactly, or the part is refused."""
    with tempfile.TemporaryDirectory() as name:
        names = [field["name"] for field in VALUES["fields"]]
        table = rows(VALUES, dict(zip(names, map(list, zip(*content, strict=True)), strict=True)))
        path = parquet_file(Path(name) / "in.parquet", table, **options)
        entry = written(rewritten(VALUES, [table], Path(name)))
        kept = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
        known = {one: getattr(entry, one) for one in kept}
        groups = pq.read_metadata(path).num_row_groups
        only = [number for number in range(groups) if random.Random(seed + number).random() < 0.5]
        part = Input(entry_of(path, first_row_id=0, **known), 1, only)
        made = merged([part], Path(name) / "copy.parquet", lineage_target(VALUES, mode="full"))
        if isinstance(made, NotCopyable):
            has_nan = any(x is not None and math.isnan(x) for _, x, _, _ in content)
            assert has_nan or not options["write_statistics"]
            return
        found = resolved(part)
        assert (made is None) == (not found)
        if made is not None:
            _are_exact(made, found)


def _are_exact(made: DataFile, found: list[dict[str, Any]]) -> None:
    for i, name, kind in ((1, "n", "int"), (2, "x", "double"), (3, "t", "string"), (4, "raw", "binary")):
        values = [row[name] for row in found]
        numbers = [v for v in values if v is not None and not (kind == "double" and math.isnan(v))]
        assert (made.value_counts or {})[i] == len(values)
        assert (made.null_value_counts or {})[i] == values.count(None)
        if kind == "double":
            assert (made.nan_value_counts or {})[i] == len(values) - values.count(None) - len(numbers)
        low, high = (made.lower_bounds or {}).get(i), (made.upper_bounds or {}).get(i)
        if not numbers:
            assert low is high is None
            continue
        order = (lambda text: text.encode()) if kind == "string" else None
        least, most = min(numbers, key=order), max(numbers, key=order)
        if kind == "double":
            least, most = least or -0.0, most or 0.0
        assert (low, high) == (encode(kind, least), encode(kind, most))


@cache
def original(kind: str) -> bytes:
    """Forty rows without lineage columns, or with values of which some are null, or all there."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.parquet"
        if kind == "plain":
            return parquet_file(path, mixed_rows(0, 40)).read_bytes()
        values = [None if kind == "nulls" and n % 6 == 0 else 700 + n for n in range(40)]
        lineage_file(path, 0, (values, values))
        return path.read_bytes()


def _outcome(inputs: list[Input], to: Path) -> DataFile | NotCopyable | str | None:
    """What is made of the inputs, or the sentence of an error."""
    try:
        return merged(inputs, to)
    except (StorageError, ValueError) as error:
        return str(error)


@settings(max_examples=examples(40), deadline=None)
@given(
    kind=st.sampled_from(["plain", "nulls", "stored"]),
    change=st.sampled_from(CHANGES),
    only=st.sampled_from([None, [0], [1]]),
    seed=st.integers(0, 2**48),
)
def test_no_claim_about_lineage_or_parts_is_copied_wrongly(
    kind: str, change: Callable[[Path, random.Random], None], only: list[int] | None, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        path, good, to = (Path(name) / f"{one}.parquet" for one in ("in", "good", "copy"))
        path.write_bytes(original(kind))
        good.write_bytes(original("plain"))
        change(path, random.Random(seed))
        whole = entry_of(good, first_row_id=100)
        entry = entry_of(good, file_path=str(path), file_size_in_bytes=path.stat().st_size, first_row_id=5000)
        claimed = Input(entry, 9, only)
        made = _outcome([Input(whole, 3), claimed], to)
        if isinstance(made, str):
            # That row group has no rows now; pages are damaged; or only decoding disproves what is told of row ids.
            assert "row group" in made or rows_of(path) is None
            return
        if not isinstance(made, DataFile):
            assert not to.exists()
            assert "\n" not in str(made)
            assert str(made).startswith(f"{path} ")
            return
        copy = rows_of(to)
        assert (rows_of(path) is None) <= (only is not None or copy is None)
        if rows_of(path) is not None and copy is not None:
            assert copy.num_rows == made.record_count
            try:
                wanted = [row for one in (Input(whole, 3), claimed) for row in resolved(one)]
            except (OverflowError, ValueError):  # a damaged day or moment that Python has not
                return
            assert copy.equals(pa.Table.from_pylist(wanted, schema=copy.schema))
