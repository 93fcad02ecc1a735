"""What an operation lacked at a snapshot before it could do anything, or anything more, as the last pass left it.

A planner that finds nothing tells how much is missing; detection counts what came since, and looks again only when it
may be enough.  Kept as JSON: a record that cannot be read is as none, so that a pass looks once more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """The least that must come before an operation can find work; ``None``: no amount of it suffices."""

    snapshot_id: int
    """The head that was planned on."""
    table_digest: str
    """That of the table then (:mod:`icekeeper.metadata.document`)."""
    planned_ms: int | None = None
    """When it was planned, in epoch milliseconds, where that decides which files were old enough."""
    run_id: str | None = None
    """A run whose own rewrites after that snapshot are allowed for."""
    data_files: tuple[tuple[int, int], ...] = ()
    """Pairs ``(files, bytes)``: so many data files with so many bytes into one partition may be enough.  With more
    files fewer bytes are needed."""
    gains_by_removals: bool = False
    """Whether the removal of data files may be enough by itself."""
    rests_ms: int | None = None
    """When the next partition comes to rest that has files to merge then, in epoch milliseconds."""
    files_to_rest: int | None = None
    """So many data files into one partition may be merged once it is at rest."""
    rest_ms: int = 0
    """How long a partition gets no file before it is at rest, in milliseconds."""
    delete_files: int | None = None
    """So many delete files may be enough."""
    manifests: int | None = None
    """So many new manifests may be enough."""


def slack_text(slack: Mapping[str, Slack]) -> str:
    """Slack by operation, as JSON with sorted keys."""
    return json.dumps({name: asdict(one) for name, one in slack.items()}, sort_keys=True)


def read_slack(text: str | None) -> dict[str, Slack]:
    """What :func:`slack_text` wrote, without what cannot be read."""
    try:
        found = json.loads(text or "{}")
        items = [(str(name), _slack(one)) for name, one in found.items()]
    except (AttributeError, RecursionError, TypeError, ValueError):
        return {}
    return {name: one for name, one in items if one is not None}


def _slack(values: object) -> Slack | None:
    try:
        given = dict(values)  # type: ignore[call-overload]  # any JSON; what does not fit is caught
        pairs = tuple((int(files), int(size)) for files, size in given.pop("data_files", ()))
        return Slack(**given, data_files=pairs)
    except (TypeError, ValueError):
        return None
