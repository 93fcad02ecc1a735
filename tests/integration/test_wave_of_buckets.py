"""In a table bucket a wave does what follows a table's compaction as soon as that is committed (rule 163)."""

from __future__ import annotations

from typing import Any

import pytest

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import StorageError
from icekeeper.pipeline import glue_job as wave_module
from icekeeper.pipeline import plan_table as routes_module
from icekeeper.pipeline.events import PlanEvent
from icekeeper.pipeline.glue_job import NO_TIME, End
from icekeeper.pipeline.plan_table import plan_table
from icekeeper.pipeline.run_leases import acquire_table_lease
from icekeeper.pipeline.run_step import run_step
from support.pipeline_deployment import RUN, Pipeline, Wave, files_of, ids_of

MERGE = "rewrite_position_deletes"
BEHIND = ["expire_snapshots", "remove_orphans", "rewrite_manifests"]


@pytest.fixture
def wave(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Wave:
    """As for table buckets; the folder of these tests is none."""
    monkeypatch.setattr(routes_module, "is_table_bucket", lambda _: True)
    return Wave(pipeline, ("u",))


def plan_of_rest(wave: Wave, name: str) -> Any:
    """The plan of what is left of a pass after the wave."""
    (item,) = (one for one in wave.rest if one.table == name)
    acquire_table_lease(wave.deployment, RUN, item)
    plan = plan_table(wave.deployment, PlanEvent(run_id=RUN, item=item, waves=True))
    return plan, wave.deployment.control.read(plan.key, plan.digest)


def test_one_table_is_done_whatever_the_others_still_do(wave: Wave, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of a table in order, before the next table has begun."""
    order: list[tuple[str, str]] = []

    def told(deployment: Any, event: Any, engine: Any, **options: Any) -> Any:
        order.append((event.item.table, event.step))
        return run_step(deployment, event, engine, **options)

    monkeypatch.setattr(wave_module, "run_step", told)
    monkeypatch.setattr(wave_module, "tables_at_once", lambda tables, workers: 1)
    rows = {name: ids_of(wave.pipeline, name) for name in wave.items}
    assert wave.run(LocalEngine(1)) == dict.fromkeys(wave.items, End.DONE)
    for number, name in enumerate(table.item.table for table in wave.document.tables):
        steps = [step for table, step in order if table == name]
        assert [step for step in steps if step in ("compact", *BEHIND)] == ["compact", *BEHIND]
        assert order[number * len(steps) : (number + 1) * len(steps)] == [(name, step) for step in steps]
    for name in wave.items:
        assert (files_of(wave.pipeline, name), ids_of(wave.pipeline, name)) == (1, rows[name])
        assert wave.outcome(name, "expire_snapshots")["metrics"]["expire_snapshots.snapshots_expired"] > 0
        plan, document = plan_of_rest(wave, name)
        assert set(plan.routes.values()) == {"none"}
        assert set(document["outcomes"]) == {MERGE}  # which has nothing to do


def test_a_step_that_fails_stops_neither_the_next_nor_another_table(
    wave: Wave, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(deployment: Any, event: Any, engine: Any, **options: Any) -> Any:
        if (event.item.table, event.step) == ("ns.u", "expire_snapshots"):
            raise StorageError("no answer")
        return run_step(deployment, event, engine, **options)

    monkeypatch.setattr(wave_module, "run_step", failing)
    assert wave.run(LocalEngine(1)) == dict.fromkeys(wave.items, End.DONE)
    assert wave.outcome("ns.u", "expire_snapshots")["status"] == "failed"
    assert wave.outcome("ns.u", "rewrite_manifests")["status"] == "succeeded"
    assert wave.outcome("ns.t", "expire_snapshots")["status"] == "succeeded"


def test_what_the_wave_had_no_time_for_and_fits_a_function_follows_it(wave: Wave) -> None:
    times = iter([0.0])
    ends = wave.run(LocalEngine(1), monotonic=lambda: next(times, 1e9))
    assert ends == dict.fromkeys(wave.items, End.LEFT_OUT)
    plan, document = plan_of_rest(wave, "ns.u")
    assert document["outcomes"]["compact"]["reason"] == NO_TIME
    assert {step for step, route in plan.routes.items() if route == "function"} == set(BEHIND)


def test_large_manifests_join_the_wave_without_a_compaction(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "is_table_bucket", lambda _: True)
    pipeline.deployment = pipeline.open(ICEKEEPER_SMALL_MANIFESTS="0", ICEKEEPER_REWRITE_ENABLED="false")
    item = pipeline.detect()[1][0]
    acquire_table_lease(pipeline.deployment, RUN, item)
    plan = plan_table(pipeline.deployment, PlanEvent(run_id=RUN, item=item, waves=True))
    assert plan.routes["rewrite_manifests"] == "wave"
    assert plan.routes["expire_snapshots"] == "function"  # it comes before


def test_elsewhere_a_wave_does_no_more_than_compaction(pipeline: Pipeline) -> None:
    """Its job may not delete files."""
    wave = Wave(pipeline, ("u",))
    routes = wave.plans["ns.u"].routes
    assert {step for step, route in routes.items() if route == "wave"} == {"compact"}
    assert [routes[step] for step in BEHIND] == ["function"] * 3
