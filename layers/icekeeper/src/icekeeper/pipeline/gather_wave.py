"""Gather a run's wave: the tables whose plans leave steps to it become one document for one Glue run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from icekeeper.operation_facts import STEPS
from icekeeper.pipeline.control_bucket import require_of_run
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import PlanReference
from icekeeper.pipeline.plan_document import PlanDocument, read_plan
from icekeeper.pipeline.settings import travelling_environment
from icekeeper.pipeline.wave_document import WaitingPlan, WaveDocument, WaveEvent, WaveTable, wave_key, wave_tables_key
from icekeeper.pipeline.wave_limits import in_order, workers_for

__all__ = ["gather_wave"]


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
