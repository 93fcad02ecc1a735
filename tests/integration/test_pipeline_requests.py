"""A person's request for a pass: claimed once it is planned, kept while it is not served, answered if it cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from icekeeper.errors import PolicyError, StorageError
from icekeeper.pipeline.control_bucket import ControlBucket
from icekeeper.pipeline.run_leases import acquire_table_lease
from icekeeper.state.store import MaintenanceRequest
from support.pipeline_deployment import RUN, Pipeline, broken


def requested(pipeline: Pipeline, requested_ms: int, **settings: str) -> MaintenanceRequest:
    """A request for the table, filed."""
    request = MaintenanceRequest(identity=pipeline.identity, requested_ms=requested_ms, settings=settings)
    pipeline.deployment.state.requests.file(request)
    return request


def pending(pipeline: Pipeline) -> tuple[MaintenanceRequest, ...]:
    return pipeline.deployment.state.requests.pending()


def test_a_request_is_claimed_once_its_plan_is_there(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash before leaves it to the next run; one between plan and claim is made good by the repetition."""
    request = requested(pipeline, 1, operations="compact")
    (item,) = pipeline.detect(table="ns.t", operations="compact")[1]
    acquire_table_lease(pipeline.deployment, RUN, item)
    store = type(pipeline.deployment.state.requests)
    with monkeypatch.context() as patch:
        patch.setattr(ControlBucket, "write", broken)
        with pytest.raises(StorageError):
            pipeline.plan(item)
    assert pending(pipeline) == (request,)
    with monkeypatch.context() as patch:
        patch.setattr(store, "claim", broken)
        with pytest.raises(StorageError):
            pipeline.plan(item)
    assert pending(pipeline) == (request,)
    pipeline.plan(item)
    assert pending(pipeline) == ()


def test_what_is_requested_during_a_pass_stays_for_the_next(pipeline: Pipeline) -> None:
    requested(pipeline, 1)
    item, _ = pipeline.begin()
    assert pending(pipeline) == ()
    newer = requested(pipeline, 2)
    pipeline.plan(item, attempt=2)
    assert pending(pipeline) == (newer,)


def test_a_request_refreshed_while_it_is_planned_stays(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    requested(pipeline, 1)
    write, newer = ControlBucket.write, []

    def refresh(self: ControlBucket, key: str, document: Any) -> str:
        if key.endswith("/plan.json"):
            newer.append(requested(pipeline, 2))
        return write(self, key, document)

    monkeypatch.setattr(ControlBucket, "write", refresh)
    pipeline.begin()
    assert pending(pipeline) == tuple(newer)


def test_a_pass_with_other_settings_does_not_serve_a_request(pipeline: Pipeline) -> None:
    request = requested(pipeline, 1, operations="expire_snapshots")
    pipeline.begin(operations="compact")
    assert pending(pipeline) == (request,)


@pytest.mark.parametrize("happens", ["dropped", "wrong settings"])
def test_a_request_that_cannot_be_served_is_answered_once(pipeline: Pipeline, happens: str) -> None:
    settings = {} if happens == "dropped" else {"min_input_files": "2"}
    requested(pipeline, 1, **settings)
    (item,) = pipeline.detect(table="ns.t", settings=settings)[1]
    acquire_table_lease(pipeline.deployment, RUN, item)
    if happens == "dropped":
        pipeline.table.pyiceberg.drop_table("ns.t")
        pipeline.plan(item)
    else:
        with pipeline.table.table.transaction() as transaction:
            transaction.set_properties({"icekeeper.max_snapshots_to_keep": "few"})
        with pytest.raises(PolicyError):
            pipeline.plan(item)
    stored = pipeline.deployment.state.requests.pending()
    assert stored == ()
