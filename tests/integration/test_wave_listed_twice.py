"""A table that stands twice in a wave is maintained as once: its rows stay, and nobody else is kept out (rule 144)."""

from __future__ import annotations

import threading
from typing import Any

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.pipeline.events import parse_event
from icekeeper.pipeline.glue_job import End, run_wave
from icekeeper.pipeline.run_leases import acquire_table_lease
from icekeeper.pipeline.wave import WaveEvent, gather_wave
from support.pipeline_deployment import RUN, Pipeline, Wave, files_of, ids_of

NAMES = ("ns.t", "ns.u", "ns.v")


class Together(LocalEngine):
    """Both of a table's works are planned before either rewrites."""

    def __init__(self) -> None:
        super().__init__(1)
        self.planned = threading.Barrier(6)

    def map(self, *args: Any) -> Any:
        self.planned.wait(20)
        return super().map(*args)


def test_a_table_that_waits_twice_is_gathered_once(pipeline: Pipeline) -> None:
    wave = Wave(pipeline)
    waiting = [{"key": plan.key, "digest": plan.digest} for plan in (*wave.plans.values(), *wave.plans.values())]
    event = parse_event(WaveEvent, {"run_id": RUN, "wave": waiting})
    assert gather_wave(wave.deployment, event) == wave.answer


def test_one_that_is_at_work_twice_loses_no_row(pipeline: Pipeline) -> None:
    wave = Wave(pipeline)
    rows = {name: ids_of(pipeline, name) for name in NAMES}
    tables = wave.document.tables
    twice = wave.document.model_copy(update={"tables": (*tables, *tables), "workers": 4})
    ends = run_wave(wave.deployment, twice, Together())
    assert set(ends.values()) <= {End.DONE, End.LEFT_OUT}
    for name in NAMES:
        assert (files_of(pipeline, name), ids_of(pipeline, name)) == (1, rows[name])
        acquire_table_lease(wave.deployment, "another run", wave.items[name], in_wave=True)
