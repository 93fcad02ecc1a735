"""Opens the state store that the environment names: a local file, or a DynamoDB table shared by many processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from icekeeper.errors import StorageError
from icekeeper.state.identity import STATE_VARIABLE, parse_address, state_path
from icekeeper.state.store import StateStore


def open_state(environment: Mapping[str, str]) -> StateStore:
    """The store that ``ICEKEEPER_STATE`` names, else a file in the user's state folder.

    The first use creates a missing file.  A missing DynamoDB table is never created, nor is the folder of a file that
    the variable names: it may be a volume that is not mounted, and hold pins.

    Raises:
        PolicyError: the variable is malformed, or no region is known.
        StorageError: the folder that it names does not exist, or boto3's own settings cannot be used.
    """
    address = parse_address(environment)
    if address is None:
        from icekeeper.state.sqlite.store import SqliteStateStore  # functions never need it

        path = state_path(environment)
        if environment.get(STATE_VARIABLE) and not path.parent.exists():
            raise StorageError(
                f"the state file {path} cannot be used: there is no folder {path.parent}; mount or make it, or correct "
                f"{STATE_VARIABLE}"
            )
        return SqliteStateStore(path)
    from icekeeper.state.dynamodb.table import open_table  # imports boto3, which a state file does not need

    return StateStore(open_table(address))


def state_folder(environment: Mapping[str, str]) -> Path:
    """The local folder for files beside the state, also if the state itself is a DynamoDB table.

    Raises:
        PolicyError: the address of the state is malformed.
    """
    if parse_address(environment) is None:
        return state_path(environment).parent
    return state_path({name: value for name, value in environment.items() if name != STATE_VARIABLE}).parent
