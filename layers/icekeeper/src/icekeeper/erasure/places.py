"""The places that store matching rows: when the policy removes each, and the commands that do so sooner (pure)."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from importlib.metadata import version
from typing import Any

from icekeeper.erasure.row_filter import Wanted
from icekeeper.metadata.document import MAIN, TableMetadata
from icekeeper.operations.expiry.retention import expiry_at
from icekeeper.policy import Policy
from icekeeper.state.staging import LoadOrigin, LoadState, StagedLoad
from icekeeper.text import counted

_DAY_MS = 86_400_000
_LONGEST_DAYS = 4096
NOT_COVERED = (
    "replicas and backups of the bucket, and parts of unfinished uploads",
    "caches and spilled files of engines",
    "other tables, and copies of this table",
)
VERSIONS_NOT_LISTED = "older versions of objects and delete markers: the store does not list them"


class Holder(StrEnum):
    """Why an object is still stored."""

    REF = "ref"
    SNAPSHOTS = "snapshots"
    STAGED = "staged load"
    DELETION = "unfinished deletion"
    ORPHAN = "orphans"
    CURRENT = "current metadata file"
    LOG = "metadata log"
    VERSION = "older versions"


class Step(IntEnum):
    """The order of commands."""

    CHANGE = 0
    REWRITE = 1
    MANIFESTS = 2
    METADATA = 3
    EXPIRE = 4
    SWEEP = 5


class What(StrEnum):
    """What an object stores."""

    VISIBLE = "rows that readers see"
    HIDDEN = "rows hidden by deletes, still stored"
    ROWS = "rows"
    KEYS = "keys or rows in delete files"
    BOUNDS = "bounds or partition values in manifests"
    NAME = "a value in the name of a file"
    TEXT = "a value in a metadata file"
    SKETCH = "statistics over the rows"


@dataclass(frozen=True, slots=True, order=True)
class PlaceKey:
    """A holder, by name, and what it holds."""

    holder: Holder
    name: str
    what: What


@dataclass(slots=True)
class Place:
    """The objects of a place, and the snapshots that keep them."""

    objects: dict[str, int] = field(default_factory=dict)
    """Path → matching rows or keys; 0: a value in metadata."""
    snapshot_ids: set[int] = field(default_factory=set)
    newest_ms: int | None = 0
    """When the youngest of the objects was written; ``None``: not known."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What decides about dates and commands."""

    table: str
    catalog: str
    metadata: TableMetadata
    policy: Policy
    now_ms: int
    pinned: Sequence[tuple[int, int]]
    """Snapshot id and end (epoch milliseconds) of each pin."""
    loads: Mapping[str, StagedLoad]
    wanted: Wanted

    def gone_ms(self, key: PlaceKey, place: Place) -> int | None:
        """When the table's policy lets a pass remove the objects; ``None``: it sets no day."""
        policy = self.policy
        if not policy.maintenance_enabled or (key.holder is Holder.REF and key.name == MAIN):
            return None
        if key.holder in (Holder.REF, Holder.SNAPSHOTS):
            if not policy.snapshot_expiry_enabled:
                return None
            if key.holder is Holder.REF:
                return self._first_day(lambda now_ms: key.name in self._plan(now_ms)[1])
            return self._first_day(lambda now_ms: place.snapshot_ids <= set(self._plan(now_ms)[0]))
        if key.holder is Holder.DELETION:
            return self.now_ms
        if key.holder is Holder.STAGED:
            load = self.loads[key.name]
            since = load.changed_ms if load.state is LoadState.FAILED else load.expires_ms
            return None if since is None else since + policy.orphan_older_than_ms
        if key.holder is Holder.ORPHAN and policy.orphan_sweep_enabled and place.newest_ms is not None:
            return max(self.now_ms, place.newest_ms + policy.orphan_older_than_ms)
        return None

    def _plan(self, now_ms: int) -> tuple[Sequence[int], Sequence[str]]:
        plan = expiry_at(self.metadata, self.policy, now_ms=now_ms, pinned=self._plan_pins(now_ms))
        return plan.snapshot_ids, plan.refs

    def _plan_pins(self, now_ms: int) -> list[int]:
        return [snapshot_id for snapshot_id, until_ms in self.pinned if until_ms > now_ms]

    def _first_day(self, is_gone: Callable[[int], bool]) -> int | None:
        """The first time, by days from now, at which an expiry removes it; none of its reasons to stay comes back."""
        if not is_gone(self.now_ms + _LONGEST_DAYS * _DAY_MS):
            return None
        low, high = -1, _LONGEST_DAYS
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_gone(self.now_ms + middle * _DAY_MS) else (middle, high)
        return self.now_ms + high * _DAY_MS

    def sooner(self, key: PlaceKey) -> list[tuple[Step, str]]:
        """The commands that remove the objects of a place sooner."""
        steps: list[tuple[Step, str]] = []
        is_main = key.holder is Holder.REF and key.name == MAIN
        if is_main and key.what is What.VISIBLE:
            steps.append((Step.CHANGE, f"SQL: DELETE FROM {self.table} WHERE {self.wanted.condition}"))
        if is_main and key.what in (What.VISIBLE, What.HIDDEN, What.KEYS):
            where = [] if self.wanted.where is None else [f"where={self.wanted.where}"]
            steps.append((Step.REWRITE, self._maintain("compact", "rewrite_all=true", "expected_scans=none", *where)))
        if is_main and key.what is not What.SKETCH:
            steps.append((Step.MANIFESTS, self._maintain("rewrite_manifests", "min_manifests_to_rewrite=2")))
        if key.holder is Holder.REF and not is_main:
            kind = self.metadata.refs[key.name].type.upper()
            steps.append((Step.CHANGE, f"SQL: ALTER TABLE {self.table} DROP {kind} `{key.name}`"))
        load = self.loads.get(key.name) if key.holder is Holder.STAGED else None
        if load is not None and load.state is not LoadState.FAILED and load.origin is LoadOrigin.USER:
            steps.append((Step.CHANGE, self._command("stage", "failed", self.table, "--name", key.name)))
        if key.holder in (Holder.CURRENT, Holder.LOG):
            shorter = f"SQL: ALTER TABLE {self.table} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='1')"
            steps.append((Step.METADATA, f"{shorter}, then commit twice"))
        if key.holder in (Holder.REF, Holder.SNAPSHOTS) or key.what is What.TEXT:
            steps += [(Step.CHANGE, self._command("pin", "list", self.table))] if self._plan_pins(self.now_ms) else []
            sets = ("snapshot_retention_hours=0", "max_snapshots_to_keep=1", "writer_mark_retention_hours=0")
            steps.append((Step.EXPIRE, self._maintain("expire_snapshots", *sets, unsafe=True)))
        if key.holder in (Holder.ORPHAN, Holder.DELETION, Holder.STAGED, Holder.LOG, Holder.CURRENT):
            steps.append((Step.SWEEP, self._maintain("remove_orphans", "orphan_older_than_hours=0", unsafe=True)))
        if key.holder is Holder.VERSION:
            steps.append((Step.SWEEP, "delete the older versions in the bucket, or by a lifecycle rule"))
        return steps

    def _maintain(self, operation: str, *settings: str, unsafe: bool = False) -> str:
        sets = [word for setting in settings for word in ("--set", setting)]
        return self._command(
            "maintain", self.table, "--operations", operation, *sets, *(["--unsafe"] if unsafe else [])
        )

    def _command(self, *words: str) -> str:
        return shlex.join(["icekeeper", *words, "--catalog", self.catalog])


