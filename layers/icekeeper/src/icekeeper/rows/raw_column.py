"""Makes Arrow columns of raw values, as metadata has them (specification, appendix D; see :mod:`icekeeper.model`)."""

from __future__ import annotations

import decimal
from collections.abc import Sequence

import pyarrow as pa

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.single_value import decimal_unscaled
from icekeeper.model import PartitionValue
from icekeeper.rows.arrow_schema import arrow_type

__all__ = ["raw_column"]

# Arrow decimals have up to 38 digits; Python's default context would round to 28.
_DECIMAL_CONTEXT = decimal.Context(prec=76)


def raw_column(values: Sequence[PartitionValue], iceberg_type: str) -> pa.Array:
    """A column of raw values of a primitive type; ``None`` becomes null.

    Raises:
        TableUnsupported: a value is not of that type.
    """
    if iceberg_type == "unknown":
        return pa.nulls(len(values))
    target = arrow_type(iceberg_type)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, pa.array(values, target.storage_type))
    if pa.types.is_decimal(target):
        return pa.array([_decimal(value, target.scale) for value in values], target)
    if pa.types.is_temporal(target):
        return pa.array(values, pa.int32() if pa.types.is_date(target) else pa.int64()).cast(target)
    return pa.array(values, target)


def _decimal(value: PartitionValue, scale: int) -> decimal.Decimal | None:
    if value is None:
        return None
    if not isinstance(value, int | bytes):
        raise TableUnsupported(f"partition value {value!r} is not a decimal")
    return decimal.Decimal(decimal_unscaled(value)).scaleb(-scale, _DECIMAL_CONTEXT)
