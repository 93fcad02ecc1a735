"""The facts of each operation in one table: policy, routes, functions, jobs and state machine derive from it.

``tests/unit/test_operation_facts.py`` fails for an operation of this table that lacks its work, its policy keys, its
function, its rights or its documentation.  CONTRIBUTING.md, "How to add an operation", goes through them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

CLEAN_STAGED = "clean_staged"
"""The step that is no operation: every pass cleans up what failed loads left, whatever its policy says."""


class Operation(StrEnum):
    """What a pass can do.  Declaration order is the canonical order in which operations always run."""

    EXPIRE_PARTITIONS = "expire_partitions"
    COMPACT = "compact"
    REWRITE_POSITION_DELETES = "rewrite_position_deletes"
    EXPIRE_SNAPSHOTS = "expire_snapshots"
    REMOVE_ORPHANS = "remove_orphans"
    REWRITE_MANIFESTS = "rewrite_manifests"
    COMPUTE_STATISTICS = "compute_statistics"


class BuiltIn(StrEnum):
    """What a table bucket can do by itself, by the names that the S3 Tables API has for it."""

    COMPACTION = "icebergCompaction"
    SNAPSHOT_MANAGEMENT = "icebergSnapshotManagement"
    UNREFERENCED_FILE_REMOVAL = "icebergUnreferencedFileRemoval"


class Measure(StrEnum):
    """How the work that an operation will have on a table is measured."""

    BYTES_TO_COMPACT = "bytes of the files that the plan rewrites"
    BYTES_WITH_DELETES = "bytes of the table, or none where it has no delete files"
    TOTAL_BYTES = "bytes of the table"
    FILES = "data and delete files of the table"


class Limit(StrEnum):
    """The environment variable that says how much of a measure a function can do."""

    COMPACTION_BYTES = "ICEKEEPER_SMALL_COMPACTION_MB"
    MANIFEST_ENTRIES = "ICEKEEPER_SMALL_MANIFESTS"
    ORPHAN_REFERENCES = "ICEKEEPER_SMALL_ORPHANS"


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueJob:
    """The Glue job that runs a step in place of its function, when ``measure`` is above ``times * limit``."""

    script: str
    """``glue_jobs/SCRIPT.py``."""
    measure: Measure
    limit: Limit
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """One step of a pass: an operation, or :data:`CLEAN_STAGED`."""

    name: str
    description: str
    """What the step does, as the state machine's console shows it."""
    switches: tuple[str, ...] = ()
    """Policy keys; the step is skipped when all of them are false."""
    is_opt_in: bool = False
    """Whether it runs only where the policy names it: it is no part of ``operations=all``."""
    built_in: BuiltIn | None = None
    """The table bucket's own operation that does the same work, unless that is switched off."""
    commits: bool = False
    """Whether it changes the table; its function needs the right to write files and to commit."""
    deletes_rows: bool = False
    """Whether the rows of the table are fewer after its commit."""
    deletes_files: bool = False
    """Whether it deletes files itself; its function needs the right to delete."""
    function: str
    """``functions/FUNCTION/handler.py``."""
    lister: str | None = None
    """A function without the right to delete, which runs first and finds out whether there is anything to delete."""
    job: GlueJob | None = None
    """``None``: it works on metadata only, which always fits into a function."""
    in_waves: bool = False
    """Whether a scheduled run has its job do the step for all its large tables at once (``pipeline/run_wave``)."""
    in_waves_of_buckets: bool = False
    """Whether a wave also does the step for a table of a table bucket, right behind its own steps."""

    @property
    def is_destructive(self) -> bool:
        """Whether the operation is refused, rather than failed, when it cannot read metadata."""
        return self.deletes_rows or self.deletes_files


