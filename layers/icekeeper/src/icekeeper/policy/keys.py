"""Every policy key: its type, limits, default, meaning, and the direction in which its values are tighter.

The tighter of two values deletes less, or costs the operator less.  The deployment's bounds, and the limits of what a
table or a request may set, use this direction.  Names and defaults come from the SeaweedFS worker and from Modak's
policy; the others are Icekeeper's own.  :func:`icekeeper.policy.resolve` builds a policy and checks keys against each
other.
"""

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
    OptionalMoment,
    OptionalText,
    OutputSpec,
    Ownership,
    PartitionTimeText,
    PositiveAmount,
    Proof,
    Ratio,
    RewriteReasons,
    SnapshotIds,
    SortOrderText,
    Strategy,
    Switch,
    TextList,
    WhereText,
    did_you_mean,
    parse_list,
    rounded_down,
    rounded_up,
)


@dataclass(frozen=True, slots=True)
class Direction:
    """How the values of a key compare."""

    words: str
    """Which values are tighter, as messages say it."""
    meet: Callable[[Any, Any], Any]
    """The tighter of two values; of two lists, their intersection or their union."""
    loosest: tuple[object, ...] = ()
    """The loosest value, if there is one; as a bound it would have no effect."""

    def holds(self, limit: object, value: object) -> bool:
        """Whether a value is at least as tight as the limit.  The order of a list does not matter."""
        held = self.meet(limit, value)
        if isinstance(held, tuple) and isinstance(value, tuple):
            return set(held) == set(value)
        return bool(held == value)


def _of_rank(words: str, rank: Callable[[Any], Any], *loosest: object) -> Direction:
    return Direction(words, lambda left, other: other if rank(other) > rank(left) else left, loosest)


HIGHER = _of_rank("higher", lambda value: math.inf if value is None else value)
"""``None`` is infinite, so it is the tightest."""
LOWER = _of_rank("lower", lambda value: -math.inf if value is None else -value, None)
SET_AND_HIGHER = _of_rank("higher", lambda value: -math.inf if value is None else value, None)
HIGHER_OR_ZERO = _of_rank("higher, or 0", lambda value: value or math.inf)
LATER = _of_rank("later", lambda value: value or "", None)
FALSE = _of_rank("false", lambda value: not value, True)
TRUE = _of_rank("true", bool, False)
FEWER = Direction("fewer", lambda left, other: tuple(value for value in left if value in other))
MORE = Direction("more", lambda left, other: tuple(dict.fromkeys((*left, *other))), ((),))
"""The value is the union of the lists of all sources; no source can remove an entry."""


def first_of(*values: object) -> Direction:
    """The direction of a key that has these values, tightest first."""
    return _of_rank(f"first of {', '.join(map(str, values))}", lambda value: -values.index(value), values[-1])


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """Properties of a policy key besides its type and default."""

    tighter: Direction | None
    """``None``: no value deletes or costs more than another, so the key cannot be bounded."""
    is_of_deployment: bool = False
    """The key concerns detection or scheduling; a table cannot set it."""
    is_of_layout: bool = False
    """The key describes the layout of a table's files.  Values of the deployment and the policy file are then only
    defaults, which a table may override; a bound still limits the table."""
    is_of_call: bool = False
    """Only the deployment, a policy file or the call can set the key, whatever ``table_settings`` says."""
    table_limit: object = None
    """The loosest value that a table may set, unless ``table_settings`` names the key; ``None``: any."""
    undermines: tuple[str, ...] = ()
    """Keys that this key overrides.  If one of them is stated or bounded, a table cannot set this key."""


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
    """A field of a policy; ``doc`` is its meaning in one line, ``bounds`` are its limits by pydantic's names."""
    facts = KeyFacts(tighter, is_of_deployment, is_of_layout, is_of_call, table_limit, undermines)
    return Field(default=default, description=doc, json_schema_extra={"facts": cast(JsonValue, facts)}, **bounds)


