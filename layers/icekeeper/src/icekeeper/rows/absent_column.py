"""Fills in a column that a file lacks: with the identity partition value, the initial default, or null.

Source: specification, "Column Projection", "Default values" (rule 21).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.single_value import raw_from_json
from icekeeper.model import PartitionValue
from icekeeper.rows.arrow_schema import arrow_type
from icekeeper.rows.raw_column import raw_column

__all__ = ["Constant", "absent_column"]

Constant: TypeAlias = Callable[[int], pa.Array]
"""Makes a column of so many rows, all of which hold the same value."""


def absent_column(field: Mapping[str, Any], identity_values: Mapping[int, PartitionValue], name: str) -> Constant:
    """How to make the column of a field that a file lacks; ``name`` is its full name for messages.

    ``identity_values`` are raw partition values by column id; null is a value, too.

    Raises:
        TableUnsupported: the field is required and has neither, or its default is a list or map with entries.
    """
    kind = field["type"]
    if isinstance(kind, str) and field["id"] in identity_values:
        value = identity_values[field["id"]]
        return lambda length: _constant(value, kind, length)
    default = field.get("initial-default")
    if default is not None:
        return _default(kind, default, name)
    if field["required"]:
        raise TableUnsupported(f"a file lacks the required column {name}, which has no default")
    return lambda length: _constant(None, kind, length)


def _default(kind: Any, default: Any, name: str) -> Constant:
    if isinstance(kind, str):
        value = raw_from_json(kind, default)
        return lambda length: _constant(value, kind, length)
    target = arrow_type(kind)
    if kind["type"] == "struct" and isinstance(default, Mapping):
        # A field that the struct's default leaves out has its own default.
        fields = [{**f, "initial-default": default.get(str(f["id"]), f.get("initial-default"))} for f in kind["fields"]]
        children = [absent_column(f, {}, f"{name}.{f['name']}") for f in fields]
        return lambda length: pa.StructArray.from_arrays([c(length) for c in children], fields=list(target))
    if default in ([], {"keys": [], "values": []}):
        return lambda length: pa.array([[]] * length, target)
    raise TableUnsupported(f"column {name} has the default {default!r}, which this version of Icekeeper cannot fill in")


def _constant(value: PartitionValue, iceberg_type: Any, length: int) -> pa.Array:
    """A column of one raw value, or of nulls."""
    target = arrow_type(iceberg_type)
    if value is None and not isinstance(target, pa.BaseExtensionType):
        return pa.nulls(length, target)
    one = raw_column([value], iceberg_type)
    if isinstance(one, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(target, pa.repeat(one.storage[0], length))
    return pa.repeat(one[0], length)
