"""What a shell offers behind the Tab key; it asks no catalog, and shows nothing where something fails.

Tables are those of the last scans in a local state file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any


def is_asked() -> bool:
    """Whether this process answers a shell."""
    return "_ICEKEEPER_COMPLETE" in os.environ


def _quietly(find: Callable[[], Iterator[str]], incomplete: str) -> list[str]:
    """What begins with the text so far.  An error would appear in the middle of the command line."""
    found: list[str] = []
    with suppress(Exception):
        found = sorted({one for one in find() if one.startswith(incomplete)})
    return found


def catalogs(incomplete: str) -> list[str]:
    """The configured catalogs."""
    from icekeeper.catalogs.load import known_catalogs

    return _quietly(lambda: iter(known_catalogs()), incomplete)


def tables(ctx: Any, incomplete: str) -> list[str]:
    """The tables that scans of the named catalog have seen; of all catalogs where none is named."""
    return _quietly(lambda: _tables(ctx.params.get("catalog")), incomplete)


def _tables(catalog: str | list[str] | None) -> Iterator[str]:
    from icekeeper.state.identity import parse_address, state_path
    from icekeeper.state.open import open_state

    # Neither a request to DynamoDB nor a new state file.
    if parse_address(os.environ) is None and state_path(os.environ).exists():
        state, named = open_state(os.environ), [catalog] if isinstance(catalog, str) else catalog or ()
        wanted = {name.lower() for name in named if name}  # PyIceberg's configuration has no capitals
        for scan in state.scans.all():
            if not wanted or scan.catalog.lower() in wanted:
                for stats in state.lake_stats.of_catalog(scan.catalog, scan.warehouse):
                    yield str(stats.identity.table)


def keys(incomplete: str) -> list[str]:
    """The policy keys, as ``KEY=``."""
    from icekeeper.policy import POLICY_KEYS

    return _quietly(lambda: (f"{key}=" for key in POLICY_KEYS), incomplete)


def operations(incomplete: str) -> list[str]:
    """The operations, also behind others: ``compact,exp`` becomes ``compact,expire_snapshots``."""
    from icekeeper.operation_facts import Operation

    before = incomplete.rpartition(",")[0]
    named = before.split(",") if before else []
    start = "".join(f"{name}," for name in named)
    return _quietly(lambda: (f"{start}{one.value}" for one in Operation if one.value not in named), incomplete)
