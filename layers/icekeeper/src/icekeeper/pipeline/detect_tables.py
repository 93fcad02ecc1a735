"""Which tables a run maintains: the requested table, or those of the whole fleet that need it most."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from icekeeper.catalogs.catalog import Catalog, identity_of
from icekeeper.catalogs.configured import ConfiguredCatalog, find_catalog
from icekeeper.detection.detect import detect
from icekeeper.detection.list_tables import CatalogSource
from icekeeper.detection.proposal import FleetReport, Proposal
from icekeeper.errors import OperationRefused, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.pipeline.control_bucket import proposals_key, report_key
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import DetectEvent, Item, MachineInput, parse_event
from icekeeper.state.identity import TableIdentity
from icekeeper.state.leases import end_live_run, note_detection, note_live_run

log = logging.getLogger(__name__)

_CURSOR = "detection/cursor.json"


@dataclass(frozen=True, slots=True)
class Detected:
    """Which tables a run maintains, and the counts of its scan (0 for a run over one requested table)."""

    items: tuple[Item, ...]
    reason: str
    scanned: int = 0
    not_reached: int = 0
    """Tables that the scan did not reach in time."""
    errors: int = 0
    """Tables and catalogs that could not be read."""
    empty_catalogs: int = 0
    """Configured catalogs without any table."""


def detect_tables(deployment: Deployment, event: DetectEvent) -> tuple[Mapping[str, Any], Detected]:
    """Find the run's tables and write them to the control bucket; the answer for the state machine refers to them.

    Raises:
        OperationRefused: a run of this name has already ended.
        PolicyError: the input or the deployment's settings are wrong, or no table's policy permits the input's
            settings.
        StorageError: detection failed, or its result cannot be written.
    """
    _require_new_name(deployment, event.run_id)
    is_scan = event.input.table is None
    found = _scheduled(deployment, event) if is_scan else _forced(deployment, event.input)
    _write(deployment, event.run_id, found.items)
    if found.items:
        # Write the list before the run is recorded: if two runs begin together, the run recorded second sees the list
        # of the first.
        others = note_live_run(deployment.state.leases, event.run_id, now_ms=deployment.clock())
        if is_scan and others:
            found = _without(found, _gathered(deployment, others))
            _write(deployment, event.run_id, found.items)
        if not found.items:
            end_live_run(deployment.state.leases, event.run_id, now_ms=deployment.clock())
    tables = {"bucket": deployment.control.name, "key": proposals_key(event.run_id), "count": len(found.items)}
    answer = {"run_id": event.run_id, "started_ms": event.started_ms, "tables": tables, "reason": found.reason}
    return {**answer, "forced": not is_scan}, found


def _write(deployment: Deployment, run_id: str, items: Sequence[Item]) -> None:
    deployment.control.write(proposals_key(run_id), [item.model_dump(mode="json") for item in items])


def _require_new_name(deployment: Deployment, run_id: str) -> None:
    """Raise OperationRefused if a run of this name has ended: this run would mistake that run's documents for its own.

    Step Functions allows the name of an execution again after 90 days.
    """
    if deployment.control.find(report_key(run_id)) is not None:
        raise OperationRefused(f"a run named {run_id} has already ended and its report exists; choose another name")


def _forced(deployment: Deployment, wanted: MachineInput) -> Detected:
    name = TableName.parse(wanted.table or "")
    runtime = deployment.runtime_of(find_catalog(deployment.catalogs(), wanted.catalog))
    loaded = runtime.catalog.load(name)
    settings, identity = wanted.overrides, identity_of(runtime.catalog, loaded)
    try:
        runtime.policy(loaded, settings)  # reject a malformed or forbidden setting now, before anything is done
    except PolicyError:
        _claim(deployment, identity, settings)  # the error answers the request: a retry would fail the same way
        raise
    item = Item(
        catalog=identity.catalog.name,
        warehouse=identity.catalog.warehouse,
        table=str(identity.table),  # as the catalog calls it
        uuid=identity.uuid,
        location=identity.location,
        reasons=("asked for",),
        priority=1.0,
        forced=True,
        settings=settings,
        wait=wanted.wait,
        in_job=wanted.in_job,
    )
    return Detected((item,), "asked for")


def _claim(deployment: Deployment, identity: TableIdentity, settings: Mapping[str, str]) -> None:
    request = deployment.state.requests.of_table(identity)
    if request is not None and dict(request.settings) == settings:
        deployment.state.requests.claim(request)


def _scheduled(deployment: Deployment, event: DetectEvent) -> Detected:
    """The tables that need maintenance."""
    started_ms, patterns = deployment.clock(), event.input.patterns
    unlisted: list[StorageError] = []
    sources = [
        CatalogSource(catalog.name, partial(_open, deployment, catalog), may_be_empty=catalog.is_found)
        for catalog in deployment.catalogs(unreachable=unlisted.append)
    ]
    for why in unlisted:
        log.error("some table buckets are left out: %s", why)
    report = detect(
        sources,
        deployment.state,
        TablePolicies(deployment.environment, of_requests=True),
        overrides=event.input.overrides,
        clock=deployment.clock,
        cursor=_cursors(deployment).get(_part(patterns)),
        run=event.run_id,
        patterns=patterns,
    )
    if not patterns:  # a scan of a part does not serve requests for other tables
        note_detection(deployment.state.leases, now_ms=started_ms)
    for skip in report.skipped:
        if skip.is_error:
            log.warning("%s was not scanned: %s", f"{skip.catalog} {skip.table}".strip(), skip.reason)
    for warning in report.warnings:
        log.warning("%s", warning)
    _write_report(deployment, event, report)
    found = (_item(proposal, event.input, started_ms) for proposal in report.proposals)
    items = tuple(item for item in found if item is not None)
    beyond = f"; {report.beyond_limit} more, beyond max_jobs_per_detection, do" if report.beyond_limit else ""
    reason = f"{len(items)} of {report.scanned} table(s) need maintenance{beyond}"
    errors = report.errors + len(unlisted)
    return Detected(items, reason, report.scanned, report.not_reached, errors, report.empty_catalogs)


def _without(found: Detected, gathered: frozenset[str]) -> Detected:
    """Leave out the tables with these lease keys, which other runs maintain."""
    items = tuple(item for item in found.items if item.identity.lease_key not in gathered)
    left = len(found.items) - len(items)
    suffix = f"; {left} of them are left to runs that have not ended" if left else ""
    return replace(found, items=items, reason=f"{found.reason}{suffix}")


def _gathered(deployment: Deployment, run_ids: frozenset[str]) -> frozenset[str]:
    """The lease keys of these runs' tables. A list that cannot be read excludes no table: leases still protect
    tables."""
    found: set[str] = set()
    for run_id in sorted(run_ids):
        try:
            items = deployment.control.find_objects(proposals_key(run_id), Item)
        except StorageError as error:
            log.warning("cannot read which tables run %s maintains: %s", run_id, error)
            continue
        found.update(item.identity.lease_key for item in items)
    return frozenset(found)


def _item(proposal: Proposal, wanted: MachineInput, detected_ms: int) -> Item | None:
    """The table of a proposal, with the settings of its request if it was requested, else those of the run's input.

    ``None``, with an error in the log, if it does not fit into a payload: one table's name must not end the run for all
    others.
    """
    document = {**proposal.to_json(), "detected_ms": detected_ms}
    try:
        return parse_event(Item, document if proposal.is_requested else {**document, "settings": wanted.overrides})
    except PolicyError as error:
        log.error("%r of catalog %s is left out: %s", proposal.table, proposal.catalog, error)
        return None


def _open(deployment: Deployment, configured: ConfiguredCatalog) -> Catalog:
    return deployment.runtime_of(configured).catalog


_MOST_CURSORS = 16


def _part(patterns: Sequence[str]) -> str:
    """The key of a scan's cursor: the patterns that the scan is limited to."""
    return ",".join(patterns) or "*"


def _cursors(deployment: Deployment) -> dict[str, tuple[str, str]]:
    """The catalog and table at which scans that ran out of time stopped, by the patterns of the scan.

    A scan without a readable cursor begins at the first table.
    """
    left = deployment.control.find_hint(_CURSOR)
    after = left.get("after") if isinstance(left, dict) else None
    found = after.items() if isinstance(after, dict) else ()
    return {part: (str(at[0]), str(at[1])) for part, at in found if isinstance(at, list) and len(at) == 2}


def _write_report(deployment: Deployment, event: DetectEvent, report: FleetReport) -> None:
    """Write the cursor for the next scan, and a document for people: why each table was proposed or not."""
    cursors, part = _cursors(deployment), _part(event.input.patterns)
    cursors.pop(part, None)
    newest = [*cursors.items(), *([] if report.cursor is None else [(part, report.cursor)])][-_MOST_CURSORS:]
    deployment.control.write(_CURSOR, {"after": dict(newest)})
    deployment.control.write(f"runs/{event.run_id}/detection.json", report.to_json())
