"""What a change of settings changed: each key with its value and source before and after (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icekeeper.policy.layers import TABLE_PREFIX, table_source
from icekeeper.policy.resolved_policy import ResolvedPolicy

__all__ = ["setting_changes"]


def setting_changes(
    before: ResolvedPolicy | None, after: ResolvedPolicy, properties_before: Mapping[str, str]
) -> list[dict[str, Any]]:
    """``{"key", "before", "after"}`` of every key that changed, those of schedules too.

    Each side is ``{"value", "source"}`` or ``None``.  ``before`` is ``None`` where the settings were wrong: then the
    table's properties stand for what was.  A key that was set and is gone, or does not exist, has no ``after``.
    """
    new = after.documents()
    if before is not None:
        old: Mapping[str, Any] = before.documents()
        keys = [key for key in new if old.get(key) != new[key]]
    else:
        old = {
            name.removeprefix(TABLE_PREFIX): {"value": value, "source": f"table property {name}"}
            for name, value in properties_before.items()
            if name.startswith(TABLE_PREFIX)
        }
        now = {key: _bare(value) for key, value, source, _ in after.rows() if source == table_source(key)}
        keys = [key for key in new if now.get(key) != (_bare(old[key]["value"]) if key in old else None)]
    changed = [{"key": key, "before": old.get(key), "after": new[key]} for key in keys]
    gone = [key for key in sorted(old) if key not in new]
    return [*changed, *({"key": key, "before": old[key], "after": None} for key in gone)]


def _bare(value: str) -> str:
    """A value as text, in whatever way it is spaced."""
    return "".join(value.split()).lower()
