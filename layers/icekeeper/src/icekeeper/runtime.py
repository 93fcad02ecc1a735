"""The composition root: settings and environment become a catalog, a state store, an engine and a clock."""

from __future__ import annotations

import importlib.util
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from enum import StrEnum

from icekeeper.bucket_pass import run_bucket_pass
from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.load import configured_catalog, open_catalog
from icekeeper.catalogs.table_identity import identity_of
from icekeeper.clock import Clock, system_clock
from icekeeper.detection.assessor import assessor
from icekeeper.detection.proposal import DetectionReport
from icekeeper.detection.scan import scan
from icekeeper.engines.deferred import DeferredEngine
from icekeeper.engines.local import LocalEngine
from icekeeper.errors import PolicyError
from icekeeper.fleet import choose_clustering
from icekeeper.health.examine import examine, health_head
from icekeeper.maintenance import run_pass
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import TableName
from icekeeper.operations.expiry.ref_costs import TableCosts, cost_of_refs
from icekeeper.operations.expiry.retention import plan_expiry
from icekeeper.pass_context.context import Engine, OperationContext, Progress, silent
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.policy import ResolvedPolicy
from icekeeper.report.bucket_outcome import BucketOutcome
from icekeeper.report.outcome import PassOutcome
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.lease_errors import lease_held
from icekeeper.state.open import open_state
from icekeeper.state.store import StateStore
from icekeeper.storage.storage import Storage
from icekeeper.storage.store_clock import StoreClock, store_now_ms
from icekeeper.table_policy import TablePolicies
from icekeeper.verification.findings import Verification
from icekeeper.verification.verify import verify_table

__all__ = ["EngineName", "Runtime", "default_engine", "open_engine"]


class EngineName(StrEnum):
    """Where work units run."""

    SPARK = "spark"
    LOCAL = "local"


def default_engine() -> EngineName:
    """Spark where PySpark is installed, else this machine's processes (platform 1)."""
    return EngineName.SPARK if importlib.util.find_spec("pyspark") else EngineName.LOCAL


def open_engine(name: EngineName) -> DeferredEngine:
    """The engine; it starts with its first work and is stopped on leaving its context.

    Raises:
        PolicyError: PySpark is not installed; when it starts: no Java that it runs on was found.
    """
    if name is EngineName.LOCAL:
        return DeferredEngine(name, lambda: nullcontext(LocalEngine()))
    if importlib.util.find_spec("pyspark") is None:
        raise PolicyError("PySpark is not installed: run pip install 'icekeeper[spark]', or choose --engine local")
    return DeferredEngine(name, _spark)


@contextmanager
def _spark() -> Iterator[Engine]:
    from icekeeper.engines.spark import SparkEngine, local_session  # optional, and slow to import

    with local_session() as session:
        yield SparkEngine(session.sparkContext)


