"""Files that we write: dictionaries, and the same bytes on any number of cores."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from icekeeper.machine.resources import on_cores
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe, KeyColumn
from icekeeper.operations.compaction.work import write_file as row_group_writer
from icekeeper.operations.compaction.work.dictionaries import columns_without_dictionary
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from icekeeper.operations.compaction.work.sort_keys import row_taker
from icekeeper.policy import Strategy
from icekeeper.rows.arrow_schema import UNSHREDDED, StoredVariant, leaf_columns
from support.copied import MIXED, mixed_rows
from support.rewrites import input_file, rewritten, rows, struct, task, written

# A column has no dictionary only if a dictionary certainly saves nothing.

LIMIT = 2 * 1024 * 1024
ROWS = 300_000
LIST = {"type": "list", "element-id": 2, "element": "float", "element-required": False}


def drawn(kinds: int, count: int = ROWS) -> pa.Array:
    """``count`` random numbers of ``kinds`` equally likely values."""
    return pc.floor(pc.multiply(pc.random(count, initializer=1), kinds)).cast(pa.int64())


def is_plain(values: pa.Array, kind: object = "long", limit: int = LIMIT, batches: int = 3) -> bool:
    """Whether a column of these values, in several batches, has no dictionary."""
    schema = struct((1, "a", kind))
    step = -(-len(values) // batches)
    table = pa.concat_tables([pa.table({"a": values.slice(n * step, step)}) for n in range(batches)])
    found = columns_without_dictionary(table, leaf_columns(schema), limit)
    path = leaf_columns(schema)[0].parquet_path
    assert found <= {path}
    return path in found


def cycle(kinds: int) -> pa.Array:
    """The numbers below ``kinds`` in order, repeated, so that neighbouring values differ."""
    numbers = pa.arange(0, ROWS)
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, kinds), kinds))


@pytest.mark.parametrize(
    ("values", "plain"),
    [
        (pa.arange(0, ROWS), True),
        (drawn(10 * ROWS), True),
        (drawn(ROWS // 10), False),
        (drawn(ROWS // 3), False),
        (cycle(40_000), False),
        (cycle(90_000), False),
        (pc.divide(pa.arange(0, ROWS), 2), False),  # each value twice: the dictionary has half as many
        (pa.array([7] * 1000), False),
        (pa.arange(0, 1000), True),
        (pa.array([None] * 1000, pa.int64()), False),
        (pa.array([1]), True),
    ],
    ids=["unique", "rarely again", "often", "thrice", "cycle", "long cycle", "pairs", "one", "few", "none", "single"],
)
def test_values_that_repeat_have_a_dictionary(values: pa.Array, plain: bool) -> None:
    assert is_plain(values) is plain


def test_a_dictionary_that_would_exceed_its_limit_is_not_begun() -> None:
    """50,000 numbers take 400 KB: four times the limit, or less than twice the limit."""
    values = drawn(50_000)
    assert is_plain(values, limit=100_000)
    assert not is_plain(values, limit=300_000)


def test_the_width_of_values_decides() -> None:
    """If nine of ten values differ, a dictionary saves more than its indexes take for strings, but not for integers."""
    count = 1000
    numbers = [n - n % 10 if n % 10 == 1 else n for n in range(count)]
    assert is_plain(pa.array(numbers, pa.int32()), "int")
    assert not is_plain(pa.array([f"{n:060d}" for n in numbers]), "string")
    assert is_plain(pa.array([f"{n:060d}" for n in range(count)]), "string")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([bytes([n % 256, n // 256]) * 8 for n in range(2000)], pa.binary(16)), "fixed[16]"),
        (pa.array([n.to_bytes(4, "big") for n in range(2000)]), "binary"),
        (pa.arange(0, 2000).cast(pa.timestamp("us")), "timestamp"),
        (pa.arange(0, 2000).cast(pa.decimal128(19, 0)), "decimal(19,0)"),
        (pa.array([[n + 0.5, n + 0.25] for n in range(2000)], pa.list_(pa.float32())), LIST),
    ],
    ids=["fixed", "binary", "timestamp", "decimal", "list"],
)
def test_every_type_is_counted(values: pa.Array, kind: object) -> None:
    """Unique values have no dictionary, a repeated value has."""
    assert is_plain(values, kind)
    assert not is_plain(values.take(pa.repeat(5, 2000)), kind)


def test_the_parts_of_a_variant_are_counted_one_by_one() -> None:
    """Its values differ in every row, the names of its fields do not."""
    schema = struct((1, "v", StoredVariant(UNSHREDDED)))
    table = rows(schema, {"v": [{"metadata": b"\1\1\0\1a", "value": n.to_bytes(8, "big")} for n in range(2000)]})
    assert columns_without_dictionary(table, leaf_columns(schema), LIMIT) == {"v.value"}


def test_booleans_never_have_a_dictionary() -> None:
    assert not is_plain(pa.array([True, False] * 500), "boolean")


def test_the_writer_applies_the_choice_of_dictionaries(tmp_path: Path) -> None:
    """Unique numbers have none; a string, an element and a nested number have a dictionary; values are unchanged."""
    tags = {"type": "list", "element-id": 4, "element": "string", "element-required": False}
    schema = struct((1, "id", "long"), (2, "text", "string"), (3, "tags", tags), (5, "in", struct((6, "x", "int"))))
    shuffled = random.Random(1).sample(range(5000), 5000)
    table = rows(
        schema,
        {
            "id": shuffled,
            "text": [f"text {n % 7}" for n in shuffled],
            "tags": [["a", f"tag {n % 5}"] for n in shuffled],
            "in": [{"x": n // 100} for n in shuffled],
        },
    )
    path = written(rewritten(schema, [table], tmp_path)).file_path
    group = pq.read_metadata(path).row_group(0)
    plain = [group.column(i).path_in_schema for i in range(4) if not group.column(i).has_dictionary_page]
    assert plain == ["id"]
    assert "RLE_DICTIONARY" not in group.column(0).encodings
    found = pq.read_table(path)
    assert [found[name].to_pylist() for name in ("id", "text", "tags")] == [
        table[name].to_pylist() for name in ("id", "text", "tags")
    ]


# Sorted files are the same on any number of cores, which take rows and encode columns concurrently.


@pytest.mark.parametrize("cores", [1, 3])
def test_rows_are_taken_as_by_arrow(cores: int) -> None:
    (batch,) = mixed_rows(0, 90).combine_chunks().to_batches()
    numbers = pa.array(random.Random(5).sample(range(90), 40))
    with on_cores(cores), row_taker() as taken:
        assert taken(batch, numbers).equals(batch.take(numbers), check_metadata=True)
        assert taken(batch, numbers.slice(3, 0)).num_rows == 0


@pytest.mark.parametrize("strategy", [Strategy.SORT, Strategy.ZORDER])
def test_a_sorted_file_has_the_same_bytes_on_any_number_of_cores(strategy: Strategy, tmp_path: Path) -> None:
    inputs = [input_file(tmp_path / f"in-{number}.parquet", mixed_rows(number * 60)) for number in range(3)]
    recipe = ClusterRecipe(strategy, (KeyColumn(2), KeyColumn(1)), 2**30, 2**30)
    found = []
    for cores in (1, 3, 4):
        with on_cores(cores), mock.patch.object(row_group_writer, "_WORTH_THREADS_BYTES", 0):
            file = written(rewrite_group(task(MIXED, inputs, tmp_path, recipe=recipe)))
        found.append((Path(file.file_path).read_bytes(), file))
    assert found[0] == found[1] == found[2]
