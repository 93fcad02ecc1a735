"""The schema of the DynamoDB table that a fleet's state lives in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["JOURNAL_INDEX", "TABLE_SCHEMA", "create_table"]

JOURNAL_INDEX = "newest"
"""Local secondary index: the passes over one table by ``finished_ms``."""

TABLE_SCHEMA: Mapping[str, Any] = {
    "BillingMode": "PAY_PER_REQUEST",
    "AttributeDefinitions": [
        {"AttributeName": "pk", "AttributeType": "S"},
        {"AttributeName": "sk", "AttributeType": "S"},
        {"AttributeName": "finished_ms", "AttributeType": "N"},
    ],
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    "LocalSecondaryIndexes": [
        {
            "IndexName": JOURNAL_INDEX,
            "KeySchema": [
                {"AttributeName": "pk", "KeyType": "HASH"},
                {"AttributeName": "finished_ms", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "ALL"},
        }
    ],
}
"""Arguments of CreateTable; the stack's template must say the same."""


def create_table(client: Any, name: str) -> None:
    """Create the table as the stack's template does: for tests and a local stack.  In AWS the stack owns it."""
    client.create_table(TableName=name, **TABLE_SCHEMA)
    client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
    client.update_time_to_live(TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires_s"})
