"""Assess every table of a catalog that the filters let through, within a time budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from icekeeper.catalogs.catalog import Catalog
from icekeeper.detection.assessor import Assessor
from icekeeper.detection.proposal import DetectionReport, Proposal, Skip
from icekeeper.errors import MaintenanceError
from icekeeper.model import TableName
from icekeeper.policy import Policy
from icekeeper.policy.patterns import bucket_name, matches

__all__ = ["scan", "selects_bucket", "selects_table"]

LOADING_THREADS = 4


def scan(
    catalog: Catalog,
    assess_table: Assessor,
    settings: Policy,
    *,
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
    pool = ThreadPoolExecutor(LOADING_THREADS, thread_name_prefix="icekeeper-detect")
    try:
        futures = [pool.submit(_assess_one, catalog, assess_table, table) for table in tables]
        done, _ = wait(futures, timeout=max(0.0, deadline_s - monotonic_s()))
        results = {result.table: result for result in (future.result() for future in done)}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return _report(catalog.name, tables, results, settings)


def _report(
    catalog: str, tables: list[TableName], results: dict[str, Proposal | Skip], settings: Policy
) -> DetectionReport:
    ranked = sorted(
        (result for result in results.values() if isinstance(result, Proposal)),
        key=lambda proposal: (-proposal.priority, proposal.table),
    )
    limit = settings.max_jobs_per_detection
    late = f"not reached within detection_timeout_s {settings.detection_timeout_s}"
    skipped = [
        *(result for result in results.values() if isinstance(result, Skip)),
        *(Skip(proposal.table, f"beyond max_jobs_per_detection {limit}") for proposal in ranked[limit:]),
        *(Skip(str(table), late) for table in tables if str(table) not in results),
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


def _assess_one(catalog: Catalog, assess_table: Assessor, table: TableName) -> Proposal | Skip:
    try:
        return assess_table(catalog.load(table))
    except MaintenanceError as error:
        return Skip(str(table), str(error), is_error=True)
    except OSError as error:
        return Skip(str(table), f"the table cannot be read: {error}", is_error=True)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # Documents are read as they are; one that breaks the specification must not stop the scan of the others.
        reason = f"the metadata does not follow the specification: {type(error).__name__} {error}"
        return Skip(str(table), reason, is_error=True)


def selects_bucket(settings: Policy, warehouse: str) -> bool:
    """Whether ``bucket_filter`` lets a warehouse through: a bucket's address or ARN, or a folder, by its name."""
    return matches(bucket_name(warehouse), settings.bucket_filter)


def selects_table(settings: Policy, table: TableName) -> bool:
    """Whether ``namespace_filter`` and ``table_filter`` let a table through."""
    return matches(".".join(table.namespace), settings.namespace_filter) and matches(table.name, settings.table_filter)
