"""Items of the state table: schema, attribute values, keys that fit DynamoDB's limits, and conditional writes.

Numbers are ints (DynamoDB keeps 38 digits); values with fractions are stored as JSON text.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

from botocore.exceptions import ClientError

from icekeeper.errors import PolicyError, StorageError
from icekeeper.state.identity import TableIdentity

Item: TypeAlias = dict[str, Any]

# Service quotas of Amazon DynamoDB, in bytes of UTF-8.
_LONGEST_PARTITION_KEY = 2048
_LONGEST_SORT_KEY = 1024

_TYPE_NAMES = {"N": "whole number", "S": "text", "BOOL": "boolean", "B": "binary"}
# The types of attributes that code computes with, parses or compares.  Others are only shown, or are not ours.
_TYPES = {
    name: kind
    for kind, names in {
        "N": "until_ms changed_ms run_out_ms seen_ms counted_ms ended_ms observed_ms requested_ms started_ms "
        "finished_ms first_seen_ms tried_ms snapshot_id seen_sequence_number file_count turn sightings",
        "S": "name holder kind origin state prefixes list_id metadata_location fingerprint idle_since version "
        "entry folder folders data_roots uuid location counters warnings policy metrics settings table_name catalog "
        "warehouse schedule run_id status summary engine path why schema_digest look",
        "BOOL": "idle",
        "B": "paths",
    }.items()
    for name in names.split()
}


def encoded(item: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The DynamoDB attribute values for text, whole numbers, booleans, bytes and sets of text, without ``None``."""
    return {name: _encoded(value) for name, value in item.items() if value is not None}


def decoded(attributes: Mapping[str, Mapping[str, Any]]) -> Item:
    """The values of an item of :func:`encoded` (rule: bad-state-items-stop-readers).

    Raises:
        StorageError: an attribute that Icekeeper writes has a wrong type; later: a missing attribute is looked up.
    """
    item = _FoundItem()
    for name, attribute in attributes.items():
        ((kind, value),) = attribute.items()
        if kind != (wanted := _TYPES.get(name, kind)) or (kind == "N" and name in _TYPES and not _is_whole(value)):
            raise damaged(_key_of(attributes), f"its {name} is no {_TYPE_NAMES[wanted]}")
        item[name] = _decoded(kind, value)
    return item


def damaged(item: Mapping[str, Any], what: str) -> StorageError:
    """The error for a malformed item: it names the item's key and what to do."""
    return StorageError(
        f"the item {item.get('pk', '?')} / {item.get('sk', '?')} of the state table is damaged ({what}); "
        "restore it from a backup, or delete it, and make again the pin or staged load that it held before anything "
        "is deleted"
    )


@contextmanager
def understood(item: Mapping[str, Any]) -> Iterator[None]:
    """Report an error about a value inside the block as damage of the item (rule: bad-state-items-stop-readers).

    Raises:
        StorageError: the block raised an error about a value.
    """
    try:
        yield
    except (AttributeError, OverflowError, PolicyError, RecursionError, TypeError, ValueError) as error:
        raise damaged(item, str(error)) from error


class _FoundItem(Item):
    """An item that was read: the error about a missing attribute names the item's key."""

    def __missing__(self, name: str) -> Any:
        raise damaged(self, f"it has no {name}")


REQUESTS = "requests#all"
"""The partition of requests, the only one that people may be allowed to write (docs/requests.md)."""


def named_key(kind: str, name: str) -> str:
    """The partition of one kind of record under a name."""
    return _fitted(f"{kind}#{name}", _LONGEST_PARTITION_KEY)


def table_key(identity: TableIdentity) -> str:
    """The partition of everything that detection reads about a table in one query, such as pins and staged loads."""
    return named_key("table", identity.key)


def copy_key(kind: str, identity: TableIdentity) -> str:
    """The partition of one kind of record about one copy of a table."""
    return named_key(kind, json.dumps([identity.key, identity.place], ensure_ascii=False))


def seen_key(identity: TableIdentity) -> tuple[str, str]:
    """Partition and sort key of what the last pass over one copy of a table saw."""
    return table_key(identity), f"now#seen#{hashlib.sha256(identity.place.encode()).hexdigest()}"


def catalog_key(kind: str, catalog: str, warehouse: str) -> str:
    """The partition of one kind of record about all tables of a catalog."""
    return named_key(kind, json.dumps([catalog, warehouse], ensure_ascii=False))


def sort_key(prefix: str, text: str) -> str:
    """A sort key; keys are ordered as their texts, if these differ in the first 900 bytes."""
    return _fitted(f"{prefix}{text}", _LONGEST_SORT_KEY)


def json_text(values: Mapping[str, Any]) -> str:
    """The mapping as JSON; equal mappings have equal text."""
    return json.dumps(dict(values), sort_keys=True)


def _fitted(key: str, limit: int) -> str:
    """A key above ``limit`` bytes is cut, and ends with a digest of the whole key."""
    try:
        full = key.encode()
    except UnicodeEncodeError as error:
        raise StorageError(f"{key!r} is no text that DynamoDB can keep") from error
    if len(full) <= limit:
        return key
    digest = hashlib.sha256(full).hexdigest()
    return f"{full[: limit - len(digest) - 1].decode(errors='ignore')}~{digest}"


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
        case "N":
            return int(value) if _is_whole(value) else value  # Icekeeper writes only whole numbers
        case "SS":
            return frozenset(value)
        case _:
            return value


def _is_whole(number: str) -> bool:
    return number.removeprefix("-").isdecimal()


def _key_of(attributes: Mapping[str, Mapping[str, Any]]) -> Item:
    return {name: next(iter(attributes[name].values())) for name in ("pk", "sk") if name in attributes}


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
