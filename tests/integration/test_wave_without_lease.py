"""A table whose lease is gone before a step begins is left out and due again; the wave is not run anew for it."""

from __future__ import annotations

from typing import Any

import pytest

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import LeaseLost
from icekeeper.pipeline import glue_job as wave_module
from icekeeper.pipeline.events import PlanEvent
from icekeeper.pipeline.glue_job import End
from icekeeper.pipeline.plan_table import plan_table
from icekeeper.pipeline.run_leases import acquire_table_lease
from icekeeper.pipeline.run_step import run_step
from support.pipeline_deployment import RUN, Pipeline, Wave, files_of


def test_a_lease_that_is_lost_before_a_step_leaves_its_table_out(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end that cannot be told would have the whole wave tried again (rule 145)."""
    wave = Wave(pipeline, ["u"])

    def step(deployment: Any, event: Any, engine: Any) -> Any:
        if event.item.table == "ns.u":
            raise LeaseLost("run-9 took it")
        return run_step(deployment, event, engine)

    monkeypatch.setattr(wave_module, "run_step", step)
    assert wave.run(LocalEngine(1)) == {"ns.t": End.DONE, "ns.u": End.LEFT_OUT}
    assert (files_of(pipeline, "ns.t"), files_of(pipeline, "ns.u")) == (1, 2)
    (rest,) = (item for item in wave.rest if item.table == "ns.u")
    acquire_table_lease(wave.deployment, RUN, rest)
    plan = plan_table(wave.deployment, PlanEvent(run_id=RUN, item=rest, waves=True))
    told = pipeline.deployment.control.read(plan.key, plan.digest)["outcomes"]["compact"]
    assert (told["status"], told["reason"]) == ("skipped", "run-9 took it")
