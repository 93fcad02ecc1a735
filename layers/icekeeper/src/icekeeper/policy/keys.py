"""Every policy key with its type, limits, default and meaning.

Names and defaults come from the SeaweedFS worker and from Modak's policy; those without a source there are
Icekeeper's own.  :func:`icekeeper.policy.resolve` makes a policy of them and checks keys against each other.
"""

from __future__ import annotations

import difflib
import math
from fractions import Fraction
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from icekeeper.clock import HOUR_MS
from icekeeper.operation_facts import ALL_OPERATIONS
from icekeeper.policy.choices import JobOrder, OutputSpec, Ownership, Proof, Strategy
from icekeeper.policy.values import (
    Amount,
    OperationNames,
    OptionalAge,
    OptionalAmount,
    OptionalCount,
    OptionalText,
    PositiveAmount,
    Ratio,
    RewriteReasons,
    SnapshotIds,
    SortOrderText,
    Switch,
    TextList,
    TimePatternText,
    WhereText,
)

__all__ = ["DEPLOYMENT_KEYS", "MEGABYTE", "POLICY_KEYS", "Policy", "nearest_keys"]

MEGABYTE = 1024 * 1024
_SHOWN_KEYS = 3

_DEPLOYMENT: dict[str, Any] = {"deployment": True}
"""Marks keys about detection and scheduling, which no single table can set."""


def _key(default: Any, doc: str, **bounds: Any) -> Any:
    return Field(default=default, description=doc, **bounds)


