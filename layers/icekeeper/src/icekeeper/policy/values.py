"""How the text of a setting becomes a typed value, and a typed value becomes text again.

Hours and megabytes are exact fractions: Iceberg's own properties are in milliseconds and bytes, and 1000 ms is no
finite decimal number of hours.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from enum import Enum
from fractions import Fraction
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field

from icekeeper.operation_facts import ALL_OPERATIONS, Operation
from icekeeper.policy.choices import RewriteReason
from icekeeper.policy.relative_time import parse_relative
from icekeeper.policy.sort_order import parse_sort_order
from icekeeper.policy.time_pattern import parse_time_pattern

__all__ = [
    "Amount",
    "OperationNames",
    "OptionalAge",
    "OptionalAmount",
    "OptionalCount",
    "OptionalText",
    "PositiveAmount",
    "Ratio",
    "RewriteReasons",
    "SnapshotIds",
    "SortOrderText",
    "Switch",
    "TextList",
    "TimePatternText",
    "WhereText",
    "did_you_mean",
    "json_value",
    "parse_list",
    "rounded_down",
    "rounded_up",
    "text_of",
]

# Plain decimals only: Fraction("1e999999999") would build an integer of a billion digits.
_DECIMAL = re.compile(r"[+-]?\d{1,30}(\.\d{1,30})?")
_MAX_DECIMALS = 12
_REASON_NAMES = tuple(reason.value for reason in RewriteReason)
_OPERATION_NAMES = tuple(operation.value for operation in Operation)


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the nearest known word, or nothing."""
    nearest = difflib.get_close_matches(text.lower(), [str(word) for word in known], n=1)
    return f" (did you mean '{nearest[0]}'?)" if nearest else ""


def _parse_amount(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("write a number, for example 1.5")
    if isinstance(value, int | Fraction):
        return Fraction(value)
    text = str(value).strip()
    if not _DECIMAL.fullmatch(text):
        raise ValueError("write a number, for example 1.5")
    # By way of text also for floats: 0.1 means one tenth, not the binary number nearest to it.
    return Fraction(text)


def _parse_switch(value: object) -> object:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("write true or false")
    return text == "true"


def _parse_optional(value: object) -> object:
    if isinstance(value, str):
        text = value.strip()
        return None if text.lower() in ("", "none") else text
    return value


def _text_passing(check: Callable[[str], object]) -> BeforeValidator:
    """Text that ``check`` does not refuse, or none."""

    def parse(value: object) -> object:
        text = _parse_optional(value)
        if isinstance(text, str):
            check(text)
        return text

    return BeforeValidator(parse)


def _parse_optional_amount(value: object) -> object:
    found = _parse_optional(value)
    return None if found is None else _parse_amount(found)


def parse_list(value: object) -> object:
    """Comma-separated text as a tuple; ``none`` is the empty one, and what is no text stays as it is."""
    if isinstance(value, str):
        parts = tuple(part for part in (part.strip() for part in value.split(",")) if part)
        return () if parts == ("none",) else parts
    return value


def _parse_snapshot_ids(value: object) -> object:
    parts = parse_list(value)
    if not isinstance(parts, Iterable):
        return value
    ids: list[int] = []
    for part in parts:
        if not re.fullmatch(r"-?[0-9]{1,19}", str(part)):
            raise ValueError(f"'{part}' is no snapshot id; write a comma-separated list of whole numbers")
        ids.append(int(part))
    return tuple(dict.fromkeys(ids))


def _parse_reasons(value: object) -> object:
    parts = parse_list(value)
    if not isinstance(parts, Iterable):
        return value
    names = [str(part) for part in parts]
    for name in names:
        if name not in _REASON_NAMES:
            raise ValueError(
                f"'{name}' is no reason; write none, or a comma-separated list of {', '.join(_REASON_NAMES)}"
            )
    return tuple(reason for reason in RewriteReason if reason in names)


def _parse_operations(value: object) -> object:
    if value == ():  # what a table names and may not have, taken away
        return value
    parts = parse_list(value)
    if not isinstance(parts, Iterable):
        return value
    wanted: set[Operation] = set()
    for name in (str(part) for part in parts):
        if name == "all":
            wanted.update(ALL_OPERATIONS)
        elif name in _OPERATION_NAMES:
            wanted.add(Operation(name))
        else:
            raise ValueError(
                f"'{name}' is no operation{did_you_mean(name, _OPERATION_NAMES)}; write all, or a list of "
                f"{', '.join(_OPERATION_NAMES)}"
            )
    if not wanted:
        raise ValueError("write all, or a comma-separated list of operations")
    return tuple(operation for operation in Operation if operation in wanted)


Amount: TypeAlias = Annotated[Fraction, BeforeValidator(_parse_amount), Field(ge=0)]
PositiveAmount: TypeAlias = Annotated[Fraction, BeforeValidator(_parse_amount), Field(gt=0)]
OptionalAge: TypeAlias = Annotated[Annotated[Fraction, Field(ge=0)] | None, BeforeValidator(_parse_optional_amount)]
OptionalAmount: TypeAlias = Annotated[Annotated[Fraction, Field(gt=0)] | None, BeforeValidator(_parse_optional_amount)]
Ratio: TypeAlias = Annotated[Fraction, BeforeValidator(_parse_amount), Field(gt=0, le=1)]
Switch: TypeAlias = Annotated[bool, BeforeValidator(_parse_switch)]
OptionalText: TypeAlias = Annotated[str | None, BeforeValidator(_parse_optional)]
SortOrderText: TypeAlias = Annotated[str | None, _text_passing(parse_sort_order)]
TimePatternText: TypeAlias = Annotated[str | None, _text_passing(parse_time_pattern)]
WhereText: TypeAlias = Annotated[str | None, _text_passing(parse_relative)]
OptionalCount: TypeAlias = Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_parse_optional)]
TextList: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(parse_list)]
RewriteReasons: TypeAlias = Annotated[tuple[RewriteReason, ...], BeforeValidator(_parse_reasons)]
SnapshotIds: TypeAlias = Annotated[tuple[int, ...], BeforeValidator(_parse_snapshot_ids)]
OperationNames: TypeAlias = Annotated[tuple[Operation, ...], BeforeValidator(_parse_operations)]


def rounded_up(amount: Fraction, unit: int) -> int:
    """``math.ceil(amount * unit)`` in a sixth of the time: detection asks for several of every table."""
    return -(-amount.numerator * unit // amount.denominator)


def rounded_down(amount: Fraction, unit: int) -> int:
    """``math.floor(amount * unit)``, likewise."""
    return amount.numerator * unit // amount.denominator


def text_of(value: object) -> str:
    """The value as a person writes it in a setting; amounts without a finite decimal form are marked ``≈``."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Fraction):
        return _amount_text(value)
    if isinstance(value, tuple):
        return ",".join(text_of(part) for part in value)
    return str(value)


_PLAIN = frozenset({bool, int, str, type(None)})


def json_value(value: object) -> object:
    """The value as JSON has it: numbers as numbers, lists as lists, ``None`` for none."""
    if type(value) in _PLAIN:  # most are; detection asks for every key of every table
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    if isinstance(value, tuple):
        return [json_value(part) for part in value]
    return value


def _amount_text(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    scaled = value * 10**_MAX_DECIMALS
    if scaled.denominator == 1:
        sign, digits = "-" if scaled < 0 else "", str(abs(scaled.numerator)).rjust(_MAX_DECIMALS + 1, "0")
        return f"{sign}{digits[:-_MAX_DECIMALS]}.{digits[-_MAX_DECIMALS:].rstrip('0')}"
    return f"≈{float(value):.6g}"
