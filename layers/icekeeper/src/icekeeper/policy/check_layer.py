"""Checks the keys and values of one layer of settings by themselves (rule 114)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from icekeeper.errors import PolicyError
from icekeeper.policy.foreign_names import name_here
from icekeeper.policy.keys import POLICY_KEYS, Policy, nearest_keys
from icekeeper.policy.layers import SCHEDULE_PREFIX, Layer
from icekeeper.policy.schedules import INTERVAL, parse_interval, schedule_settings, without_schedules
from icekeeper.policy.units import amount_with_unit
from icekeeper.policy.values import did_you_mean, text_of

__all__ = ["check_keys", "check_layer", "parse_values"]


def check_layer(layer: Layer) -> None:
    """Check the keys and values of one layer by themselves.

    Raises:
        PolicyError: an unknown key or a malformed value.
    """
    check_keys(layer)
    general = without_schedules(layer.values)
    parse_values(general, dict.fromkeys(general, layer.source))
    for name, (own,) in schedule_settings([layer]).items():
        values = {key: value for key, value in own.values.items() if key != INTERVAL}
        parse_values(values, dict.fromkeys(values, layer.source), f"{SCHEDULE_PREFIX}{name}.")
        if INTERVAL in own.values:
            parse_interval(name, own.values[INTERVAL], layer.source)


def check_keys(layer: Layer) -> None:
    """Raise PolicyError for an unknown key of the layer, be it a schedule's or not."""
    for key in without_schedules(layer.values):
        if key not in POLICY_KEYS:
            here = name_here(key)
            if here is not None:
                raise PolicyError(f"unknown policy key '{key}' (from {layer.source}); here it is {here}")
            raise PolicyError(
                f"unknown policy key '{key}' (from {layer.source}){did_you_mean(key, POLICY_KEYS)}{nearest_keys(key)}"
            )
    schedule_settings([layer])


def parse_values(values: Mapping[str, object], sources: Mapping[str, str], prefix: str = "") -> Policy:
    """The policy with these values, typed, and defaults; ``prefix`` stands before keys in messages.

    Raises:
        PolicyError: a malformed value; the message names key, value, source and what is allowed.
    """
    try:
        return Policy.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        raise PolicyError(
            f"policy key {prefix}{key} cannot be '{text_of(values[key])}' (from {sources[key]}): "
            f"{amount_with_unit(key, values[key]) or _allowed(first)}"
        ) from None


def _allowed(error: Any) -> str:
    text = str(error["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:]
