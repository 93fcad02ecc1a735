"""The identity of a table in the state (rule: table-identity-is-its-uuid), and the address of the state itself.

A table is identified by its UUID.  Its names are only shown to people: after a rename, in a second catalog, or with
another case or spelling of the warehouse, records filed under a name would be lost, and so would their protection.  But
copies of a table share its UUID, and any writer of a table's metadata can choose its UUID.  So only records that keep
files from deletion are filed under the UUID alone.  All others, such as leases, are filed under UUID and location.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from icekeeper.errors import PolicyError
from icekeeper.model import CatalogId, TableName


class Entry(NamedTuple):
    """A catalog's entry of a table."""

    catalog: CatalogId
    table: str
    """The :attr:`.TableName.key`."""


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """The lasting identity of a table; a table that is dropped and created again has another UUID.

    Unequal objects may be the same table: compare with :meth:`is_same_table`.
    """

    catalog: CatalogId
    """The catalog; like ``table``, only shown to people."""
    table: TableName
    uuid: str
    """In lower case; empty for v1 tables without a UUID."""
    location: str = ""
    """The table's location, normalised; empty if the table was never read."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "uuid", self.uuid.strip().lower())

    @property
    def entry(self) -> Entry:
        return Entry(self.catalog, self.table.key)

    @property
    def spelling(self) -> str:
        """Names and UUID as JSON text."""
        return _text(*self.catalog, str(self.table), self.uuid)

    @property
    def key(self) -> str:
        """The key of pins and staged loads, which keep files from deletion: the UUID, or ``place`` without a UUID."""
        return self.uuid or self.place

    @property
    def lease_key(self) -> str:
        """The key of the table's lease: UUID and place (rule: table-identity-is-its-uuid).

        As JSON, so that no UUID equals the name of a slot, and the two parts cannot be confused.
        """
        return _text(self.uuid, self.place)

    @property
    def place(self) -> str:
        """Distinguishes copies of a table: the location, or the names if the table was never read."""
        return self.location or self.spelling

    @property
    def copy(self) -> tuple[str, str]:
        """UUID and location, unique per copy of a table."""
        return self.uuid, self.location

    def is_same_table(self, other: TableIdentity) -> bool:
        """Whether both are the same table, or copies of it."""
        return self.key == other.key

    def is_same_copy(self, other: TableIdentity) -> bool:
        """Whether both are the same copy of a table, under any name (rule: table-identity-is-its-uuid)."""
        return self.lease_key == other.lease_key


def _text(*parts: str) -> str:
    return json.dumps(parts, ensure_ascii=False)


STATE_VARIABLE = "ICEKEEPER_STATE"
"""The environment variable with the address of the state: a path, or the DynamoDB table of a fleet."""
_SCHEME = "dynamodb"
_HELP = "write a path, or dynamodb://TABLE[?region=REGION&profile=NAME&endpoint=URL]"
# Amazon DynamoDB Developer Guide, "Naming rules".
_SHORTEST_NAME = 3
_TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")


@dataclass(frozen=True, slots=True)
class TableAddress:
    """A DynamoDB table; boto3's own settings apply to a field that is ``None``."""

    name: str
    region: str | None = None
    endpoint: str | None = None
    profile: str | None = None
    """A profile of the AWS configuration."""


def parse_address(environment: Mapping[str, str]) -> TableAddress | None:
    """The DynamoDB table that the environment names; ``None`` if the state is a file.

    Raises:
        PolicyError: the address is malformed.
    """
    text = environment.get(STATE_VARIABLE, "")
    if "://" not in text and not text.startswith(f"{_SCHEME}:"):  # a mistyped address must not create an empty file
        return None
    try:
        parts = urlsplit(text)
    except ValueError as error:  # an unclosed bracket
        raise PolicyError(f"{STATE_VARIABLE}={text} names no DynamoDB table: {_HELP}") from error
    if parts.scheme != _SCHEME:
        raise PolicyError(f"{STATE_VARIABLE}={text} has an unknown scheme: {_HELP}")
    settings = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := settings.keys() - {"region", "endpoint", "profile"}:
        raise PolicyError(f"{STATE_VARIABLE}={text} has an unknown setting '{min(unknown)}': {_HELP}")
    if 0 < len(parts.netloc) < _SHORTEST_NAME:
        least = f"the name of a table has at least {_SHORTEST_NAME} characters"
        raise PolicyError(f"{STATE_VARIABLE}={text} names no DynamoDB table ({least}): {_HELP}")
    if not _TABLE_NAME.fullmatch(parts.netloc) or parts.path.strip("/") or parts.fragment:
        raise PolicyError(f"{STATE_VARIABLE}={text} names no DynamoDB table: {_HELP}")
    endpoint = settings.get("endpoint") or None
    if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
        raise PolicyError(f"{STATE_VARIABLE}={text} has an endpoint that is not an http(s) address: {_HELP}")
    region = settings.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    return TableAddress(parts.netloc, region or None, endpoint, settings.get("profile") or None)


def state_path(environment: Mapping[str, str]) -> Path:
    """The state file: ``ICEKEEPER_STATE``, else ``icekeeper/state.db`` in the user's state folder.

    The state folder is ``$XDG_STATE_HOME`` or ``~/.local/state``; a relative ``XDG_STATE_HOME`` is ignored
    (XDG Base Directory Specification).
    """
    if explicit := environment.get(STATE_VARIABLE):
        return Path(explicit).expanduser()
    state_home = Path(environment.get("XDG_STATE_HOME") or "")
    if not state_home.is_absolute():
        home = environment.get("HOME")
        state_home = (Path(home) if home else Path.home()) / ".local" / "state"
    return state_home / "icekeeper" / "state.db"
