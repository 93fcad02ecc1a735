"""The DynamoDB table of a fleet's state: its client, and the requests to it.

The table's expiry of items (TTL, ``expires_s``) only removes old items, and may do so days late.  It never decides
anything, and is never set before the end that an item itself names.
"""

from __future__ import annotations

import logging
import random
import time
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
from icekeeper.machine.clock import TOLD_SKEW_MS, Clock, ServerClock, ahead_ms, system_clock
from icekeeper.machine.metering import Amount, Meter, process_meter
from icekeeper.state.dynamodb.items import (
    CONDITION_FAILED,
    JOURNAL_INDEX,
    ConditionalWrites,
    decoded,
    encoded,
    error_code,
    versioned,
)
from icekeeper.state.identity import STATE_VARIABLE, TableAddress
from icekeeper.state.items import Decision, Item

log = logging.getLogger(__name__)

_ATTEMPTS = 30
_LONGEST_PAUSE_S = 1.0

# Items per request (API reference, BatchWriteItem and BatchGetItem).  Unprocessed items are sent again.
_WRITES = 25
_READS = 100


class DynamoTable:
    """An :class:`.ItemTable`, which documents the methods.  Reads are strongly consistent."""

    at_once = _READS

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
        self._has_told_skew = False
        self._writes = ConditionalWrites(client, name, self.translated, self.pause)

    def get(self, pk: str, sk: str) -> Item | None:
        with self.translated():
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
        with self.translated():
            self.client.put_item(TableName=self.name, Item=encoded(versioned(item)))

    def add(self, pk: str, sk: str, more: Mapping[str, int | frozenset[str]], *, keep_ms: int) -> None:
        # boto3 may repeat a request whose response was lost, so that it counts twice.
        names = {f"#{number}": name for number, name in enumerate(more)}
        values = {f":{number}": value for number, value in enumerate(more.values())}
        added = ", ".join(f"#{number} :{number}" for number in range(len(more)))
        with self.translated():
            self.client.update_item(
                TableName=self.name,
                Key=encoded({"pk": pk, "sk": sk}),
                UpdateExpression=f"ADD {added} SET expires_s = :expires",
                ExpressionAttributeNames=names,
                ExpressionAttributeValues=encoded({**values, ":expires": self.expires_s(keep_ms)}),
            )

    def delete(self, pk: str, sk: str) -> None:
        with self.translated():
            self.client.delete_item(TableName=self.name, Key=encoded({"pk": pk, "sk": sk}))

    def change(self, pk: str, sk: str, decide: Decision) -> bool:
        for attempt in range(_ATTEMPTS):
            found = self.get(pk, sk)
            wanted = decide(found)
            if wanted is None:
                return False
            if wanted:
                is_done = self._writes.put(versioned({**wanted, "pk": pk, "sk": sk}), found)
            else:
                is_done = self._writes.delete(pk, sk, found)
            if is_done:
                return True
            self.pause(attempt)
        raise StorageError(f"the state table {self.name} was changed by others each time an item was to be written")

    def set_if(
        self, pk: str, sk: str, values: Item, *, equal: Item, outside: Mapping[str, tuple[int, int]]
    ) -> Item | None:
        return self._writes.set_if(pk, sk, values, equal=equal, outside=outside)

    def put_all(self, items: Iterable[Item]) -> None:
        self._write({"PutRequest": {"Item": encoded(item)}} for item in items)

    def delete_all(self, pk: str, sks: Iterable[str]) -> None:
        self._write({"DeleteRequest": {"Key": encoded({"pk": pk, "sk": sk})}} for sk in sks)

    def clear(self, pk: str) -> None:
        self.delete_all(pk, (item["sk"] for item in self.query(pk, attributes=("sk",))))

    def get_all(self, pk: str, sks: Iterable[str]) -> Iterator[Item]:
        pending = iter(sks)
        while some := [encoded({"pk": pk, "sk": sk}) for sk in islice(pending, _READS)]:
            asked: dict[str, Any] = {self.name: {"Keys": some, "ConsistentRead": True}}
            for attempt in range(_ATTEMPTS):
                with self.translated():
                    answer = self.client.batch_get_item(RequestItems=asked)
                yield from map(decoded, answer["Responses"].get(self.name, ()))
                asked = answer.get("UnprocessedKeys") or {}
                if not asked:
                    break
                self.pause(attempt)
            else:
                raise StorageError(f"the state table {self.name} does not keep up: items were left unread")

    def _write(self, requests: Iterator[dict[str, Any]]) -> None:
        while some := list(islice(requests, _WRITES)):
            asked: dict[str, Any] = {self.name: some}
            for attempt in range(_ATTEMPTS):
                with self.translated():
                    answer = self.client.batch_write_item(RequestItems=asked)
                asked = answer.get("UnprocessedItems") or {}
                if not asked:
                    break
                self.pause(attempt)
            else:
                raise StorageError(f"the state table {self.name} does not keep up: items were left unwritten")

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def kept_open(self) -> AbstractContextManager[None]:
        return nullcontext()  # the client keeps its connections open anyway

    def require_writable(self) -> None:
        """Test it with a write whose condition never holds."""
        nothing = encoded({"pk": "writable", "sk": "?"})
        try:
            with self.translated():
                self.client.put_item(TableName=self.name, Item=nothing, ConditionExpression="attribute_exists(pk)")
        except StorageError as error:
            if error_code(error.__cause__) != CONDITION_FAILED:
                raise

    def expires_s(self, keep_ms: int, *, at_least_ms: int = 0) -> int:
        return (max(self._clock(), at_least_ms) + keep_ms) // 1000

    def to_table_clock(self, now_ms: int) -> int:
        """Convert a time of this machine's clock to DynamoDB's clock, as its newest response shows it.

        So all users of the table agree on when a lease expires.
        """
        ahead = ahead_ms(self._clock(), self._server_clock.now_ms())
        if abs(ahead) > TOLD_SKEW_MS and not self._has_told_skew:
            self._has_told_skew = True
            direction = "ahead of" if ahead > 0 else "behind"
            log.warning(
                "this machine's clock is %d s %s that of the state table %s, by which leases run out; set it right",
                abs(ahead) // 1000,
                direction,
                self.name,
            )
        return now_ms - ahead

    def pause(self, attempt: int) -> None:
        """Wait before a repetition: from 10 ms to a second, with jitter."""
        self._sleep(random.uniform(0.5, 1) * min(_LONGEST_PAUSE_S, 0.01 * 2 ** min(attempt, 10)))

    @contextmanager
    def translated(self) -> Iterator[None]:
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
            with self.translated():
                answer = self.client.query(TableName=self.name, ConsistentRead=True, **request)
            for attributes in answer["Items"]:
                try:
                    item = decoded(attributes)
                except StorageError as error:
                    if passed_over is None:
                        raise
                    passed_over(error)
                else:
                    yield item
            if "LastEvaluatedKey" not in answer:
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


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


