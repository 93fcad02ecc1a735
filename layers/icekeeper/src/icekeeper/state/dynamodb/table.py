"""The DynamoDB table of a fleet's state: its client, and the requests that are sent to it."""

from __future__ import annotations

import json
import logging
import random
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeAlias

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.parsers import ResponseParserError

from icekeeper.aws.origins import require_members
from icekeeper.aws.session import session_of
from icekeeper.aws.settings import AwsIdentity
from icekeeper.errors import PolicyError, StorageError
from icekeeper.machine.clock import TOLD_SKEW_MS, Clock, ServerClock, ahead_ms, system_clock
from icekeeper.machine.foreign_bytes import FileLimits, parsed_json
from icekeeper.machine.metering import Amount, Meter, process_meter
from icekeeper.state.dynamodb.items import (
    CONDITION_FAILED,
    JOURNAL_INDEX,
    ConditionalWrites,
    Item,
    decoded,
    encoded,
    error_code,
    understood,
    versioned,
)
from icekeeper.state.identity import STATE_VARIABLE, TableAddress

# The DynamoDB table that a fleet's state lives in: the requests that are sent to it.
#
# The table's own expiry of items (TTL, ``expires_s``) only removes old items and decides nothing: it may come days
# late, and is never set before the end that an item itself names.

log = logging.getLogger(__name__)

_ATTEMPTS = 30
_LONGEST_PAUSE_S = 1.0

REMOVED: Item = {}
"""What a decision returns to have the item removed."""

Decision: TypeAlias = Callable[[Item | None], Item | None]
"""Gets an item as it is (``None``: there is none) and returns its replacement, ``REMOVED``, or ``None`` to keep it."""


class DynamoTable:
    """One table; may be shared by threads.  Every method raises StorageError when the table cannot be used.

    Reads are strongly consistent: what one function wrote, the next one sees.
    """

    def __init__(
        self,
        client: Any,
        name: str,
        *,
        clock: Clock = system_clock,
        server_clock: ServerClock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``server_clock`` tells DynamoDB's time; unless given, the one that the dates of the client's answers tell."""
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
        """The items of a partition whose sort keys begin with ``prefix``, in their order (of UTF-8 bytes).

        ``passed_over`` is called for each item with values of a wrong type, which is left out; without it that raises.
        """
        asked: dict[str, Any] = {"KeyConditionExpression": "pk = :pk", "ExpressionAttributeValues": {":pk": pk}}
        if prefix:
            asked["KeyConditionExpression"] += " AND begins_with(sk, :prefix)"
            asked["ExpressionAttributeValues"][":prefix"] = prefix
        if attributes:
            asked["ProjectionExpression"] = ", ".join(f"#{name}" for name in attributes)
            asked["ExpressionAttributeNames"] = {f"#{name}": name for name in attributes}
        return self._pages(asked, passed_over)

    def newest(self, pk: str, limit: int) -> Iterator[Item]:
        """The passes of a partition that finished last, newest first."""
        asked = {
            "KeyConditionExpression": "pk = :pk",
            "ExpressionAttributeValues": {":pk": pk},
            "IndexName": JOURNAL_INDEX,
            "ScanIndexForward": False,
            "Limit": limit,
        }
        return self._pages(asked)

    def put(self, item: Item) -> None:
        """Write an item, replacing one under its key."""
        with self.translated():
            self.client.put_item(TableName=self.name, Item=encoded(versioned(item)))

    def add(self, pk: str, sk: str, more: Mapping[str, int | frozenset[str]], *, keep_ms: int) -> None:
        """Add numbers and members of sets to the attributes of an item, which is made if it is not there.

        A request whose answer was lost may be repeated by boto3 and count twice: for figures, not for decisions.
        """
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
        """Remove an item, if it is there."""
        with self.translated():
            self.client.delete_item(TableName=self.name, Key=encoded({"pk": pk, "sk": sk}))

    def change(self, pk: str, sk: str, decide: Decision) -> bool:
        """Replace an item by what ``decide`` makes of it; ``decide`` is called again when another writer was faster.

        Returns whether the item was replaced or removed.  If ``decide`` raises, nothing was changed.
        """
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

    def set_where(self, pk: str, sk: str, values: Item, condition: str, compared: Item) -> tuple[bool, Item | None]:
        """Set attributes of an item that fulfils a condition on ``compared``; whether it did, and the item now.

        A repetition of a request that had landed may be told that the condition failed: the item says what is there.
        """
        return self._writes.set_where(pk, sk, values, condition, compared)

    def require_writable(self) -> None:
        """Raise StorageError if writing is not allowed, by a write whose condition never holds."""
        nothing = encoded({"pk": "writable", "sk": "?"})
        try:
            with self.translated():
                self.client.put_item(TableName=self.name, Item=nothing, ConditionExpression="attribute_exists(pk)")
        except StorageError as error:
            if error_code(error.__cause__) != CONDITION_FAILED:
                raise

    def now_ms(self) -> int:
        """This machine's clock."""
        return self._clock()

    def expires_s(self, keep_ms: int, *, at_least_ms: int = 0) -> int:
        """The TTL (epoch seconds) of an item to keep for ``keep_ms`` after now and after ``at_least_ms``."""
        return (max(self._clock(), at_least_ms) + keep_ms) // 1000

    def to_table_clock(self, now_ms: int) -> int:
        """Convert a time of this machine's clock to DynamoDB's clock, which its newest answer tells.

        So all who share the table agree on when a lease expires, whatever their own clocks say.
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
        """Wait before a request is repeated: from 10 ms to a second, with jitter."""
        self._sleep(random.uniform(0.5, 1) * min(_LONGEST_PAUSE_S, 0.01 * 2 ** min(attempt, 10)))

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Whatever boto3 raises becomes a StorageError that names the table."""
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


# Many items per request: up to 25 are written or 100 read, and items that DynamoDB left unprocessed are sent again.
#
# The numbers are DynamoDB's (API reference, BatchWriteItem and BatchGetItem).

_WRITES = 25
_READS = 100


def put_all(table: DynamoTable, items: Iterable[Item]) -> None:
    """Write items with different keys, replacing those there; when the call fails, some of them may be written."""
    _write(table, ({"PutRequest": {"Item": encoded(item)}} for item in items))


def delete_all(table: DynamoTable, keys: Iterable[tuple[str, str]]) -> None:
    """Remove the items of different keys, if they are there."""
    _write(table, ({"DeleteRequest": {"Key": encoded({"pk": pk, "sk": sk})}} for pk, sk in keys))


def get_all(table: DynamoTable, keys: Iterable[tuple[str, str]]) -> Iterator[Item]:
    """The items under different keys, as far as there are any, in no particular order."""
    pending = iter(keys)
    while some := [encoded({"pk": pk, "sk": sk}) for pk, sk in islice(pending, _READS)]:
        asked: dict[str, Any] = {table.name: {"Keys": some, "ConsistentRead": True}}
        for attempt in range(_ATTEMPTS):
            with table.translated():
                answer = table.client.batch_get_item(RequestItems=asked)
            yield from map(decoded, answer["Responses"].get(table.name, ()))
            asked = answer.get("UnprocessedKeys") or {}
            if not asked:
                break
            table.pause(attempt)
        else:
            raise StorageError(f"the state table {table.name} does not keep up: items were left unread")


def _write(table: DynamoTable, requests: Iterator[dict[str, Any]]) -> None:
    while some := list(islice(requests, _WRITES)):
        asked: dict[str, Any] = {table.name: some}
        for attempt in range(_ATTEMPTS):
            with table.translated():
                answer = table.client.batch_write_item(RequestItems=asked)
            asked = answer.get("UnprocessedItems") or {}
            if not asked:
                break
            table.pause(attempt)
        else:
            raise StorageError(f"the state table {table.name} does not keep up: items were left unwritten")


# Counts the request units that DynamoDB bills: each answer tells its own, where it was asked to.
#
# Sources: Amazon DynamoDB API reference, "ReturnConsumedCapacity"; developer guide, "Read and write request units".

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


# A client for the table that a fleet's state lives in.

# The requests are small; a function must learn early that its network does not lead there.
_CLIENT = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 6})
_EMPTY = ("GetItem", "PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems", "BatchWriteItem")
# What each answer has (API reference, "Response Syntax").
_MEMBERS = {**dict.fromkeys(_EMPTY, ""), "BatchGetItem": "Responses", "Query": "Items"}


