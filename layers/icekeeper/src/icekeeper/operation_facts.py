"""One table with the facts of each operation: policy, routes, functions, jobs and state machine derive from it.

``tests/unit/test_operation_facts.py`` fails for an operation that lacks its work, policy keys, function, rights or
documentation.  CONTRIBUTING.md, "How to add an operation", lists the steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

CLEAN_STAGED = "clean_staged"
"""The step that is not an operation: every pass deletes the staged files of failed loads, whatever its policy says."""


class Operation(StrEnum):
    """What a pass can do; operations always run in the order of declaration."""

    EXPIRE_PARTITIONS = "expire_partitions"
    COMPACT = "compact"
    REWRITE_POSITION_DELETES = "rewrite_position_deletes"
    EXPIRE_SNAPSHOTS = "expire_snapshots"
    REMOVE_ORPHANS = "remove_orphans"
    REWRITE_MANIFESTS = "rewrite_manifests"
    COMPUTE_STATISTICS = "compute_statistics"


class Function(StrEnum):
    """A function of the stack, ``functions/NAME.py``, named after what its role may do to tables."""

    READ = "read"
    COMMIT = "commit"
    EXPIRE = "expire"
    """Commits, and deletes files."""
    DELETE = "delete"
    """Deletes files, and does not commit."""
    REPORT = "report"
    """Has no right to any table."""


class BuiltIn(StrEnum):
    """The maintenance that a table bucket can do itself, named as in the S3 Tables API."""

    COMPACTION = "icebergCompaction"
    SNAPSHOT_MANAGEMENT = "icebergSnapshotManagement"
    UNREFERENCED_FILE_REMOVAL = "icebergUnreferencedFileRemoval"


class Measure(StrEnum):
    """How the work of an operation on a table is estimated."""

    BYTES_TO_COMPACT = "bytes of the files that the plan rewrites"
    BYTES_WITH_DELETES = "bytes of the table, or none where it has no delete files"
    TOTAL_BYTES = "bytes of the table"
    FILES = "data and delete files of the table"
    LISTED_MANIFESTS = "manifests in the manifest lists of all snapshots, or none where no snapshot expires"


class Limit(StrEnum):
    """The environment variable with the largest measure that a function handles."""

    COMPACTION_BYTES = "ICEKEEPER_SMALL_COMPACTION_MB"
    MANIFEST_ENTRIES = "ICEKEEPER_SMALL_MANIFESTS"
    ORPHAN_REFERENCES = "ICEKEEPER_SMALL_ORPHANS"
    LISTED_MANIFESTS = "ICEKEEPER_SMALL_EXPIRY"
    STATISTICS_BYTES = "ICEKEEPER_SMALL_STATISTICS_MB"


class Stage(StrEnum):
    """A stage of the state machine after planning, in the order of execution."""

    SMALL = "small"
    """A map of functions that expire partitions and compact small tables."""
    COMPACTION = "compaction"
    """One run of the Glue job ``compact_data_files``."""
    SWEEP = "sweep"
    """A map of functions that expire snapshots, remove orphans and merge manifests."""
    EXPIRY = "expiry"
    """One run of the Glue job ``expire_snapshots``."""
    ORPHANS = "orphans"
    """One run of the Glue job ``remove_orphans``."""
    AFTER_JOBS = "after_jobs"
    """A map of functions that do what the sweep does, of tables whose snapshots or orphans went to a job."""
    MANIFESTS = "manifests"
    """One run of the Glue job ``rewrite_manifests``."""
    STAGED = "staged"
    """One call of a function for all tables of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueJob:
    """The Glue job that runs a step instead of a function when ``measure`` is above ``times * limit``."""

    script: str
    """``glue_jobs/SCRIPT.py``."""
    stage: Stage
    measure: Measure
    limit: Limit
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """One step of a pass: an operation, or :data:`CLEAN_STAGED`."""

    name: str
    description: str
    """Shown in the console of the state machine."""
    switches: tuple[str, ...] = ()
    """Policy keys; the step is skipped when all of them are false."""
    is_opt_in: bool = False
    """Runs only where the policy names it: not part of ``operations=all``."""
    built_in: BuiltIn | None = None
    """The table bucket's own maintenance that does the same work, unless it is switched off."""
    commits: bool = False
    """It needs the right to write files and to commit."""
    deletes_rows: bool = False
    deletes_files: bool = False
    """It needs the right to delete."""
    done_with: str | None = None
    """The step whose call does this step too; ``None``: it has a call of its own."""
    stage: Stage
    """The stage in which a function does it."""
    later_stage: Stage | None = None
    """Where a function does it instead if an earlier step of the table runs after ``stage``."""
    job: GlueJob | None = None
    """``None``: the step reads and writes metadata only, which always fits into a function."""

    @property
    def is_destructive(self) -> bool:
        """Whether the operation is refused if it cannot read metadata; other operations fail."""
        return self.deletes_rows or self.deletes_files

    @property
    def call(self) -> str:
        """The step that the event names."""
        return self.done_with or self.name

    @property
    def function(self) -> Function:
        """The function whose role has exactly the rights that the step needs."""
        if self.deletes_files:
            return Function.EXPIRE if self.commits else Function.DELETE
        return Function.COMMIT if self.commits else Function.READ


