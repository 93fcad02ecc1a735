"""Opens the state store that the environment names: a file of this machine, or the table that a fleet shares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from icekeeper.errors import PolicyError, StorageError
from icekeeper.state.dynamodb.store import DynamoStateStore
from icekeeper.state.dynamodb.table import DynamoTable
from icekeeper.state.sqlite.store import SqliteStateStore, state_path
from icekeeper.state.store import StateStore

__all__ = ["TableAddress", "open_state", "open_table", "parse_address", "state_folder"]

_VARIABLE = "ICEKEEPER_STATE"
_SCHEME = "dynamodb"
_HELP = "write a path, or dynamodb://TABLE[?region=REGION&endpoint=URL]"
# Amazon DynamoDB Developer Guide, "Naming rules".
_TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
# The requests are small; a function must learn early that its network does not lead there.
_CLIENT = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 6})


@dataclass(frozen=True, slots=True)
class TableAddress:
    """A DynamoDB table; what is ``None`` is taken from AWS's own settings."""

    name: str
    region: str | None = None
    endpoint: str | None = None


def open_state(environment: Mapping[str, str]) -> StateStore:
    """The store that ``ICEKEEPER_STATE`` names, else a file in the user's state folder.

    The first use creates a file, and never a table.

    Raises:
        PolicyError: the variable is malformed, or no region is known.
        StorageError: boto3's own settings cannot be used.
    """
    address = parse_address(environment)
    return SqliteStateStore(state_path(environment)) if address is None else DynamoStateStore(open_table(address))


def parse_address(environment: Mapping[str, str]) -> TableAddress | None:
    """The table that the environment names, ``None`` when the state is a file.

    Raises:
        PolicyError: the address is malformed.
    """
    text = environment.get(_VARIABLE, "")
    if "://" not in text and not text.startswith(f"{_SCHEME}:"):  # as a path it would be a new, empty file
        return None
    try:
        parts = urlsplit(text)
    except ValueError as error:  # an unclosed bracket
        raise PolicyError(f"{_VARIABLE}={text} names no DynamoDB table: {_HELP}") from error
    if parts.scheme != _SCHEME:
        raise PolicyError(f"{_VARIABLE}={text} has an unknown scheme: {_HELP}")
    settings = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := settings.keys() - {"region", "endpoint"}:
        raise PolicyError(f"{_VARIABLE}={text} has an unknown setting '{min(unknown)}': {_HELP}")
    if not _TABLE_NAME.fullmatch(parts.netloc) or parts.path.strip("/") or parts.fragment:
        raise PolicyError(f"{_VARIABLE}={text} names no DynamoDB table: {_HELP}")
    endpoint = settings.get("endpoint") or None
    if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
        raise PolicyError(f"{_VARIABLE}={text} has an endpoint that is no http(s) address: {_HELP}")
    region = settings.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    return TableAddress(parts.netloc, region or None, endpoint)


def open_table(address: TableAddress) -> DynamoTable:
    """A client for a table; sends nothing yet.

    Raises:
        PolicyError: no region is known.
        StorageError: boto3's own settings cannot be used.
    """
    try:
        session = boto3.Session(region_name=address.region)
        if session.region_name is None:
            raise PolicyError(
                f"the region of the state table {address.name} is not known: add ?region=REGION to {_VARIABLE}"
            )
        return DynamoTable(session.client(_SCHEME, endpoint_url=address.endpoint, config=_CLIENT), address.name)
    except (BotoCoreError, ValueError) as error:
        raise StorageError(f"the state table {address.name} cannot be used: {error}") from error


def state_folder(environment: Mapping[str, str]) -> Path:
    """Where this machine keeps what belongs beside the state: also when that is elsewhere.

    Raises:
        PolicyError: the address of the state is malformed.
    """
    if parse_address(environment) is None:
        return state_path(environment).parent
    return state_path({name: value for name, value in environment.items() if name != _VARIABLE}).parent
