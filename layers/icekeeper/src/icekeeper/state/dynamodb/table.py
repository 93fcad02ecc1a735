"""The DynamoDB table of a fleet's state: its schema, its client, and the requests to it.

The table's expiry of items (TTL, ``expires_s``) only removes old items, and may do so days late.  No decision depends
on it, and it is never earlier than the end that the item itself states.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.parsers import ResponseParserError

from icekeeper.aws.origins import require_members
from icekeeper.aws.session import session_of
from icekeeper.aws.settings import AwsIdentity
from icekeeper.errors import PolicyError, StorageError
from icekeeper.machine.clock import LOGGED_SKEW_MS, Clock, ServerClock, ahead_ms, system_clock
from icekeeper.state.identity import STATE_VARIABLE, TableAddress
from icekeeper.state.items import Decision, FoundItem, Item, decoded_items

log = logging.getLogger(__name__)

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


_ATTEMPTS = 30
_LONGEST_PAUSE_S = 1.0
_CONDITION_FAILED = "ConditionalCheckFailedException"
# A transaction that collided with another, or was throttled (API reference, TransactWriteItems, "CancellationReasons").
_COLLISIONS = frozenset({"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})
_STILL_RUNNING = frozenset({"TransactionInProgressException"})
# The same for a single write (API reference, PutItem, "Errors").
_MET_OTHERS = frozenset(
    {"TransactionConflictException", "ThrottlingException", "ProvisionedThroughputExceededException"}
)
# Items per request (API reference, BatchWriteItem).  Unprocessed items are sent again.
_WRITES = 25


class DynamoTable:
    """An :class:`.ItemTable`, which documents the methods.  Reads are strongly consistent.

    boto3 repeats a request whose response was lost.  The repetition must not report a failed condition because the
    first request succeeded, and a request that arrives after its repetition must have no effect
    (rule: repeated-writes-count-once).  A replaced item has a new version, and DynamoDB returns the stored item with a
    failed condition (platform: dynamodb-condition-returns-item), so the version shows which request wrote it.  After an
    item was created or removed, nothing could show that.  So these are transactions of one item, at twice the price:
    their token makes repetitions return the first result (TransactWriteItems, "ClientRequestToken").
    """

    is_local = False

    def __init__(
        self,
        client: Any,
        name: str,
        *,
        clock: Clock = system_clock,
        server_clock: ServerClock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``server_clock`` has DynamoDB's time; by default it reads the ``Date`` of the client's responses."""
        self.client = client
        self.name = name
        self._clock = clock
        self._sleep = sleep
        self._server_clock = server_clock or ServerClock()
        if server_clock is None:
            self._server_clock.listen(client)
        self._has_logged_skew = False

    def get(self, pk: str, sk: str) -> Item | None:
        with self._translated():
            answer = self.client.get_item(TableName=self.name, Key=encoded({"pk": pk, "sk": sk}), ConsistentRead=True)
        return decoded(answer["Item"]) if "Item" in answer else None

    def query(
        self,
        pk: str,
        prefix: str = "",
        *,
        attributes: tuple[str, ...] = (),
        passed_over: Callable[[StorageError], None] | None = None,
    ) -> Iterator[Item]:
        asked: dict[str, Any] = {"KeyConditionExpression": "pk = :pk", "ExpressionAttributeValues": {":pk": pk}}
        if prefix:
            asked["KeyConditionExpression"] += " AND begins_with(sk, :prefix)"
            asked["ExpressionAttributeValues"][":prefix"] = prefix
        if attributes:
            asked["ProjectionExpression"] = ", ".join(f"#{name}" for name in attributes)
            asked["ExpressionAttributeNames"] = {f"#{name}": name for name in attributes}
        return self._pages(asked, passed_over)

    def newest(self, pk: str, limit: int) -> Iterator[Item]:
        asked = {
            "KeyConditionExpression": "pk = :pk",
            "ExpressionAttributeValues": {":pk": pk},
            "IndexName": JOURNAL_INDEX,
            "ScanIndexForward": False,
            "Limit": limit,
        }
        return islice(self._pages(asked), limit)

    def put(self, item: Item) -> None:
        with self._translated():
            self.client.put_item(TableName=self.name, Item=encoded(versioned(item)))

    def add(self, pk: str, sk: str, more: Mapping[str, int], *, keep_ms: int) -> None:
        # boto3 may repeat a request whose response was lost, so that it counts twice.
        names = {f"#{number}": name for number, name in enumerate(more)}
        values = {f":{number}": value for number, value in enumerate(more.values())}
        added = ", ".join(f"#{number} :{number}" for number in range(len(more)))
        with self._translated():
            self.client.update_item(
                TableName=self.name,
                Key=encoded({"pk": pk, "sk": sk}),
                UpdateExpression=f"ADD {added} SET expires_s = :expires",
                ExpressionAttributeNames=names,
                ExpressionAttributeValues=encoded({**values, ":expires": self.expires_s(keep_ms)}),
            )

    def delete(self, pk: str, sk: str) -> None:
        with self._translated():
            self.client.delete_item(TableName=self.name, Key=encoded({"pk": pk, "sk": sk}))

    def change(self, pk: str, sk: str, decide: Decision, *, is_likely_new: bool = False) -> bool:
        for _ in self._attempts():
            found = None if is_likely_new else self.get(pk, sk)
            is_likely_new = False
            wanted = decide(found)
            if wanted is None:
                return False
            if self._write_over(found, {**wanted, "pk": pk, "sk": sk}, is_removed=not wanted):
                return True
        raise StorageError(
            f"the state table {self.name} was changed by other processes at each attempt to write an item"
        )

    def set_if(
        self, pk: str, sk: str, values: Item, *, equal: Item, outside: Mapping[str, tuple[int, int]]
    ) -> Item | None:
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
            "TableName": self.name,
            "Key": encoded({"pk": pk, "sk": sk}),
            "UpdateExpression": "SET " + ", ".join(f"{name} = :new_{name}" for name in given),
            "ConditionExpression": " AND ".join(conditions),
            "ExpressionAttributeValues": encoded(compared),
            "ReturnValues": "ALL_NEW",
        }
        return self._sent(self.client.update_item, request)[1]

    def put_all(self, items: Iterable[Item]) -> None:
        self._write({"PutRequest": {"Item": encoded(item)}} for item in items)

    def delete_all(self, pk: str, sks: Iterable[str]) -> None:
        self._write({"DeleteRequest": {"Key": encoded({"pk": pk, "sk": sk})}} for sk in sks)

    def clear(self, pk: str) -> None:
        self.delete_all(pk, (item["sk"] for item in self.query(pk, attributes=("sk",))))

    def _write(self, requests: Iterator[dict[str, Any]]) -> None:
        while some := list(islice(requests, _WRITES)):
            asked: dict[str, Any] = {self.name: some}
            for _ in self._attempts():
                with self._translated():
                    answer = self.client.batch_write_item(RequestItems=asked)
                asked = answer.get("UnprocessedItems") or {}
                if not asked:
                    break
            else:
                raise StorageError(f"the state table {self.name} does not keep up: items were left unwritten")

    def _write_over(self, found: Item | None, item: Item, *, is_removed: bool) -> bool:
        """Write an item with a new version, or remove it, if the stored item is still ``found``; return whether it was.

        ``found`` is ``None`` if no item may be stored yet.
        """
        unchanged: dict[str, Any] = {"TableName": self.name, "ConditionExpression": "attribute_not_exists(pk)"}
        if found is not None:
            version = encoded({":version": found["version"]})
            unchanged |= {"ConditionExpression": "version = :version", "ExpressionAttributeValues": version}
        if is_removed:
            return self._transact({"Delete": {"Key": encoded(item), **unchanged}})
        given = versioned(item)
        if found is None:
            return self._transact({"Put": {"Item": encoded(given), **unchanged}})
        is_written, there = self._sent(self.client.put_item, {"Item": encoded(given), **unchanged})
        return is_written or (there is not None and there["version"] == given["version"])

    def _transact(self, action: dict[str, dict[str, Any]]) -> bool:
        """Do a conditional write as a transaction; return whether its condition held."""
        token = str(uuid.uuid4())  # the same for all attempts, so that DynamoDB recognises an earlier success
        for _ in self._attempts():
            try:
                with self._translated():
                    self.client.transact_write_items(TransactItems=[action], ClientRequestToken=token)
                return True
            except StorageError as error:
                cause: Any = error.__cause__
                reasons = cause.response.get("CancellationReasons", ()) if isinstance(cause, ClientError) else ()
                codes = {str(reason.get("Code")) for reason in reasons}
                if "ConditionalCheckFailed" in codes:
                    return False
                if not codes & _COLLISIONS and error_code(cause) not in _STILL_RUNNING:
                    raise
        raise StorageError(
            f"the state table {self.name} does not keep up: a write collided with others at each attempt"
        )

    def _sent(self, send: Callable[..., Mapping[str, Any]], request: Mapping[str, Any]) -> tuple[bool, Item | None]:
        """Send a conditional write, again after a collision; return whether it was written, and the item now."""
        for _ in self._attempts():
            try:
                with self._translated():
                    answer = send(**request, ReturnValuesOnConditionCheckFailure="ALL_OLD")
                return True, decoded(answer["Attributes"]) if "Attributes" in answer else None
            except StorageError as error:
                cause: Any = error.__cause__
                code = error_code(cause)
                if code == _CONDITION_FAILED:
                    return False, decoded(cause.response["Item"]) if "Item" in cause.response else None
                if code not in _MET_OTHERS:
                    raise
        raise StorageError(
            f"the state table {self.name} does not keep up: a write collided with others at each attempt"
        )

    def _attempts(self) -> Iterator[None]:
        """A limited number of attempts, with pauses from 10 ms to a second between them, with jitter."""
        for attempt in range(_ATTEMPTS):
            yield
            self._sleep(random.uniform(0.5, 1) * min(_LONGEST_PAUSE_S, 0.01 * 2 ** min(attempt, 10)))

    def together(self, *, to_read: bool = False) -> AbstractContextManager[None]:
        return nullcontext()

    def kept_open(self) -> AbstractContextManager[None]:
        return nullcontext()  # the client keeps its connections open anyway

    def require_writable(self) -> None:
        """Test it with a write whose condition is never true."""
        nothing = encoded({"pk": "writable", "sk": "?"})
        try:
            with self._translated():
                self.client.put_item(TableName=self.name, Item=nothing, ConditionExpression="attribute_exists(pk)")
        except StorageError as error:
            if error_code(error.__cause__) != _CONDITION_FAILED:
                raise

    def expires_s(self, keep_ms: int, *, at_least_ms: int = 0) -> int:
        return (max(self._clock(), at_least_ms) + keep_ms) // 1000

    def to_table_clock(self, now_ms: int) -> int:
        """Convert a time of this machine's clock to DynamoDB's clock, as its newest response shows it.

        So all users of the table agree on when a lease expires.
        """
        ahead = ahead_ms(self._clock(), self._server_clock.now_ms())
        if abs(ahead) > LOGGED_SKEW_MS and not self._has_logged_skew:
            self._has_logged_skew = True
            direction = "ahead of" if ahead > 0 else "behind"
            log.warning(
                "this machine's clock is %d s %s that of the state table %s, which decides about leases; correct it",
                abs(ahead) // 1000,
                direction,
                self.name,
            )
        return now_ms - ahead

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn boto3's errors into a StorageError that names the table."""
        try:
            yield
        except (BotoCoreError, ClientError, ResponseParserError) as error:
            raise StorageError(_sentence(self.name, self.client.meta, error)) from error

    def _pages(
        self, asked: Mapping[str, Any], passed_over: Callable[[StorageError], None] | None = None
    ) -> Iterator[Item]:
        request = {**asked, "ExpressionAttributeValues": encoded(asked["ExpressionAttributeValues"])}
        while True:
            with self._translated():
                answer = self.client.query(TableName=self.name, ConsistentRead=True, **request)
            yield from decoded_items(answer["Items"], decoded, passed_over)
            if "LastEvaluatedKey" not in answer:
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


