"""Requests for a pass outside the schedule: at most one per copy of a table, a new one replaces it (rule 117)."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity

__all__ = ["LAST_MS", "MAX_SETTINGS", "MaintenanceRequest", "RequestStore", "requested_table", "stored_request"]

MAX_SETTINGS = 16 * 1024
"""Bytes of a request's settings as JSON text; failures take most of a payload when there are any (platform 12)."""
# Names in Glue and S3 Tables have at most 255 characters a level, of which Iceberg knows many.
_LONGEST_NAME = 4096
LAST_MS = 253_402_300_799_999
"""The end of the year 9999, in epoch milliseconds: no later time can be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRequest:
    """Somebody wants a pass over a table; ``settings`` hold for that pass only (``operations`` among them)."""

    identity: TableIdentity
    requested_ms: int
    settings: Mapping[str, str] = field(default_factory=dict)


class RequestStore(Protocol):
    """Every method is atomic; each raises StorageError when the store fails."""

    def file(self, request: MaintenanceRequest) -> None:
        """Record a request, replacing the one that is pending for the table."""
        ...

    def pending(self) -> tuple[MaintenanceRequest, ...]:
        """The requests of all catalogs that no pass has claimed, oldest first.

        A record that :func:`stored_request` does not understand is passed over, with a line in the log (rule 265).
        """
        ...

    def claim(self, request: MaintenanceRequest) -> bool:
        """Remove this very request; false when it was claimed already, or replaced by a newer one, which stays."""
        ...


def requested_table(text: str) -> TableName:
    """The name of a table as a request gives it.

    Raises:
        ValueError: it is no table name, longer than 4,096 characters, or has characters that do not print.
    """
    if len(text) > _LONGEST_NAME:
        raise ValueError(f"a table name of {len(text)} characters is longer than {_LONGEST_NAME}")
    if hidden := next((one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")), None):
        raise ValueError(f"a table name cannot have the character U+{ord(hidden):04X}, which does not print")
    return TableName.parse(text)


def stored_request(record: Mapping[str, object], is_filed_under: Callable[[str], bool]) -> MaintenanceRequest:
    """The request of a record: its fields by the names of the state table's attributes.

    Whoever may ask for a pass can write any record.  So each value is checked, and the record must be filed under a key
    of its table: a request that its claim does not find would be served for ever.

    Raises:
        ValueError: the record is not as :meth:`RequestStore.file` writes it; the message says how.
    """
    catalog, warehouse, table, uuid, location, settings = (
        _text(record, name) for name in ("catalog", "warehouse", "table_name", "uuid", "location", "settings")
    )
    requested_ms = record.get("requested_ms")
    if not (isinstance(requested_ms, int) and not isinstance(requested_ms, bool) and 0 <= requested_ms <= LAST_MS):
        raise ValueError("its requested_ms is no time in milliseconds")
    identity = TableIdentity(catalog, warehouse, requested_table(table), uuid, location)
    if not is_filed_under(identity.lease_key):
        raise ValueError("it is not filed under the key of its table")
    return MaintenanceRequest(identity=identity, requested_ms=requested_ms, settings=_settings(settings))


def _text(record: Mapping[str, object], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise ValueError(f"its {name} is no text")
    if name != "settings" and len(value) > _LONGEST_NAME:
        raise ValueError(f"its {name} is longer than {_LONGEST_NAME} characters")
    value.encode()  # a lone surrogate fits no key and no file
    return value


def _settings(text: str) -> dict[str, str]:
    if len(text) > MAX_SETTINGS:
        raise ValueError(f"its settings are longer than {MAX_SETTINGS} bytes")
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("its settings are nested too deeply") from None
    if not (isinstance(found, dict) and all(isinstance(value, str) for value in found.values())):
        raise ValueError("its settings are no object of texts")
    if json.dumps(found, sort_keys=True) != text:
        raise ValueError("its settings are not written as Icekeeper writes them, by which a claim finds them")
    for part in (*found, *found.values()):
        part.encode()
    return found
