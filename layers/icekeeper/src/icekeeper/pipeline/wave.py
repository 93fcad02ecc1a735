"""Gathers the tables that wait for a wave, and decides how large it is and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from icekeeper.errors import PlanStale
from icekeeper.operation_facts import STEPS
from icekeeper.pipeline.control_bucket import PlanDocument, read_plan, require_of_run
from icekeeper.pipeline.deployment import Deployment, travelling_environment
from icekeeper.pipeline.events import Item, PlanReference, RunId
from icekeeper.report.costs import GLUE_SHORTEST_S, US_EAST_1

# The documents of a wave: which tables wait for it, and which ones one Glue run maintains at once.
#
# They lie in the control bucket; the job gets key and digest.


class WaitingPlan(BaseModel):
    """The plan of a pass that waits for the run's wave."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    digest: str


class WaveEvent(BaseModel):
    """Gather the tables that wait for the run's wave."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: RunId
    wave: tuple[WaitingPlan, ...]
    in_one_call: tuple[WaitingPlan, ...] = ()
    """Of the passes that single calls left to it."""


class WaveTable(BaseModel):
    """One table of a wave."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    item: Item
    plan: PlanReference
    """Of the table's pass; its routes are left out."""
    steps: tuple[str, ...]
    """What the wave does of the pass, in canonical order."""
    size_bytes: int
    """Of the files that compaction is planned to rewrite."""


class WaveDocument(BaseModel):
    """``tables`` are in the order in which they begin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: RunId
    tables: tuple[WaveTable, ...]
    workers: int
    """Of the Glue run, its driver included."""
    environment: Mapping[str, str]
    """The deployment's settings, as plans have them."""


def read_wave(document: Any) -> WaveDocument:
    """Check the JSON document of a wave.

    Raises:
        PlanStale: another version of Icekeeper wrote it.
    """
    try:
        return WaveDocument.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the wave"
        raise PlanStale(f"the wave was written by another version of Icekeeper: {where}: {first['msg']}") from None


def wave_key(run_id: str) -> str:
    """The key of a run's wave; a run has one at most."""
    return f"runs/{run_id}/wave.json"


def wave_tables_key(run_id: str) -> str:
    """The key of the wave's tables, for the second turn of the state machine's map."""
    return f"runs/{run_id}/wave-tables.json"


def left_key(folder: str, step: str) -> str:
    """The key of the reason why a wave left out a step of a table; ``folder`` is the table's."""
    return f"{folder}/{step}.left.json"


# How large a wave is: its workers, how many tables are at work at once, which begin first, which no more.  Pure.

MOST_WORKERS = 10
_FEWEST_WORKERS = 2
"""The driver of a Glue run is one of its workers."""
CORES_PER_WORKER = 4
"""Of G.1X, the smallest worker: a DPU (AWS Glue developer guide, "Worker types")."""
MB_PER_CPU_SECOND = 60
"""What Spark's workers read and write again by the decoding path (docs/performance.md); copying is much faster."""
BUSY = 0.75
"""The part of its time in which a core works: every table ends with a commit, and its last group is one task."""
_BYTES_PER_CORE_SECOND = int(MB_PER_CPU_SECOND * BUSY * 1024**2)
# What a worker does in some five minutes: long enough that its start-up is a small part of what it costs.
_BYTES_PER_WORKER = 50 * 1024**3
# A driver has 16 GB, and needs up to some hundred megabytes for the manifests of a large table.
_MOST_AT_ONCE = 16
# What a table needs beside its bytes: planning, commit, and what its neighbours take of the workers.
_ROUND_S = 120
_SAFETY = 2
_LEAST_S = 60.0
_LAST_CUT = 0.95
"""The part of the job's time after which what still hangs is cut off."""


class Sized(Protocol):
    """A table of a wave."""

    @property
    def size_bytes(self) -> int: ...


AnySized = TypeVar("AnySized", bound=Sized)


