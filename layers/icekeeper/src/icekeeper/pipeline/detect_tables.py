"""Which tables a run maintains: the one that was asked for, or those that need it most in the whole fleet."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from icekeeper.detection.proposal import DetectionReport
from icekeeper.errors import LeaseHeld, MaintenanceError, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.operations.table_handle import identity_of
from icekeeper.pipeline.deployment import FLEET_LEASE, Deployment
from icekeeper.pipeline.events import DetectEvent, Item, MachineInput
from icekeeper.pipeline.turn import lease_ttl_ms
from icekeeper.policy import layers_for, resolve
from icekeeper.state.leases import Lease

__all__ = ["Detected", "detect_tables", "end_scheduled_run"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Detected:
    """What a run is going to maintain, and what a scan came to."""

    items: tuple[Item, ...]
    reason: str
    scanned: int = 0
    not_reached: int = 0
    errors: int = 0
    """Tables and catalogs that could not be looked at."""


def detect_tables(deployment: Deployment, event: DetectEvent) -> tuple[Mapping[str, Any], Detected]:
    """Write the run's proposals to the control bucket; the answer refers to them.

    Raises:
        PolicyError: the input or the deployment's settings are wrong.
        StorageError: nothing can be detected, or written.
    """
    key = f"runs/{event.run_id}/proposals.json"
    try:
        found = _forced(deployment, event.input) if event.input.table is not None else _scheduled(deployment, event)
        deployment.control.write(key, [item.model_dump(mode="json") for item in found.items])
    except MaintenanceError:
        with suppress(StorageError):  # what is not given back runs out
            end_scheduled_run(deployment, event.run_id)
        raise
    if not found.items:
        end_scheduled_run(deployment, event.run_id)
    proposals = {"bucket": deployment.control.name, "key": key, "count": len(found.items)}
    return {"run_id": event.run_id, "proposals": proposals, "reason": found.reason}, found


def end_scheduled_run(deployment: Deployment, run_id: str) -> None:
    """Give the fleet's lease back, if this run has it."""
    deployment.state.leases.release(Lease(key=FLEET_LEASE, holder=run_id, expires_ms=0))


def _forced(deployment: Deployment, wanted: MachineInput) -> Detected:
    name = TableName.parse(wanted.table or "")
    runtime = deployment.runtime(wanted.catalog or _only_catalog(deployment))
    loaded = runtime.catalog.load(name)
    settings = {**wanted.settings, **({} if wanted.operations is None else {"operations": wanted.operations})}
    runtime.policy(loaded, settings)  # a mistake is told now, not by a pass that fails
    identity = identity_of(runtime.catalog, loaded)
    item = Item(
        catalog=identity.catalog,
        warehouse=identity.warehouse,
        table=str(name),
        uuid=identity.uuid,
        reasons=("asked for",),
        priority=1.0,
        forced=True,
        settings=settings,
        wait=wanted.wait,
    )
    return Detected((item,), "asked for")


def _only_catalog(deployment: Deployment) -> str:
    names = [address.name for address in deployment.addresses()]
    if len(names) != 1:
        raise PolicyError(f"name the table's catalog; this deployment has: {', '.join(names) or 'none'}")
    return names[0]


def _scheduled(deployment: Deployment, event: DetectEvent) -> Detected:
    settings = resolve(layers_for({}, deployment.environment, event.input.settings)).policy
    try:
        deployment.state.leases.acquire(FLEET_LEASE, event.run_id, now_ms=deployment.clock(), ttl_ms=lease_ttl_ms())
    except LeaseHeld as error:
        return Detected((), f"another run is under way: {error}")
    items: list[Item] = []
    scanned = not_reached = errors = 0
    for address in deployment.addresses():
        try:
            runtime = deployment.runtime(address.name)
            report = runtime.detect(event.input.settings)
            warehouse = runtime.catalog.warehouse
            requested = _requested(deployment, address.name, warehouse)
        except MaintenanceError as error:  # one catalog that fails does not stop the others
            log.error("catalog %s was not scanned: %s", address.name, error)
            errors += 1
            continue
        asked_for = {item.table for item in requested}
        items += [*requested, *(item for item in _proposed(report, warehouse) if item.table not in asked_for)]
        scanned += report.scanned
        not_reached += sum(skip.reason.startswith("not reached") for skip in report.skipped)
        errors += sum(skip.is_error for skip in report.skipped)
    items.sort(key=lambda item: (-item.priority, item.catalog, item.table))
    chosen = items[: settings.max_jobs_per_detection]
    reason = f"{len(chosen)} of {scanned} table(s) need maintenance"
    return Detected(tuple(chosen), reason, scanned, not_reached, errors)


def _requested(deployment: Deployment, catalog: str, warehouse: str) -> Sequence[Item]:
    return [
        Item(
            catalog=catalog,
            warehouse=warehouse,
            table=str(request.identity.table),
            uuid=request.identity.uuid,
            reasons=("requested by a person",),
            priority=1.0,
            forced=True,
            settings=dict(request.settings),
        )
        for request in deployment.state.requests.pending(catalog, warehouse)
    ]


def _proposed(report: DetectionReport, warehouse: str) -> Sequence[Item]:
    return [
        Item(
            catalog=report.catalog,
            warehouse=warehouse,
            table=proposal.table,
            uuid=proposal.uuid,
            reasons=proposal.reasons,
            priority=proposal.priority,
        )
        for proposal in report.proposals
    ]
