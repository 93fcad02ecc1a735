"""Shell completion for the Tab key: it sends no request to a catalog, and on an error it offers nothing.

Table names come from the last scans in a local state file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any


def is_asked() -> bool:
    """Whether a shell runs this process for completion."""
    return "_ICEKEEPER_COMPLETE" in os.environ


_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")


def _offer(find: Callable[[], Iterator[str]], incomplete: str, *, before: str = "", behind: str = "") -> list[str]:
    """The plain names that begin with ``incomplete``, each between ``before`` and ``behind``; none on an error.

    Shells evaluate the offered text, zsh even twice, so quoting cannot make other names safe
    (rule: escape-at-the-edge).
    """
    with suppress(Exception):  # a message would appear in the middle of the command line
        names = {f"{before}{name}{behind}" for name in find() if _PLAIN.fullmatch(name)}
        return sorted(name for name in names if name.startswith(incomplete))
    return []


def catalogs(incomplete: str) -> list[str]:
    """The configured catalogs."""
    from icekeeper.catalogs.load import known_catalogs

    return _offer(lambda: iter(known_catalogs()), incomplete)


def tables(ctx: Any, incomplete: str) -> list[str]:
    """The tables that scans saw in the named catalog, or in all catalogs if the call names none."""
    return _offer(lambda: _tables(ctx.params.get("catalog")), incomplete)


def _tables(catalog: str | list[str] | None) -> Iterator[str]:
    from icekeeper.state.identity import parse_address, state_path
    from icekeeper.state.open import open_state

    # Send no request to DynamoDB, and create no state file.
    if parse_address(os.environ) is None and state_path(os.environ).exists():
        state, named = open_state(os.environ), [catalog] if isinstance(catalog, str) else catalog or ()
        wanted = {name.lower() for name in named if name}  # PyIceberg's configuration has no capitals
        for scan in state.scans.all():
            if not wanted or scan.catalog.name.lower() in wanted:
                for stats in state.lake_stats.of_catalog(scan.catalog):
                    yield str(stats.identity.table)


def keys(incomplete: str) -> list[str]:
    """The policy keys, as ``KEY=``."""
    from icekeeper.policy import POLICY_KEYS

    return _offer(lambda: iter(POLICY_KEYS), incomplete, behind="=")


def operations(incomplete: str) -> list[str]:
    """The operations, also after others: ``compact,exp`` becomes ``compact,expire_snapshots``."""
    from icekeeper.operation_facts import Operation

    before, separator, _ = incomplete.rpartition(",")
    known = [operation.value for operation in Operation]
    named = before.split(",") if separator else []
    if not set(named) <= set(known):  # the shell would offer the typed text again, without its quotes
        return []
    return _offer(lambda: (name for name in known if name not in named), incomplete, before=before + separator)