def workers_for(size_bytes: int) -> int:
    """How many workers a Glue run has that rewrites so many bytes, its driver included."""
    wanted = 1 + -(-size_bytes // _BYTES_PER_WORKER)
    return max(_FEWEST_WORKERS, min(MOST_WORKERS, wanted))


def tables_at_once(tables: int, workers: int) -> int:
    """How many tables the driver maintains at the same time: enough to keep executors busy where each has one group."""
    return max(1, min(tables, 2 * _cores(workers), _MOST_AT_ONCE))


def in_order(tables: Iterable[AnySized]) -> tuple[AnySized, ...]:
    """The largest first: one that began last would keep all workers waiting for it, and they are paid meanwhile.

    Tables of one size stay in the order of their need.
    """
    return tuple(sorted(tables, key=lambda table: -table.size_bytes))


def may_begin(size_bytes: int, workers: int, *, elapsed_s: float, limit_s: float) -> bool:
    """Whether a table that begins now will surely end before the job's time is over.

    In the first quarter of the time everything begins: what a whole run is not long enough for never would, else.
    """
    return elapsed_s <= limit_s / 4 or elapsed_s + _needed_s(size_bytes, workers) <= limit_s


def longest_s(size_bytes: int, workers: int, *, elapsed_s: float, limit_s: float) -> float:
    """How many seconds a table that begins now may take before it is cut off (rule: cut-off-endless-tables).

    Four times what surely suffices, or a quarter of the job's time; never so long that the job is killed before it has
    told of the others.
    """
    generous_s = max(limit_s / 4, 4 * _needed_s(size_bytes, workers))
    return max(_LEAST_S, min(generous_s, _LAST_CUT * limit_s - elapsed_s))


def _needed_s(size_bytes: int, workers: int) -> float:
    return _ROUND_S + _SAFETY * size_bytes / (_BYTES_PER_CORE_SECOND * _cores(workers))


def _cores(workers: int) -> int:
    return CORES_PER_WORKER * max(1, workers - 1)


# What compacting one table costs in a function and in a wave, and up to which size a function is cheaper.  Pure.
#
# ``SmallCompactionMb`` has its default from here.  A function pays for its memory while one core works; a
# wave for whole workers, its driver among them, and for their start-up, which its tables share.

_MB = 1024**2
_LAMBDA_CALL = US_EAST_1.lambda_million_calls / 1e6
_STATE_TRANSITION = US_EAST_1.step_functions_1000_transitions / 1000
_FUNCTION_MB = 3008
"""Of memory: the default of CompactSmallMemoryMb, with one whole core."""
_FUNCTION_S = 900
_FUNCTION_DISK_MB = 10240
# Loading, planning and committing a table.
_BESIDE_S = 2
# From the start that is paid to the first task: the wheels, Java, Spark, the first Python worker
# (platform: spark-session-start-time).
_WAVE_START_S = 45
# What a pass goes through because of a wave: three states behind it in table buckets, nine before and behind elsewhere.
_TRANSITIONS_OF_WAVE = 6
_CALLS_OF_WAVE_S = 3
# The slowest that compaction does, sorting (docs/performance.md): its rows wait on disk, three bytes for each that is
# read (platform: forked-workers-start-cheap).
_SORTED_MB_PER_CPU_SECOND = 11.5
_DISK_PER_MB = 3
# A function may get twice what was planned for it, because its table has grown since.
_GROWN = 2
_STEP_MB = 256


def cost_in_function(mb: float) -> float:
    """USD for a table of which so many MB are rewritten."""
    seconds = _BESIDE_S + mb / MB_PER_CPU_SECOND
    return seconds * _FUNCTION_MB / 1024 * US_EAST_1.lambda_gb_second + _LAMBDA_CALL + _STATE_TRANSITION


def cost_in_wave(mb: float, tables: int) -> float:
    """USD for one of so many tables of a wave, of each of which so many MB are rewritten."""
    workers = workers_for(int(mb * tables * _MB))
    busy_s = mb * tables / (MB_PER_CPU_SECOND * BUSY * CORES_PER_WORKER * (workers - 1))
    run = workers * max(GLUE_SHORTEST_S, _WAVE_START_S + busy_s) * US_EAST_1.glue_flex_dpu_hour / 3600
    twice = _TRANSITIONS_OF_WAVE * _STATE_TRANSITION + _CALLS_OF_WAVE_S * US_EAST_1.lambda_gb_second
    return run / tables + twice


def break_even_mb(tables: int) -> int | None:
    """From how many MB on, in steps of 256, a table costs less in a wave of so many like it; ``None``: never."""
    sizes = range(_STEP_MB, 64 * 1024, _STEP_MB)
    return next((mb for mb in sizes if cost_in_wave(mb, tables) <= cost_in_function(mb)), None)


def function_bears_mb() -> int:
    """How many MB may be planned for a function, so that it surely ends, whatever it does with them."""
    in_time = _FUNCTION_S / 2 * _SORTED_MB_PER_CPU_SECOND / _GROWN
    on_disk = _FUNCTION_DISK_MB / _DISK_PER_MB / _GROWN
    return int(min(in_time, on_disk) // _STEP_MB * _STEP_MB)


# Gather a run's wave: the tables whose plans leave steps to it become one document for one Glue run.


def gather_wave(deployment: Deployment, event: WaveEvent) -> Mapping[str, Any]:
    """Write the wave and the list of its tables to the control bucket; the answer says where, and how many workers.

    The list is what the state machine's map reads next, for the rest of each pass: items that wait for their table,
    should another run have taken it meanwhile, because what the wave did is not in the journal yet.

    Raises:
        OperationRefused: a plan is not the one that was made.
        PlanStale: another version of Icekeeper wrote it.
        StorageError: the control bucket does not answer.
    """
    control = deployment.control
    # A table that stood twice in the wave would be rewritten twice, and one of both overtaken by the other.
    plans = (*event.in_one_call, *event.wave)
    waiting = {one.item.identity.lease_key: one for one in _tables(deployment, event.run_id, plans)}
    tables = in_order(waiting.values())
    workers = workers_for(sum(table.size_bytes for table in tables))
    wave = WaveDocument(
        run_id=event.run_id,
        tables=tables,
        workers=workers,
        environment=travelling_environment(deployment.environment),
    )
    key = wave_key(event.run_id)
    digest = control.write(key, wave.model_dump(mode="json"))
    items = [table.item.model_copy(update={"after_wave": True, "wait": True}) for table in tables]
    control.write(wave_tables_key(event.run_id), [item.model_dump(mode="json") for item in items])
    rest = {"bucket": control.name, "key": wave_tables_key(event.run_id), "count": len(items)}
    return {"key": key, "digest": digest, "workers": workers, "proposals": rest}


def _tables(deployment: Deployment, run_id: str, plans: tuple[WaitingPlan, ...]) -> Iterator[WaveTable]:
    for reference in plans:
        plan = read_plan(deployment.control.read(require_of_run(reference.key, run_id), reference.digest))
        yield WaveTable(
            item=plan.item,
            plan=PlanReference(
                bucket=deployment.control.name, key=reference.key, digest=reference.digest, attempt=plan.attempt
            ),
            steps=tuple(step for step in STEPS if plan.routes.get(step) == "wave"),
            size_bytes=_bytes_planned(plan),
        )


def _bytes_planned(plan: PlanDocument) -> int:
    """Bytes that compaction is going to read; of merging position deletes alone, little beside them, none."""
    metrics = {} if plan.compaction is None else plan.compaction.get("metrics", {})
    return int(metrics.get("compact.bytes_planned", 0))
