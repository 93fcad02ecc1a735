"""What a change of settings changed: each key with its value and source before and after (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icekeeper.policy.keys import POLICY_KEYS
from icekeeper.policy.layers import TABLE_PREFIX
from icekeeper.policy.resolved_policy import ResolvedPolicy

__all__ = ["setting_changes"]


def setting_changes(
    before: ResolvedPolicy | None, after: ResolvedPolicy, properties_before: Mapping[str, str]
) -> list[dict[str, Any]]:
    """``{"key", "before", "after"}`` of every key that changed; each side is ``{"value", "source"}`` or ``None``.

    ``before`` is ``None`` where the settings were wrong: then the table's properties stand for what was.  A key that
    does not exist, and was set all the same, has no ``after``.
    """
    new = after.documents()
    stated = {
        name.removeprefix(TABLE_PREFIX): {"value": value, "source": f"table property {name}"}
        for name, value in properties_before.items()
        if name.startswith(TABLE_PREFIX)
    }
    if before is not None:
        old: Mapping[str, Any] = before.documents()
        keys = [key for key in POLICY_KEYS if old[key] != new[key]]
    else:
        old = stated
        at_source = {key: f"table property {TABLE_PREFIX}{key}" for key in POLICY_KEYS}
        keys = [key for key in POLICY_KEYS if (key in stated) != (new[key]["source"] == at_source[key])]
    changed = [{"key": key, "before": old.get(key), "after": new[key]} for key in keys]
    unknown = [key for key in sorted(stated) if key not in POLICY_KEYS]
    return [*changed, *({"key": key, "before": stated[key], "after": None} for key in unknown)]
