"""Every policy key with its type, limits, default and meaning, and which of two values is tighter."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any, TypeAlias, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from icekeeper.errors import PolicyError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.operation_facts import ALL_OPERATIONS
from icekeeper.policy.values import (
    Amount,
    JobOrder,
    OperationNames,
    OptionalAge,
    OptionalAmount,
    OptionalCount,
    OptionalText,
    OutputSpec,
    Ownership,
    PositiveAmount,
    Proof,
    Ratio,
    RewriteReasons,
    SnapshotIds,
    SortOrderText,
    Strategy,
    Switch,
    TextList,
    TimePatternText,
    WhereText,
    did_you_mean,
    parse_list,
    rounded_down,
    rounded_up,
)

# Which of two values of a policy key is the tighter one: it deletes less, or costs the operator less (pure).
#
# Every key declares its direction (:data:`icekeeper.policy.keys.KEY_FACTS`).  Bounds of the deployment and the limits
# of what a table or a request may set go by it.


@dataclass(frozen=True, slots=True)
class Direction:
    """How the values of a key compare."""

    words: str
    """Which values are tighter, for people."""
    meet: Callable[[Any, Any], Any]
    """The tighter one of two values; of two lists what is in both, or in either."""

    loosest: tuple[object, ...] = ()
    """The value, where there is one, that is the loosest: a bound with it would bind nothing."""

    def holds(self, limit: object, value: object) -> bool:
        """Whether a value is as tight as the limit, or tighter; of lists the order does not count."""
        held = self.meet(limit, value)
        if isinstance(held, tuple) and isinstance(value, tuple):
            return set(held) == set(value)
        return bool(held == value)


def _of_rank(words: str, rank: Callable[[Any], Any], *loosest: object) -> Direction:
    return Direction(words, lambda one, other: other if rank(other) > rank(one) else one, loosest)


HIGHER = _of_rank("higher", lambda value: math.inf if value is None else value)
"""More is tighter; ``None``, where a key has it, stands for no end."""
LOWER = _of_rank("lower", lambda value: -math.inf if value is None else -value, None)
"""Less is tighter; ``None`` stands for no limit."""
SET_AND_HIGHER = _of_rank("higher", lambda value: -math.inf if value is None else value, None)
"""More is tighter, and ``None`` the loosest."""
HIGHER_OR_ZERO = _of_rank("higher, or 0", lambda value: value or math.inf)
FALSE = _of_rank("false", lambda value: not value, True)
TRUE = _of_rank("true", bool, False)
FEWER = Direction("fewer", lambda one, other: tuple(value for value in one if value in other))
MORE = Direction("more", lambda one, other: tuple(dict.fromkeys((*one, *other))), ((),))
"""The lists of all sources are one: nobody takes an entry away."""


def first_of(*values: object) -> Direction:
    """The direction of a key whose values are these, the tightest first."""
    return _of_rank(f"first of {', '.join(map(str, values))}", lambda value: -values.index(value), values[-1])


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """What a policy key says of itself besides its value."""

    tighter: Direction | None
    """``None``: none of its values deletes or costs more than another; it cannot be bounded."""
    is_of_deployment: bool = False
    """It is about detection and scheduling, which no single table can set."""
    is_of_layout: bool = False
    """How the table's files shall be: what deployment and policy file say is a default, only a bound binds a table."""
    is_of_call: bool = False
    """It counts from the deployment, a policy file or ``--set`` alone, whatever tables may set."""
    table_limit: object = None
    """The loosest value that a table may give itself, unless the deployment names the key; ``None``: any."""
    undermines: tuple[str, ...] = ()
    """The keys that it overrides by its meaning: where one of them is stated or bounded, a table cannot set it."""


# The policy keys that say which operations run, and how data files are rewritten.

MEGABYTE = 1024 * 1024


def key(
    default: Any,
    doc: str,
    *,
    tighter: Direction | None,
    is_of_deployment: bool = False,
    is_of_layout: bool = False,
    is_of_call: bool = False,
    table_limit: object = None,
    undermines: tuple[str, ...] = (),
    **bounds: Any,
) -> Any:
    """A field of a policy: its default, its meaning in one line, its facts, its limits as pydantic names them."""
    facts = KeyFacts(tighter, is_of_deployment, is_of_layout, is_of_call, table_limit, undermines)
    return Field(default=default, description=doc, json_schema_extra={"facts": cast(JsonValue, facts)}, **bounds)


