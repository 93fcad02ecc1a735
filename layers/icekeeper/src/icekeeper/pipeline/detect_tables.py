"""Which tables a run maintains: the one that was asked for, or those that need it most in the whole fleet."""

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
    """Which tables a run maintains, and the counts of its scan (0 for a run that was asked for one table)."""

    items: tuple[Item, ...]
    reason: str
    scanned: int = 0
    not_reached: int = 0
    """Tables that the scan had no time for."""
    errors: int = 0
    """Tables and catalogs that could not be looked at."""
    empty_catalogs: int = 0
    """Configured catalogs that list no table."""


def detect_tables(deployment: Deployment, event: DetectEvent) -> tuple[Mapping[str, Any], Detected]:
    """Find the run's tables and write them to the control bucket; the answer for the state machine refers to them.

    Raises:
        OperationRefused: a run of this name has ended already.
        PolicyError: the input or the deployment's settings are wrong, or no table's policy admits the input's.
        StorageError: nothing can be detected, or written.
    """
    _require_new_name(deployment, event.run_id)
    is_scan = event.input.table is None
    found = _scheduled(deployment, event) if is_scan else _forced(deployment, event.input)
    _write(deployment, event.run_id, found.items)
    if found.items:
        # The list is there before the run is noted: of two runs that begin together the second one noted sees it.
        others = note_live_run(deployment.state.leases, event.run_id, now_ms=deployment.clock())
        if is_scan and others:
            found = _without(found, _gathered(deployment, others))
            _write(deployment, event.run_id, found.items)
        if not found.items:
            end_live_run(deployment.state.leases, event.run_id, now_ms=deployment.clock())
    tables = {
        "bucket": deployment.control.name,
        "key": proposals_key(event.run_id),
        "count": len(found.items),
    }
    answer = {"run_id": event.run_id, "started_ms": event.started_ms, "tables": tables, "reason": found.reason}
    return {**answer, "forced": not is_scan}, found


def _write(deployment: Deployment, run_id: str, items: Sequence[Item]) -> None:
    deployment.control.write(proposals_key(run_id), [item.model_dump(mode="json") for item in items])


def _require_new_name(deployment: Deployment, run_id: str) -> None:
    """Raise OperationRefused if a run of this name has ended: this run would take its documents for its own.

    Step Functions allows the name of an execution again after 90 days.
    """
    if deployment.control.find(report_key(run_id)) is not None:
        raise OperationRefused(f"a run called {run_id} has ended already, and left its report; choose another name")


def _forced(deployment: Deployment, wanted: MachineInput) -> Detected:
    name = TableName.parse(wanted.table or "")
    runtime = deployment.runtime_of(find_catalog(deployment.catalogs(), wanted.catalog))
    loaded = runtime.catalog.load(name)
    settings, identity = wanted.overrides, identity_of(runtime.catalog, loaded)
    try:
        runtime.policy(loaded, settings)  # a mistake, or too much, is told now, before anything is done
    except PolicyError:
        _claim(deployment, identity, settings)  # the error is the answer to the request: asking again changes nothing
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
        CatalogSource(one.name, partial(_open, deployment, one), may_be_empty=one.is_found)
        for one in deployment.catalogs(unreachable=unlisted.append)
    ]
    for why in unlisted:
        log.error("not every table bucket is looked at: %s", why)
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
    if not patterns:  # else requests for other tables are not served
        note_detection(deployment.state.leases, now_ms=started_ms)
    for skip in report.skipped:
        if skip.is_error:
            log.warning("%s was not looked at: %s", f"{skip.catalog} {skip.table}".strip(), skip.reason)
    for warning in report.warnings:
        log.warning("%s", warning)
    _tell(deployment, event, report)
    found = (_item(proposal, event.input, started_ms) for proposal in report.proposals)
    items = tuple(item for item in found if item is not None)
    beyond = f"; {report.beyond_limit} more, beyond max_jobs_per_detection, do" if report.beyond_limit else ""
    reason = f"{len(items)} of {report.scanned} table(s) need maintenance{beyond}"
    errors = report.errors + len(unlisted)
    return Detected(items, reason, report.scanned, report.not_reached, errors, report.empty_catalogs)


def _without(found: Detected, gathered: frozenset[str]) -> Detected:
    """Without the tables of these lease keys, which other runs have."""
    items = tuple(item for item in found.items if item.identity.lease_key not in gathered)
    left = len(found.items) - len(items)
    told = f"; {left} of them are left to runs that have not ended" if left else ""
    return replace(found, items=items, reason=f"{found.reason}{told}")


def _gathered(deployment: Deployment, run_ids: frozenset[str]) -> frozenset[str]:
    """The lease keys of the tables of these runs; a list that cannot be read bars none: leases protect tables."""
    found: set[str] = set()
    for run_id in sorted(run_ids):
        try:
            items = deployment.control.find_objects(proposals_key(run_id), Item)
        except StorageError as error:
            log.warning("which tables run %s has is not known: %s", run_id, error)
            continue
        found.update(item.identity.lease_key for item in items)
    return frozenset(found)


def _item(proposal: Proposal, wanted: MachineInput, detected_ms: int) -> Item | None:
    """The table of a proposal, with the settings of its request if it was requested, else those of the run's input.

    ``None``, with an error line, where it fits no payload: a name must not end the run of all others.
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
    """What a scan looks at, which has a cursor of its own."""
    return ",".join(patterns) or "*"


def _cursors(deployment: Deployment) -> dict[str, tuple[str, str]]:
    """Catalog and table at which the last scans stopped that ran out of time, by what they looked at.

    A scan without one, or with one that cannot be read, begins at the front.
    """
    left = deployment.control.find_hint(_CURSOR)
    after = left.get("after") if isinstance(left, dict) else None
    found = after.items() if isinstance(after, dict) else ()
    return {part: (str(at[0]), str(at[1])) for part, at in found if isinstance(at, list) and len(at) == 2}


def _tell(deployment: Deployment, event: DetectEvent, report: FleetReport) -> None:
    """Write the cursor for the next scan, and for people why each table was proposed or not."""
    cursors, part = _cursors(deployment), _part(event.input.patterns)
    cursors.pop(part, None)
    newest = [*cursors.items(), *([] if report.cursor is None else [(part, report.cursor)])][-_MOST_CURSORS:]
    deployment.control.write(_CURSOR, {"after": dict(newest)})
    deployment.control.write(f"runs/{event.run_id}/detection.json", report.to_json())
