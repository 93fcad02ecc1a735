"""Counts the request units that DynamoDB bills: each answer tells its own, where it was asked to.

Sources: Amazon DynamoDB API reference, "ReturnConsumedCapacity"; developer guide, "Read and write request units".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icekeeper.machine.metering import Amount, Meter, process_meter

__all__ = ["count_consumed"]

_UNITS: Mapping[str, Amount] = {
    **dict.fromkeys(("GetItem", "BatchGetItem", "Query"), Amount.STATE_READ_UNITS),
    **dict.fromkeys(
        ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"), Amount.STATE_WRITE_UNITS
    ),
}


def count_consumed(client: Any, meter: Meter = process_meter) -> None:
    """Have every request of a client count its units.

    An answer that tells none, or fewer than any write takes (moto's), counts for the least that there is.
    """

    def ask(params: dict[str, Any], model: Any, **_: object) -> None:
        if model.name in _UNITS:
            params.setdefault("ReturnConsumedCapacity", "TOTAL")

    def note(parsed: Mapping[str, Any], model: Any, **_: object) -> None:
        amount = _UNITS.get(model.name)
        if amount is not None and "Error" not in parsed:
            least = 2000 if model.name.startswith("Transact") else 1000
            told = _thousandths(parsed.get("ConsumedCapacity") or {"CapacityUnits": least / 1000})
            meter.add(amount, max(told, least) if amount is Amount.STATE_WRITE_UNITS else told)

    client.meta.events.register("before-parameter-build.dynamodb", ask)
    client.meta.events.register("after-call.dynamodb", note)


def _thousandths(consumed: Any) -> int:
    tables = consumed if isinstance(consumed, list) else [consumed]
    return sum(round(1000 * float(table["CapacityUnits"])) for table in tables)