class RewriteKeys(BaseModel):
    """The first part of :class:`icekeeper.policy.Policy`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    maintenance_enabled: Switch = key(
        True, "master switch; false skips every operation, forced passes too", tighter=FALSE
    )
    operations: OperationNames = key(
        ALL_OPERATIONS, "all, or a comma-separated list; always run in canonical order", tighter=FEWER
    )

    # -- rewriting data files
    target_file_size_mb: PositiveAmount = key(
        Fraction(256),
        "size that rewritten data files aim at, in MB (2^20)",
        tighter=HIGHER,
        is_of_layout=True,
        table_limit=Fraction(1),
    )
    min_file_size_ratio: Ratio = key(
        Fraction(3, 4), "files below this share of the target are candidates, 0 to 1", tighter=LOWER
    )
    max_file_group_size_mb: PositiveAmount = key(
        Fraction(102400), "most input bytes of one file group, in MB", tighter=LOWER
    )
    min_input_files: int = key(
        5,
        "fewest candidate files that are merged, in a partition and in a group that fills no file",
        ge=2,
        tighter=HIGHER,
    )
    partition_rest_hours: Amount = key(
        Fraction(24),
        "a partition that got no file for this many hours, and for as long as files came, is merged once",
        tighter=HIGHER,
    )
    expected_scans: OptionalCount = key(
        200,
        "scans after which a merge must have saved more than it costs; none: always merge",
        tighter=LOWER,
    )
    # Athena's price; S3 Tables' for compaction by binpack; S3 Standard's, us-east-1 (November 2026).
    price_per_gb_scanned: Amount = key(Fraction(5, 1000), "US dollars to read a GB (2^30) in a query", tighter=LOWER)
    price_per_gb_rewritten: Amount = key(Fraction(5, 1000), "US dollars to rewrite a GB", tighter=HIGHER)
    # benchmarks/row_group_copy.py: a fifth of the CPU.
    price_per_gb_copied: Amount = key(
        Fraction(1, 1000), "US dollars to rewrite a GB whose row groups are copied as they are", tighter=HIGHER
    )
    price_per_1000_gets: Amount = key(Fraction(4, 10000), "US dollars for 1,000 reading requests", tighter=LOWER)
    price_per_1000_puts: Amount = key(Fraction(5, 1000), "US dollars for 1,000 writing requests", tighter=HIGHER)
    # benchmarks/scan_row_groups.py: full scans by DuckDB take 2 to 4 % more CPU where they have 15 to 22 MB than where
    # they have 66 MB, and 4 % and more below; pyarrow's take none, and files grow by less than 1 %.
    min_row_group_copy_bytes: OptionalCount = key(
        16 * MEGABYTE,
        "row groups of this many bytes on average, or of a quarter of `row_group_memory_mb`, are copied; none: never",
        tighter=HIGHER,
        table_limit=MEGABYTE,  # footers of thousands of row groups and columns fill memory
    )
    rewrite_all: Switch = key(False, "every data file is a candidate, whatever its size", tighter=FALSE)
    rewrite_reason: RewriteReasons = key(
        (),
        "comma-separated: files are also rewritten for codec, bloom (filters) or spec; reads footers",
        tighter=FEWER,
    )
    max_files_to_rewrite: OptionalCount = key(
        None, "most data files rewritten by one pass; none: no limit", tighter=LOWER
    )
    max_bytes_to_rewrite: OptionalCount = key(None, "most bytes rewritten by one pass; none: no limit", tighter=LOWER)
    rewrite_job_order: JobOrder = key(
        JobOrder.NONE,
        "which groups come first: bytes-asc, bytes-desc, files-asc, files-desc or none (largest saving per byte)",
        tighter=None,
    )
    min_data_age_hours: Amount = key(
        Fraction(0), "data added less than this many hours ago is left alone", tighter=HIGHER
    )
    min_partition_age_hours: OptionalAge = key(
        None,
        "partitions that ended less than this many hours ago are left alone; 0: those not ended; none: no limit",
        tighter=SET_AND_HIGHER,
    )
    apply_deletes: Switch = key(True, "merging applies delete files; false skips tables that have any", tighter=FALSE)
    delete_compaction_min_deletes: int = key(1, "delete files that make a data file a candidate", ge=1, tighter=HIGHER)
    # Java's DELETE_RATIO_THRESHOLD_DEFAULT
    delete_compaction_min_ratio: Ratio = key(
        Fraction(3, 10),
        "share of a file's rows, known to be deleted, that makes it a candidate, 0 to 1",
        tighter=HIGHER,
    )
    # RocksDB's size ratio between levels is 10, and with it the amplification one level costs.
    max_write_amplification: PositiveAmount = key(
        Fraction(10),
        "bytes rewritten per new byte in a week, above which no file is rewritten for its deletes alone",
        tighter=LOWER,
    )
    strategy: Strategy = key(
        Strategy.AUTO,
        "auto, binpack, sort or zorder",
        tighter=first_of(Strategy.BINPACK, Strategy.AUTO, Strategy.SORT, Strategy.ZORDER),
        is_of_layout=True,
    )
    sort_order: SortOrderText = key(
        None, "order of the sort strategy, as `k desc nulls last, bucket(16, id)`; none: the table's own", tighter=None
    )
    zorder_columns: TextList = key((), "comma-separated columns of the zorder strategy", tighter=None)
    # benchmarks/depth.py: over a thousand rounds of random keys, 4 and 4 rewrite a row 4 times and leave 7 runs over a
    # value on average; a factor of 8 rewrites 3 times and leaves 11, a limit of 8 mends nothing earlier.
    max_clustering_depth: int = key(
        4, "sorted runs over one value, above which they are sorted together again", ge=1, tighter=HIGHER
    )
    clustering_tier_factor: int = key(
        4,
        "runs of similar size that are sorted together; a higher number rewrites less, leaves more runs over a value",
        ge=2,
        tighter=HIGHER,
    )
    where: WhereText = key(
        None, "only files that may hold matching rows are rewritten: `ts < now() - interval '1 hour'`", tighter=None
    )
    branch: str = key("main", "branch that is maintained", min_length=1, tighter=None)
    output_spec: OutputSpec = key(
        OutputSpec.CURRENT, "partition spec of outputs: current, or keep (that of the inputs)", tighter=None
    )
    partial_progress: int = key(0, "file groups per commit; 0: one commit for all", ge=0, tighter=HIGHER_OR_ZERO)
    proof: Proof = key(
        Proof.COUNTS,
        "how a rewrite proves that rows were kept: counts or full",
        tighter=first_of(Proof.FULL, Proof.COUNTS),
    )

    verify_page_checksums: Switch = key(
        True,
        "whether a Parquet file with wrong page checksums counts as damaged; false: checksums are not verified",
        tighter=TRUE,
    )
    row_group_memory_mb: PositiveAmount = key(
        Fraction(176),
        "memory, in MB, that a worker may use for a row group that is not yet written and for its other data",
        tighter=LOWER,
        table_limit=Fraction(512),
    )

    @property
    def names_an_order(self) -> bool:
        """Whether it asks for rows in an order; without that files are merged, in a table with an order by that."""
        return self.strategy in (Strategy.SORT, Strategy.ZORDER) or (
            self.strategy is Strategy.AUTO and self.sort_order is not None
        )

    @property
    def target_file_size_bytes(self) -> int:
        """Bytes, rounded down; at least 1, so that splitting at the target always makes progress."""
        return max(1, rounded_down(self.target_file_size_mb, MEGABYTE))

    @property
    def min_file_size_bytes(self) -> int:
        """A file with fewer bytes than this is small; rounded up: a whole number is below x when below ceil(x)."""
        return rounded_up(self.min_file_size_ratio, self.target_file_size_bytes)

    @property
    def max_file_group_size_bytes(self) -> int:
        return max(1, rounded_down(self.max_file_group_size_mb, MEGABYTE))

    @property
    def row_group_memory_bytes(self) -> int:
        return max(1, rounded_down(self.row_group_memory_mb, MEGABYTE))

    @property
    def full_row_group_memory_bytes(self) -> int:
        """Row groups whose rows take so much memory on average are full, however few bytes of a file
        (rule: copy-only-unchanged-row-groups).

        Half of the bound may be held by other things, and every second row group may be the small one at the end of a
        file.
        """
        return max(1, self.row_group_memory_bytes // 4)

    @property
    def partition_rest_ms(self) -> int:
        return rounded_up(self.partition_rest_hours, HOUR_MS)

    @property
    def min_data_age_ms(self) -> int:
        return rounded_up(self.min_data_age_hours, HOUR_MS)

    @property
    def min_partition_age_ms(self) -> int | None:
        """Milliseconds; ``None``: partitions of any time are rewritten."""
        hours = self.min_partition_age_hours
        return None if hours is None else rounded_up(hours, HOUR_MS)


# Every policy key with its type, limits, default and meaning.
#
# Names and defaults come from the SeaweedFS worker and from Modak's policy; those without a source there are
# Icekeeper's own.  :func:`icekeeper.policy.resolve` makes a policy of them and checks keys against each other.

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
        "seconds for one pass, cut off a quarter later (maintain: where set); the stack's JobTimeoutMinutes",
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


# Which keys a call can set: one of detection or scheduling does nothing for a single pass, and is refused (pure).


class Scope(StrEnum):
    """What a call is about; the value says so to people."""

    TABLE = "one table"
    SCAN = "one detection"
    CYCLE = "icekeeper run"


_OF_EVERY_PASS = frozenset({"job_timeout_s", "job_retry_limit"})
_OF_SCANS = frozenset(
    {"bucket_filter", "namespace_filter", "table_filter", "max_jobs_per_detection", "detection_timeout_s"}
)
_MEANINGFUL = {
    Scope.TABLE: _OF_EVERY_PASS,
    Scope.SCAN: _OF_EVERY_PASS | _OF_SCANS,
    Scope.CYCLE: DEPLOYMENT_KEYS,
}


def refuse_meaningless(keys: Iterable[str], scope: Scope) -> None:
    """Raise PolicyError for a key of detection or scheduling that a call of this scope does not read."""
    for key in keys:
        if key in DEPLOYMENT_KEYS and key not in _MEANINGFUL[scope]:
            readers = "icekeeper detect and icekeeper run read" if key in _OF_SCANS else "icekeeper run reads"
            raise PolicyError(f"policy key {key} has no meaning for {scope.value}: {readers} it")
