"""A pass over one table by this process: it holds the table's lease, and serves the request that is pending for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.table_identity import identity_of
from icekeeper.errors import PlanStale, PolicyError, TableUnsupported
from icekeeper.maintenance.run_pass import run_pass
from icekeeper.maintenance.served_request import served_request
from icekeeper.maintenance.table_lease import Turn, holder_name, leased
from icekeeper.pass_context.context import OperationContext
from icekeeper.report.outcome import PassOutcome
from icekeeper.state.leases import Lease
from icekeeper.state.requests import MaintenanceRequest

__all__ = ["AskedPass", "maintain_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPass:
    """A pass that is asked for; ``make_context`` resolves the policy of a loaded table and may raise PolicyError."""

    load: Callable[[], LoadedTable]
    make_context: Callable[[LoadedTable, str], OperationContext]
    """Called with the table and the run's id."""
    settings: Mapping[str, str]
    """What was set for this pass alone; says which request it serves."""
    turn: Turn


def maintain_table(asked: AskedPass) -> PassOutcome:
    """Take the table's lease, run the pass, and claim the request that it served; a dry run does only the second.

    Raises:
        PolicyError: there is no such table, or its settings are wrong.
        LeaseHeld: another run maintains the table now.
        StorageError: the table cannot be loaded, or the state does not answer.
    """
    run_id = str(uuid.uuid4())
    loaded = asked.load()
    context = asked.make_context(loaded, run_id)
    if context.dry_run:
        return run_pass(context)
    identity = identity_of(context.catalog, loaded)
    wanted = Lease(
        key=identity.key, holder=holder_name(asked.turn.command, run_id), expires_ms=0, name=str(loaded.name)
    )
    with leased(context.state.leases, wanted, asked.turn, context.clock, context.sleep) as lease:
        if asked.turn.wait_ms:  # the pass that was waited for has changed the table
            loaded = asked.load()
            if identity_of(context.catalog, loaded).key != identity.key:
                raise PlanStale(f"{context.table} was replaced by another table just now; run the pass again")
            context = asked.make_context(loaded, run_id)
        request = served_request(context, asked.settings)
        try:
            outcome = run_pass(replace(context, lease=lease, why_stop=asked.turn.why_stop))
        except (PolicyError, TableUnsupported):
            _claim(context, request)  # the error is the answer: asking again would not change it
            raise
        if not lease.is_lost:
            _claim(context, request)
        return outcome


def _claim(context: OperationContext, request: MaintenanceRequest | None) -> None:
    if request is not None:
        context.state.requests.claim(request)
