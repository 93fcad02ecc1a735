"""Every policy key with its type, limits, default and meaning.

Names and defaults come from the SeaweedFS worker and from Modak's policy; those without a source there are
Icekeeper's own.  :func:`icekeeper.policy.resolve` makes a policy of them and checks keys against each other.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, TypeAlias, cast

from pydantic import BeforeValidator

from icekeeper.machine.clock import HOUR_MS
from icekeeper.policy.choices import Ownership
from icekeeper.policy.rewrite_keys import RewriteKeys, key
from icekeeper.policy.tighter import FALSE, FEWER, HIGHER, LOWER, MORE, KeyFacts, first_of
from icekeeper.policy.values import (
    Amount,
    OptionalAmount,
    OptionalCount,
    OptionalText,
    Ratio,
    SnapshotIds,
    Switch,
    TextList,
    TimePatternText,
    did_you_mean,
    parse_list,
    rounded_up,
)

__all__ = [
    "ALL_SETTINGS",
    "DEFAULT_SETTINGS",
    "DEPLOYMENT_KEYS",
    "KEY_FACTS",
    "OWN_SCHEDULES",
    "POLICY_KEYS",
    "Policy",
    "nearest_keys",
]

_SHOWN_KEYS = 3
DEFAULT_SETTINGS = "default"
ALL_SETTINGS = "all"
OWN_SCHEDULES = "schedules"
"""Words of ``table_settings`` beside keys."""


def _parse_table_settings(value: object) -> object:
    names = parse_list(value)
    words = (DEFAULT_SETTINGS, ALL_SETTINGS, OWN_SCHEDULES)
    may_be = (*words, *(key for key, facts in KEY_FACTS.items() if not facts.is_of_deployment and not facts.is_of_call))
    for name in names if isinstance(names, tuple) else ():
        if name in KEY_FACTS and name not in may_be:
            raise ValueError(f"'{name}' never counts from a table")
        if name not in may_be:
            raise ValueError(f"'{name}' is no policy key{did_you_mean(str(name), may_be)}; write keys, "
                             f"{', '.join(words)} or none")  # fmt: skip
    return names


TableSettings: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_parse_table_settings)]


class Policy(RewriteKeys):
    """The settings that hold for one table; immutable.  Hours and megabytes are exact, helpers give ms and bytes."""

    # -- snapshots, orphans, manifests, partitions
    snapshot_retention_hours: Amount = key(
        Fraction(168), "snapshots younger than this many hours are kept", tighter=HIGHER
    )
    max_snapshots_to_keep: int = key(5, "this many newest snapshots are kept whatever their age", ge=1, tighter=HIGHER)
    snapshot_retain_max: OptionalCount = key(
        None,
        "snapshots beyond this many expire whatever their age",
        tighter=HIGHER,
        undermines=("snapshot_retention_hours",),
    )
    snapshot_expire_limit: OptionalCount = key(
        None, "most snapshots expired by one pass; none: no limit", tighter=LOWER
    )
    snapshot_expire_ids: SnapshotIds = key(
        (),
        "comma-separated snapshot ids: only these expire, whatever the retention; none: by retention",
        tighter=None,
        undermines=("snapshot_retention_hours", "max_snapshots_to_keep"),
    )
    snapshot_give_up_ids: SnapshotIds = key(
        (),
        "ids of unreadable snapshots: only these are dropped, and unknown files stay; needs --unsafe",
        tighter=None,
        is_of_call=True,
    )
    writer_mark_retention_hours: Amount = key(
        Fraction(168),
        "snapshots that a streaming writer needs to find its last commit are kept for this long after it; 0: never",
        tighter=HIGHER,
    )
    clean_expired_metadata: Switch = key(
        False, "expiry also removes schemas and partition specs that no kept snapshot uses", tighter=FALSE
    )
    orphan_older_than_hours: Amount = key(
        Fraction(72), "only orphans older than this many hours are removed", tighter=HIGHER
    )
    orphan_protected_prefixes: TextList = key(
        (), "comma-separated locations whose files are never orphans", tighter=MORE
    )
    orphan_sweep_prefixes: TextList = key(
        (),
        "comma-separated folders, beyond those where the table has had files, whose unreferenced files are orphans",
        tighter=FEWER,
        is_of_call=True,
    )
    orphan_sweep_interval_hours: Amount = key(
        Fraction(24),
        "hours between two orphan sweeps in passes that no person asked for; 0: every pass sweeps",
        tighter=HIGHER,
    )
    orphan_min_sightings: int = key(1, "sweeps that must see an orphan before it is removed", ge=1, tighter=HIGHER)
    orphan_max_delete_ratio: Ratio = key(
        Fraction(1, 2), "largest share of the listed files that may be removed as orphans, 0 to 1", tighter=LOWER
    )
    orphan_max_missing_ratio: Ratio = key(
        Fraction(1, 100),
        "orphans are removed only while at most this share of the table's files (or one) is missing, 0 to 1",
        tighter=LOWER,
    )
    orphan_inventory: OptionalText = key(
        None,
        "a list of files or an S3 Inventory (manifest.json, CSV, Parquet, ORC) to read instead of listing",
        tighter=None,
    )
    listing_threads: int = key(16, "folders that are listed at the same time, 1 to 64", ge=1, le=64, tighter=LOWER)
    # More only make S3 answer SlowDown (3,500 deletions a second and prefix).
    delete_threads: int = key(8, "requests that delete files at the same time, 1 to 64", ge=1, le=64, tighter=LOWER)
    # One manifest rewritten into one is work that never ends.
    min_manifests_to_rewrite: int = key(5, "data manifests that trigger their rewrite", ge=2, tighter=HIGHER)
    statistics_columns: TextList = key(
        (),
        "comma-separated columns whose distinct values compute_statistics counts; none: all possible",
        tighter=None,
    )
    # PostgreSQL's autovacuum_analyze_scale_factor.
    statistics_min_changed_ratio: Ratio = key(
        Fraction(1, 10),
        "share of the rows that must have changed before statistics are due, unless a person asks, 0 to 1",
        tighter=HIGHER,
    )
    partition_retention_hours: OptionalAmount = key(
        None,
        "partitions that ended longer ago than this many hours are dropped by expire_partitions; none: never",
        tighter=HIGHER,
    )
    partition_time_column: OptionalText = key(
        None, "column or partition field that holds a partition's time; none: the first date or timestamp", tighter=None
    )
    partition_time_pattern: TimePatternText = key(
        None,
        "format of text or number partitions: `%Y-%m-%d`, or `year=%Y,month=%m,day=%d` over several fields",
        tighter=None,
    )
    partition_expire_limit: OptionalCount = key(
        None, "most partitions dropped by one pass, oldest first", tighter=LOWER
    )
    max_commit_retries: int = key(
        5,
        "fewest further attempts after a lost swap; a rewrite retries for as long as it took, 15 minutes at most",
        ge=0,
        tighter=LOWER,
        table_limit=100,
    )

    # -- switches
    rewrite_enabled: Switch = key(True, "merging of small data files", tighter=FALSE)
    delete_compaction_enabled: Switch = key(
        True, "rewriting of data files that carry deletes, small ones too", tighter=FALSE
    )
    manifest_rewrite_enabled: Switch = key(True, "rewriting of manifests", tighter=FALSE)
    snapshot_expiry_enabled: Switch = key(True, "expiry of snapshots", tighter=FALSE)
    orphan_sweep_enabled: Switch = key(True, "removal of orphans", tighter=FALSE)
    ownership: Ownership = key(
        Ownership.AUTO,
        "auto: skip what the table bucket maintains itself; icekeeper: first switch the bucket's maintenance off",
        tighter=first_of(Ownership.AUTO, Ownership.ICEKEEPER),
    )

    # -- of the deployment: what tables may set, detection, scheduling
    table_settings: TableSettings = key(
        (DEFAULT_SETTINGS,),
        "comma-separated keys that tables may set to any value, `default`, `schedules`, `all` or none: see above",
        tighter=None,
        is_of_deployment=True,
    )
    bucket_filter: TextList = key(
        (), "wildcard patterns (* and ?) of table buckets", tighter=None, is_of_deployment=True
    )
    namespace_filter: TextList = key((), "wildcard patterns of namespaces", tighter=None, is_of_deployment=True)
    table_filter: TextList = key((), "wildcard patterns of table names", tighter=None, is_of_deployment=True)
    max_jobs_per_detection: int = key(100, "most tables one scan proposes", ge=1, tighter=None, is_of_deployment=True)
    detection_timeout_s: int = key(
        300,
        "seconds that one scan may take, and that a pass may read another table",
        ge=1,
        tighter=None,
        is_of_deployment=True,
    )
    # The stack sets some of these from its parameters; icekeeper run reads all of them.
    detection_interval_s: int = key(
        3600,
        "seconds between two detections of icekeeper run; in the stack, the parameter ScheduleExpression",
        ge=1,
        tighter=None,
        is_of_deployment=True,
    )
    max_concurrent_jobs: int = key(
        4,
        "tables that scheduled runs sharing a state maintain at once; in the stack, the parameter MaxConcurrentTables",
        ge=1,
        tighter=None,
        is_of_deployment=True,
    )
    max_concurrent_jobs_per_worker: int = key(
        2,
        "tables that one process of icekeeper run maintains at once; in the stack each job has its own workers",
        ge=1,
        tighter=None,
        is_of_deployment=True,
    )
    job_timeout_s: int = key(
        3600,
        "seconds that one pass may take; it is cut off a quarter later; maintain: only where set; in the stack, the "
        "parameter JobTimeoutMinutes",
        ge=1,
        tighter=None,
        is_of_deployment=True,
    )
    job_retry_limit: int = key(
        1,
        "retries of a failed job or pass; maintain: only where set; in the stack, the parameter JobRetryLimit",
        ge=0,
        tighter=None,
        is_of_deployment=True,
    )

    @property
    def snapshot_retention_ms(self) -> int:
        """Milliseconds; fractions round up, to the side that keeps more."""
        return rounded_up(self.snapshot_retention_hours, HOUR_MS)

    @property
    def named_snapshots(self) -> tuple[str, tuple[int, ...]]:
        """The ids of the snapshots that alone expire, and the key that names them; no ids: the retention decides."""
        if self.snapshot_give_up_ids:
            return "snapshot_give_up_ids", self.snapshot_give_up_ids
        return "snapshot_expire_ids", self.snapshot_expire_ids

    @property
    def writer_mark_retention_ms(self) -> int:
        """Milliseconds; 0: no commit marks are kept.  Fractions round up, to the side that keeps more."""
        return rounded_up(self.writer_mark_retention_hours, HOUR_MS)

    @property
    def orphan_older_than_ms(self) -> int:
        """Milliseconds; fractions round up, to the side that keeps more."""
        return rounded_up(self.orphan_older_than_hours, HOUR_MS)

    @property
    def partition_retention_ms(self) -> int | None:
        """Milliseconds; fractions round up, to the side that keeps more."""
        hours = self.partition_retention_hours
        return None if hours is None else rounded_up(hours, HOUR_MS)


POLICY_KEYS: tuple[str, ...] = tuple(Policy.model_fields)
KEY_FACTS: Mapping[str, KeyFacts] = {
    name: cast(KeyFacts, cast(dict[str, object], field.json_schema_extra)["facts"])
    for name, field in Policy.model_fields.items()
}
"""What each key says of itself: its direction, and who may set it."""
DEPLOYMENT_KEYS = frozenset(name for name, facts in KEY_FACTS.items() if facts.is_of_deployment)
"""Keys that only the deployment and the call may set, never a table."""


def nearest_keys(text: str) -> str:
    """``; the nearest keys are a, b, c`` for a word that is no key, and where all of them stand."""
    found = difflib.get_close_matches(text.lower(), POLICY_KEYS, n=_SHOWN_KEYS, cutoff=0)
    return f"; the nearest keys are {', '.join(found)} (icekeeper policy show NS.TABLE prints all)"