def encoded(item: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The DynamoDB attribute values for text, whole numbers, booleans and bytes, without ``None``."""
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
        case _:
            return {"S": str(value)}


def _decoded(kind: str, value: Any) -> Any:
    match kind:
        case "N":  # Icekeeper writes only whole numbers
            return int(value) if value.removeprefix("-").isdecimal() else value
        case "NULL":
            return None
        case _:
            return value


def versioned(item: Item) -> Item:
    """The item with a new unique version, which shows a change between reading and writing."""
    return {**item, "version": uuid.uuid4().hex}


def error_code(error: BaseException | None) -> str:
    """The code of an error of DynamoDB; empty for other errors."""
    return str(error.response["Error"].get("Code")) if isinstance(error, ClientError) else ""


def _sentence(table: str, meta: Any, error: Exception) -> str:
    if error_code(error) == "ResourceNotFoundException":
        return (
            f"the state table {table} does not exist in {meta.region_name}: deploy the stack that creates it, or "
            "correct ICEKEEPER_STATE"
        )
    if isinstance(error, NoCredentialsError):
        return (
            f"the state table {table} cannot be used: no AWS credentials were found; configure them as for the AWS CLI"
        )
    return f"the state table {table} cannot be used: {error}"


# Requests are small, so timeouts are short: a function must notice early that its network cannot reach DynamoDB.
_CLIENT = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 6})
_EMPTY = ("GetItem", "PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems", "BatchWriteItem")
# The required members of each response (API reference, "Response Syntax").
_MEMBERS = {**dict.fromkeys(_EMPTY, ""), "BatchGetItem": "Responses", "Query": "Items"}


def open_table(address: TableAddress) -> DynamoTable:
    """A client for a table; sends no requests except for credentials.

    Raises:
        PolicyError: no region is known.
        StorageError: boto3's own settings cannot be used.
    """
    try:
        session = session_of(AwsIdentity(profile=address.profile), address.region)
        if session.region_name is None:
            raise PolicyError(
                f"the region of the state table {address.name} is not known: add ?region=REGION to {STATE_VARIABLE}"
            )
        client = session.client("dynamodb", endpoint_url=address.endpoint, config=_CLIENT)
        require_members(client, _MEMBERS)
        return DynamoTable(client, address.name)
    except (BotoCoreError, ValueError) as error:
        raise StorageError(f"the state table {address.name} cannot be used: {error}") from error