STEP_FACTS: tuple[StepFacts, ...] = (
    StepFacts(
        name=Operation.EXPIRE_PARTITIONS.value,
        description="Drop partitions past their retention",
        is_opt_in=True,  # it changes rows
        commits=True,
        deletes_rows=True,
        stage=Stage.SMALL,
    ),
    StepFacts(
        name=Operation.COMPACT.value,
        description="Merge small data files and apply deletes",
        switches=("rewrite_enabled", "delete_compaction_enabled"),
        built_in=BuiltIn.COMPACTION,
        commits=True,
        stage=Stage.SMALL,
        job=GlueJob(
            script="compact_data_files",
            stage=Stage.COMPACTION,
            measure=Measure.BYTES_TO_COMPACT,
            limit=Limit.COMPACTION_BYTES,
        ),
    ),
    StepFacts(
        name=Operation.REWRITE_POSITION_DELETES.value,
        description="Merge position deletes, drop dangling deletes",
        switches=("delete_compaction_enabled",),
        built_in=BuiltIn.COMPACTION,
        commits=True,
        done_with=Operation.COMPACT.value,
        stage=Stage.SMALL,
        # The work depends on the size of the delete files, but a snapshot's summary has only their number.
        job=GlueJob(
            script="compact_data_files",
            stage=Stage.COMPACTION,
            measure=Measure.BYTES_WITH_DELETES,
            limit=Limit.COMPACTION_BYTES,
            times=16,
        ),
    ),
    StepFacts(
        name=Operation.EXPIRE_SNAPSHOTS.value,
        description="Drop old snapshots and what only they reference",
        switches=("snapshot_expiry_enabled",),
        built_in=BuiltIn.SNAPSHOT_MANAGEMENT,
        commits=True,
        deletes_files=True,
        stage=Stage.SWEEP,
        job=GlueJob(
            script="expire_snapshots",
            stage=Stage.EXPIRY,
            measure=Measure.LISTED_MANIFESTS,
            limit=Limit.LISTED_MANIFESTS,
        ),
    ),
    StepFacts(
        name=Operation.REMOVE_ORPHANS.value,
        description="Delete old files that nothing references",
        switches=("orphan_sweep_enabled",),
        built_in=BuiltIn.UNREFERENCED_FILE_REMOVAL,
        deletes_files=True,
        stage=Stage.SWEEP,
        later_stage=Stage.AFTER_JOBS,
        job=GlueJob(script="remove_orphans", stage=Stage.ORPHANS, measure=Measure.FILES, limit=Limit.ORPHAN_REFERENCES),
    ),
    StepFacts(
        name=Operation.REWRITE_MANIFESTS.value,
        description="Merge small manifests",
        switches=("manifest_rewrite_enabled",),
        commits=True,
        stage=Stage.SWEEP,
        later_stage=Stage.AFTER_JOBS,
        job=GlueJob(
            script="rewrite_manifests", stage=Stage.MANIFESTS, measure=Measure.FILES, limit=Limit.MANIFEST_ENTRIES
        ),
    ),
    StepFacts(
        name=Operation.COMPUTE_STATISTICS.value,
        description="Count distinct values",
        is_opt_in=True,  # it costs a full read
        commits=True,
        done_with=Operation.REWRITE_MANIFESTS.value,
        stage=Stage.SWEEP,
        later_stage=Stage.AFTER_JOBS,
        job=GlueJob(
            script="rewrite_manifests", stage=Stage.MANIFESTS, measure=Measure.TOTAL_BYTES, limit=Limit.STATISTICS_BYTES
        ),
    ),
    StepFacts(
        name=CLEAN_STAGED,
        description="Delete the files of failed loads, from the record",
        deletes_files=True,
        stage=Stage.STAGED,
    ),
)
"""Every step of a pass, in the order in which they run."""

STEPS: tuple[str, ...] = tuple(step.name for step in STEP_FACTS)

FACTS: Mapping[Operation, StepFacts] = {Operation(step.name): step for step in STEP_FACTS if step.name != CLEAN_STAGED}

OPT_IN_OPERATIONS = frozenset(operation for operation, facts in FACTS.items() if facts.is_opt_in)
"""Operations that are not part of ``operations=all``."""

ALL_OPERATIONS: tuple[Operation, ...] = tuple(operation for operation in FACTS if operation not in OPT_IN_OPERATIONS)
"""What ``operations=all`` means, in canonical order."""


FUNCTIONS: Mapping[str, Function] = {
    **dict.fromkeys(("detect", "plan", "gather", "list_orphans"), Function.READ),
    **{step.call: step.function for step in STEP_FACTS},
    "report": Function.REPORT,
}
"""The function of every step that an event names, in the order of a run."""


def steps_of_call(call: str) -> frozenset[str]:
    """The steps that a call does, given the step that its event names."""
    return frozenset(step.name for step in STEP_FACTS if step.call == call)


def operations_of_job(script: str) -> frozenset[Operation]:
    """The operations that a script in ``glue_jobs/`` does."""
    return frozenset(
        operation for operation, facts in FACTS.items() if facts.job is not None and facts.job.script == script
    )


def stage_of_job(script: str) -> Stage:
    """The stage that a script in ``glue_jobs/`` is."""
    return next(facts.job.stage for facts in STEP_FACTS if facts.job is not None and facts.job.script == script)
