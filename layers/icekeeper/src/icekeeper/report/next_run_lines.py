"""What a scheduled run would do with a scan, as lines for people (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from icekeeper.text import counted

__all__ = ["next_run_lines"]

_SHOWN = 3


def next_run_lines(next_run: Mapping[str, Any], scanned: int) -> Iterator[str]:
    """Lines about ``next_run`` of ``detect --json``; none where nothing begins, waits or is left out."""
    begins, waits, at_work = next_run["begins"], next_run["waits"], next_run["at_work"]
    limit = next_run["limits"]["max_concurrent_jobs"]
    named_limit = f"max_concurrent_jobs {limit['value']} ({limit['source']})"
    if at_work:
        yield f"scheduled runs maintain {counted(at_work, 'table')} now, of {named_limit}"
    if begins:
        verb = "waits" if len(waits) == 1 else "wait"
        more = f"; {len(waits)} more {verb} for one to end: {named_limit}" if waits else ""
        yield f"a scheduled run would begin with {_names(begins)}{more}"
    elif waits:
        yield f"a scheduled run would begin with none now: {counted(len(waits), 'table')} would wait for one to end"
    if next_run["filters"] and scanned:
        filters = (f"{key} {','.join(f['value'])} ({f['source']})" for key, f in next_run["filters"].items())
        yield f"other tables are left out by {', '.join(filters)}"


def _names(tables: Sequence[str]) -> str:
    more = f" and {len(tables) - _SHOWN} more" if len(tables) > _SHOWN else ""
    return ", ".join(tables[:_SHOWN]) + more
