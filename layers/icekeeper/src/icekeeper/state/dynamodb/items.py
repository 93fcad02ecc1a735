"""Items of the DynamoDB table: its schema, attribute values, and conditional writes.

Numbers are ints (DynamoDB keeps 38 digits).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from botocore.exceptions import ClientError

from icekeeper.errors import StorageError
from icekeeper.state.items import FoundItem, Item


def encoded(item: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The DynamoDB attribute values for text, whole numbers, booleans, bytes and sets of text, without ``None``."""
    return {name: _encoded(value) for name, value in item.items() if value is not None}


def decoded(attributes: Mapping[str, Mapping[str, Any]]) -> Item:
    """The values of an item of :func:`encoded`.

    Raises:
        StorageError: as :class:`.FoundItem`.
    """
    values = {name: _decoded(*next(iter(attribute.items()))) for name, attribute in attributes.items()}
    return FoundItem("the state table", values)


def _encoded(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"BOOL": value}
        case int():
            return {"N": str(value)}
        case bytes():
            return {"B": value}
        case frozenset():
            return {"SS": sorted(value)}
        case _:
            return {"S": str(value)}


def _decoded(kind: str, value: Any) -> Any:
    match kind:
        case "N":  # Icekeeper writes only whole numbers
            return int(value) if value.removeprefix("-").isdecimal() else value
        case "SS":
            return frozenset(value)
        case "NULL":
            return None
        case _:
            return value


