"""Assess every table of a catalog that the filters let through, within a time budget."""

from __future__ import annotations

import time
from collections.abc import Callable

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.detection.budget import within_budget
from icekeeper.detection.filters import selects_bucket, selects_table
from icekeeper.detection.proposal import DetectionReport, Proposal, Skip
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.model import TableName
from icekeeper.policy import Policy

__all__ = ["LOADING_THREADS", "assess_one", "late_reason", "over_limit_reason", "scan"]

LOADING_THREADS = 4


def scan(
    catalog: Catalog,
    assess_table: Callable[[LoadedTable], Proposal | Skip],
    settings: Policy,
    *,
    threads: int = LOADING_THREADS,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> DetectionReport:
    """Load and assess the tables that ``settings`` select; ``settings`` are the deployment's, not a table's.

    A table that cannot be assessed is skipped with the reason.  Of the proposals the ``max_jobs_per_detection`` most
    urgent remain.  Tables not reached within ``detection_timeout_s`` are skipped; a request that hangs is left to
    its own timeout.

    Raises:
        StorageError: the tables of the catalog cannot be listed.
    """
    deadline_s = monotonic_s() + settings.detection_timeout_s
    tables = _selected_tables(catalog, settings)
    reached = within_budget(
        lambda table: assess_one(catalog, table, assess_table),
        tables,
        threads=threads,
        budget_s=deadline_s - monotonic_s(),
        monotonic_s=monotonic_s,
    )
    results = {str(table): result for table, result in reached.done}
    return _report(catalog.name, tables, results, settings)


def _report(
    catalog: str, tables: list[TableName], results: dict[str, Proposal | Skip], settings: Policy
) -> DetectionReport:
    ranked = sorted(
        (result for result in results.values() if isinstance(result, Proposal)),
        key=lambda proposal: (-proposal.priority, proposal.table),
    )
    limit = settings.max_jobs_per_detection
    skipped = [
        *(result for result in results.values() if isinstance(result, Skip)),
        *(Skip(proposal.table, over_limit_reason(settings)) for proposal in ranked[limit:]),
        *(Skip(str(table), late_reason(settings)) for table in tables if str(table) not in results),
    ]
    return DetectionReport(
        catalog=catalog,
        scanned=len(results),
        proposals=tuple(ranked[:limit]),
        skipped=tuple(sorted(skipped, key=lambda skip: skip.table)),
    )


def _selected_tables(catalog: Catalog, settings: Policy) -> list[TableName]:
    if not selects_bucket(settings, catalog.warehouse):
        return []
    return [table for table in catalog.list_tables() if selects_table(settings, table)]


def late_reason(settings: Policy) -> str:
    """Why a table is skipped that the time did not suffice for."""
    return f"not reached within detection_timeout_s {settings.detection_timeout_s}"


def over_limit_reason(settings: Policy) -> str:
    """Why a table is skipped although it needs work."""
    return f"beyond max_jobs_per_detection {settings.max_jobs_per_detection}"


def assess_one(
    catalog: Catalog, table: TableName, assess_table: Callable[[LoadedTable], Proposal | Skip]
) -> Proposal | Skip:
    """Load one table, once, and assess it; what speaks against that becomes the reason it is skipped."""
    try:
        try:
            loaded = catalog.load(table)
        except PolicyError as error:
            return Skip(str(table), str(error), is_error=True, is_gone=True)
        return assess_table(loaded)
    except MaintenanceError as error:
        return Skip(str(table), str(error), is_error=True)
    except OSError as error:
        return Skip(str(table), f"the table cannot be read: {error}", is_error=True)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # Documents are read as they are; one that breaks the specification must not stop the scan of the others.
        reason = f"the metadata does not follow the specification: {type(error).__name__} {error}"
        return Skip(str(table), reason, is_error=True)
