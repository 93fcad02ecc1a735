"""A pass over one table by this process: it holds the table's lease, and serves the request that is pending for it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.catalogs.pointer import keeping_documents
from icekeeper.errors import PlanStale, PolicyError, StorageError, TableUnsupported
from icekeeper.machine.metering import counting
from icekeeper.machine.resources import search_cycles_seldom
from icekeeper.maintenance.run_pass import run_pass
from icekeeper.maintenance.served_request import served_request
from icekeeper.maintenance.table_lease import Turn, leased
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Policy
from icekeeper.report.outcome import PassOutcome
from icekeeper.state.cut_offs import CutWork, forget_cut
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.store import StateStore

__all__ = ["AskedPass", "maintain_table"]


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AskedPass:
    """A pass that is asked for; ``make_context`` gets the loaded table and the run's id, and may raise PolicyError."""

    catalog: Catalog
    state: StateStore
    table: TableName
    settings: Mapping[str, str]
    """What was set for this pass alone; says which request it serves."""
    make_context: Callable[[LoadedTable, str], OperationContext]
    turn: Turn | None
    """``None``: a dry run, which takes no lease and serves no request."""
    schedule: str | None = None
    """The schedule that is forced; ``None``: of a policy with schedules what is due."""

    def pending(self, loaded: LoadedTable, policy: Policy | None) -> MaintenanceRequest | None:
        """The request that the pass serves; of a policy that is wrong, one with the same settings."""
        return served_request(self.state.requests, identity_of(self.catalog, loaded), self.settings, policy)

    def claim(self, request: MaintenanceRequest | None) -> None:
        """Claim the request that was served, if there was one."""
        if request is not None:
            self.state.requests.claim(request)


def maintain_table(asked: AskedPass) -> PassOutcome:
    """Take the table's lease, run the pass, and claim the request that it served; a dry run only runs it.

    A request is claimed once its pass has ended, so that one whose process was killed is left to the next.  An error of
    the settings or the table is the answer to a request too: asking again would not change it.

    Raises:
        PolicyError: there is no such table, or its settings are wrong.
        LeaseHeld: another run maintains the table now.
        PlanStale: the pass is not needed any more, or the table was replaced; nothing was begun.
        StorageError: the table cannot be loaded, or the state does not answer.
    """
    search_cycles_seldom()
    with asked.state.kept_open(), counting(), keeping_documents():
        return _maintain(asked)


def _maintain(asked: AskedPass) -> PassOutcome:
    run_id, turn = str(uuid.uuid4()), asked.turn
    loaded = asked.catalog.load(asked.table)
    if turn is None:
        return run_pass(asked.make_context(loaded, run_id), asked.schedule)
    try:
        context = asked.make_context(loaded, run_id)
    except PolicyError:
        asked.claim(asked.pending(loaded, None))
        raise
    with leased(context, turn) as lease:
        if turn.wait_ms:  # the pass that was waited for has changed the table
            loaded = asked.catalog.load(asked.table)
            if identity_of(asked.catalog, loaded).lease_key != context.memory.identity.lease_key:
                raise PlanStale(f"{loaded.name} was replaced by another table just now; run the pass again")
            context = asked.make_context(loaded, run_id)
        if reason := turn.why_not():
            raise PlanStale(reason)
        request = asked.pending(loaded, context.policy)
        try:
            ours = replace(context, lease=lease, why_stop=turn.why_stop, is_proposed=turn.is_proposed)
            outcome = run_pass(ours, asked.schedule)
        except (PolicyError, TableUnsupported):
            asked.claim(request)
            raise
        if not lease.is_lost and turn.why_stop() is None:
            asked.claim(request)
        _forget_cuts(asked, loaded)
        return outcome


def _forget_cuts(asked: AskedPass, loaded: LoadedTable) -> None:
    """Forget that the table was cut off: now its pass has ended (rule 271)."""
    entry = asked.catalog.name, asked.catalog.warehouse, loaded.name.key
    try:
        forget_cut(asked.state.cut_offs, entry, *CutWork)
    except StorageError as error:
        log.warning("%s is still recorded as cut off: %s", loaded.name, error)
