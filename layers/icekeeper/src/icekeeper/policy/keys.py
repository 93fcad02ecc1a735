"""Every policy key with its type, limits, default and meaning.

Names and defaults come from the SeaweedFS worker and from Modak's policy; those without a source there are
Icekeeper's own.  :func:`icekeeper.policy.resolve` makes a policy of them and checks keys against each other.
"""

from __future__ import annotations

import difflib
from fractions import Fraction
from typing import Any

from icekeeper.clock import HOUR_MS
from icekeeper.policy.choices import Ownership
from icekeeper.policy.rewrite_keys import RewriteKeys, key
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
    rounded_up,
)

__all__ = ["DEPLOYMENT_KEYS", "POLICY_KEYS", "Policy", "nearest_keys"]

_SHOWN_KEYS = 3

_DEPLOYMENT: dict[str, Any] = {"deployment": True}
"""Marks keys about detection and scheduling, which no single table can set."""


class Policy(RewriteKeys):
    """The settings that hold for one table; immutable.  Hours and megabytes are exact, helpers give ms and bytes."""

    # -- snapshots, orphans, manifests, partitions
    snapshot_retention_hours: Amount = key(Fraction(168), "snapshots younger than this many hours are kept")
    max_snapshots_to_keep: int = key(5, "this many newest snapshots are kept whatever their age", ge=1)
    snapshot_retain_max: OptionalCount = key(None, "snapshots beyond this many expire whatever their age")
    snapshot_expire_limit: OptionalCount = key(None, "most snapshots expired by one pass; none: no limit")
    snapshot_expire_ids: SnapshotIds = key(
        (), "comma-separated snapshot ids: only these expire, whatever the retention; none: by retention"
    )
    snapshot_give_up_ids: SnapshotIds = key(
        (),
        "ids of snapshots that cannot be read any more: only these are dropped, unknown files stay; needs --unsafe",
    )
    writer_mark_retention_hours: Amount = key(
        Fraction(168),
        "snapshots by which a streaming writer finds its last commit are kept while that commit is younger; 0: never",
    )
    clean_expired_metadata: Switch = key(
        False, "expiry also removes schemas and partition specs that no kept snapshot uses"
    )
    orphan_older_than_hours: Amount = key(Fraction(72), "only orphans older than this many hours are removed")
    orphan_protected_prefixes: TextList = key((), "comma-separated locations whose files are never orphans")
    orphan_sweep_prefixes: TextList = key(
        (), "comma-separated folders, beyond those where the table has had files, whose unreferenced files are orphans"
    )
    orphan_sweep_interval_hours: Amount = key(
        Fraction(24), "a pass that no person asked for looks for orphans once in so many hours; 0: every pass does"
    )
    orphan_min_sightings: int = key(1, "sweeps that must see an orphan before it is removed", ge=1)
    orphan_max_delete_ratio: Ratio = key(
        Fraction(1, 2), "largest share of the listed files that may be removed as orphans, 0 to 1"
    )
    orphan_max_missing_ratio: Ratio = key(
        Fraction(1, 100),
        "largest share of the table's files that may be missing (one always may) where orphans are removed, 0 to 1",
    )
    orphan_inventory: OptionalText = key(
        None, "a list of files or an S3 Inventory (manifest.json, CSV, Parquet, ORC) to read instead of listing"
    )
    listing_threads: int = key(16, "folders that are listed at the same time, 1 to 64", ge=1, le=64)
    # More only make S3 answer SlowDown (3,500 deletions a second and prefix).
    delete_threads: int = key(8, "requests that delete files at the same time, 1 to 64", ge=1, le=64)
    # One manifest rewritten into one is work that never ends.
    min_manifests_to_rewrite: int = key(5, "data manifests that trigger their rewrite", ge=2)
    statistics_columns: TextList = key(
        (), "comma-separated columns that compute_statistics counts distinct values of; none: all that it can"
    )
    # PostgreSQL's autovacuum_analyze_scale_factor.
    statistics_min_changed_ratio: Ratio = key(
        Fraction(1, 10), "share of the rows whose change makes statistics due where no person asks for them, 0 to 1"
    )
    partition_retention_hours: OptionalAmount = key(
        None, "partitions that ended longer ago than this many hours are dropped by expire_partitions; none: never"
    )
    partition_time_column: OptionalText = key(
        None, "column or partition field that tells a partition's time; none: the first date or timestamp"
    )
    partition_time_pattern: TimePatternText = key(
        None, "time of text or number partitions, as `%Y-%m-%d`, or `year=%Y,month=%m,day=%d` over several fields"
    )
    partition_expire_limit: OptionalCount = key(None, "most partitions dropped by one pass, oldest first")
    max_commit_retries: int = key(
        5,
        "further attempts after a lost swap, at least; a rewrite is tried for as long as it took, 15 minutes at most",
        ge=0,
    )

    # -- switches
    rewrite_enabled: Switch = key(True, "merging of small data files")
    delete_compaction_enabled: Switch = key(True, "rewriting of data files that carry deletes, small ones too")
    manifest_rewrite_enabled: Switch = key(True, "rewriting of manifests")
    snapshot_expiry_enabled: Switch = key(True, "expiry of snapshots")
    orphan_sweep_enabled: Switch = key(True, "removal of orphans")
    ownership: Ownership = key(
        Ownership.AUTO,
        "auto: what the table bucket maintains itself is skipped; icekeeper: the bucket's own is switched off first",
    )

    # -- detection and scheduling
    bucket_filter: TextList = key((), "wildcard patterns (* and ?) of table buckets", json_schema_extra=_DEPLOYMENT)
    namespace_filter: TextList = key((), "wildcard patterns of namespaces", json_schema_extra=_DEPLOYMENT)
    table_filter: TextList = key((), "wildcard patterns of table names", json_schema_extra=_DEPLOYMENT)
    max_jobs_per_detection: int = key(100, "most tables one scan proposes", ge=1, json_schema_extra=_DEPLOYMENT)
    detection_timeout_s: int = key(
        300,
        "seconds that one scan may take, and a look of a pass at another table",
        ge=1,
        json_schema_extra=_DEPLOYMENT,
    )
    # The stack sets some of these from its parameters; icekeeper run reads all of them.
    detection_interval_s: int = key(
        3600,
        "seconds between two detections of icekeeper run; in the stack its parameter ScheduleExpression decides",
        ge=1,
        json_schema_extra=_DEPLOYMENT,
    )
    max_concurrent_jobs: int = key(
        4,
        "tables that scheduled runs sharing a state maintain at once; set by the stack's parameter MaxConcurrentTables",
        ge=1,
        json_schema_extra=_DEPLOYMENT,
    )
    max_concurrent_jobs_per_worker: int = key(
        2,
        "tables that one process of icekeeper run maintains at once; in the stack each job has its own workers",
        ge=1,
        json_schema_extra=_DEPLOYMENT,
    )
    job_timeout_s: int = key(
        3600,
        "seconds that one job or pass may take, of maintain only where set; icekeeper run and waves cut a table off "
        "that takes a quarter longer; the stack's parameter JobTimeoutMinutes",
        ge=1,
        json_schema_extra=_DEPLOYMENT,
    )
    job_retry_limit: int = key(
        1,
        "retries of a failed job or pass, of maintain only where set; the stack's parameter JobRetryLimit",
        ge=0,
        json_schema_extra=_DEPLOYMENT,
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
DEPLOYMENT_KEYS = frozenset(
    name for name, field in Policy.model_fields.items() if field.json_schema_extra == _DEPLOYMENT
)
"""Keys that only the deployment and the call may set, never a table."""


def nearest_keys(text: str) -> str:
    """``; the nearest keys are a, b, c`` for a word that is no key, and where all of them stand."""
    found = difflib.get_close_matches(text.lower(), POLICY_KEYS, n=_SHOWN_KEYS, cutoff=0)
    return f"; the nearest keys are {', '.join(found)} (icekeeper policy show NS.TABLE prints all)"