def deployment_key(default: Any, doc: str, **bounds: Any) -> Any:
    """A key of detection or scheduling, which a table cannot set."""
    return key(default, doc, tighter=None, is_of_deployment=True, **bounds)


# What ``table_settings`` may contain besides keys.
DEFAULT_SETTINGS = "default"
ALL_SETTINGS = "all"


def _parse_table_settings(value: object) -> object:
    names = parse_list(value)
    words = (DEFAULT_SETTINGS, ALL_SETTINGS)
    may_be = (*words, *(key for key, facts in KEY_FACTS.items() if not facts.is_of_deployment and not facts.is_of_call))
    for name in names if isinstance(names, tuple) else ():
        if name in KEY_FACTS and name not in may_be:
            raise ValueError(f"'{name}' cannot be set by a table")
        if name not in may_be:
            raise ValueError(f"'{name}' is not a policy key{did_you_mean(str(name), may_be)}; write keys, "
                             f"{', '.join(words)} or none")  # fmt: skip
    return names


TableSettings: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_parse_table_settings)]


class Policy(BaseModel):
    """The settings of one table.  Hours and megabytes are exact fractions; properties convert them to ms and bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    maintenance_enabled: Switch = key(
        True, "master switch; false skips every operation, even in a forced pass", tighter=FALSE
    )
    paused_until: OptionalMoment = key(
        None, "no operation runs before this time; icekeeper pause sets it", tighter=LATER
    )
    operations: OperationNames = key(
        ALL_OPERATIONS, "all, or a comma-separated list; always run in canonical order", tighter=FEWER
    )

    # -- rewriting data files
    target_file_size_mb: PositiveAmount = key(
        Fraction(256),
        "target size of rewritten data files, in MB (2^20)",
        tighter=HIGHER,
        is_of_layout=True,
        table_limit=Fraction(1),
    )
    min_file_size_ratio: Ratio = key(
        Fraction(3, 4), "files smaller than this share of the target size are candidates, 0 to 1", tighter=LOWER
    )
    max_file_group_size_mb: PositiveAmount = key(
        Fraction(102400), "most input bytes of one file group, in MB", tighter=LOWER
    )
    min_input_files: int = key(
        5,
        "fewest candidate files to merge, in a partition and in a group smaller than the target size",
        ge=2,
        tighter=HIGHER,
    )
    partition_rest_hours: Amount = key(
        Fraction(24),
        "a partition that got no file for this many hours, and for at least as long as files had been arriving, is "
        "merged one time",
        tighter=HIGHER,
    )
    expected_scans: OptionalCount = key(
        200, "a merge must save more than it costs within this many scans; none: always merge", tighter=LOWER
    )
    # Against row groups of 66 MB, a full scan by DuckDB takes 2 to 4 % more CPU with row groups of 15 to 22 MB, and
    # more below that.  pyarrow takes no more CPU; files grow by less than 1 %.
    min_row_group_copy_bytes: OptionalCount = key(
        16 * MEGABYTE,
        "row groups that average this many bytes, or 44 MB in memory, are copied; none: never",
        tighter=HIGHER,
        table_limit=MEGABYTE,  # a footer with thousands of row groups and columns fills the memory
    )
    rewrite_all: Switch = key(False, "every data file is a candidate, whatever its size", tighter=FALSE)
    rewrite_reason: RewriteReasons = key(
        (), "comma-separated: also rewrite files for codec, bloom (filters) or spec; reads footers", tighter=FEWER
    )
    max_files_to_rewrite: OptionalCount = key(
        None, "most data files that one pass rewrites; none: no limit", tighter=LOWER
    )
    max_bytes_to_rewrite: OptionalCount = key(None, "most bytes that one pass rewrites; none: no limit", tighter=LOWER)
    rewrite_job_order: JobOrder = key(
        JobOrder.NONE,
        "order of groups: bytes-asc, bytes-desc, files-asc, files-desc or none (largest saving per byte first)",
        tighter=None,
    )
    min_partition_age_hours: OptionalAge = key(
        None,
        "partitions that ended less than this many hours ago are not rewritten; 0: until they end; none: no limit",
        tighter=SET_AND_HIGHER,
    )
    apply_deletes: Switch = key(
        True, "merging applies delete files; false: tables that have any are skipped", tighter=FALSE
    )
    convert_equality_deletes: Switch = key(
        False,
        "equality deletes become positions; data files are rewritten from delete_compaction_min_ratio on",
        tighter=FALSE,
    )
    delete_compaction_min_deletes: int = key(
        1, "number of delete files that makes a data file a candidate", ge=1, tighter=HIGHER
    )
    # Java's DELETE_RATIO_THRESHOLD_DEFAULT
    delete_compaction_min_ratio: Ratio = key(
        Fraction(3, 10),
        "a data file with at least this share of its rows known to be deleted is a candidate, 0 to 1",
        tighter=HIGHER,
    )
    strategy: Strategy = key(
        Strategy.AUTO,
        "auto, binpack, sort or zorder",
        tighter=first_of(Strategy.BINPACK, Strategy.AUTO, Strategy.SORT, Strategy.ZORDER),
        is_of_layout=True,
    )
    sort_order: SortOrderText = key(
        None,
        "order of sort, as `k desc nulls last, bucket(16, id)`, or columns of zorder, `a, b`; none: the table's own",
        tighter=None,
    )
    where: WhereText = key(
        None, "only files that may contain matching rows are rewritten: `ts < now() - interval '1 hour'`", tighter=None
    )
    branch: str = key("main", "branch to maintain", min_length=1, tighter=None)
    output_spec: OutputSpec = key(
        OutputSpec.CURRENT, "partition spec of output files: current, or keep (that of the inputs)", tighter=None
    )
    partial_progress: int = key(0, "file groups per commit; 0: by bytes and time", ge=0, tighter=HIGHER_OR_ZERO)
    proof: Proof = key(
        Proof.COUNTS,
        "how a rewrite proves that it kept all rows: counts or full",
        tighter=first_of(Proof.FULL, Proof.COUNTS),
    )

    # -- snapshots, orphans, manifests, partitions
    snapshot_retention_hours: Amount = key(
        Fraction(168), "snapshots younger than this many hours are kept", tighter=HIGHER
    )
    max_snapshots_to_keep: int = key(5, "this many newest snapshots are kept, whatever their age", ge=1, tighter=HIGHER)
    snapshot_retain_max: OptionalCount = key(
        None,
        "snapshots beyond this number expire, whatever their age",
        tighter=HIGHER,
        undermines=("snapshot_retention_hours",),
    )
    snapshot_expire_limit: OptionalCount = key(
        None, "most snapshots that one pass expires; none: no limit", tighter=LOWER
    )
    snapshot_expire_ids: SnapshotIds = key(
        (),
        "comma-separated snapshot ids: only these expire, whatever the retention; none: by retention",
        tighter=None,
        undermines=("snapshot_retention_hours", "max_snapshots_to_keep"),
    )
    snapshot_give_up_ids: SnapshotIds = key(
        (),
        "ids of unreadable snapshots: only these are dropped, unknown files are kept; needs --unsafe",
        tighter=None,
        is_of_call=True,
    )
    writer_mark_retention_hours: Amount = key(
        Fraction(168),
        "snapshots that a streaming writer needs to find its last commit are kept this many hours; 0: not kept",
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
        "comma-separated folders to sweep for orphans, besides those where the table has had files",
        tighter=FEWER,
        is_of_call=True,
    )
    orphan_table_types: TextList = key(
        (),
        "comma-separated values of table property table_type, besides iceberg, with which a table is swept",
        tighter=FEWER,
        is_of_call=True,
    )
    orphan_file_endings: TextList = key(
        (),
        "comma-separated endings of files that may be orphans, besides the endings of Iceberg's writers",
        tighter=FEWER,
        is_of_call=True,
    )
    orphan_sweep_interval_hours: Amount = key(
        Fraction(24), "hours between two orphan sweeps in automatic passes; 0: every pass sweeps", tighter=HIGHER
    )
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
        "list of files or S3 Inventory (manifest.json, CSV, Parquet, ORC) to read instead of listing",
        tighter=None,
    )
    # At least 2: rewriting one manifest into one would never end.
    min_manifests_to_rewrite: int = key(5, "number of data manifests that triggers a rewrite", ge=2, tighter=HIGHER)
    statistics_columns: TextList = key(
        (), "comma-separated columns whose distinct values compute_statistics counts; none: all possible", tighter=None
    )
    partition_retention_hours: OptionalAmount = key(
        None,
        "partitions that ended longer ago than this many hours are dropped by expire_partitions; none: never",
        tighter=HIGHER,
    )
    partition_time: PartitionTimeText = key(
        None,
        "the field with a partition's time, text with its format: `day`, `dt=%Y-%m-%d`, `year=%Y,month=%m`; none: the "
        "first date or timestamp",
        tighter=None,
    )
    max_commit_retries: int = key(
        5,
        "commit retries after a conflict; a rewrite retries longer: for the time it took, at most 15 minutes",
        ge=0,
        tighter=LOWER,
        table_limit=100,
    )

    # -- switches
    rewrite_enabled: Switch = key(True, "merge small data files", tighter=FALSE)
    delete_compaction_enabled: Switch = key(
        True, "rewrite data files that have deletes, including small files", tighter=FALSE
    )
    manifest_rewrite_enabled: Switch = key(True, "rewrite manifests", tighter=FALSE)
    snapshot_expiry_enabled: Switch = key(True, "expire snapshots", tighter=FALSE)
    orphan_sweep_enabled: Switch = key(True, "remove orphans", tighter=FALSE)
    ownership: Ownership = key(
        Ownership.AUTO,
        "auto: skip what the table bucket maintains itself; icekeeper: switch the bucket's maintenance off first",
        tighter=first_of(Ownership.AUTO, Ownership.ICEKEEPER),
    )

    # -- of the deployment: what tables may set, detection, scheduling
    table_settings: TableSettings = deployment_key(
        (DEFAULT_SETTINGS,),
        "comma-separated keys that tables may set to any value, or `default`, `all`, none: see above",
    )
    bucket_filter: TextList = deployment_key((), "wildcard patterns (* and ?) of table buckets")
    namespace_filter: TextList = deployment_key((), "wildcard patterns of namespaces")
    table_filter: TextList = deployment_key((), "wildcard patterns of table names")
    max_jobs_per_detection: int = deployment_key(100, "most tables one scan proposes", ge=1)
    detection_timeout_s: int = deployment_key(
        300, "seconds for one scan, and for reading another table during a pass", ge=1
    )
    # The stack sets some of these from its parameters; icekeeper run reads all of them.
    detection_interval_s: int = deployment_key(
        3600, "seconds between two detections of icekeeper run; in the stack, the parameter ScheduleExpression", ge=1
    )
    max_concurrent_jobs: int = deployment_key(
        4,
        "tables that runs with one state store maintain at once; in the stack, the parameter MaxConcurrentTables",
        ge=1,
    )
    max_concurrent_jobs_per_worker: int = deployment_key(
        2, "tables that one process of icekeeper run maintains at once; in the stack each job has its own workers", ge=1
    )
    job_timeout_s: int = deployment_key(
        3600,
        "time limit of a pass, aborted a quarter later (maintain: if set); in the stack, parameter JobTimeoutMinutes",
        ge=1,
    )
    job_retry_limit: int = deployment_key(
        1, "retries of a failed job or pass (maintain: only if set); always 1 in the stack", ge=0
    )

    @property
    def target_file_size_bytes(self) -> int:
        """Rounded down, but at least 1, so that splitting at the target always makes progress."""
        return max(1, rounded_down(self.target_file_size_mb, MEGABYTE))

    @property
    def min_file_size_bytes(self) -> int:
        """A file with fewer bytes is small.  Rounded up, because a whole number is below x if it is below ceil(x)."""
        return rounded_up(self.min_file_size_ratio, self.target_file_size_bytes)

    @property
    def max_file_group_size_bytes(self) -> int:
        return max(1, rounded_down(self.max_file_group_size_mb, MEGABYTE))

    @property
    def partition_rest_ms(self) -> int:
        return rounded_up(self.partition_rest_hours, HOUR_MS)

    @property
    def min_partition_age_ms(self) -> int | None:
        """``None``: partitions of any age are rewritten."""
        hours = self.min_partition_age_hours
        return None if hours is None else rounded_up(hours, HOUR_MS)

    # Fractions round up, which keeps more.

    @property
    def snapshot_retention_ms(self) -> int:
        return rounded_up(self.snapshot_retention_hours, HOUR_MS)

    @property
    def named_snapshots(self) -> tuple[str, tuple[int, ...]]:
        """The key that names snapshots, and their ids: only these expire.  Without ids, the retention decides."""
        if self.snapshot_give_up_ids:
            return "snapshot_give_up_ids", self.snapshot_give_up_ids
        return "snapshot_expire_ids", self.snapshot_expire_ids

    @property
    def writer_mark_retention_ms(self) -> int:
        return rounded_up(self.writer_mark_retention_hours, HOUR_MS)

    @property
    def orphan_older_than_ms(self) -> int:
        return rounded_up(self.orphan_older_than_hours, HOUR_MS)

    @property
    def partition_retention_ms(self) -> int | None:
        hours = self.partition_retention_hours
        return None if hours is None else rounded_up(hours, HOUR_MS)


POLICY_KEYS: tuple[str, ...] = tuple(Policy.model_fields)
KEY_FACTS: Mapping[str, KeyFacts] = {
    name: cast(KeyFacts, cast(dict[str, object], field.json_schema_extra)["facts"])
    for name, field in Policy.model_fields.items()
}
TIGHTER_ONLY = frozenset(key for key in POLICY_KEYS if key == "operations" or key.startswith("orphan_"))
"""Keys that tables may only tighten by default: files of other tables may lie beside a table's."""
DEPLOYMENT_KEYS = frozenset(name for name, facts in KEY_FACTS.items() if facts.is_of_deployment)
"""Keys that a table cannot set."""