class Policy(BaseModel):
    """The settings that hold for one table; immutable.  Hours and megabytes are exact, helpers give ms and bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    maintenance_enabled: Switch = _key(True, "master switch; false skips every operation, forced passes too")
    operations: OperationNames = _key(
        ALL_OPERATIONS,
        "all, or a comma-separated list; always run in canonical order",
    )

    # -- rewriting data files
    target_file_size_mb: PositiveAmount = _key(Fraction(256), "size that rewritten data files aim at, in MB (2^20)")
    min_file_size_ratio: Ratio = _key(Fraction(3, 4), "files below this share of the target are candidates, 0 to 1")
    max_file_group_size_mb: PositiveAmount = _key(Fraction(102400), "most input bytes of one file group, in MB")
    min_input_files: int = _key(
        5, "candidates that a partition must hold before they are merged, and a group that fills no file", ge=2
    )
    partition_rest_hours: Amount = _key(
        Fraction(24),
        "a partition that got no file for so many hours, and as long as files came, has its small files merged, once",
    )
    expected_scans: OptionalCount = _key(
        200, "scans that merged files serve: files are merged that save more in them than it costs; none: always"
    )
    # Athena's price; S3 Tables' for compaction by binpack; S3 Standard's, us-east-1 (November 2026).
    price_per_gb_scanned: Amount = _key(Fraction(5, 1000), "US dollars to read a GB (2^30) in a query")
    price_per_gb_rewritten: Amount = _key(Fraction(5, 1000), "US dollars to rewrite a GB")
    price_per_1000_gets: Amount = _key(Fraction(4, 10000), "US dollars for 1,000 reading requests")
    price_per_1000_puts: Amount = _key(Fraction(5, 1000), "US dollars for 1,000 writing requests")
    rewrite_all: Switch = _key(False, "every data file is a candidate, whatever its size")
    rewrite_reason: RewriteReasons = _key(
        (), "comma-separated: files are also rewritten for their codec, bloom (filters) or spec; reads every footer"
    )
    max_files_to_rewrite: OptionalCount = _key(None, "most data files rewritten by one pass; none: no limit")
    max_bytes_to_rewrite: OptionalCount = _key(None, "most bytes rewritten by one pass; none: no limit")
    rewrite_job_order: JobOrder = _key(
        JobOrder.NONE,
        "groups rewritten first: bytes-asc, bytes-desc, files-asc, files-desc or none: what saves most per byte",
    )
    min_data_age_hours: Amount = _key(Fraction(0), "data added less than this many hours ago is left alone")
    min_partition_age_hours: OptionalAge = _key(
        None,
        "partitions that ended less than this many hours ago are not rewritten; 0: those not ended yet; none: all are",
    )
    apply_deletes: Switch = _key(True, "merging applies delete files; false skips tables that have any")
    delete_compaction_min_deletes: int = _key(1, "delete files that make a data file a candidate", ge=1)
    # Java's DELETE_RATIO_THRESHOLD_DEFAULT
    delete_compaction_min_ratio: Ratio = _key(
        Fraction(3, 10), "share of a file's rows, known to be deleted, that makes it a candidate, 0 to 1"
    )
    # RocksDB's size ratio between levels is 10, and with it the amplification one level costs.
    max_write_amplification: PositiveAmount = _key(
        Fraction(10), "bytes rewritten per byte of new data in a week beyond which deletes alone rewrite nothing"
    )
    strategy: Strategy = _key(Strategy.AUTO, "auto, binpack, sort or zorder")
    sort_order: SortOrderText = _key(
        None, "order of the sort strategy, as `k desc nulls last, bucket(16, id)`; none: the table's own"
    )
    zorder_columns: TextList = _key((), "comma-separated columns of the zorder strategy")
    # benchmarks/depth.py: over a thousand rounds of random keys, 4 and 4 rewrite a row 4 times and leave 7 runs over a
    # value on average; a factor of 8 rewrites 3 times and leaves 11, a limit of 8 mends nothing earlier.
    max_clustering_depth: int = _key(4, "sorted runs over one value beyond which they are sorted together again", ge=1)
    clustering_tier_factor: int = _key(
        4,
        "runs of about one size that are sorted together; more rewrite less and leave more over a value",
        ge=2,
    )
    where: WhereText = _key(
        None, "only files that may hold matching rows are rewritten, as `ts < now() - interval '1 hour'`"
    )
    branch: str = _key("main", "branch that is maintained", min_length=1)
    output_spec: OutputSpec = _key(OutputSpec.CURRENT, "partition spec of outputs: current, or keep that of inputs")
    partial_progress: int = _key(0, "file groups per commit; 0: one commit for all", ge=0)
    proof: Proof = _key(Proof.COUNTS, "how a rewrite proves that rows were kept: counts or full")

    row_group_memory_mb: PositiveAmount = _key(
        Fraction(256), "memory, in MB, that a worker may fill with one row group before it is encoded and written"
    )

    # -- snapshots, orphans, manifests, partitions
    snapshot_retention_hours: Amount = _key(Fraction(168), "snapshots younger than this many hours are kept")
    max_snapshots_to_keep: int = _key(5, "this many newest snapshots are kept whatever their age", ge=1)
    snapshot_retain_max: OptionalCount = _key(None, "snapshots beyond this many expire whatever their age")
    snapshot_expire_limit: OptionalCount = _key(None, "most snapshots expired by one pass; none: no limit")
    snapshot_expire_ids: SnapshotIds = _key(
        (), "comma-separated snapshot ids: only these expire, whatever the retention; none: by retention"
    )
    writer_mark_retention_hours: Amount = _key(
        Fraction(168),
        "snapshots by which a streaming writer finds its last commit are kept while that commit is younger; 0: never",
    )
    clean_expired_metadata: Switch = _key(
        False, "expiry also removes schemas and partition specs that no kept snapshot uses"
    )
    orphan_older_than_hours: Amount = _key(Fraction(72), "only orphans older than this many hours are removed")
    orphan_protected_prefixes: TextList = _key((), "comma-separated locations whose files are never orphans")
    orphan_sweep_prefixes: TextList = _key(
        (), "comma-separated folders, beyond those where the table has had files, whose unreferenced files are orphans"
    )
    orphan_sweep_interval_hours: Amount = _key(
        Fraction(24), "a pass that no person asked for looks for orphans once in so many hours; 0: every pass does"
    )
    orphan_min_sightings: int = _key(1, "sweeps that must see an orphan before it is removed", ge=1)
    orphan_max_delete_ratio: Ratio = _key(
        Fraction(1, 2), "largest share of the listed files that may be removed as orphans, 0 to 1"
    )
    orphan_inventory: OptionalText = _key(
        None, "a list of files or an S3 Inventory (manifest.json, CSV, Parquet, ORC) to read instead of listing"
    )
    listing_threads: int = _key(16, "folders that are listed at the same time, 1 to 64", ge=1, le=64)
    # More only make S3 answer SlowDown (3,500 deletions a second and prefix).
    delete_threads: int = _key(8, "requests that delete files at the same time, 1 to 64", ge=1, le=64)
    # One manifest rewritten into one is work that never ends.
    min_manifests_to_rewrite: int = _key(5, "data manifests that trigger their rewrite", ge=2)
    statistics_columns: TextList = _key(
        (), "comma-separated columns that compute_statistics counts distinct values of; none: all that it can"
    )
    # PostgreSQL's autovacuum_analyze_scale_factor.
    statistics_min_changed_ratio: Ratio = _key(
        Fraction(1, 10), "share of the rows whose change makes statistics due where no person asks for them, 0 to 1"
    )
    partition_retention_hours: OptionalAmount = _key(
        None, "partitions that ended longer ago than this many hours are dropped by expire_partitions; none: never"
    )
    partition_time_column: OptionalText = _key(
        None, "column or partition field that tells a partition's time; none: the first date or timestamp"
    )
    partition_time_pattern: TimePatternText = _key(
        None, "time of text or number partitions, as `%Y-%m-%d`, or `year=%Y,month=%m,day=%d` over several fields"
    )
    partition_expire_limit: OptionalCount = _key(None, "most partitions dropped by one pass, oldest first")
    max_commit_retries: int = _key(5, "further attempts after a lost swap", ge=0)

    # -- switches
    rewrite_enabled: Switch = _key(True, "merging of small data files")
    delete_compaction_enabled: Switch = _key(True, "rewriting of data files that carry deletes, small ones too")
    manifest_rewrite_enabled: Switch = _key(True, "rewriting of manifests")
    snapshot_expiry_enabled: Switch = _key(True, "expiry of snapshots")
    orphan_sweep_enabled: Switch = _key(True, "removal of orphans")
    ownership: Ownership = _key(
        Ownership.AUTO,
        "auto: what the table bucket maintains itself is skipped; icekeeper: the bucket's own is switched off first",
    )

    # -- detection and scheduling
    bucket_filter: TextList = _key((), "wildcard patterns (* and ?) of table buckets", json_schema_extra=_DEPLOYMENT)
    namespace_filter: TextList = _key((), "wildcard patterns of namespaces", json_schema_extra=_DEPLOYMENT)
    table_filter: TextList = _key((), "wildcard patterns of table names", json_schema_extra=_DEPLOYMENT)
    max_jobs_per_detection: int = _key(100, "most tables one scan proposes", ge=1, json_schema_extra=_DEPLOYMENT)
    detection_timeout_s: int = _key(300, "seconds that one scan may take", ge=1, json_schema_extra=_DEPLOYMENT)
    # The stack sets some of these from its parameters; icekeeper run reads all of them.
    detection_interval_s: int = _key(
        3600,
        "seconds between two detections of icekeeper run; in the stack its parameter ScheduleExpression decides",
        ge=1,
        json_schema_extra=_DEPLOYMENT,
    )
    max_concurrent_jobs: int = _key(
        4,
        "tables that scheduled runs sharing a state maintain at once; set by the stack's parameter MaxConcurrentTables",
        ge=1,
        json_schema_extra=_DEPLOYMENT,
    )
    max_concurrent_jobs_per_worker: int = _key(
        2,
        "tables that one process of icekeeper run maintains at once; in the stack each job has its own workers",
        ge=1,
        json_schema_extra=_DEPLOYMENT,
    )
    job_timeout_s: int = _key(
        3600,
        "seconds that one job or pass may take; set by the stack's parameter JobTimeoutMinutes",
        ge=1,
        json_schema_extra=_DEPLOYMENT,
    )
    job_retry_limit: int = _key(
        1,
        "retries of a failed job or pass; set by the stack's parameter JobRetryLimit",
        ge=0,
        json_schema_extra=_DEPLOYMENT,
    )

    @property
    def target_file_size_bytes(self) -> int:
        """Bytes, rounded down; at least 1, so that splitting at the target always makes progress."""
        return max(1, int(self.target_file_size_mb * MEGABYTE))

    @property
    def min_file_size_bytes(self) -> int:
        """A file with fewer bytes than this is small; rounded up: a whole number is below x when below ceil(x)."""
        return math.ceil(self.min_file_size_ratio * self.target_file_size_bytes)

    @property
    def max_file_group_size_bytes(self) -> int:
        return max(1, int(self.max_file_group_size_mb * MEGABYTE))

    @property
    def row_group_memory_bytes(self) -> int:
        return max(1, int(self.row_group_memory_mb * MEGABYTE))

    @property
    def partition_rest_ms(self) -> int:
        return math.ceil(self.partition_rest_hours * HOUR_MS)

    @property
    def snapshot_retention_ms(self) -> int:
        """Milliseconds; fractions round up, to the side that keeps more."""
        return math.ceil(self.snapshot_retention_hours * HOUR_MS)

    @property
    def writer_mark_retention_ms(self) -> int:
        """Milliseconds; 0: no commit marks are kept.  Fractions round up, to the side that keeps more."""
        return math.ceil(self.writer_mark_retention_hours * HOUR_MS)

    @property
    def orphan_older_than_ms(self) -> int:
        """Milliseconds; fractions round up, to the side that keeps more."""
        return math.ceil(self.orphan_older_than_hours * HOUR_MS)

    @property
    def partition_retention_ms(self) -> int | None:
        """Milliseconds; fractions round up, to the side that keeps more."""
        hours = self.partition_retention_hours
        return None if hours is None else math.ceil(hours * HOUR_MS)

    @property
    def min_data_age_ms(self) -> int:
        return math.ceil(self.min_data_age_hours * HOUR_MS)

    @property
    def min_partition_age_ms(self) -> int | None:
        """Milliseconds; ``None``: partitions of any time are rewritten."""
        hours = self.min_partition_age_hours
        return None if hours is None else math.ceil(hours * HOUR_MS)


POLICY_KEYS: tuple[str, ...] = tuple(Policy.model_fields)
DEPLOYMENT_KEYS = frozenset(
    name for name, field in Policy.model_fields.items() if field.json_schema_extra == _DEPLOYMENT
)
"""Keys that only the deployment and the call may set, never a table."""


def nearest_keys(text: str) -> str:
    """``; the nearest keys are a, b, c`` for a word that is no key, and where all of them stand."""
    found = difflib.get_close_matches(text.lower(), POLICY_KEYS, n=_SHOWN_KEYS, cutoff=0)
    return f"; the nearest keys are {', '.join(found)} (icekeeper policy show NS.TABLE prints all)"
