"""The plan of a dry run as lines for people: each group with its reasons, and what is left alone (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from icekeeper.text import size_text, usd_text

__all__ = ["plan_lines"]

_MOST_LINES = 10
_SETTINGS = {"codec": "compression codec", "bloom": "Bloom filters", "sort_order": "sort order"}


def plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """Lines about the ``plan`` of an operation in ``plan --json``; none where it has nothing to tell."""
    groups = plan.get("groups", ())
    for group in groups[:_MOST_LINES]:
        where = f" in {group['partition']}" if group["partition"] else ""
        deletes = f", {group['delete_files']} delete file(s) applied" if group["delete_files"] else ""
        yield f"{', '.join(group['reasons'])}{where}: {_change(group)}{deletes}"
    totals = plan.get("totals")
    if totals is not None and totals["groups"] > 1:
        more = f" ({totals['groups'] - _MOST_LINES} more not shown)" if totals["groups"] > _MOST_LINES else ""
        yield f"in all: {_change(totals)} in {totals['groups']} group(s){more}"
    if totals is not None and totals["groups"]:
        yield (
            f"takes about {totals['requests']} request(s) and {usd_text(totals['cost_usd'])}; "
            f"saves readers about {usd_text(totals['saving_usd'])}{_by_what(plan.get('assumes'))}"
        )
    for lacking in plan.get("settings", ()):
        what, size = _SETTINGS[lacking["reason"]], size_text(lacking["bytes"])
        yield (
            f"{lacking['lacking']} of {lacking['sampled']} file(s) looked at lack the table's {what}: "
            f"{lacking['how']} would rewrite about {size} for {usd_text(lacking['cost_usd'])}"
        )
    for left in plan.get("left", ()):
        yield f"left alone: {left['files']} file(s) of {size_text(left['bytes'])}; {left['reason']}"


def _by_what(assumes: Mapping[str, Any] | None) -> str:
    """What the money is reckoned by, which is a guess as long as nobody has set it."""
    if assumes is None:
        return ""
    prices = (
        f"the prices of the settings ({', '.join(assumes['prices_set'])})"
        if assumes["prices_set"]
        else "AWS's list prices, whatever store this is; the settings price_per_… say others"
    )
    return f" in {assumes['expected_scans']} scan(s) (expected_scans), both by {prices}"


def _change(group: Mapping[str, Any]) -> str:
    sizes = f"{size_text(group['bytes_in'])} in, {size_text(group['bytes_out'])} out"
    return f"{group['files']} file(s) into {group['outputs']}, {sizes}"