CONDITION_FAILED = "ConditionalCheckFailedException"
_ATTEMPTS = 30
# A transaction that met another one, or was throttled (API reference, TransactWriteItems, "CancellationReasons").
_COLLISIONS = frozenset({"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})
_STILL_RUNNING = frozenset({"TransactionInProgressException"})
# The same for a single write (API reference, PutItem, "Errors").
_MET_OTHERS = frozenset(
    {"TransactionConflictException", "ThrottlingException", "ProvisionedThroughputExceededException"}
)


class ConditionalWrites:
    """Conditional writes of single items; each method raises StorageError when the table cannot be used.

    boto3 repeats a request whose response was lost.  The repetition must not report a failed condition because the
    first request succeeded, and a request that arrives after its repetition must have no effect
    (rule: repeated-writes-count-once).  A replaced item has a new version, and DynamoDB returns the stored item with a
    failed condition (platform: dynamodb-condition-returns-item), so the version shows which request wrote it.  After an
    item was created or removed, nothing could show that.  So these are transactions of one item, at twice the price:
    their token makes repetitions return the first result (TransactWriteItems, "ClientRequestToken").
    """

    def __init__(
        self,
        client: Any,
        name: str,
        translated: Callable[[], AbstractContextManager[None]],
        pause: Callable[[int], None],
    ) -> None:
        """``translated`` turns boto3's errors into StorageError; ``pause`` waits before a repetition."""
        self._client, self._name, self._translated, self._pause = client, name, translated, pause

    def put(self, item: Item, found: Item | None) -> bool:
        """Write ``item``, which has a new version, if the stored item is still ``found``; return whether it was.

        ``found`` is ``None`` if no item may be stored yet.
        """
        request = {"TableName": self._name, "Item": encoded(item), **_unless_changed(found)}
        if found is None:
            return self._transact([{"Put": request}])
        is_written, there = self._sent(self._client.put_item, request)
        return is_written or (there is not None and there["version"] == item["version"])

    def delete(self, pk: str, sk: str, found: Item | None) -> bool:
        """Remove an item if it is still ``found``; return whether it was."""
        key = encoded({"pk": pk, "sk": sk})
        return self._transact([{"Delete": {"TableName": self._name, "Key": key, **_unless_changed(found)}}])

    def set_if(
        self, pk: str, sk: str, values: Item, *, equal: Item, outside: Mapping[str, tuple[int, int]]
    ) -> Item | None:
        """As :meth:`.ItemTable.set_if`."""
        given = versioned(values)
        conditions = [f"{name} = :same_{name}" for name in equal]
        conditions += [f"NOT {name} BETWEEN :least_{name} AND :most_{name}" for name in outside]
        compared = {
            **{f":new_{name}": value for name, value in given.items()},
            **{f":same_{name}": value for name, value in equal.items()},
            **{f":least_{name}": least for name, (least, _) in outside.items()},
            **{f":most_{name}": most for name, (_, most) in outside.items()},
        }
        request = {
            "TableName": self._name,
            "Key": encoded({"pk": pk, "sk": sk}),
            "UpdateExpression": "SET " + ", ".join(f"{name} = :new_{name}" for name in given),
            "ConditionExpression": " AND ".join(conditions),
            "ExpressionAttributeValues": encoded(compared),
            "ReturnValues": "ALL_NEW",
        }
        return self._sent(self._client.update_item, request)[1]

    def _transact(self, actions: list[dict[str, dict[str, Any]]]) -> bool:
        """Apply all actions, or none if a condition fails; return which."""
        token = str(uuid.uuid4())  # the same for all attempts, so that DynamoDB recognises an earlier success
        for attempt in range(_ATTEMPTS):
            try:
                with self._translated():
                    self._client.transact_write_items(TransactItems=actions, ClientRequestToken=token)
                return True
            except StorageError as error:
                reasons = _reasons(error.__cause__)
                if "ConditionalCheckFailed" in reasons:
                    return False
                if not reasons & _COLLISIONS and error_code(error.__cause__) not in _STILL_RUNNING:
                    raise
            self._pause(attempt)
        raise StorageError(f"the state table {self._name} does not keep up: a write met others each time")

    def _sent(self, send: Callable[..., Mapping[str, Any]], request: Mapping[str, Any]) -> tuple[bool, Item | None]:
        """Send a conditional write, again after a collision; return whether it was written, and the item now."""
        for attempt in range(_ATTEMPTS):
            try:
                with self._translated():
                    answer = send(**request, ReturnValuesOnConditionCheckFailure="ALL_OLD")
                return True, decoded(answer["Attributes"]) if "Attributes" in answer else None
            except StorageError as error:
                code = error_code(error.__cause__)
                if code == CONDITION_FAILED and isinstance(error.__cause__, ClientError):
                    kept: Any = error.__cause__.response
                    return False, decoded(kept["Item"]) if "Item" in kept else None
                if code not in _MET_OTHERS:
                    raise
            self._pause(attempt)
        raise StorageError(f"the state table {self._name} does not keep up: a write met others each time")


def _unless_changed(found: Item | None) -> dict[str, Any]:
    """The condition that an item is still ``found``."""
    if found is None:
        return {"ConditionExpression": "attribute_not_exists(pk)"}
    version = encoded({":version": found["version"]})
    return {"ConditionExpression": "version = :version", "ExpressionAttributeValues": version}


def versioned(item: Item) -> Item:
    """The item with a new unique version, which shows a change between reading and writing."""
    return {**item, "version": uuid.uuid4().hex}


def error_code(error: BaseException | None) -> str:
    """The code of an error of DynamoDB; empty for other errors."""
    return str(error.response["Error"].get("Code")) if isinstance(error, ClientError) else ""


def _reasons(error: BaseException | None) -> set[str]:
    """Why a transaction was cancelled."""
    reasons = error.response.get("CancellationReasons", ()) if isinstance(error, ClientError) else ()
    return {str(reason.get("Code")) for reason in reasons}


JOURNAL_INDEX = "newest"
"""Local secondary index: the passes over a table, ordered by ``finished_ms``."""

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
"""Arguments of CreateTable; the stack's template must have the same."""


def create_table(client: Any, name: str) -> None:
    """Create the table for tests and a local stack; in AWS, the stack's template creates it."""
    client.create_table(TableName=name, **TABLE_SCHEMA)
    client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
    client.update_time_to_live(TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires_s"})
