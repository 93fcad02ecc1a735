"""Finds the columns whose values repeat too seldom for a dictionary, by a sample of a file's first row group (pure).

Arrow's writer puts every column into a dictionary until that is full, also one whose values hardly repeat: hashing them
takes half of the time to write, and the file becomes larger, because such a dictionary is as long as the values that it
stands for (platform 52).  parquet-mr looks at the first page, and leaves a dictionary away that saves nothing
(``DictionaryValuesWriter.isCompressionSatisfying``).  Here a sample tells how many different values the row group
probably has.  Where that is not certain the column keeps its dictionary (rule 135).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.rows.arrow_schema import LeafColumn
from icekeeper.rows.leaf_values import leaf_values

__all__ = ["columns_without_dictionary"]

# Enough to tell 200,000 different values from ever new ones, in a few milliseconds per column.
_SAMPLE_ROWS = 32 * 1024
# So small a row group is looked at whole.
_LEAST_ROWS = 1024
# At most this share of the rows is sampled: hashing them is what a dictionary costs.
_SHARE = 4
# The sample is taken in stretches, because rows that follow one another are alike, and to copy single rows costs more.
_STRETCH_ROWS = 256
# A dictionary counts as too long when it would be so many times as long as it may be.
_MARGIN = 2.0


def columns_without_dictionary(group: pa.Table, leaves: Sequence[LeafColumn], limit: int) -> frozenset[int]:
    """Ids of the leaf columns for which a dictionary would be no shorter than the values, or longer than ``limit``.

    ``group`` has the rows of one row group, ``leaves`` are all its leaf columns, ``limit`` is in bytes.
    """
    if not group.num_rows or not leaves:
        return frozenset()
    sample = _sample(group)
    scale = group.num_rows / sample.num_rows
    order = iter(leaves)
    found: set[int] = set()
    for column in sample.columns:
        for leaf, values in leaf_values(column, order):
            if leaf.iceberg_type != "boolean" and not _pays(values, scale, limit):
                found.add(leaf.field_id)
    return frozenset(found)


def _sample(table: pa.Table) -> pa.RecordBatch:
    """Stretches of rows from equal parts of the row group, from another place of each; the same in every run."""
    rows = table.num_rows
    wanted = max(_LEAST_ROWS, min(_SAMPLE_ROWS, rows // _SHARE))
    if rows > wanted:
        part = rows // (wanted // _STRETCH_ROWS)
        places = random.Random(0)
        starts = (start + places.randrange(part - _STRETCH_ROWS + 1) for start in range(0, rows - part + 1, part))
        table = pa.concat_tables([table.slice(start, _STRETCH_ROWS) for start in starts])
    return table.combine_chunks().to_batches()[0]


def _pays(sampled: pa.Array, scale: float, limit: int) -> bool:
    """Whether a dictionary for ``scale`` times as many values as were sampled is short, as far as is known."""
    if isinstance(sampled, pa.ExtensionArray):
        sampled = sampled.storage
    present = int(len(sampled) - sampled.null_count)
    if not present:
        return True
    width = _plain_bytes(sampled) / present
    values = present * scale
    distinct = _likely_distinct(int(pc.count_distinct(sampled, mode="only_valid").as_py()), present, values)
    dictionary = distinct * width
    return dictionary <= _MARGIN * limit and dictionary + values * _index_bits(distinct) / 8 < values * width


def _likely_distinct(seen: int, sampled: int, values: float) -> float:
    """How many different values there are at least, if ``seen`` are among ``sampled`` ones."""
    if values <= sampled:
        return seen
    repeated = sampled - seen
    # Chance may have hidden some of the repetitions: so many more are within two standard deviations.
    seen = max(1, sampled - math.ceil(repeated + 2 * math.sqrt(repeated) + 2))
    kinds = _kinds(seen, sampled)
    return -kinds * math.expm1(-values / kinds)


def _kinds(seen: int, drawn: int) -> float:
    """Of how many equally frequent kinds one draws ``seen`` different ones in ``drawn`` drawings.

    Where some kinds are more frequent than others there are more.
    """
    low, high = float(seen), 1e15
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        if -middle * math.expm1(-drawn / middle) < seen:
            low = middle
        else:
            high = middle
    return low


def _plain_bytes(values: pa.Array) -> float:
    """The bytes that the values take in pages without a dictionary (Parquet format, "Encodings", PLAIN)."""
    kind = values.type
    present = int(len(values) - values.null_count)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4.0 * present + float(pc.sum(pc.binary_length(values)).as_py() or 0)
    if pa.types.is_decimal(kind):
        return float(present * _decimal_bytes(int(kind.precision)))
    return float(present * kind.bit_width / 8)


def _decimal_bytes(precision: int) -> int:
    """Parquet format, "DECIMAL": as integers where these can hold all digits, else as few bytes as can."""
    bits = math.ceil(math.log2(10**precision)) + 1
    return next((size for size in (4, 8) if bits <= 8 * size), math.ceil(bits / 8))


def _index_bits(distinct: float) -> int:
    return max(1, math.ceil(math.log2(max(2.0, distinct))))
