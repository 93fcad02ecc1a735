"""Prices that a person gives in place of AWS's list prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from icekeeper.errors import PolicyError
from icekeeper.prices import Prices

__all__ = ["priced_anew"]

_NOT_PRICES = ("month", "region")


def priced_anew(prices: Prices, given: Mapping[str, str]) -> Prices:
    """The prices with some of them replaced by others, in US dollars, as text.

    Raises:
        PolicyError: there is no such price, or it is no number of at least 0.
    """
    known = {field.name for field in fields(Prices)} - set(_NOT_PRICES)
    changed: dict[str, float] = {}
    for name, text in given.items():
        if name not in known:
            raise PolicyError(f"there is no price {name!r}; there are {', '.join(sorted(known))}")
        try:
            changed[name] = float(text)
        except ValueError:
            raise PolicyError(f"price {name}: {text!r} is no number of US dollars") from None
        if not 0 <= changed[name] < float("inf"):
            raise PolicyError(f"price {name}: {text} is no price; give a number of at least 0")
        if name == "glue_optimizer_mb_per_dpu_second" and changed[name] == 0:
            raise PolicyError(f"price {name}: a unit that reads nothing never ends; give a number above 0")
    return replace(prices, **changed)  # type: ignore[arg-type]  # only fields of numbers are left
