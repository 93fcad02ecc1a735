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
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

from icekeeper.catalogs.catalog import identity_of
from icekeeper.engines.engine import EngineName
from icekeeper.errors import PolicyError
from icekeeper.model import TableName
from icekeeper.policy import Policy, ResolvedPolicy
from icekeeper.policy.keys import Scope, refuse_meaningless
from icekeeper.policy.values import text_of
from icekeeper.report.activity import Progress, silent
from icekeeper.runtime import Runtime, open_engine

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from icekeeper.detection.proposal import FleetReport
    from icekeeper.report.outcome import PassOutcome
    from icekeeper.state.lake_stats import LakeStats
    from icekeeper.state.store import PassRecord
    from icekeeper.verification.checks import Verification

# A program that configures no logging gets no lines.
logging.getLogger("icekeeper").addHandler(logging.NullHandler())

Settings: TypeAlias = Mapping[str, object] | Policy


class Icekeeper:
    """Detects, plans, maintains and verifies the tables of one catalog.

    A table is ``"namespace.table"`` or a table that PyIceberg has loaded from a catalog of the same name.
    ``settings`` are those of one call, as ``--set`` of the command: a mapping from policy keys to values, or a
    :class:`icekeeper.Policy`, of which only the values given to its constructor count.  Every method may raise a
    :class:`icekeeper.errors.MaintenanceError`; a :class:`icekeeper.errors.PolicyError` says that the call or a setting
    is wrong.
    """

    def __init__(self, catalog: str, *, engine: str = "auto", environment: Mapping[str, str] | None = None) -> None:
        """Open a catalog of PyIceberg's configuration, or a table bucket by its ARN, and the state store.

        ``engine`` is ``auto``, ``local`` or ``spark``, as ``--engine`` of the command; ``environment`` has the
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

    def plan(self, table: str | Table, settings: Settings | None = None, *, unsafe: bool = False) -> PassOutcome:
        """What :meth:`maintain` would do now; changes nothing."""
        from icekeeper.report.outcome import in_turn

        with open_engine(self._engine) as engine:
            return in_turn(
                self._runtime.maintain(
                    self._name(table), _settings(settings), engine, dry_run=True, unsafe=unsafe, names_table=True
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
        maintains the table.

        Raises:
            LeaseHeld: another run still maintains the table.
        """
        from icekeeper.maintenance.run_pass import Turn

        chosen = _settings(settings)
        timeout_s, retries = self._runtime.limits(chosen, unsafe=unsafe)
        turn = Turn(command="Icekeeper.maintain", wait_ms=round(wait_s * 1000), timeout_s=timeout_s, retries=retries)
        with open_engine(self._engine) as engine:
            return self._runtime.maintain(
                *(self._name(table), chosen, engine),
                unsafe=unsafe,
                progress=progress,
                turn=turn,
                names_table=True,
            )

    def verify(self, table: str | Table) -> Verification:
        """Check that every referenced file exists and that the metadata is consistent."""
        return self._runtime.verify(self._name(table))

    def health(self, table: str | Table, settings: Settings | None = None) -> LakeStats:
        """How the table looks now and what is wrong with it; reads at most three manifests and eight footers."""
        return self._runtime.afresh.health(self._name(table), _settings(settings))

    def history(self, table: str | Table, *, limit: int = 20) -> Sequence[PassRecord]:
        """The newest passes that changed, found or refused something, newest first."""
        handle = self._runtime.table(self._name(table))
        return handle.state.history(identity_of(handle.catalog, handle.load()), limit=limit)

    def policy(self, table: str | Table, settings: Settings | None = None) -> ResolvedPolicy:
        """The settings in force for a table, each with its source."""
        loaded = self._runtime.catalog.load(self._name(table))
        return self._runtime.policy(loaded, _settings(settings))

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


def _text(value: object) -> str:
    if isinstance(value, float):
        value = Fraction(str(value))
    return text_of(tuple(value) if isinstance(value, list) else value)
