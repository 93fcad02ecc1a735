"""The least ages at which orphans and snapshots are deleted without ``--unsafe``."""

from __future__ import annotations

from collections.abc import Mapping

from icekeeper.errors import PolicyError
from icekeeper.policy.keys import Policy
from icekeeper.policy.layers import OVERRIDE_SOURCE, parse_values
from icekeeper.policy.values import text_of

ORPHAN_FLOOR_HOURS = 24
"""As in Iceberg's remove_orphan_files: younger files may belong to a commit in progress."""
SNAPSHOT_FLOOR_HOURS = 24
"""Readers, and jobs that resume from a snapshot, may run for a day."""
_RETENTION = "snapshot_retention_hours"
_READERS = "running readers could lose their snapshot"


def require_orphan_age(policy: Policy, sources: Mapping[str, str]) -> None:
    """Check the age of orphans, in every layer (rule: orphans-outlive-the-grace-period).

    Raises:
        PolicyError: it is below a day.
    """
    if policy.orphan_older_than_hours < ORPHAN_FLOOR_HOURS:
        hours, source = text_of(policy.orphan_older_than_hours), sources["orphan_older_than_hours"]
        raise PolicyError(
            f"policy key orphan_older_than_hours is {hours} (from {source}), below {ORPHAN_FLOOR_HOURS}: files of "
            "commits in progress could be deleted; --unsafe allows it"
        )


def require_safe_retention(settings: Mapping[str, str]) -> None:
    """Check the settings of a command line; other layers are only warned of (:func:`short_retention`).

    Raises:
        PolicyError: they shorten the retention of snapshots below a day; a malformed value is reported later.
    """
    value = settings.get(_RETENTION)
    if value is None:
        return
    try:
        hours = parse_values({_RETENTION: value}, {_RETENTION: OVERRIDE_SOURCE}).snapshot_retention_hours
    except PolicyError:
        return
    if hours < SNAPSHOT_FLOOR_HOURS:
        raise PolicyError(
            f"{_RETENTION}={value} is below {SNAPSHOT_FLOOR_HOURS}: {_READERS}; icekeeper maintain --unsafe allows it"
        )


def short_retention(policy: Policy, sources: Mapping[str, str]) -> str | None:
    """A sentence if a policy, and not the command line, sets a retention of snapshots below a day."""
    hours, source = policy.snapshot_retention_hours, sources[_RETENTION]
    if hours >= SNAPSHOT_FLOOR_HOURS or source == OVERRIDE_SOURCE:
        return None
    return f"{_RETENTION} is {text_of(hours)} ({source}), below {SNAPSHOT_FLOOR_HOURS}: {_READERS}"
