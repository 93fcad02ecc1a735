"""The types of settings: their values, how text is parsed to them, and how they are formatted.

Hours and megabytes are exact fractions, because Iceberg's own properties are in milliseconds and bytes, and 1000 ms is
not a finite decimal number of hours.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from fractions import Fraction
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field

from icekeeper.machine.clock import iso_utc
from icekeeper.metadata.transforms import CALENDAR, NUMBERED
from icekeeper.operation_facts import ALL_OPERATIONS, Operation
from icekeeper.policy.filters import parse_filter
from icekeeper.policy.time_patterns import parse_partition_time


class Strategy(StrEnum):
    """How a rewrite arranges rows; ``auto`` sorts if the table has a sort order."""

    AUTO = "auto"
    BINPACK = "binpack"
    SORT = "sort"
    ZORDER = "zorder"


class JobOrder(StrEnum):
    """Which file groups are rewritten first, by bytes or by number of files (Java's ``rewrite-job-order``)."""

    NONE = "none"
    BYTES_ASC = "bytes-asc"
    BYTES_DESC = "bytes-desc"
    FILES_ASC = "files-asc"
    FILES_DESC = "files-desc"


class RewriteReason(StrEnum):
    """A property of a file that is sufficient reason to rewrite it, whatever its size."""

    CODEC = "codec"
    """A compression codec that differs from the table's properties, or a format other than Parquet."""
    BLOOM = "bloom"
    """A Bloom filter that the table's properties require is missing."""
    SPEC = "spec"
    """An older partition spec, if all rows of the file belong to one partition of the current spec."""


class OutputSpec(StrEnum):
    """The partition spec of rewritten files: the table's current spec, or that of the inputs."""

    CURRENT = "current"
    KEEP = "keep"


class Proof(StrEnum):
    """How a rewrite proves that it kept every row: by row counts, or by comparing contents."""

    COUNTS = "counts"
    FULL = "full"


class Ownership(StrEnum):
    """Who maintains a table in a table bucket: the bucket as far as its maintenance is enabled, or always Icekeeper."""

    AUTO = "auto"
    ICEKEEPER = "icekeeper"


# The policy key ``sort_order``: ``k asc nulls last, bucket(16, id) desc nulls first``.  Transforms are Iceberg's
# (specification, "Partition Transforms", "Sorting").  As in Iceberg-Java and Spark, the default is nulls first when
# ascending and nulls last when descending.

# Spark writes years(ts), Iceberg year(ts).
_PLAIN_TRANSFORMS = {name: name for name in ("identity", *CALENDAR)} | {f"{name}s": name for name in CALENDAR}
_NAME = r"\"[^\"]+\"|`[^`]+`|[^\s,()\"`]+"
_TERM = re.compile(
    rf"(?:(?P<function>\w+)\s*\(\s*(?:(?P<number>[^\s,()]+)\s*,\s*)?(?P<argument>{_NAME})\s*\)|(?P<column>{_NAME}))"
    r"(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?",
    re.IGNORECASE,
)
# A comma within parentheses or quotes separates no terms.  An unclosed bracket extends to the end: otherwise each of a
# thousand open brackets would cause a search up to there.
_PARTS = re.compile(r",|(?:\([^)]*(?:\)|\Z)|\"[^\"]*(?:\"|\Z)|`[^`]*(?:`|\Z)|[^,])+")


@dataclass(frozen=True, slots=True)
class SortTerm:
    """One term; ``transform`` is written as in table metadata: ``identity``, ``bucket[16]``, ``day``, …"""

    column: str
    transform: str
    descending: bool
    nulls_first: bool


def parse_sort_order(text: str) -> tuple[SortTerm, ...]:
    """The terms of a sort order; columns are not looked up.

    Raises:
        ValueError: the message names the wrong part and what is allowed.
    """
    parts = _PARTS.findall(text)
    # Terms and commas must alternate, with a term at both ends.
    if len(parts) % 2 == 0 or any((part == ",") != (i % 2 == 1) for i, part in enumerate(parts)):
        raise ValueError("a term is missing beside a comma")
    return tuple(_term(part.strip()) for part in parts[::2])


def _term(text: str) -> SortTerm:
    match = _TERM.fullmatch(text)
    if match is None:
        raise ValueError(
            f"'{text}' is not a sort term; write COLUMN or TRANSFORM(COLUMN), then asc or desc, then nulls first or "
            "nulls last"
        )
    descending = (match["direction"] or "").lower() == "desc"
    return SortTerm(
        column=(match["column"] or match["argument"]).strip('"`'),
        transform="identity" if match["function"] is None else _transform(match["function"], match["number"], text),
        descending=descending,
        nulls_first=match["nulls"].lower() == "first" if match["nulls"] else not descending,
    )


def _transform(function: str, number: str | None, text: str) -> str:
    name = function.lower()
    if name in NUMBERED:
        if number is None or not re.fullmatch(r"[1-9]\d{0,8}", number):
            raise ValueError(f"'{text}' needs a whole number above 0: write {name}(16, COLUMN)")
        return f"{name}[{number}]"
    if name not in _PLAIN_TRANSFORMS:
        raise ValueError(
            f"'{function}' in '{text}' is not a transform; use {', '.join((*NUMBERED, *_PLAIN_TRANSFORMS))}"
        )
    if number is not None:
        raise ValueError(f"'{text}' takes no number: write {name}(COLUMN)")
    return _PLAIN_TRANSFORMS[name]


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
    # A float is converted from its text, too: 0.1 means one tenth, not the nearest binary number.
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
    """Optional text that ``check`` accepts, by not raising ValueError."""

    def parse(value: object) -> object:
        text = _parse_optional(value)
        if isinstance(text, str):
            check(text)
        return text

    return BeforeValidator(parse)


def parse_moment(value: object) -> str | None:
    """A time as :func:`.iso_utc` writes it; ``None``: none.

    Raises:
        ValueError: it is not a time with a zone.
    """
    text = _parse_optional(value)
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        moment = datetime.min  # has no zone
    if moment.tzinfo is None:
        raise ValueError("write a time with its zone, for example 2026-12-01T06:00:00Z, or none")
    return iso_utc(int(moment.timestamp() * 1000))


def _parse_optional_amount(value: object) -> object:
    found = _parse_optional(value)
    return None if found is None else _parse_amount(found)


def parse_list(value: object) -> object:
    """Comma-separated text as a tuple, ``none`` as the empty tuple; other values are returned unchanged."""
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
            raise ValueError(f"'{part}' is not a snapshot id; write a comma-separated list of whole numbers")
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
                f"'{name}' is not a reason; write none, or a comma-separated list of {', '.join(_REASON_NAMES)}"
            )
    return tuple(reason for reason in RewriteReason if reason in names)


