"""Which engine ``--engine auto`` takes, and why (pure).

A local Spark session takes seconds to start and runs the same Arrow code (platform 1, platform 7).  So Spark is taken
where it is at hand or has more machines, and else for sorts only that this machine's memory does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from icekeeper.engines.names import EngineName
from icekeeper.engines.spark_master import is_elsewhere
from icekeeper.text import size_text

__all__ = ["Choice", "Surroundings", "choose", "choose_for_sort"]

# Bytes that a sort keeps on disk meanwhile, per byte of its Parquet files (platform 51).
_SPILLED_PER_INPUT_BYTE = 3


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the choice depends on."""

    spark_is_installed: bool
    has_java: bool
    """Whether this machine has a Java of whichever version."""
    under_submit: bool
    """Whether ``spark-submit`` has started this process, as it does in a Glue job."""
    has_session: bool
    """Whether a Spark session runs in this process."""
    master: str | None
    """The master that Spark's own settings name."""
    memory_bytes: int
    """Of this machine, for this process."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine, and the reason in words that follow its name."""

    engine: EngineName
    reason: str


def choose(found: Surroundings) -> Choice:
    """The engine for work that is divided into independent tasks."""
    if not found.spark_is_installed:
        return Choice(EngineName.LOCAL, "PySpark is not installed")
    if found.under_submit:
        return Choice(EngineName.SPARK, "started by spark-submit")
    if found.has_session:
        return Choice(EngineName.SPARK, "a Spark session runs in this process")
    if is_elsewhere(found.master):
        return Choice(EngineName.SPARK, f"Spark's settings name the master {found.master}")
    return Choice(EngineName.LOCAL, "no Spark session or cluster is at hand")


def choose_for_sort(found: Surroundings, input_bytes: int | None) -> Choice:
    """The engine for a sort that all workers do together; ``None``: how much it reads is not known.

    Items wait on disk between workers, and a worker's memory does not grow with them.  Up to the size of the memory
    they are still there when they are read; beyond it both engines go by the disk, and the sort takes so long that
    Spark's repetition of failed tasks is worth its start: a local worker that dies ends the whole sort.
    """
    choice = choose(found)
    spilled = (input_bytes or 0) * _SPILLED_PER_INPUT_BYTE
    can_start_spark = found.spark_is_installed and found.has_java
    if choice.engine is EngineName.SPARK or not can_start_spark or spilled <= found.memory_bytes:
        return choice
    memory = size_text(found.memory_bytes)
    return Choice(
        EngineName.SPARK, f"a sort keeps about {size_text(spilled)} meanwhile, this machine's memory is {memory}"
    )