class Runtime:
    """What a command, a function or a job works with; everything that it opens it also closes."""

    def __init__(
        self,
        catalog: Catalog,
        state: StateStore,
        *,
        environment: Mapping[str, str] | None = None,
        clock: Clock = system_clock,
        other_catalog: Callable[[str, str], Catalog | None] = configured_catalog,
        store_clock: StoreClock = store_now_ms,
    ) -> None:
        """``other_catalog`` opens another catalog by name and warehouse; ``None`` where that is not possible."""
        self._other_catalog = other_catalog
        self.catalog = catalog
        self.state = state
        self.clock = clock
        self.store_clock = store_clock
        self._policies = TablePolicies(os.environ if environment is None else environment)

    @classmethod
    def open(cls, catalog: str, environment: Mapping[str, str] | None = None) -> Runtime:
        """Connect to a configured catalog and the state store.

        Raises:
            PolicyError: the catalog is not configured, or ``ICEKEEPER_STATE`` is malformed.
            StorageError: the state store cannot be opened.
        """
        chosen = os.environ if environment is None else environment
        return cls(open_catalog(catalog), open_state(chosen), environment=chosen)

    def policy(self, loaded: LoadedTable, overrides: Mapping[str, str], *, unsafe: bool = False) -> ResolvedPolicy:
        """The policy that holds for one table.

        Raises:
            PolicyError: settings that are wrong.
            StorageError: the policy file cannot be read.
        """
        return self._policies.of(self.catalog, loaded, overrides, unsafe=unsafe)

    def maintain(
        self,
        table: TableName,
        overrides: Mapping[str, str],
        engine: Engine,
        *,
        dry_run: bool = False,
        unsafe: bool = False,
        progress: Progress = silent,
    ) -> PassOutcome:
        """One pass over one table.

        Raises:
            PolicyError: unknown table, or settings that are wrong.
            LeaseHeld: a run of the pipeline maintains it, which shares this state.
            StorageError: the table cannot be loaded, or the state cannot be written.
        """
        if not dry_run:
            self.state.require_writable()  # before anything is changed, not when it is to be recorded
        loaded = self.catalog.load(table)
        key = identity_of(self.catalog, loaded).key
        lease = None if dry_run else self.state.leases.current(key, now_ms=self.clock())
        if lease is not None:
            raise lease_held(replace(lease, name=str(loaded.name)))
        context = self.context(
            loaded, self.policy(loaded, overrides, unsafe=unsafe), engine, dry_run=dry_run, progress=progress
        )
        return run_pass(context)

    def context(
        self,
        loaded: LoadedTable,
        resolved: ResolvedPolicy,
        engine: Engine,
        *,
        run_id: str | None = None,
        dry_run: bool = False,
        progress: Progress = silent,
    ) -> OperationContext:
        """What the operations of one pass over one table are handed; a run id is made up unless given."""
        return OperationContext(
            catalog=self.catalog,
            table=loaded.name,
            resolved=resolved,
            state=self.state,
            clock=self.clock,
            run_id=run_id or str(uuid.uuid4()),
            engine=engine,
            dry_run=dry_run,
            progress=progress,
            other_catalog=self._other_catalog,
            store_clock=self.store_clock,
        )

    def table(self, name: TableName) -> TableHandle:
        """One table and what is remembered about it, for what is asked of it outside of a pass."""
        return TableHandle(self.catalog, name, self.state, self.clock, store_clock=self.store_clock)

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
        """Remove the orphans of all tables below an address, from one listing.

        Raises:
            PolicyError: settings that are wrong, or no table there.
            StorageError: the catalog or the bucket cannot be listed, or the state cannot be written.
        """
        settings = self._policies.deployment(overrides, unsafe=unsafe).policy
        if not dry_run:
            self.state.require_writable()
        run_id = str(uuid.uuid4())

        def make_context(table: LoadedTable) -> OperationContext:
            resolved = self.policy(table, overrides, unsafe=unsafe)
            return self.context(table, resolved, engine, run_id=run_id, dry_run=dry_run, progress=progress)

        inventory = settings.orphan_inventory
        return run_bucket_pass(
            self.catalog, self.state, make_context, bucket, inventory=inventory, run_id=run_id, dry_run=dry_run
        )

    def detect(self, overrides: Mapping[str, str] | None = None, *, unsafe: bool = False) -> DetectionReport:
        """Which tables of the catalog need work, and why; reads metadata documents only.

        Raises:
            PolicyError: the deployment's settings are wrong.
            StorageError: the catalog cannot be listed, or the state cannot be used.
        """
        chosen = dict(overrides or {})
        self.state.require_writable()
        settings = self._policies.deployment(chosen, unsafe=unsafe).policy
        assess_table = assessor(
            self.catalog,
            resolve_policy=lambda loaded: self.policy(loaded, chosen, unsafe=unsafe),
            store=self.state,
            now_ms=self.clock(),
            plan_expiry=plan_expiry,
            choose_clustering=choose_clustering,
        )
        return scan(self.catalog, assess_table, settings)

    def health(
        self, table: TableName, overrides: Mapping[str, str] | None = None, *, unsafe: bool = False
    ) -> LakeStats:
        """How a table looks now, maintained or not; reads its metadata document and the head's manifest list.

        Raises:
            PolicyError: unknown table.
            MetadataUnreadable: the manifest list cannot be read.
            StorageError: the catalog does not answer.
        """
        loaded = self.catalog.load(table)
        resolved: ResolvedPolicy | PolicyError
        try:
            resolved = self.policy(loaded, overrides or {}, unsafe=unsafe)
        except PolicyError as error:
            if overrides:
                raise
            resolved = error
        head = health_head(loaded.metadata, resolved)
        reader = TableReader(loaded.metadata, Storage(loaded.io_properties).read)
        return examine(
            identity_of(self.catalog, loaded),
            loaded.metadata,
            resolved,
            now_ms=self.clock(),
            # An old v1 snapshot without a list would have every manifest read.
            manifests=None if head is None or head.manifest_list is None else reader.manifests(head),
        )

    def costs(self, table: TableName) -> TableCosts:
        """What each branch, tag and snapshot of a table holds alone; reads every manifest once.

        Raises:
            PolicyError: unknown table.
            MetadataUnreadable: a manifest list or manifest cannot be read.
            StorageError: the catalog does not answer.
        """
        loaded = self.catalog.load(table)
        return cost_of_refs(TableReader(loaded.metadata, Storage(loaded.io_properties).read))

    def verify(self, table: TableName) -> Verification:
        """Check that every file the table refers to is there and that its metadata is consistent.

        Raises:
            PolicyError: unknown table.
            StorageError: the catalog or store does not answer.
        """
        loaded = self.catalog.load(table)
        return verify_table(loaded, Storage(loaded.io_properties))
