"""Requests for a pass: filed by a person, taken by the next run."""

from __future__ import annotations

import json
import logging
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from icekeeper.errors import StorageError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import CatalogId, TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.item_layout import REQUESTS, json_text, sort_key
from icekeeper.state.items import REMOVED, Item, Records, damaged

log = logging.getLogger(__name__)

MAX_SETTINGS = 16 * 1024
"""The most bytes of a request's settings as JSON text: error messages need most of a payload."""

MOST_READ = 1000
"""How many requests are read at once: ten times what a scan proposes by default (``max_jobs_per_detection``)."""
MOST_BYTES = 4_000_000
"""Characters that are read at once: 4 KB a request, where a normal request has some hundred."""
UNSERVED_MS = 8 * 24 * HOUR_MS
"""A request for a table in no catalog of a scan is dropped at this age: by then, even a weekly run has seen it."""

# A level of a name has at most 255 characters in Glue and S3 Tables; Iceberg allows many levels.
_LONGEST_NAME = 4096
LAST_MS = 253_402_300_799_999
"""The end of the year 9999 in epoch milliseconds; Python cannot show a later time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRequest:
    """A request for a pass outside the schedule; ``settings`` (``operations`` among them) are for that pass only."""

    identity: TableIdentity
    requested_ms: int
    settings: Mapping[str, str] = field(default_factory=dict)


class RequestStore(Records):
    """At most one pending request per copy of a table, all in one partition.

    Every method is atomic.
    """

    def file(self, request: MaintenanceRequest) -> None:
        """Record a request, replacing the table's pending request."""
        identity = request.identity
        self.table.put(
            {
                "pk": REQUESTS,
                "sk": sort_key("", identity.lease_key),
                "catalog": identity.catalog.name,
                "warehouse": identity.catalog.warehouse,
                "table_name": str(identity.table),
                "uuid": identity.uuid,
                "location": identity.location,
                "requested_ms": request.requested_ms,
                "settings": json_text(request.settings),
            }
        )

    def pending(self, notify: Callable[[str], object] = log.warning) -> tuple[MaintenanceRequest, ...]:
        """The unclaimed requests of all catalogs, oldest first: of the first ``MOST_READ`` and ``MOST_BYTES``.

        A record for which :func:`stored_request` raises is logged and skipped (rule: bad-state-items-stop-readers).
        ``notify`` gets a sentence if there are more.
        """
        found = self._stored("", notify)
        return tuple(sorted(found, key=lambda req: (req.requested_ms, str(req.identity.table), req.identity.lease_key)))

    def of_table(self, identity: TableIdentity) -> MaintenanceRequest | None:
        """The pending request for this copy of a table, under any name; a malformed request is logged and skipped."""
        found = self._stored(sort_key("", identity.lease_key), log.warning)
        return next((request for request in found if request.identity.is_same_copy(identity)), None)

    def _stored(self, prefix: str, notify: Callable[[str], object]) -> Iterator[MaintenanceRequest]:
        """The requests whose keys start with ``prefix``, within the bounds."""
        items, size = 0, 0

        def count(more: int) -> None:
            nonlocal items, size
            items, size = items + 1, size + more
            if items > MOST_READ or size > MOST_BYTES:
                raise _EnoughError

        def pass_over(error: StorageError) -> None:
            count(0)
            _log_damage(error)

        try:
            for item in self.table.query(REQUESTS, prefix, passed_over=pass_over):
                count(sum(len(value) for value in item.values() if isinstance(value, str)))
                try:
                    yield stored_request(item)
                except ValueError as error:
                    _log_damage(damaged(item, str(error)))
        except _EnoughError:
            notify(
                f"more requests are filed than are read at once ({MOST_READ:,}, or {MOST_BYTES // 1_000_000} MB): the "
                "others wait; withdraw those that are not needed (icekeeper request list)"
            )

    def claim(self, request: MaintenanceRequest) -> bool:
        """Remove exactly this request; false if it was claimed already, or replaced by a newer request, which stays."""
        this = request.requested_ms, json_text(request.settings)

        def decide(found: Item | None) -> Item | None:
            return REMOVED if found is not None and (found["requested_ms"], found["settings"]) == this else None

        return self.table.change(REQUESTS, sort_key("", request.identity.lease_key), decide)


class _EnoughError(Exception):
    """No more requests are read."""


def _log_damage(error: StorageError) -> None:
    log.error("a request is skipped: %s", error)


def requested_table(text: str) -> TableName:
    """Parse the table name of a request.

    Raises:
        ValueError: it is not a table name, is longer than 4,096 characters, or has characters that do not print.
    """
    if len(text) > _LONGEST_NAME:
        raise ValueError(f"a table name of {len(text)} characters is longer than {_LONGEST_NAME}")
    if hidden := next((char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")), None):
        raise ValueError(f"a table name cannot have the character U+{ord(hidden):04X}, which does not print")
    return TableName.parse(text)


def stored_request(record: Mapping[str, object]) -> MaintenanceRequest:
    """The request of an item.

    A user who may request a pass can write any record.  So each value is checked, and the record must be filed under
    the key of its table: a request that ``claim`` does not find would be served forever.

    Raises:
        ValueError: the record is not as :meth:`RequestStore.file` writes it; the message says how.
    """
    catalog, warehouse, table, uuid, location, settings = (
        _text(record, name) for name in ("catalog", "warehouse", "table_name", "uuid", "location", "settings")
    )
    requested_ms = record.get("requested_ms")
    if not (isinstance(requested_ms, int) and not isinstance(requested_ms, bool) and 0 <= requested_ms <= LAST_MS):
        raise ValueError("its requested_ms is not a time in milliseconds")
    identity = TableIdentity(CatalogId(catalog, warehouse), requested_table(table), uuid, location)
    if sort_key("", identity.lease_key) != record.get("sk"):
        raise ValueError("it is not filed under the key of its table")
    return MaintenanceRequest(identity=identity, requested_ms=requested_ms, settings=_settings(settings))


def _text(record: Mapping[str, object], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise ValueError(f"its {name} is not text")
    if name != "settings" and len(value) > _LONGEST_NAME:
        raise ValueError(f"its {name} is longer than {_LONGEST_NAME} characters")
    value.encode()  # raises for a lone surrogate, which no key or file can hold
    return value


def _settings(text: str) -> dict[str, str]:
    if len(text) > MAX_SETTINGS:
        raise ValueError(f"its settings are longer than {MAX_SETTINGS} bytes")
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("its settings are nested too deeply") from None
    if not (isinstance(found, dict) and all(isinstance(value, str) for value in found.values())):
        raise ValueError("its settings are not an object of strings")
    if json.dumps(found, sort_keys=True) != text:
        raise ValueError("its settings are not in the form that Icekeeper writes, which a claim needs")
    for part in (*found, *found.values()):
        part.encode()
    return found
