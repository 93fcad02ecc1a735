"""The composition root: builds a catalog, a state store, an engine and clocks from settings and environment.

Methods import what they need when they are called, so showing a table's policy imports nothing that rewrites files.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.catalogs.load import open_catalog, served_catalog
from icekeeper.engines.engine import EngineName
from icekeeper.errors import OperationRefused, PlanStale, PolicyError, StorageError
from icekeeper.machine.clock import Clock, steady_s, system_clock
from icekeeper.model import CatalogId, Nothing, TableName
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.policy import DEFAULT_SOURCE, ResolvedPolicy
from icekeeper.report.activity import Progress, silent
from icekeeper.state.open import open_state
from icekeeper.state.store import StateStore
from icekeeper.storage.storage import Storage, StoreClock, store_now_ms

if TYPE_CHECKING:
    from icekeeper.detection.afresh import Afresh
    from icekeeper.detection.proposal import FleetReport
    from icekeeper.engines.engine import Engine
    from icekeeper.erasure.row_filter import Wanted
    from icekeeper.maintenance.run_pass import Turn
    from icekeeper.maintenance.saved_plan import SavedRepair, SavedTable
    from icekeeper.operations.expiry.ref_costs import TableCosts
    from icekeeper.pass_context.context import OperationContext
    from icekeeper.pass_context.served import SharedRun
    from icekeeper.pass_context.table_handle import TableHandle
    from icekeeper.repair.plan import RepairOptions
    from icekeeper.repair.repair import RepairOutcome
    from icekeeper.repair.rollback import Rollback
    from icekeeper.report.outcome import BucketOutcome, ListingWriter, PassOutcome
    from icekeeper.verification.checks import Verification
    from icekeeper.verification.deep import Extent


log = logging.getLogger(__name__)


@contextmanager
def open_engine(name: EngineName) -> Iterator[Engine]:
    """The engine, stopped at the end of the block; Spark starts with its first work.

    Raises:
        PolicyError: PySpark is not installed; on start: no suitable Java was found.
    """
    from icekeeper.engines.engine import AutoEngine, DeferredSpark, spark_is_installed, surroundings
    from icekeeper.engines.local_engine import LocalEngine

    if name is EngineName.LOCAL:
        yield LocalEngine()
        return
    if name is EngineName.SPARK and not spark_is_installed():
        raise PolicyError("PySpark is not installed: run pip install 'icekeeper[spark]', or choose the engine local")
    with DeferredSpark(_spark) as spark:
        yield spark if name is EngineName.SPARK else AutoEngine(surroundings(os.environ), LocalEngine(), spark)


@contextmanager
def _spark() -> Iterator[Engine]:
    from icekeeper.engines.spark import SparkEngine, local_session  # optional, and slow to import

    with local_session() as session:
        yield SparkEngine(session.sparkContext)


class Runtime:
    """What a command, function or job works with: a catalog, the state, clocks, and the policies of tables."""

    def __init__(
        self,
        catalog: Catalog,
        state: StateStore,
        *,
        environment: Mapping[str, str] | None = None,
        policies: TablePolicies | None = None,
        clock: Clock = system_clock,
        other_catalog: Callable[[CatalogId], Catalog | None] = served_catalog,
        store_clock: StoreClock = store_now_ms,
        sleep: Callable[[float], None] = time.sleep,
        monotonic_s: Callable[[], float] = steady_s,
        run: SharedRun | None = None,
    ) -> None:
        """``policies`` default to those of ``environment``, which defaults to that of the process.

        ``other_catalog`` opens another catalog, or returns ``None``.  ``sleep`` waits between commits;
        ``monotonic_s`` measures waits and rewrites.  ``run`` is the run that all passes belong to; without it, each
        ``run_id`` is a run.
        """
        self._run = run
        self._other_catalog = other_catalog
        self.catalog = catalog
        self.state = state
        self.clock = clock
        self.store_clock = store_clock
        self.sleep = sleep
        self.monotonic_s = monotonic_s
        self._policies = policies or TablePolicies(os.environ if environment is None else environment, clock=clock)

    @classmethod
    def open(cls, catalog: str, environment: Mapping[str, str] | None = None) -> Runtime:
        """Connect to a configured catalog and the state store.

        Without ``environment``, that of the process counts and the user's own policy file, as for a command.

        Raises:
            PolicyError: the catalog is not configured, or ``ICEKEEPER_STATE`` is malformed.
            StorageError: the state store cannot be opened.
        """
        chosen = os.environ if environment is None else environment
        policies = TablePolicies(chosen, of_user=environment is None)
        return cls(open_catalog(catalog, environment=chosen), open_state(chosen), policies=policies)

    def of_requests(self, of_call: Mapping[str, str], asks: str = "a request") -> Runtime:
        """A copy whose overrides are settings of requests; ``of_call`` are those of the operator's call
        (rule: requests-never-exceed-policy).  ``asks`` names the source of the pass in messages."""
        runtime = copy(self)
        runtime._policies = self._policies.of_requests(of_call, asks)
        return runtime

    def policy(self, loaded: LoadedTable, overrides: Mapping[str, str], *, unsafe: bool = False) -> ResolvedPolicy:
        """The policy of one table.

        Raises:
            PolicyError: a setting is wrong.
            StorageError: the policy file or the table bucket's own maintenance settings cannot be read.
        """
        return self._policies.of(self.catalog, loaded, overrides, unsafe=unsafe)

    def fitting_policy(self, loaded: LoadedTable, *, unsafe: bool = False) -> ResolvedPolicy:
        """The policy of one table, of which every operation must fit the table; raises as :meth:`policy`."""
        from icekeeper.operation_facts import Operation
        from icekeeper.operations.policy_fit import check_fit

        resolved = self.policy(loaded, {}, unsafe=unsafe)
        check_fit(loaded.metadata, resolved.policy, tuple(Operation))
        return resolved

    def maintain(
        self,
        table: TableName,
        overrides: Mapping[str, str],
        engine: Engine,
        *,
        dry_run: bool = False,
        unsafe: bool = False,
        progress: Progress = silent,
        turn: Turn | None = None,
        as_of_ms: int | None = None,
        saved: SavedTable | None = None,
        names_table: bool = False,
    ) -> PassOutcome:
        """Run one pass over one table under the table's lease, again if it fails; a dry run takes no lease.

        ``turn`` says how long to wait, when to stop and how often to try.  Nothing counts as older than it was at
        ``as_of_ms``.  With ``saved``, the pass does only what this plan says.  ``names_table``: a person named
        this table; a pattern, scan or plan did not select it.

        Raises:
            PolicyError: unknown table, or a setting is wrong.
            LeaseHeld: another run that shares this state maintains the table for longer than ``turn`` waits.
            StorageError: the table cannot be loaded, or the state cannot be written.
        """
        from icekeeper.maintenance.run_pass import AskedPass, Turn, maintain_table

        def make_context(loaded: LoadedTable, run_id: str) -> OperationContext:
            resolved = self.policy(loaded, overrides, unsafe=unsafe)
            context = self.context(
                loaded, resolved, engine, run_id=run_id, dry_run=dry_run, progress=progress, as_of_ms=as_of_ms
            )
            return replace(context, asked_by_name=frozenset(named))

        named = [name.strip() for name in overrides.get("operations", "").split(",")] if names_table else ()
        turn = None if dry_run else turn or Turn()
        outcome = maintain_table(AskedPass(self.catalog, self.state, table, overrides, make_context, turn, saved))
        if turn is not None:
            is_of_all = turn.is_proposed and "operations" not in overrides  # the settings of the next scan
            self.look_again(table, overrides if is_of_all else {}, unsafe=unsafe and turn.is_proposed)
        return outcome

    def look_again(self, table: TableName, overrides: Mapping[str, str] | None = None, *, unsafe: bool = False) -> None:
        """Update the record of the last scan for a table, for ``icekeeper list``; a failure is only logged."""
        from icekeeper.detection.detect import look_again

        try:
            look_again(
                self.catalog,
                self.state,
                self._policies,
                table,
                overrides=overrides or {},
                unsafe=unsafe,
                clock=self.clock,
            )
        except Exception as error:  # the pass is done, and the next scan records the same
            log.warning("%s: the record of the last scan could not be updated: %s", table, error)

    def plan_to_save(
        self,
        table: TableName,
        overrides: Mapping[str, str],
        engine: Engine,
        *,
        unsafe: bool = False,
        progress: Progress = silent,
    ) -> tuple[SavedTable, PassOutcome]:
        """The plan of one table for :meth:`apply`, and the dry run that made it.

        Raises:
            RequestRefused: the settings would do more than the table's policy.
            MaintenanceError: as :meth:`maintain` does.
        """
        from icekeeper.maintenance.saved_plan import saved_table
        from icekeeper.report.outcome import in_turn, reclaimable_bytes

        runtime, now_ms = self.of_requests({}, "a saved plan"), self.clock()
        loaded = self.catalog.load(table)
        resolved = runtime.policy(loaded, overrides, unsafe=unsafe)
        head = loaded.metadata.head(resolved.policy.branch)
        outcome = runtime.maintain(
            table, overrides, engine, dry_run=True, unsafe=unsafe, progress=progress, as_of_ms=now_ms
        )
        planned = in_turn(outcome)
        saved = saved_table(
            planned,
            uuid=loaded.metadata.uuid,
            run_id=str(uuid.uuid4()),
            settings=overrides,
            policy=resolved.fingerprint(),
            planned_ms=now_ms,
            snapshot_id=None if head is None else head.snapshot_id,
            bytes_reclaimable=int(reclaimable_bytes(planned)),
        )
        return saved, outcome

    def apply(
        self,
        saved: SavedTable,
        engine: Engine,
        *,
        unsafe: bool = False,
        progress: Progress = silent,
        turn: Turn | None = None,
    ) -> PassOutcome:
        """Do what a saved plan says about one table (rule: apply-only-what-was-reviewed).

        Raises:
            PlanStale: the table or its policy differs from the plan.
            MaintenanceError: as :meth:`maintain` does.
        """
        return self.of_requests({}, "a saved plan").maintain(
            TableName.recorded(saved.table),
            saved.settings,
            engine,
            unsafe=unsafe,
            progress=progress,
            turn=turn,
            as_of_ms=saved.planned_ms,
            saved=saved,
        )

    def limits(self, overrides: Mapping[str, str], *, unsafe: bool = False) -> tuple[float | None, int]:
        """``job_timeout_s`` and ``job_retry_limit`` for a pass that a person starts: no limit and none by default.

        The defaults of the policy are for unattended processes.

        Raises:
            PolicyError: a setting is wrong.
            StorageError: the policy file cannot be read.
        """
        found = self._policies.deployment(overrides, unsafe=unsafe)
        policy, sources = found.policy, found.sources
        return (
            None if sources["job_timeout_s"] == DEFAULT_SOURCE else policy.job_timeout_s,
            0 if sources["job_retry_limit"] == DEFAULT_SOURCE else policy.job_retry_limit,
        )

    def context(
        self,
        loaded: LoadedTable,
        resolved: ResolvedPolicy,
        engine: Engine,
        *,
        run_id: str | None = None,
        started_ms: int | None = None,
        dry_run: bool = False,
        progress: Progress = silent,
        as_of_ms: int | None = None,
    ) -> OperationContext:
        """The context of one pass over one table; ``run_id`` defaults to a new UUID, ``started_ms`` to now.

        Nothing counts as older than it was at ``as_of_ms``, which replaces ``started_ms``.
        """
        from icekeeper.engines.engine import AutoEngine
        from icekeeper.pass_context.context import OperationContext
        from icekeeper.pass_context.served import ServedCatalogs, SharedRun
        from icekeeper.pass_context.stores import Stores, shared_reads
        from icekeeper.state.table_memory import TableMemory

        run_id = run_id or str(uuid.uuid4())
        stores = Stores(self.clock, self.store_clock, may_write=not dry_run, shared=shared_reads(), as_of_ms=as_of_ms)
        started_ms = started_ms if as_of_ms is None else as_of_ms
        identity = identity_of(self.catalog, loaded)
        return OperationContext(
            table=loaded.name,
            resolved=resolved,
            state=self.state,
            memory=TableMemory(self.state, identity, partial(stores.now_ms, loaded)),
            clock=self.clock,
            stores=stores,
            run_id=run_id,
            catalogs=ServedCatalogs(self.catalog, self._other_catalog, self._run or SharedRun(run_id)),
            require_allowed=partial(loaded.allowed.require, loaded.metadata.locations),
            started_ms=self.clock() if started_ms is None else started_ms,
            engine=engine.for_one_pass() if isinstance(engine, AutoEngine) else engine,
            dry_run=dry_run,
            progress=progress,
            sleep=self.sleep,
            monotonic_s=self.monotonic_s,
        )

    def table(self, name: TableName) -> TableHandle:
        """One table and its state, for work outside a pass (pins, staged loads, settings)."""
        from icekeeper.pass_context.table_handle import TableHandle

        return TableHandle(self.catalog, name, self.state, self.clock, store_clock=self.store_clock)

    def pause(self, table: TableName, until_ms: int, reason: str = "") -> str:
        """Pause a table, and record that it does not wait for work; see :func:`.pauses.pause`."""
        from icekeeper.administration import pauses

        paused = pauses.pause(self.table(table), until_ms, lambda loaded: self.policy(loaded, {}), reason)
        self.look_again(table)
        return paused

    def resume(self, table: TableName) -> str | None:
        """End the pause of a table, and record whether it waits for work; see :func:`.pauses.end_pause`."""
        from icekeeper.administration import pauses

        ended = pauses.end_pause(self.table(table), lambda loaded: self.policy(loaded, {}))
        self.look_again(table)
        return ended

    def rollback(
        self,
        table: TableName,
        to: str,
        *,
        branch: str | None = None,
        not_ancestor: bool = False,
        dry_run: bool = False,
        agree: Callable[[Rollback], object] | None = None,
    ) -> Rollback | Nothing:
        """Set a branch, by default that of the table's policy, back to a snapshot (an id, tag or branch ``to``).

        ``not_ancestor``: the snapshot need not be an ancestor of the branch's head.  ``agree`` is called with the plan
        before the lease is taken, and raises if it must not be done.

        Raises:
            PolicyError: no such table, branch or snapshot, or the snapshot is no ancestor.
            OperationRefused: files of the snapshot are missing, or another run maintains the table.
            PlanStale: the branch has moved meanwhile; nothing was changed.
            StorageError: catalog, store or state store failed.
        """
        from icekeeper.engines.local_engine import LocalEngine
        from icekeeper.maintenance.run_pass import Turn, leased
        from icekeeper.repair.rollback import checked, plan_rollback, roll_back

        def plan(loaded: LoadedTable, branch: str) -> Rollback | Nothing:
            found = plan_rollback(loaded.metadata, str(table), branch, to, not_ancestor=not_ancestor)
            return found if isinstance(found, Nothing) else checked(loaded, found)

        loaded = self.catalog.load(table)
        resolved = self.policy(loaded, {} if branch is None else {"branch": branch})
        context = self.context(loaded, resolved, LocalEngine(), dry_run=dry_run)
        shown: Rollback | None = None
        if dry_run or agree is not None:
            first = plan(loaded, resolved.policy.branch)
            if dry_run or agree is None or isinstance(first, Nothing):
                return first
            agree(shown := first)
        self.state.require_writable()
        with leased(context, Turn(command="icekeeper rollback")) as lease:
            loaded = self.catalog.load(table)  # a pass may have changed it before
            found = plan(loaded, resolved.policy.branch)
            if isinstance(found, Nothing):
                return found
            if shown is not None and found.head.snapshot_id != shown.head.snapshot_id:
                raise PlanStale(f"branch '{found.branch}' of {table} has moved meanwhile; roll back again")
            found = roll_back(self.table(table), loaded, found, lease.require)
        self.look_again(table)
        return found

    def sweep_bucket(
        self,
        bucket: str,
        overrides: Mapping[str, str],
        engine: Engine,
        *,
        dry_run: bool = False,
        unsafe: bool = False,
        progress: Progress = silent,
    ) -> BucketOutcome:
        """Remove the orphans of all tables below an address, with one listing.

        Raises:
            PolicyError: a setting is wrong, or no table is below the address.
            StorageError: the catalog or the bucket cannot be listed, or the state cannot be written.
        """
        from icekeeper.maintenance.bucket_orphans import run_bucket_pass

        settings, run_id = self._policies.deployment(overrides, unsafe=unsafe).policy, str(uuid.uuid4())
        if not dry_run:
            self.state.require_writable()

        def make_context(table: LoadedTable) -> OperationContext:
            resolved = self.policy(table, overrides, unsafe=unsafe)
            return self.context(table, resolved, engine, run_id=run_id, dry_run=dry_run, progress=progress)

        return run_bucket_pass(
            self.catalog,
            self.state,
            make_context,
            bucket,
            inventory=settings.orphan_inventory,
            run_id=run_id,
            dry_run=dry_run,
        )

    def detect(
        self, overrides: Mapping[str, str] | None = None, *, unsafe: bool = False, patterns: Sequence[str] = ()
    ) -> FleetReport:
        """Which tables of the catalog, or of ``patterns``, need work, and why: the pipeline's scan of this catalog.

        Raises:
            PolicyError: a setting of the deployment is wrong, or no table matches the patterns.
            StorageError: the catalog cannot be listed, or the state cannot be used.
        """
        from icekeeper.detection.detect import detect_catalog

        return detect_catalog(
            self.catalog,
            self.state,
            self._policies,
            overrides=overrides,
            unsafe=unsafe,
            clock=self.clock,
            patterns=patterns,
        )

    def next_run(self, report: FleetReport, overrides: Mapping[str, str], *, unsafe: bool) -> dict[str, Any]:
        """``next_run`` of ``detect --json``: how a scheduled run would begin with the proposals of a scan."""
        from icekeeper.detection.proposal import next_run_json
        from icekeeper.state.leases import taken_slots

        settings = self._policies.deployment(overrides, unsafe=unsafe)
        at_work = len(taken_slots(self.state.leases, settings.policy.max_concurrent_jobs, now_ms=self.clock()))
        return next_run_json(settings, [found.table for found in report.proposals], at_work)

    @property
    def afresh(self) -> Afresh:
        """Scans tables of the catalog now."""
        from icekeeper.detection.afresh import Afresh

        return Afresh(self.catalog, self.state, self._policies, self.clock)

    def costs(self, table: TableName) -> TableCosts:
        """What only each branch, tag and snapshot of a table references; reads every manifest once.

        Raises:
            PolicyError: unknown table.
            MetadataUnreadable: a manifest list or manifest cannot be read.
            StorageError: the catalog does not answer.
        """
        from icekeeper.metadata.table_reader import TableReader
        from icekeeper.operations.expiry.ref_costs import cost_of_refs

        loaded = self.catalog.load(table)
        return cost_of_refs(TableReader(loaded.metadata, Storage(loaded.io_properties).read))

    def safety_bounds(
        self, table: TableName, overrides: Mapping[str, str], listing: ListingWriter, *, unsafe: bool = False
    ) -> Mapping[str, Any]:
        """What no deletion of the table's files may touch now; changes nothing.

        Raises:
            PolicyError: unknown table, or a setting is wrong.
            StorageError: the catalog or the state store does not answer, or ``listing`` cannot be written.
        """
        from icekeeper.administration.settings import safety_bounds
        from icekeeper.pass_context.stores import Stores
        from icekeeper.state.table_memory import TableMemory

        loaded = self.catalog.load(table)
        resolved = self.policy(loaded, overrides, unsafe=unsafe)
        now_ms = Stores(self.clock, self.store_clock, may_write=False).now_ms(loaded)
        memory = TableMemory(self.state, identity_of(self.catalog, loaded), lambda: now_ms)
        return safety_bounds(loaded, resolved, memory, now_ms, listing)

    def verify(
        self, table: TableName, engine: Engine | None = None, extent: Extent | None = None, progress: Progress = silent
    ) -> Verification:
        """Check that every file the table refers to exists and that its metadata is consistent; the state keeps what it
        finds.  With an engine, also read the files that ``extent`` chooses, by default all.

        Raises:
            PolicyError: unknown table.
            StorageError: the catalog or the store does not answer.
        """
        from icekeeper.state.table_memory import TableMemory
        from icekeeper.verification.verify import verify_table

        loaded = self.catalog.load(table)
        found = verify_table(loaded, Storage(loaded.io_properties))
        if not found.ok and (now := self.catalog.load(table)).metadata_location != loaded.metadata_location:
            loaded, found = now, verify_table(now, Storage(now.io_properties)).confirming(found)
        if engine is not None:
            from icekeeper.verification.deep import Extent, verify_deep

            storage = Storage(loaded.io_properties)
            found = verify_deep(loaded, storage, engine, extent or Extent(), progress, found)
            if not found.ok and (now := self.catalog.load(table)).metadata_location != loaded.metadata_location:
                found = found.still_referenced(verify_table(now, Storage(now.io_properties)).referenced)
        memory = TableMemory(self.state, identity_of(self.catalog, loaded), self.clock)
        try:
            memory.remember_verified(found.by_file, len(found.problems), found.referenced, found.read)
        except StorageError as error:
            log.warning("%s: what verify found could not be recorded: %s", table, error)
        self.look_again(table)
        return found

    def repair_context(
        self, table: TableName, branch: str | None, *, dry_run: bool
    ) -> tuple[OperationContext, LoadedTable]:
        """The context of a repair of a branch, which needs no engine, and the table; raises as :meth:`maintain`."""
        from icekeeper.engines.local_engine import LocalEngine

        loaded, chosen = self.catalog.load(table), {} if branch is None else {"branch": branch}
        return self.context(loaded, self.policy(loaded, chosen), LocalEngine(), dry_run=dry_run), loaded

    def plan_repair(self, table: TableName, options: RepairOptions) -> RepairOutcome:
        """What :meth:`repair` would do; changes nothing.

        Raises:
            PolicyError: unknown table, or a setting is wrong.
            StorageError: the catalog or the store does not answer.
        """
        from icekeeper.repair.repair import planned

        return planned(*self.repair_context(table, options.branch, dry_run=True), options)

    def repair_to_save(self, found: RepairOutcome, options: RepairOptions) -> SavedRepair:
        """The plan of a repair for :meth:`apply_repair`; ``found`` is the dry run that made it."""
        from icekeeper.maintenance.saved_plan import SavedRepair

        plan, loaded = found.plan, self.catalog.load(TableName.parse(found.table))
        return SavedRepair(
            catalog=found.catalog,
            table=loaded.name.key,
            uuid=loaded.metadata.uuid,
            options=asdict(options),
            shown="" if plan is None else plan.digest,
            mends=() if plan is None else tuple(mend.sentence for mend in plan.every),
        )

    def apply_repair(self, saved: SavedRepair) -> tuple[RepairOutcome, Verification | None]:
        """Do what a saved repair says (rule: apply-only-what-was-reviewed); raises as :meth:`repair`."""
        from icekeeper.repair.plan import RepairOptions

        table = TableName.recorded(saved.table)
        if self.catalog.load(table).metadata.uuid != saved.uuid:
            raise PlanStale(f"{table} was replaced by another table since the plan was saved; save a new plan")
        return self.repair(table, RepairOptions(**saved.options), saved.shown)  # type: ignore[arg-type]

    def repair(self, table: TableName, options: RepairOptions, shown: str) -> tuple[RepairOutcome, Verification | None]:
        """Do what the plan with the digest ``shown`` says under the lease, and verify the table again after a commit.

        Raises:
            OperationRefused: the table's maintenance is disabled, or another run maintains it.
            PlanStale: another plan results now; nothing was changed.
            MaintenanceError: as :func:`icekeeper.repair.repair.repair` does.
        """
        from icekeeper.maintenance.pass_steps import begin
        from icekeeper.maintenance.run_pass import Turn, leased
        from icekeeper.pass_context.context import PassLimits
        from icekeeper.repair.repair import repair

        context, _ = self.repair_context(table, options.branch, dry_run=False)
        if not context.policy.maintenance_enabled:
            raise OperationRefused(f"{context.resolved.why_disabled()}; nothing was repaired")
        self.state.require_writable()
        with leased(context, Turn(command="icekeeper repair")) as lease:
            context = replace(context, limits=PassLimits(lease=lease))
            outcome = repair(context, begin(context), options, shown)
        return outcome, None if outcome.plan is None or outcome.plan.is_empty else self.verify(table)

    def erased(
        self, table: TableName, wanted: Wanted, engine: Engine, *, read_all: bool = False, progress: Progress = silent
    ) -> dict[str, Any]:
        """The certificate after a look at every object of a table for rows that match; changes nothing, takes no lease.

        ``read_all``: footers exclude nothing.

        Raises:
            PolicyError: unknown table, or the filter or the keys do not fit it.
            OperationRefused: the table was replaced meanwhile.
            StorageError: the catalog, the state or the engine failed.
        """
        from icekeeper.erasure.prove import prove
        from icekeeper.state.table_memory import TableMemory

        return prove(
            lambda: self.catalog.load(table),
            wanted,
            engine,
            policy_of=lambda loaded: self.policy(loaded, {}).policy,
            memory_of=lambda loaded: TableMemory(self.state, identity_of(self.catalog, loaded), self.clock),
            catalog=self.catalog.id.name,
            read_all=read_all,
            progress=progress,
        )