# The request units that DynamoDB bills, by operation (developer guide, "Read and write request units").
_UNITS: Mapping[str, Amount] = {
    **dict.fromkeys(("GetItem", "BatchGetItem", "Query"), Amount.STATE_READ_UNITS),
    **dict.fromkeys(
        ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"), Amount.STATE_WRITE_UNITS
    ),
}


def count_consumed(client: Any, meter: Meter = process_meter) -> None:
    """Count the units of every request of a client (API reference, "ReturnConsumedCapacity").

    A response without units, or with fewer than a write costs (moto's), counts as the minimum.
    """

    def ask(params: dict[str, Any], model: Any, **_: object) -> None:
        if model.name in _UNITS:
            params.setdefault("ReturnConsumedCapacity", "TOTAL")

    def note(parsed: Mapping[str, Any], model: Any, **_: object) -> None:
        amount = _UNITS.get(model.name)
        if amount is not None and "Error" not in parsed:
            least = 2000 if model.name.startswith("Transact") else 1000
            units = _thousandths(parsed.get("ConsumedCapacity") or {"CapacityUnits": least / 1000})
            meter.add(amount, max(units, least) if amount is Amount.STATE_WRITE_UNITS else units)

    client.meta.events.register("before-parameter-build.dynamodb", ask)
    client.meta.events.register("after-call.dynamodb", note)


def _thousandths(consumed: Any) -> int:
    tables = consumed if isinstance(consumed, list) else [consumed]
    return sum(round(1000 * float(table["CapacityUnits"])) for table in tables)


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
        count_consumed(client)
        require_members(client, _MEMBERS)
        return DynamoTable(client, address.name)
    except (BotoCoreError, ValueError) as error:
        raise StorageError(f"the state table {address.name} cannot be used: {error}") from error