def open_table(address: TableAddress) -> DynamoTable:
    """A client for a table; sends nothing yet but questions for credentials.

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


# Lists of paths in the state table, which may be very long: each has compressed parts in a partition of its own.
#
# A list has an id that is used only once.  So parts that a slow writer adds to a list that was replaced meanwhile never
# become part of the new list.

# An item may have 400 KB; the parts stay below it even where nothing can be compressed.
_BYTES_PER_PART = 300_000
_PATHS_PER_PART = 1000


def new_list_id() -> str:
    """An id that no list has had."""
    return uuid.uuid4().hex


def write_paths(
    table: DynamoTable, list_id: str, paths: Iterable[str], *, call: int = 0, expires_s: int | None = None
) -> int:
    """Add paths to a list and return how many.

    ``call`` numbers the calls that add to one list: parts of different calls have different keys, in their order.
    """
    count = 0

    def items() -> Iterator[Item]:
        nonlocal count
        for number, part in enumerate(_parts(paths)):
            count += len(part)
            packed = zlib.compress(json.dumps(part).encode())
            yield {"pk": _key(list_id), "sk": f"{call:09d}#{number:09d}", "paths": packed, "expires_s": expires_s}

    put_all(table, items())
    return count


def read_paths(table: DynamoTable, list_id: str) -> Iterator[Sequence[str]]:
    """The paths of a list, at most a thousand at a time, in the order of their recording."""
    for part in table.query(_key(list_id)):
        limits = FileLimits(f"the item {part['pk']} / {part['sk']} of the state table")
        with understood(part):
            paths: list[str] = parsed_json(limits.unpack("zlib", part["paths"]), limits)
        yield paths


def delete_paths(table: DynamoTable, list_id: str) -> None:
    """Remove the parts of a list."""
    delete_all(table, ((part["pk"], part["sk"]) for part in table.query(_key(list_id), attributes=("pk", "sk"))))


def _parts(paths: Iterable[str]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for path in paths:
        length = len(json.dumps(path)) + 2
        if part and (size + length > _BYTES_PER_PART or len(part) == _PATHS_PER_PART):
            yield part
            part, size = [], 0
        part.append(path)
        size += length
    if part:
        yield part


def _key(list_id: str) -> str:
    return f"paths#{list_id}"
