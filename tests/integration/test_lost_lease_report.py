"""A pipeline step that loses its lease at work says nothing of its table: detection must look at it again."""

from __future__ import annotations

from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from support.pipeline_deployment import HOUR_MS, RUN, Pipeline


def test_a_step_that_lost_its_lease_at_work_does_not_silence_its_table(pipeline: Pipeline) -> None:
    """The step ended with a refusal of its own; it was remembered as nothing to do, until the table's next commit."""
    pipeline.deployment = pipeline.open(ICEKEEPER_MIN_INPUT_FILES="5", ICEKEEPER_MAX_SNAPSHOTS_TO_KEEP="100")
    (item,) = pipeline.detect()[1]
    acquire_table_lease(pipeline.deployment, RUN, item)
    plan = pipeline.plan(item)

    def oversleep(what: str, done: int, total: int) -> None:
        pipeline.clock.now_ms += 10 * HOUR_MS
        if done == total:
            acquire_table_lease(pipeline.deployment, "run-2", item)

    assert pipeline.run(item, plan, "compact", progress=oversleep)["status"] == "refused"
    release_table_lease(pipeline.deployment, "run-2", item)
    acquire_table_lease(pipeline.deployment, RUN, item)
    for step in ("expire_snapshots", "remove_orphans", "rewrite_manifests", "rewrite_position_deletes"):
        pipeline.run(item, plan, step)
    assert pipeline.report(item, plan).status == "partial"
    release_table_lease(pipeline.deployment, RUN, item)
    seen = pipeline.deployment.state.last_seen(item.identity)
    assert seen is not None
    assert seen.fingerprint == ""
    assert [one.table for one in pipeline.detect("run-3")[1]] == ["ns.t"]
