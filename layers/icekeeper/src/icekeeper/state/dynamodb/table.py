"""The DynamoDB table that a fleet's state lives in: the requests that are sent to it.

The table's own expiry of items (TTL, ``expires_s``) only removes old items and decides nothing: it may come days late,
and is never set before the end that an item itself names.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.parsers import ResponseParserError

from icekeeper.errors import StorageError
from icekeeper.machine.clock import TOLD_SKEW_MS, Clock, ServerClock, ahead_ms, system_clock
from icekeeper.state.dynamodb.conditional_writes import CONDITION_FAILED, ConditionalWrites, error_code, versioned
from icekeeper.state.dynamodb.items import Item, decoded, encoded
from icekeeper.state.dynamodb.schema import JOURNAL_INDEX

__all__ = ["REMOVED", "DynamoTable"]

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