def _parse_operations(value: object) -> object:
    if value == ():  # all operations that a table names were removed because it may not set them
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
                f"'{name}' is not an operation{did_you_mean(name, _OPERATION_NAMES)}; write all, or a list of "
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
PartitionTimeText: TypeAlias = Annotated[str | None, _text_passing(parse_partition_time)]
WhereText: TypeAlias = Annotated[str | None, _text_passing(parse_filter)]
OptionalMoment: TypeAlias = Annotated[str | None, BeforeValidator(parse_moment)]
"""A time as :func:`.iso_utc` writes it, so that texts compare as times do."""
OptionalCount: TypeAlias = Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_parse_optional)]
TextList: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(parse_list)]
RewriteReasons: TypeAlias = Annotated[tuple[RewriteReason, ...], BeforeValidator(_parse_reasons)]
SnapshotIds: TypeAlias = Annotated[tuple[int, ...], BeforeValidator(_parse_snapshot_ids)]
OperationNames: TypeAlias = Annotated[tuple[Operation, ...], BeforeValidator(_parse_operations)]


def rounded_up(amount: Fraction, unit: int) -> int:
    """``math.ceil(amount * unit)`` in a sixth of the time; detection calls this several times per table."""
    return -(-amount.numerator * unit // amount.denominator)


def rounded_down(amount: Fraction, unit: int) -> int:
    """``math.floor(amount * unit)``, as fast."""
    return amount.numerator * unit // amount.denominator


def text_of(value: object) -> str:
    """The value as written in a setting; amounts without a finite decimal form begin with ``≈``."""
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
    """The value as JSON: numbers as numbers, lists as lists, ``None`` for none."""
    if type(value) in _PLAIN:  # the fast path: detection calls this for every key of every table
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


# A setting is a plain number without a unit (not ``30d`` or ``256MB``): other programs read table properties too, and
# MB may mean 10^6 or 2^20.

_WITH_UNIT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-zA-Z]+)")
_SECONDS: Mapping[str, int] = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400),
}
_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("b", "byte", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kib"), 1024),
    **dict.fromkeys(("m", "mb", "mib"), 1024**2),
    **dict.fromkeys(("g", "gb", "gib"), 1024**3),
    **dict.fromkeys(("t", "tb", "tib"), 1024**4),
}
# The ending of a key, its unit, the units that a person may write, and the size of the key's unit.
_OF_KEY: tuple[tuple[str, str, Mapping[str, int], int], ...] = (
    ("_hours", "hours", _SECONDS, 3600),
    ("_timeout_s", "seconds", _SECONDS, 1),
    ("_interval_s", "seconds", _SECONDS, 1),
    ("_mb", "MB (2^20 bytes)", _BYTES, 1024**2),
    ("max_bytes_to_rewrite", "bytes", _BYTES, 1),
    ("min_row_group_copy_bytes", "bytes", _BYTES, 1),
)


def amount_with_unit(key: str, value: object) -> str | None:
    """A hint of what to write instead of an amount with a unit; ``None`` for keys and values without a unit."""
    found = _WITH_UNIT.fullmatch(str(value).strip())
    if found is None:
        return None
    for ending, unit, sizes, own in _OF_KEY:
        if key.endswith(ending) and found[2].lower() in sizes:
            amount = Fraction(found[1]) * sizes[found[2].lower()] / own
            digits = f"{float(amount):.6f}".rstrip("0").rstrip(".")
            return f"it is a plain number of {unit}; write {digits}" if Fraction(digits) == amount else None
    return None
