"""Named schedules of a policy: ``schedules.nightly.strategy=zorder``, ``schedules.nightly.interval=24h``.

A schedule has an interval, and settings that hold while it runs: those of the table, but for what it says itself.  In
environment variables two underscores divide: ``ICEKEEPER_SCHEDULES__NIGHTLY__STRATEGY``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from icekeeper.errors import PolicyError
from icekeeper.policy.keys import DEPLOYMENT_KEYS, POLICY_KEYS
from icekeeper.policy.layers import SCHEDULE_PREFIX, Layer
from icekeeper.policy.values import did_you_mean

__all__ = [
    "INTERVAL",
    "LONGEST_INTERVAL_MS",
    "SCHEDULE_KEYS",
    "divided",
    "interval_text",
    "is_schedule_key",
    "layers_of_schedule",
    "parse_interval",
    "schedule_settings",
]

INTERVAL = "interval"
# What is one for the whole table: whether and by whom it is maintained, and which branch.
_OF_THE_TABLE = frozenset({"maintenance_enabled", "ownership", "branch"})
SCHEDULE_KEYS: tuple[str, ...] = (
    INTERVAL,
    *(key for key in POLICY_KEYS if key not in DEPLOYMENT_KEYS and key not in _OF_THE_TABLE),
)
"""What a schedule may say of itself."""
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST_NAME = 40
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LONGEST_INTERVAL_MS = 366 * _UNITS_MS["d"]
_EXAMPLE = f"{SCHEDULE_PREFIX}nightly.strategy"


def is_schedule_key(key: str) -> bool:
    """Whether a key of a layer is about schedules, be it well formed or not."""
    return key.startswith(SCHEDULE_PREFIX) or key == SCHEDULE_PREFIX.rstrip(".")


def divided(key: str, source: str) -> tuple[str, str]:
    """Schedule and policy key of a key ``schedules.NAME.KEY``.

    Raises:
        PolicyError: it has another form, or no schedule can set that key.
    """
    name, _, inner = key.removeprefix(SCHEDULE_PREFIX).partition(".")
    if not inner or not key.startswith(SCHEDULE_PREFIX):
        raise PolicyError(f"'{key}' (from {source}) is no setting of a schedule; write schedules.NAME.KEY, for example "
                          f"{_EXAMPLE}")  # fmt: skip
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise PolicyError(
            f"'{name}' (from {source}) is no name for a schedule; names have small letters, digits and single "
            f"underscores, begin with a letter, and are at most {_LONGEST_NAME} characters long"
        )
    if inner in SCHEDULE_KEYS:
        return name, inner
    if inner in DEPLOYMENT_KEYS:
        raise PolicyError(f"schedule {name} cannot set {inner} (from {source}): it is a setting of the deployment")
    if inner in _OF_THE_TABLE:
        raise PolicyError(f"schedule {name} cannot set {inner} (from {source}): it holds for the whole table")
    raise PolicyError(
        f"schedule {name} has an unknown key '{inner}' (from {source}){did_you_mean(inner, SCHEDULE_KEYS)}; it takes "
        f"{INTERVAL}, and the policy keys of a table"
    )


def schedule_settings(layers: Sequence[Layer]) -> dict[str, list[Layer]]:
    """Schedule → its layers, lowest first, with the keys as they are called without a schedule.

    Raises:
        PolicyError: a key is malformed, or no schedule can set it.
    """
    found: dict[str, list[Layer]] = {}
    for layer in layers:
        values: dict[str, dict[str, object]] = {}
        for key, value in layer.values.items():
            if is_schedule_key(key):
                name, inner = divided(key, layer.source)
                values.setdefault(name, {})[inner] = value
        for name, its_values in values.items():
            found.setdefault(name, []).append(replace(layer, values=its_values))
    return found


def layers_of_schedule(layers: Sequence[Layer], own: Sequence[Layer]) -> Iterator[Layer]:
    """The layers that make a schedule's settings: its own, above all others but this call's ``--set``.

    Bounds stay last.
    """

    general = [replace(layer, values=without_schedules(layer.values)) for layer in layers]
    own = [replace(layer, values={k: v for k, v in layer.values.items() if k != INTERVAL}) for layer in own]
    yield from (layer for layer in general if not layer.is_of_call and not layer.is_bound)
    yield from (layer for layer in own if not layer.is_of_call)
    yield from (layer for layer in general if layer.is_of_call)
    yield from (layer for layer in own if layer.is_of_call)
    yield from (layer for layer in general if layer.is_bound)


def without_schedules(values: Mapping[str, object]) -> dict[str, object]:
    """The settings of a layer that hold without any schedule."""
    return {key: value for key, value in values.items() if not is_schedule_key(key)}


def parse_interval(name: str, value: object, source: str) -> int | None:
    """An interval in milliseconds; ``None`` for ``none``, which takes the schedule away.

    Raises:
        PolicyError: it has another form, is 0 or above 366 days.
    """
    text = str(value).strip().lower()
    if text == "none":
        return None
    match = re.fullmatch(r"([0-9]{1,9})\s*([smhd])", text)
    interval_ms = int(match[1]) * _UNITS_MS[match[2]] if match else 0
    if not 0 < interval_ms <= LONGEST_INTERVAL_MS:
        raise PolicyError(
            f"policy key {SCHEDULE_PREFIX}{name}.{INTERVAL} cannot be '{value}' (from {source}): write a time like "
            "30m, 6h or 7d, at most 366d, or none for no such schedule"
        )
    return interval_ms


def interval_text(interval_ms: int) -> str:
    """The interval as a person writes it, in the largest unit that divides it: 90m, 24h, 7d."""
    shown = [unit for unit, ms in _UNITS_MS.items() if interval_ms % ms == 0 and (unit != "d" or interval_ms > ms)]
    unit = shown[-1]  # people say 24 h
    return f"{interval_ms // _UNITS_MS[unit]}{unit}"