def certificate(
    terms: Terms,
    places: Mapping[PlaceKey, Place],
    unknown: Mapping[str, str],
    objects: Sequence[Mapping[str, Any]],
    *,
    at_ms: int,
    lists_versions: bool,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """The document of ``erased --json``.

    Args:
        terms: the table, its policy and the filter.
        places: what stores matching rows.
        unknown: path → why it is unknown what an object holds, as a sentence.
        objects: what was looked at, as in the document.
        at_ms: the time of the listing (epoch milliseconds).
        lists_versions: whether older versions were looked at.
        facts: further fields.
    """
    at = moment(at_ms)
    answer = "present" if places else "unknown" if unknown else "gone"
    statement = {
        "present": f"{counted(len(places), 'place')} still stored matching rows, or values of them, at {at}",
        "unknown": f"it is unknown what {counted(len(unknown), 'object')} stored at {at}; no other held a matching row",
        "gone": f"no object listed here contained a matching row at {at}",
    }
    return {
        "table": terms.table,
        "catalog": terms.catalog,
        "status": "succeeded" if answer == "gone" else "failed",
        "answer": answer,
        "statement": statement[answer],
        "not_covered": [*NOT_COVERED, *(() if lists_versions else (VERSIONS_NOT_LISTED,))],
        "at": at,
        "uuid": terms.metadata.uuid,
        **facts,
        "filter": terms.wanted.to_json(),
        "versions": {name: version(name) for name in ("icekeeper", "pyarrow")},
        "places": [_place(terms, key, places[key]) for key in sorted(places)],
        "sooner": list(dict.fromkeys(text for _, text in sorted(step for key in places for step in terms.sooner(key)))),
        "unknown": [{"path": path, "reason": reason} for path, reason in sorted(unknown.items())],
        "objects": list(objects),
    }


def _place(terms: Terms, key: PlaceKey, place: Place) -> dict[str, Any]:
    gone_ms = terms.gone_ms(key, place)
    return {
        "holder": key.holder.value,
        "name": key.name,
        "what": key.what.value,
        "rows": sum(place.objects.values()),
        "objects": sorted(place.objects),
        "snapshot_ids": sorted(place.snapshot_ids),
        "gone_on": None if gone_ms is None else moment(gone_ms)[:10],
    }


def moment(at_ms: int) -> str:
    """Epoch milliseconds as text in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
