"""Arguments and options that several commands share, and how their text becomes values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer

from icekeeper.engines.names import EngineName
from icekeeper.errors import PolicyError
from icekeeper.model import TableName

__all__ = [
    "AsJson",
    "CatalogName",
    "Engine",
    "Operations",
    "Schedule",
    "Settings",
    "Table",
    "Unsafe",
    "overrides",
    "table_name",
    "time_ms",
    "ttl_ms",
]

Table: TypeAlias = Annotated[str, typer.Argument(metavar="NS.TABLE", help="namespace and table; the last dot divides")]
CatalogName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--catalog",
        metavar="C",
        help="a catalog of PyIceberg's configuration (~/.pyiceberg.yaml), or a table bucket's ARN",
    ),
]
Operations: TypeAlias = Annotated[
    str | None,
    typer.Option("--operations", metavar="LIST|all", help="comma-separated, such as compact,expire_snapshots"),
]
Settings: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="a policy setting for this call; repeatable")
]
Schedule: TypeAlias = Annotated[
    str | None, typer.Option("--schedule", metavar="NAME", help="a schedule of the policy, due or not")
]
Engine: TypeAlias = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        help="where files are rewritten: this machine's processes, Spark, or auto: Spark where a session or cluster of"
        " it is at hand, and for sorts beyond this machine's memory",
    ),
]
Unsafe: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--unsafe", help="allow an orphan grace period below 24 hours (tests, demonstrations), and to give snapshots up"
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="print exactly one JSON document")]


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_S = 366 * 86_400


def table_name(text: str) -> TableName:
    """Raises PolicyError for text that is not ``namespace.table``."""
    try:
        return TableName.parse(text)
    except ValueError as error:
        raise PolicyError(str(error)) from None


def time_ms(text: str, option: str) -> int:
    """``90s``, ``30m``, ``6h`` or ``7d`` in milliseconds.

    Raises:
        PolicyError: the text has another form, or the time is 0 or above 366 days; the message names the option.
    """
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    seconds = 0 if match is None else int(match.group(1)) * _SECONDS[match.group(2)]
    if not 0 < seconds <= _LONGEST_S:
        raise PolicyError(f"{option} takes a time like 90s, 30m, 6h or 7d, at most 366d, not '{text}'")
    return seconds * 1000


def ttl_ms(text: str) -> int:
    """How long a pin holds, at most a year: pins keep every newer snapshot from expiring; see :func:`time_ms`."""
    return time_ms(text, "--ttl")


def overrides(
    settings: Sequence[str] | None, operations: str | None = None, about: str = "one table"
) -> dict[str, str]:
    """``--set`` and ``--operations`` as one layer of settings, for what the call is about (a ``Scope``'s value).

    Raises:
        PolicyError: a setting is not KEY=VALUE, a key is given twice with different values, or it would do nothing.
    """
    from icekeeper.policy.scope import Scope, refuse_meaningless

    values: dict[str, str] = {}
    for setting in [*(settings or ()), *(() if operations is None else (f"operations={operations}",))]:
        key, separator, value = setting.partition("=")
        key, value = key.strip(), value.strip()
        if not separator or not key:
            raise PolicyError(f"a setting is KEY=VALUE, not '{setting}'")
        if values.get(key, value) != value:
            raise PolicyError(f"{key} is set twice, to '{values[key]}' and to '{value}'")
        values[key] = value
    refuse_meaningless(values, Scope(about))
    return values
