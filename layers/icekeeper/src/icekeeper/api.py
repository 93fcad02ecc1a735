"""Icekeeper as a library: the commands for one catalog, with typed results.

    from icekeeper import Icekeeper

    lake = Icekeeper("lake")
    for found in lake.detect().proposals:
        outcome = lake.maintain(found.table, {"target_file_size_mb": 128})
        print(outcome.table, outcome.status, outcome.summary)

Settings, state and rights are those of the command: environment, policy file, table properties, ``ICEKEEPER_STATE``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

from icekeeper.catalogs.catalog import identity_of
from icekeeper.engines.engine import EngineName
from icekeeper.errors import PolicyError
from icekeeper.model import Nothing, TableName
from icekeeper.policy import Policy, ResolvedPolicy
from icekeeper.policy.keys import Scope, refuse_meaningless
from icekeeper.policy.values import text_of
from icekeeper.report.activity import Progress, silent
from icekeeper.runtime import Runtime, open_engine

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from icekeeper.detection.proposal import FleetReport
    from icekeeper.pass_context.table_handle import TableHandle
    from icekeeper.repair.plan import RepairOptions
    from icekeeper.repair.repair import RepairOutcome
    from icekeeper.repair.rollback import Rollback
    from icekeeper.report.outcome import PassOutcome
    from icekeeper.state.lake_stats import LakeStats
    from icekeeper.state.staging import StagedLoad
    from icekeeper.state.store import PassRecord, Pin
    from icekeeper.verification.checks import Verification
    from icekeeper.verification.deep import Extent

# A program that configures no logging gets no lines.
logging.getLogger("icekeeper").addHandler(logging.NullHandler())

Settings: TypeAlias = Mapping[str, object] | Policy


class Icekeeper:
    """Detects, plans, maintains, verifies and protects the tables of one catalog; methods are named as the commands.

    A table is ``"namespace.table"`` or a table that PyIceberg has loaded from a catalog of the same name.
    ``settings`` are those of one call: a mapping from policy keys to values, or a
    :class:`icekeeper.Policy`, of which only the values given to its constructor count.  Every method may raise a
    :class:`icekeeper.errors.MaintenanceError`; a :class:`icekeeper.errors.PolicyError` says that the call or a setting
    is wrong.
    """

    def __init__(self, catalog: str, *, engine: str = "auto", environment: Mapping[str, str] | None = None) -> None:
        """Open a catalog of PyIceberg's configuration, or a table bucket by its ARN, and the state store.

        ``engine`` is ``auto``, ``local`` or ``spark``; ``environment`` has the
        ``ICEKEEPER_…`` variables, by default those of the process.

        Raises:
            PolicyError: the catalog is not configured, the engine is unknown, or ``ICEKEEPER_STATE`` is malformed.
            StorageError: the state store cannot be opened.
        """
        if engine not in list(EngineName):
            raise PolicyError(f"engine is one of {', '.join(EngineName)}, not '{engine}'")
        self._engine = EngineName(engine)
        self._runtime = Runtime.open(catalog, os.environ if environment is None else environment)

    def detect(self, settings: Settings | None = None) -> FleetReport:
        """Find the tables that need maintenance and why; records the health of each table that was read.

        ``settings`` may be those of detection, such as ``table_filter``.
        """
        return self._runtime.detect(_settings(settings, Scope.SCAN))

    def plan(
        self, table: str | Table, settings: Settings | None = None, *, unsafe: bool = False, progress: Progress = silent
    ) -> PassOutcome:
        """What :meth:`maintain` would do now; changes nothing."""
        from icekeeper.report.outcome import in_turn

        with open_engine(self._engine) as engine:
            return in_turn(
                self._runtime.maintain(
                    *(self._name(table), _settings(settings), engine),
                    dry_run=True,
                    unsafe=unsafe,
                    progress=progress,
                    names_table=True,
                )
            )

    def maintain(
        self,
        table: str | Table,
        settings: Settings | None = None,
        *,
        unsafe: bool = False,
        wait_s: float = 0.0,
        progress: Progress = silent,
    ) -> PassOutcome:
        """Run one pass under the table's lease; a failed operation is part of the outcome, and raises no error.

        ``unsafe`` allows an orphan grace period below 24 hours.  ``wait_s`` is how long to wait for another run that
        maintains the table.  ``progress(what, done, total)`` is called during the work: ``what`` is the operation
        and its phase; ``compact: rewriting`` counts bytes, all others items; a ``total`` of 0 is not known yet.

        Raises:
            LeaseHeld: another run still maintains the table.
        """
        from icekeeper.maintenance.run_pass import Turn

        chosen = _settings(settings)
        timeout_s, retries = self._runtime.limits(chosen, unsafe=unsafe)
        turn = Turn(command="Icekeeper.maintain", wait_ms=round(wait_s * 1000), timeout_s=timeout_s, retries=retries)
        with open_engine(self._engine) as engine:
            return self._runtime.maintain(
                *(self._name(table), chosen, engine), unsafe=unsafe, progress=progress, turn=turn, names_table=True
            )

    def verify(self, table: str | Table, *, extent: Extent | None = None, progress: Progress = silent) -> Verification:
        """Check that every referenced file exists and that the metadata is consistent; with ``extent``, also read the
        files that it chooses."""
        if extent is None:
            return self._runtime.verify(self._name(table))
        with open_engine(self._engine) as engine:
            return self._runtime.verify(self._name(table), engine, extent, progress)

    def rollback(
        self,
        table: str | Table,
        to: int | str,
        *,
        branch: str | None = None,
        not_ancestor: bool = False,
        dry_run: bool = False,
    ) -> Rollback | Nothing:
        """Set a branch back to a snapshot (an id, tag or branch) whose files all exist; see ``icekeeper rollback``.

        ``branch`` defaults to that of the table's policy.  ``not_ancestor``: the snapshot need not be an ancestor of
        the branch's head.  :class:`.Nothing`: the branch is at that snapshot already.

        Raises:
            OperationRefused: files of the snapshot are missing, or another run maintains the table.
            PlanStale: the branch moved meanwhile; nothing was changed.
        """
        return self._runtime.rollback(
            self._name(table), str(to), branch=branch, not_ancestor=not_ancestor, dry_run=dry_run
        )

    def repair(
        self, table: str | Table, options: RepairOptions | None = None, *, shown: str | None = None
    ) -> RepairOutcome:
        """Plan which damage of a table can be mended; with the digest ``shown`` of a plan, do exactly that.

            planned = lake.repair("shop.orders")
            if planned.plan and not planned.plan.is_empty:
                lake.repair("shop.orders", shown=planned.plan.digest)

        Raises:
            PlanStale: the table changed so that another plan results; nothing was changed.
            OperationRefused: the table is paused, or another run maintains it.
        """
        from icekeeper.repair.plan import RepairOptions

        chosen = options or RepairOptions()
        if shown is None:
            return self._runtime.plan_repair(self._name(table), chosen)
        return self._runtime.repair(self._name(table), chosen, shown)[0]

    def health(self, table: str | Table, settings: Settings | None = None) -> LakeStats:
        """How the table looks now and what is wrong with it; reads at most three manifests and eight footers."""
        return self._runtime.afresh.health(self._name(table), _settings(settings))

    def history(self, table: str | Table, *, limit: int = 20) -> Sequence[PassRecord]:
        """The newest passes that changed, found or refused something, newest first."""
        handle = self._handle(table)
        return handle.state.history(identity_of(handle.catalog, handle.load()), limit=limit)

    def policy(self, table: str | Table, settings: Settings | None = None) -> ResolvedPolicy:
        """The settings in force for a table, each with its source."""
        loaded = self._runtime.catalog.load(self._name(table))
        return self._runtime.policy(loaded, _settings(settings))

    def policy_set(self, table: str | Table, settings: Settings, *, unsafe: bool = False) -> ResolvedPolicy:
        """Store settings in a table, as its properties ``icekeeper.KEY``, and return the policy afterwards.

        Raises:
            PolicyError: a setting is wrong, does not fit the table, or would be ignored; none was stored.
        """
        from icekeeper.administration.settings import set_settings

        handle, chosen = self._handle(table), _settings(settings, Scope.CYCLE)
        return set_settings(handle, chosen, lambda loaded: self._runtime.fitting_policy(loaded, unsafe=unsafe))

    def policy_unset(self, table: str | Table, *keys: str, unsafe: bool = False) -> ResolvedPolicy:
        """Remove settings from a table, and return the policy afterwards.

        Raises:
            PolicyError: a key neither exists nor is set on the table; nothing was changed.
        """
        from icekeeper.administration.settings import unset_settings

        return unset_settings(self._handle(table), keys, lambda loaded: self._runtime.policy(loaded, {}, unsafe=unsafe))

    def pause(self, table: str | Table, until: datetime | timedelta, reason: str = "") -> str:
        """Stop all passes over a table until a time, however they are started; returns the time as text.

        A ``timedelta`` counts from now.  A later call replaces the time; :meth:`resume` ends the pause.

        Raises:
            PolicyError: the time has no zone, or is past; nothing was changed.
        """
        if isinstance(until, timedelta):
            until_ms = self._runtime.clock() + _ms(until)
        elif until.tzinfo is None:
            raise PolicyError(f"a pause ends at a time with its zone, not at {until.isoformat()}")
        else:
            until_ms = round(until.timestamp() * 1000)
        return self._runtime.pause(self._name(table), until_ms, reason)

    def resume(self, table: str | Table) -> str | None:
        """End a pause, and return until when it would have held; ``None``: the table has no pause of its own."""
        return self._runtime.resume(self._name(table))

    def pin(
        self,
        table: str | Table,
        ttl: timedelta,
        *,
        snapshot: int | str = "current",
        name: str | None = None,
        tag: bool = False,
    ) -> Pin:
        """Keep a snapshot, and all newer ones, for a reader; a pin of the same name is extended.

        ``name`` defaults to a new name.  ``tag`` adds an Iceberg tag of that name, for other engines.

        Raises:
            PolicyError: no such snapshot, a time of 0 or above 366 days, or a name that is taken; nothing was changed.
            OperationRefused: the snapshot expired meanwhile.
        """
        from icekeeper.administration.pins import add_pin

        return add_pin(self._handle(table), snapshot=str(snapshot), ttl_ms=_ms(ttl), name=name, with_tag=tag)

    def pin_warnings(self, table: str | Table) -> Sequence[str]:
        """Why a pinned snapshot may expire nevertheless: a table bucket's own expiry ignores pins."""
        from icekeeper.administration.pins import pin_warnings

        return pin_warnings(self._runtime.catalog, self._name(table))

    def pin_list(self, table: str | Table) -> Sequence[Pin]:
        """The pins in force, including those of running jobs, ordered by name."""
        from icekeeper.administration.pins import list_pins

        return list_pins(self._handle(table))

    def pin_remove(self, table: str | Table, name: str) -> Pin:
        """Remove a pin, and the tag that was written for it; raises PolicyError if there is no such pin."""
        from icekeeper.administration.pins import remove_pin

        return remove_pin(self._handle(table), name)

    def stage(
        self, table: str | Table, name: str, *, files: Sequence[str] = (), prefixes: Sequence[str] = ()
    ) -> StagedLoad:
        """Record files that must not be deleted, because a commit will reference them; adds to a load of that name.

        ``files`` are paths as the commit will name them, ``prefixes`` folders that only this load uses.

        Raises:
            PolicyError: no file or prefix, a path outside the table's location, or the load has ended.
        """
        from icekeeper.administration.pins import stage_load

        if isinstance(files, str) or isinstance(prefixes, str):
            raise PolicyError("files and prefixes are lists of paths, not a text")
        return stage_load(self._handle(table), name, files, prefixes)

    def stage_adopted(self, table: str | Table, name: str) -> StagedLoad:
        """Record that a commit references the files of a load."""
        from icekeeper.administration.pins import declare_load
        from icekeeper.state.staging import LoadState

        return declare_load(self._handle(table), name, LoadState.ADOPTED)

    def stage_failed(self, table: str | Table, name: str) -> StagedLoad:
        """Record that a load failed: its files are deleted after the grace period, unless something references them."""
        from icekeeper.administration.pins import declare_load
        from icekeeper.state.staging import LoadState

        return declare_load(self._handle(table), name, LoadState.FAILED)

    def stage_list(self, table: str | Table) -> Sequence[StagedLoad]:
        """The recorded loads, including those of running and dead jobs, ordered by name."""
        from icekeeper.administration.pins import list_loads

        return list_loads(self._handle(table))

    def report(self, *, fresh: str | None = None) -> str:
        """The page of the catalog as HTML, from the records of scans and passes.

        ``fresh`` is a pattern, such as ``shop.*`` or ``*``: these tables are scanned first, with their manifests.  A
        table that cannot be read is shown on the page.

        Raises:
            PolicyError: no table matches the pattern.
            StorageError: no scan of the catalog is recorded, or the state cannot be read.
        """
        from icekeeper.report.page import catalog_document, recorded_facts, render_page

        runtime = self._runtime
        if fresh is not None:
            runtime.afresh.scan(fresh)
        now_ms = runtime.clock()
        found = recorded_facts(runtime.state, runtime.catalog.id, now_ms)
        return render_page([catalog_document(found, now_ms)], now_ms)

    def _handle(self, table: str | Table) -> TableHandle:
        return self._runtime.table(self._name(table))

    def _name(self, table: str | Table) -> TableName:
        if isinstance(table, str):
            try:
                return TableName.parse(table)
            except ValueError as error:
                raise PolicyError(str(error)) from None
        ours = self._runtime.catalog.id.name
        if table.catalog.name != ours:
            raise PolicyError(f"table {'.'.join(table.name())} is of catalog '{table.catalog.name}', not '{ours}'")
        *namespace, name = table.name()
        return TableName(tuple(namespace), name)


def _settings(given: Settings | None, scope: Scope = Scope.TABLE) -> dict[str, str]:
    if isinstance(given, Policy):
        given = {key: getattr(given, key) for key in given.model_fields_set}
    chosen = {key: _text(value) for key, value in sorted((given or {}).items())}
    refuse_meaningless(chosen, scope)
    return chosen


def _ms(length: timedelta) -> int:
    return round(length.total_seconds() * 1000)


def _text(value: object) -> str:
    if isinstance(value, float):
        value = Fraction(str(value))
    return text_of(tuple(value) if isinstance(value, list) else value)
