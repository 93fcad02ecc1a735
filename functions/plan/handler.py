"""Plan one table's pass, gather a run's wave, or take up what calls have left, and write that to the control bucket."""

from __future__ import annotations

from typing import Any

import files_ahead  # noqa: F401 - this function reads files
from icekeeper.pipeline.events import PlanEvent, parse_event
from icekeeper.pipeline.one_call import RestEvent, take_up_rest
from icekeeper.pipeline.plan_table import plan_table
from icekeeper.pipeline.wave import WaveEvent, gather_wave
from idempotency import once
from observability import about, deployment, function, logger


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``Plan``, ``GatherWave`` and ``TakeUpRest``."""
    if "wave" in event:
        wave = parse_event(WaveEvent, event)
        about(wave.run_id)

        def gather() -> dict[str, Any]:
            told = dict(gather_wave(deployment(), wave))
            logger.info(
                "a wave of %d table(s)", len(wave.in_one_call) + len(wave.wave), extra={"workers": told["workers"]}
            )
            return told

        return once("wave", {"run_id": wave.run_id}, context, gather)
    if "left" in event:
        rest = parse_event(RestEvent, event)
        about(rest.run_id)
        return once("rest", {"run_id": rest.run_id}, context, lambda: dict(take_up_rest(deployment(), rest)))
    asked = parse_event(PlanEvent, event)
    about(asked.run_id, asked.item)

    def work() -> dict[str, Any]:
        plan = plan_table(deployment(), asked)
        routes = {step: route for step, route in plan.routes.items() if route != "none"}
        logger.info("%s is planned", asked.item.table, extra={"attempt": plan.attempt, "routes": routes})
        return plan.model_dump(mode="json")

    key: dict[str, Any] = {"run_id": asked.run_id, "table": asked.item.identity.spelling, "attempt": asked.attempt}
    if asked.item.after_wave:
        key["after_wave"] = True
    return once("plan", key, context, work)
