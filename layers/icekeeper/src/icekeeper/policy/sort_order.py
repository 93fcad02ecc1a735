"""The text of policy key ``sort_order``: ``k asc nulls last, bucket(16, id) desc nulls first``.

Transforms are Iceberg's (specification, "Partition Transforms", "Sorting").  As in Iceberg-Java and Spark, nulls come
first when ascending and last when descending unless the text says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["SortTerm", "parse_sort_order"]

_NUMBERED = ("bucket", "truncate")
# Spark writes years(ts), Iceberg year(ts).
_PLAIN = {name: name for name in ("identity", "year", "month", "day", "hour")} | {
    f"{name}s": name for name in ("year", "month", "day", "hour")
}
_NAME = r"\"[^\"]+\"|`[^`]+`|[^\s,()\"`]+"
_TERM = re.compile(
    rf"(?:(?P<function>\w+)\s*\(\s*(?:(?P<number>[^\s,()]+)\s*,\s*)?(?P<argument>{_NAME})\s*\)|(?P<column>{_NAME}))"
    r"(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?",
    re.IGNORECASE,
)
# A comma within parentheses or quotes separates nothing.  What is opened and never closed goes to the end, or each of a
# thousand brackets would be followed there in vain.
_PARTS = re.compile(r",|(?:\([^)]*(?:\)|\Z)|\"[^\"]*(?:\"|\Z)|`[^`]*(?:`|\Z)|[^,])+")


@dataclass(frozen=True, slots=True)
class SortTerm:
    """One term; ``transform`` is spelled as in table metadata: ``identity``, ``bucket[16]``, ``day``, …"""

    column: str
    transform: str
    descending: bool
    nulls_first: bool


def parse_sort_order(text: str) -> tuple[SortTerm, ...]:
    """The terms of a sort order; columns are not looked up.

    Raises:
        ValueError: names the part that is wrong and what may stand there.
    """
    parts = _PARTS.findall(text)
    # Terms and commas take turns; two commas in a row, or one at an end, leave a term out.
    if len(parts) % 2 == 0 or any((part == ",") != (i % 2 == 1) for i, part in enumerate(parts)):
        raise ValueError("a term is missing beside a comma")
    return tuple(_term(part.strip()) for part in parts[::2])


def _term(text: str) -> SortTerm:
    match = _TERM.fullmatch(text)
    if match is None:
        raise ValueError(
            f"'{text}' is no sort term; write COLUMN or TRANSFORM(COLUMN), then asc or desc, then nulls first or nulls "
            "last"
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
    if name in _NUMBERED:
        if number is None or not re.fullmatch(r"[1-9]\d{0,8}", number):
            raise ValueError(f"'{text}' needs a whole number above 0: write {name}(16, COLUMN)")
        return f"{name}[{number}]"
    if name not in _PLAIN:
        raise ValueError(f"'{function}' in '{text}' is no transform; use {', '.join((*_NUMBERED, *_PLAIN))}")
    if number is not None:
        raise ValueError(f"'{text}' has a number too many: write {name}(COLUMN)")
    return _PLAIN[name]