def nearest_keys(text: str) -> str:
    """The end of a message about an unknown key: which keys may be meant, and the command that prints all."""
    found = difflib.get_close_matches(text.lower(), POLICY_KEYS, n=3, cutoff=0)
    meant = did_you_mean(text, POLICY_KEYS)
    return f"{meant}; the nearest keys are {', '.join(found)} (icekeeper policy show NS.TABLE --all prints all)"


class Scope(StrEnum):
    """What a call works on; the value appears in messages."""

    TABLE = "one table"
    SCAN = "one detection"
    CYCLE = "icekeeper run"


_OF_EVERY_PASS = frozenset({"job_timeout_s", "job_retry_limit"})
_OF_SCANS = frozenset(
    {"bucket_filter", "namespace_filter", "table_filter", "max_jobs_per_detection", "detection_timeout_s"}
)
_MEANINGFUL = {Scope.TABLE: _OF_EVERY_PASS, Scope.SCAN: _OF_EVERY_PASS | _OF_SCANS, Scope.CYCLE: DEPLOYMENT_KEYS}


def refuse_meaningless(keys: Iterable[str], scope: Scope) -> None:
    """Raise PolicyError if a key of detection or scheduling has no effect on a call of this scope."""
    for key in keys:
        if key in DEPLOYMENT_KEYS and key not in _MEANINGFUL[scope]:
            readers = "icekeeper detect and icekeeper run read" if key in _OF_SCANS else "icekeeper run reads"
            raise PolicyError(f"policy key {key} has no effect on {scope.value}: {readers} it")
