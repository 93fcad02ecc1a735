"""Where each step of a pass runs: in a function, or as a Glue job.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from icekeeper.health.examine import summary_counter
from icekeeper.operation_facts import Limit, Measure, StepFacts
from icekeeper.pipeline.events import Route

__all__ = ["route", "table_size"]


def table_size(summary: Mapping[str, str], bytes_to_compact: int) -> Mapping[Measure, int | None]:
    """The size of a table by each measure, from the summary of its head; ``None`` where the summary has no counter."""
    data_files, delete_files = (summary_counter(summary, f"total-{kind}-files") for kind in ("data", "delete"))
    total_bytes = summary_counter(summary, "total-files-size")
    return {
        Measure.BYTES_TO_COMPACT: bytes_to_compact,
        Measure.TOTAL_BYTES: total_bytes,
        Measure.BYTES_WITH_DELETES: 0 if delete_files == 0 else total_bytes,
        Measure.FILES: None if data_files is None or delete_files is None else data_files + delete_files,
    }


def route(
    step: StepFacts, size: Mapping[Measure, int | None], limits: Mapping[Limit, int], outgrown: Collection[str] = ()
) -> Route:
    """Where a step runs; ``outgrown`` are the steps that a function could not finish.

    An unknown size counts as too large for a function.
    """
    if step.job is None:
        return "function"
    amount = size[step.job.measure]
    fits = amount is not None and amount <= step.job.times * limits[step.job.limit]
    return "function" if fits and step.name not in outgrown else "glue"
