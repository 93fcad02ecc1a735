"""Which table a record in the state is about (rule: table-identity-is-its-uuid), and the address of the state
itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from icekeeper.errors import PolicyError
from icekeeper.model import TableName

# Which table a record in the state is about (rule: table-identity-is-its-uuid).
#
# A table is identified by its UUID, whatever catalogs call it and wherever it has moved.  Names are only shown to
# people: if records were filed under them, a rename, a second catalog, another case or another spelling of the
# warehouse would lose what they protect.  Copies of a table share its UUID, and whoever writes a table's metadata
# chooses its UUID.  So only records that spare files are filed under the UUID alone; all others, leases among them,
# under UUID and location.


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """The lasting identity of a table: one that is dropped and created again under its name has another UUID.

    Two unequal objects may be the same table: ask :meth:`is_same_table`.
    """

    catalog: str
    """The catalog's name; only shown to people, like the two fields that follow."""
    warehouse: str
    table: TableName
    uuid: str
    """In lower case; empty for v1 tables without one."""
    location: str = ""
    """The table's location, normalised; empty where nobody has read the table."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "uuid", self.uuid.strip().lower())

    @property
    def spelling(self) -> str:
        """Names and UUID as JSON text."""
        return _text(self.catalog, self.warehouse, str(self.table), self.uuid)

    @property
    def key(self) -> str:
        """The key of pins and staged loads, which only spare files: the UUID, for a table without one its place."""
        return self.uuid or self.place

    @property
    def lease_key(self) -> str:
        """The key of the table's lease: UUID and location (rule: copied-uuids-hold-up-nobody).

        As JSON, so that no UUID reads like the name of a slot, and none runs into a location.
        """
        return _text(self.uuid, self.place)

    @property
    def place(self) -> str:
        """What tells this copy of the table from others: its location, and the names of a table that nobody read."""
        return self.location or self.spelling

    @property
    def copy(self) -> tuple[str, str]:
        """UUID and location, which no other copy of the table shares."""
        return self.uuid, self.location

    def is_same_table(self, other: TableIdentity) -> bool:
        """Whether both are the same table, or copies of one."""
        return self.key == other.key

    def is_same_copy(self, other: TableIdentity) -> bool:
        """Whether both are the same copy of the same table, whatever catalogs call it
        (rule: copied-uuids-hold-up-nobody)."""
        return self.lease_key == other.lease_key


def _text(*parts: str) -> str:
    return json.dumps(parts, ensure_ascii=False)


# The address of the state in ``ICEKEEPER_STATE``: a path on this machine, or the DynamoDB table of a fleet.

STATE_VARIABLE = "ICEKEEPER_STATE"
_SCHEME = "dynamodb"
_HELP = "write a path, or dynamodb://TABLE[?region=REGION&profile=NAME&endpoint=URL]"
# Amazon DynamoDB Developer Guide, "Naming rules".
_SHORTEST_NAME = 3
_TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")


@dataclass(frozen=True, slots=True)
class TableAddress:
    """A DynamoDB table; what is ``None`` comes from boto3's own settings."""

    name: str
    region: str | None = None
    endpoint: str | None = None
    profile: str | None = None
    """Of AWS's configuration."""


def parse_address(environment: Mapping[str, str]) -> TableAddress | None:
    """The DynamoDB table that the environment names, ``None`` when the state is a file.

    Raises:
        PolicyError: the address is malformed.
    """
    text = environment.get(STATE_VARIABLE, "")
    if "://" not in text and not text.startswith(f"{_SCHEME}:"):  # as a path it would be a new, empty file
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
        raise PolicyError(f"{STATE_VARIABLE}={text} has an endpoint that is no http(s) address: {_HELP}")
    region = settings.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    return TableAddress(parts.netloc, region or None, endpoint, settings.get("profile") or None)


def state_path(environment: Mapping[str, str]) -> Path:
    """The file that the state lives in: ``ICEKEEPER_STATE``, else ``icekeeper/state.db`` in the user's state folder.

    The state folder is ``$XDG_STATE_HOME`` or ``~/.local/state`` (XDG Base Directory Specification, by which a
    relative ``XDG_STATE_HOME`` is invalid and ignored).
    """
    if explicit := environment.get(STATE_VARIABLE):
        return Path(explicit).expanduser()
    state_home = Path(environment.get("XDG_STATE_HOME") or "")
    if not state_home.is_absolute():
        home = environment.get("HOME")
        state_home = (Path(home) if home else Path.home()) / ".local" / "state"
    return state_home / "icekeeper" / "state.db"
