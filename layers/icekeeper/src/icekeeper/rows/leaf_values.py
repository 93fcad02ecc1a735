"""Walks the leaf columns of Arrow arrays, through structs, lists and maps."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from icekeeper.rows.arrow_schema import LeafColumn

__all__ = ["as_list", "leaf_values"]


def leaf_values(array: pa.Array, leaves: Iterator[LeafColumn]) -> Iterator[tuple[LeafColumn, pa.Array]]:
    """Every leaf column with its values, the elements of all rows in one array; a value in a null struct is null.

    ``leaves`` are those of the array, and of the columns after it.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        for child in array.flatten():
            yield from leaf_values(child, leaves)
    elif pa.types.is_map(kind) or pa.types.is_list(kind):
        yield from leaf_values(as_list(array).flatten(), leaves)
    else:
        yield next(leaves), array


def as_list(array: pa.Array) -> pa.Array:
    """Maps as lists of their entries, since Arrow's list functions take lists only; lists as they are."""
    return array.view(pa.list_(array.type.field(0))) if pa.types.is_map(array.type) else array
