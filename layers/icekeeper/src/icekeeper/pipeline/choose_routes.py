"""Where each step of one pass runs: in a function, as a Glue job, or in its run's wave (rule 144, rule 163)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from icekeeper.catalogs.addresses import is_table_bucket
from icekeeper.operation_facts import STEP_FACTS, STEPS, Measure, StepFacts
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import Item, PlanEvent, Route
from icekeeper.pipeline.routes import route

__all__ = ["choose_routes", "may_be_in_wave"]


def choose_routes(
    deployment: Deployment,
    event: PlanEvent,
    due: Collection[str],
    size: Mapping[Measure, int | None],
    outgrown: Collection[str],
) -> dict[str, Route]:
    """The route of every step: ``none`` of those that are not ``due``; ``outgrown`` were too much for a function."""
    limits = deployment.settings.limits
    outgrown = STEPS if event.item.in_job else outgrown
    routes = {step.name: route(step, size, limits, outgrown) if step.name in due else "none" for step in STEP_FACTS}
    # A pass that somebody asked for waits for no other table.
    if event.waves and event.item.is_proposed and not event.item.after_wave:
        _leave_to_wave(event.item, routes)
    return routes


def may_be_in_wave(step: StepFacts, item: Item) -> bool:
    """Whether a wave may do a step of this table; its job may not delete, which in table buckets nobody does."""
    return step.in_waves or (step.in_waves_of_buckets and is_table_bucket(item.warehouse))


def _leave_to_wave(item: Item, routes: dict[str, Route]) -> None:
    """Leave to the wave what needs a job; in table buckets also what follows, so that no table waits for another."""
    is_left = False
    for step in STEP_FACTS:
        if not may_be_in_wave(step, item):
            continue
        follows = is_left and is_table_bucket(item.warehouse) and routes[step.name] != "none"
        if routes[step.name] == "glue" or follows:
            routes[step.name], is_left = "wave", True