STEP_FACTS: tuple[StepFacts, ...] = (
    StepFacts(
        name=Operation.EXPIRE_PARTITIONS.value,
        description="Drop partitions past their retention",
        is_opt_in=True,  # it changes rows
        commits=True,
        deletes_rows=True,
        function="expire_partitions",
    ),
    StepFacts(
        name=Operation.COMPACT.value,
        description="Merge small data files and apply deletes",
        # Either is reason enough to run.
        switches=("rewrite_enabled", "delete_compaction_enabled"),
        built_in=BuiltIn.COMPACTION,
        commits=True,
        function="compact_small",
        job=GlueJob(script="compact_data_files", measure=Measure.BYTES_TO_COMPACT, limit=Limit.COMPACTION_BYTES),
        in_waves=True,
    ),
    StepFacts(
        name=Operation.REWRITE_POSITION_DELETES.value,
        description="Merge position deletes, drop dangling ones",
        switches=("delete_compaction_enabled",),
        built_in=BuiltIn.COMPACTION,
        commits=True,
        function="compact_small",
        # Its work is bounded by the delete files, of which a snapshot's summary tells only the number.
        job=GlueJob(
            script="compact_data_files", measure=Measure.BYTES_WITH_DELETES, limit=Limit.COMPACTION_BYTES, times=16
        ),
        in_waves=True,
    ),
    StepFacts(
        name=Operation.EXPIRE_SNAPSHOTS.value,
        description="Drop old snapshots and what only they reference",
        switches=("snapshot_expiry_enabled",),
        built_in=BuiltIn.SNAPSHOT_MANAGEMENT,
        commits=True,
        deletes_files=True,
        function="expire_snapshots",
        in_waves_of_buckets=True,
    ),
    StepFacts(
        name=Operation.REMOVE_ORPHANS.value,
        description="Delete old files that nothing references",
        switches=("orphan_sweep_enabled",),
        built_in=BuiltIn.UNREFERENCED_FILE_REMOVAL,
        deletes_files=True,
        function="remove_orphans",
        lister="list_orphans",
        job=GlueJob(script="remove_orphans", measure=Measure.FILES, limit=Limit.ORPHAN_REFERENCES),
        in_waves_of_buckets=True,
    ),
    StepFacts(
        name=Operation.REWRITE_MANIFESTS.value,
        description="Merge small manifests",
        switches=("manifest_rewrite_enabled",),
        commits=True,
        function="rewrite_manifests",
        job=GlueJob(script="rewrite_manifests", measure=Measure.FILES, limit=Limit.MANIFEST_ENTRIES),
        in_waves_of_buckets=True,
    ),
    StepFacts(
        name=Operation.COMPUTE_STATISTICS.value,
        description="Count distinct values",
        is_opt_in=True,  # it costs a full read
        commits=True,
        function="compact_small",
        job=GlueJob(script="compact_data_files", measure=Measure.TOTAL_BYTES, limit=Limit.COMPACTION_BYTES),
    ),
    StepFacts(
        name=CLEAN_STAGED,
        description="Delete the files of failed loads, from the record",
        deletes_files=True,
        function="clean_staged",
    ),
)
"""Every step of a pass, in the order in which they run."""

STEPS: tuple[str, ...] = tuple(step.name for step in STEP_FACTS)

FACTS: Mapping[Operation, StepFacts] = {Operation(step.name): step for step in STEP_FACTS if step.name != CLEAN_STAGED}

OPT_IN_OPERATIONS = frozenset(operation for operation, facts in FACTS.items() if facts.is_opt_in)
"""Operations that are no part of ``operations=all``."""

ALL_OPERATIONS: tuple[Operation, ...] = tuple(operation for operation in FACTS if operation not in OPT_IN_OPERATIONS)
"""What ``operations=all`` means: in canonical order (rule: canonical-operation-order), without the opt-ins."""


def steps_of_function(function: str) -> frozenset[str]:
    """The steps that the function of a folder in ``functions/`` does."""
    return frozenset(step.name for step in STEP_FACTS if step.function == function)


def operations_of_waves() -> frozenset[Operation]:
    """The operations that the job of a wave may be asked for."""
    return frozenset(one for one, facts in FACTS.items() if facts.in_waves or facts.in_waves_of_buckets)


def operations_of_job(script: str) -> frozenset[Operation]:
    """The operations that a script in ``glue_jobs/`` does."""
    return frozenset(
        operation for operation, facts in FACTS.items() if facts.job is not None and facts.job.script == script
    )
