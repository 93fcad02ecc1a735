"""What compacting one table costs in a function and in a wave, and up to which size a function is cheaper.  Pure.

``SmallCompactionMb`` has its default from here (rule 146).  A function pays for its memory while one core works; a wave
for whole workers, its driver among them, and for their start-up, which its tables share.
"""

from __future__ import annotations

from icekeeper.pipeline.wave_limits import BUSY, CORES_PER_WORKER, MB_PER_CPU_SECOND, workers_for
from icekeeper.prices import GLUE_SHORTEST_S, US_EAST_1

__all__ = ["break_even_mb", "cost_in_function", "cost_in_wave", "function_bears_mb"]

_MB = 1024**2
_LAMBDA_CALL = US_EAST_1.lambda_million_calls / 1e6
_STATE_TRANSITION = US_EAST_1.step_functions_1000_transitions / 1000
_FUNCTION_MB = 3008
"""Of memory: the default of CompactSmallMemoryMb, with one whole core."""
_FUNCTION_S = 900
_FUNCTION_DISK_MB = 10240
# Loading, planning and committing a table.
_BESIDE_S = 2
# From the start that is paid to the first task: the wheels, Java, Spark, the first Python worker (platform 7).
_WAVE_START_S = 45
# What a pass goes through because of a wave: three states behind it in table buckets, nine before and behind elsewhere.
_TRANSITIONS_OF_WAVE = 6
_CALLS_OF_WAVE_S = 3
# The slowest that compaction does, sorting (docs/performance.md): its rows wait on disk, three bytes for each that is
# read (platform 51).
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
