"""Find columns for which a dictionary saves nothing (pure).

Arrow's writer uses a dictionary for every column until the dictionary is full, even if values hardly repeat.  Hashing
them takes half of the writing time, and the file becomes larger, because the dictionary is as long as the values.
parquet-mr drops a dictionary that saves nothing in the first page
(``DictionaryValuesWriter.isCompressionSatisfying``).  Here, a sample of the file's first row group shows how many
distinct values a column probably has.  In doubt the column keeps its dictionary.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.rows.arrow_schema import LeafColumn, leaf_values

# Enough to distinguish 200,000 different values from unique values, in a few milliseconds per column.
_SAMPLE_ROWS = 32 * 1024
# A row group of this size is sampled completely.
_LEAST_ROWS = 1024
# At most one row in this many is sampled, because hashing rows is the cost of a dictionary.
_SHARE = 4
# The sample has stretches of rows: adjacent rows are similar, and copying single rows costs more.
_STRETCH_ROWS = 256
# A dictionary is too long if it would be this many times as long as allowed.
_MARGIN = 2.0


def columns_without_dictionary(group: pa.Table, leaves: Sequence[LeafColumn], limit: int) -> frozenset[str]:
    """Paths of leaf columns for which a dictionary would not be shorter than their values, or exceed ``limit`` (pure).

    ``group`` has the rows of one row group, ``leaves`` are all its leaf columns, ``limit`` is in bytes.
    """
    if not group.num_rows or not leaves:
        return frozenset()
    sample = _sample(group)
    scale = group.num_rows / sample.num_rows
    order = iter(leaves)
    found: set[str] = set()
    for column in sample.columns:
        for leaf, values in leaf_values(column, order):
            if leaf.iceberg_type != "boolean" and not _pays(values, scale, limit):
                found.add(leaf.parquet_path)
    return frozenset(found)


def _sample(table: pa.Table) -> pa.RecordBatch:
    """Stretches of rows, each from a random place in one of equal parts of the row group; the same in every run."""
    rows = table.num_rows
    wanted = max(_LEAST_ROWS, min(_SAMPLE_ROWS, rows // _SHARE))
    if rows > wanted:
        part = rows // (wanted // _STRETCH_ROWS)
        places = random.Random(0)
        starts = (start + places.randrange(part - _STRETCH_ROWS + 1) for start in range(0, rows - part + 1, part))
        table = pa.concat_tables([table.slice(start, _STRETCH_ROWS) for start in starts])
    return table.combine_chunks().to_batches()[0]


def _pays(sampled: pa.Array, scale: float, limit: int) -> bool:
    """Whether a dictionary is probably short enough for ``scale`` times as many values as were sampled."""
    if isinstance(sampled, pa.ExtensionArray):
        sampled = sampled.storage
    present = int(len(sampled) - sampled.null_count)
    if not present:
        return True
    width = _plain_bytes(sampled) / present
    values = present * scale
    distinct = _likely_distinct(int(pc.count_distinct(sampled, mode="only_valid").as_py()), present, values)
    dictionary = distinct * width
    index_bits = max(1, math.ceil(math.log2(max(2.0, distinct))))
    return dictionary <= _MARGIN * limit and dictionary + values * index_bits / 8 < values * width


def _likely_distinct(seen: int, sampled: int, values: float) -> float:
    """A lower estimate of the distinct values among ``values``, if ``sampled`` of them have ``seen`` distinct
    values."""
    if values <= sampled:
        return seen
    repeated = sampled - seen
    # Chance may have hidden repetitions: add two standard deviations.
    seen = max(1, sampled - math.ceil(repeated + 2 * math.sqrt(repeated) + 2))
    kinds = _kinds(seen, sampled)
    return -kinds * math.expm1(-values / kinds)


def _kinds(seen: int, drawn: int) -> float:
    """The number of equally frequent kinds from which ``drawn`` draws give ``seen`` different kinds.

    If some kinds are more frequent than others, the real number is larger.
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
    """The bytes of the values in pages without a dictionary (Parquet format, "Encodings", PLAIN)."""
    kind = values.type
    present = int(len(values) - values.null_count)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4.0 * present + float(pc.sum(pc.binary_length(values)).as_py() or 0)
    if pa.types.is_decimal(kind):
        # Parquet format, "DECIMAL": the size of an integer that holds all digits, else the fewest bytes.
        bits = math.ceil(math.log2(10 ** int(kind.precision))) + 1
        return float(present * next((size for size in (4, 8) if bits <= 8 * size), math.ceil(bits / 8)))
    return float(present * kind.bit_width / 8)
