"""A client for the table that a fleet's state lives in."""

from __future__ import annotations

from botocore.config import Config
from botocore.exceptions import BotoCoreError

from icekeeper.aws.origins import require_members
from icekeeper.aws.session import session_of
from icekeeper.aws.settings import AwsIdentity
from icekeeper.errors import PolicyError, StorageError
from icekeeper.state.dynamodb.consumed import count_consumed
from icekeeper.state.dynamodb.table import DynamoTable
from icekeeper.state.identity import STATE_VARIABLE, TableAddress

__all__ = ["open_table"]

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
