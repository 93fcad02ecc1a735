"""Checks that the cost grows no faster than the table: our CPU seconds of a row at several scales."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

SCALES = (Fraction(1, 16), Fraction(1, 4), Fraction(1))
_LINEAR = 1.1
"""Most that the exponent of linear growth may be measured as: half a power of four is 2, a tenth of one 1.15."""


def growth(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of one row at rising scales: by contestant of ours the CPU seconds and, between the last two, the exponent.

    Doubled cost for a doubled table is an exponent of 1; fixed costs make it less at small scales.
    """
    found: dict[str, Any] = {}
    for name, entrant in rows[-1]["entrants"].items():
        costs = [row["entrants"][name].get("median", {}).get("cpu_s") for row in rows]
        peaks = [row["entrants"][name].get("median", {}).get("peak_mb") for row in rows]
        exponent = None
        if len(rows) > 1 and costs[-1] and costs[-2]:
            exponent = round(math.log(costs[-1] / costs[-2]) / math.log(rows[-1]["scale"] / rows[-2]["scale"]), 2)
        found[name] = {"title": entrant["title"], "cpu_s": costs, "peak_mb": peaks, "exponent": exponent}
    last = rows[-1]
    return {
        "title": last["title"],
        "scales": [row["scale"] for row in rows],
        "rounds": last["rounds"],
        "date": last["date"],
        "commit": last["commit"],
        "load": last["machine"]["load"],
        "found": found,
    }


def growth_lines(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """All rows, as lines of Markdown."""
    at = ", ".join(map(str, SCALES))
    yield f"| work | who | CPU s at {at} | MB | exponent | linear or better |"
    yield "|---|---|---|---|---|---|"
    for row in rows.values():
        for entrant in row["found"].values():
            exponent = entrant["exponent"]
            verdict = "not measured" if exponent is None else "met" if exponent <= _LINEAR else "**missed**"
            cells = [", ".join("–" if v is None else f"{v:.3g}" for v in entrant[f]) for f in ("cpu_s", "peak_mb")]
            shown = "" if exponent is None else exponent
            yield f"| {row['title']} | {entrant['title']} | {cells[0]} | {cells[1]} | {shown} | {verdict} |"


def exponents(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The largest that was measured, as a sentence."""
    found = [
        (entrant["exponent"], row["title"])
        for row in rows.values()
        for entrant in row["found"].values()
        if entrant["exponent"] is not None
    ]
    largest, title = max(found)
    return (
        f"CPU time grows from a quarter to the full size with an exponent of at most {largest} ({title}), in "
        f"{len(found)} measurements; 1 is linear."
    )
