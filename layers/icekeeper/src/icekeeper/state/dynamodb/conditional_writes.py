"""Writes of single items on a condition, in a state table.

When boto3 repeats a request whose answer was lost, the repetition must not be told that its condition failed because
the first one had landed; and one that lands late, behind its repetition, must do nothing (rule 159).  Items that are
written carry a version of their own, and DynamoDB tells with a failed condition what is there (platform 66): that is
enough where an item replaces another one.  Where one is made or removed nothing is left that could tell: these are
transactions of one item, whose token has repetitions answered like the first one (TransactWriteItems,
"ClientRequestToken"), and which cost twice as much.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from botocore.exceptions import ClientError

from icekeeper.errors import StorageError
from icekeeper.state.dynamodb.items import Item, decoded, encoded

__all__ = ["CONDITION_FAILED", "ConditionalWrites", "error_code", "versioned"]

CONDITION_FAILED = "ConditionalCheckFailedException"
_ATTEMPTS = 30
# A transaction that met another one, or a throttle; see CancellationReasons in the API reference.
_COLLISIONS = frozenset({"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})
_STILL_RUNNING = frozenset({"TransactionInProgressException"})
# The same of a single write (API reference, PutItem, "Errors").
_MET_OTHERS = frozenset(
    {"TransactionConflictException", "ThrottlingException", "ProvisionedThroughputExceededException"}
)


class ConditionalWrites:
    """Of one table; each method raises StorageError when the table cannot be used."""

    def __init__(
        self,
        client: Any,
        name: str,
        translated: Callable[[], AbstractContextManager[None]],
        pause: Callable[[int], None],
    ) -> None:
        """``translated`` makes StorageError of what boto3 raises; ``pause`` waits before a repetition."""
        self._client, self._name, self._translated, self._pause = client, name, translated, pause

    def put(self, item: Item, found: Item | None) -> bool:
        """Write ``item``, with a new version, if the stored one is still ``found``; return whether it was written.

        ``found`` is ``None`` where no item may be stored yet.
        """
        request = {"TableName": self._name, "Item": encoded(item), **_unless_changed(found)}
        if found is None:
            return self._transact([{"Put": request}])
        is_written, there = self._sent(self._client.put_item, request)
        return is_written or (there is not None and there["version"] == item["version"])

    def delete(self, pk: str, sk: str, found: Item | None) -> bool:
        """Remove an item if it is still as it was found; whether it was."""
        key = encoded({"pk": pk, "sk": sk})
        return self._transact([{"Delete": {"TableName": self._name, "Key": key, **_unless_changed(found)}}])

    def set_where(self, pk: str, sk: str, values: Item, condition: str, compared: Item) -> tuple[bool, Item | None]:
        """As :meth:`DynamoTable.set_where`."""
        given = versioned(values)
        request = {
            "TableName": self._name,
            "Key": encoded({"pk": pk, "sk": sk}),
            "UpdateExpression": "SET " + ", ".join(f"{name} = :new_{name}" for name in given),
            "ConditionExpression": condition,
            "ExpressionAttributeValues": encoded({**{f":new_{k}": v for k, v in given.items()}, **compared}),
            "ReturnValues": "ALL_NEW",
        }
        return self._sent(self._client.update_item, request)

    def _transact(self, actions: list[dict[str, dict[str, Any]]]) -> bool:
        """Carry all actions out, or none when a condition does not hold; returns which."""
        token = str(uuid.uuid4())  # the same for all attempts, so that DynamoDB recognises one that succeeded unseen
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
        """Send a conditional write of one item, again where it met others; whether it was written, and the item now."""
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
    """The condition that an item is as it was found."""
    if found is None:
        return {"ConditionExpression": "attribute_not_exists(pk)"}
    version = encoded({":version": found["version"]})
    return {"ConditionExpression": "version = :version", "ExpressionAttributeValues": version}


def versioned(item: Item) -> Item:
    """The item with a unique version, by which a change between reading and writing is noticed."""
    return {**item, "version": uuid.uuid4().hex}


def error_code(error: BaseException | None) -> str:
    """DynamoDB's name of an error; empty where it is none of its own."""
    return str(error.response["Error"].get("Code")) if isinstance(error, ClientError) else ""


def _reasons(error: BaseException | None) -> set[str]:
    """Why a transaction was cancelled."""
    reasons = error.response.get("CancellationReasons", ()) if isinstance(error, ClientError) else ()
    return {str(reason.get("Code")) for reason in reasons}
