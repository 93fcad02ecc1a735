"""One deployment, as its functions and jobs see it: the state, the control bucket, and the catalogs by their names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING

# Every call in AWS needs this module.  It is imported while a function starts, when it has the most processor, and not
# by its first call.  What only functions need that read files is in functions/files_ahead.py (platform 56).
import icekeeper.state.dynamodb.store  # noqa: F401 - imported for later and not used here
from icekeeper.catalogs.addresses import CatalogAddress
from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.fleet_catalogs import fleet_catalogs, open_address, parse_catalog_file, recorded_address
from icekeeper.errors import PolicyError, StorageError
from icekeeper.machine.clock import Clock, system_clock
from icekeeper.machine.resources import variables_set
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.pipeline.control_bucket import ControlBucket
from icekeeper.pipeline.events import Item
from icekeeper.pipeline.settings import PipelineSettings
from icekeeper.policy import Policy, resolve
from icekeeper.policy.layers import layers_for
from icekeeper.runtime import Runtime
from icekeeper.state.open import open_state
from icekeeper.state.store import StateStore
from icekeeper.storage.storage import Storage
from icekeeper.storage.store_clock import StoreClock, store_now_ms

if TYPE_CHECKING:
    from icekeeper.pipeline.kept_pass import KeptPass  # with all that a pass is made of, which leases do not need
    from icekeeper.pipeline.pass_documents import PassDocuments

__all__ = ["Deployment"]

log = logging.getLogger(__name__)

CATALOG_FILE = "ICEKEEPER_CATALOG_FILE"


@dataclass(slots=True)
class _ReadOnce:
    """The policies and catalogs that a deployment is configured with, which one pass reads once."""

    policies: TablePolicies
    catalogs: Mapping[str, Mapping[str, str]] | None = None


@dataclass(slots=True)
class Deployment:
    """What every use case works with; a catalog is opened when it is first asked for, and then kept.

    Threads may share it.
    """

    environment: Mapping[str, str]
    settings: PipelineSettings
    control: ControlBucket
    state: StateStore
    clock: Clock = system_clock
    store_clock: StoreClock = store_now_ms
    _catalogs: dict[tuple[str, str | None], Catalog] = field(default_factory=dict)
    _opening: Lock = field(default_factory=Lock)
    _once: _ReadOnce | None = None
    kept: KeptPass | None = None
    """Of the one pass that this call carries out as a whole; ``None``: each step has a process of its own."""

    @property
    def slots(self) -> int:
        """How many tables all scheduled runs may maintain at once; read without the policy file, which cannot set it.

        Raises:
            PolicyError: a variable is malformed.
        """
        return self.settings_of_jobs.max_concurrent_jobs

    @property
    def settings_of_jobs(self) -> Policy:
        """The policy as far as no policy file and no table can set it: slots, times and repetitions of jobs.

        Raises:
            PolicyError: a variable is malformed.
        """
        return resolve(layers_for({}, self.environment, {}), unsafe=True).policy

    @classmethod
    def open(
        cls,
        environment: Mapping[str, str],
        *,
        clock: Clock = system_clock,
        store_clock: StoreClock = store_now_ms,
    ) -> Deployment:
        """The deployment that environment variables describe; no request is sent yet.

        Raises:
            PolicyError: a variable is missing or malformed.
            StorageError: boto3's own settings cannot be used.
        """
        variables = variables_set(environment)
        settings = PipelineSettings.read(variables)
        return cls(
            environment=variables,
            settings=settings,
            control=ControlBucket(settings.control_address),
            state=open_state(variables),
            clock=clock,
            store_clock=store_clock,
        )

    def for_one_pass(self) -> Deployment:
        """The same deployment for one pass, which reads catalog file and policy file once, as the command does.

        Any other reads them for each runtime: people may change them while a container is warm.
        """
        return replace(self, _once=_ReadOnce(TablePolicies(self.environment, of_requests=True)))

    def keeping(self, run_id: str, item: Item) -> Deployment:
        """The same deployment for a call that carries out one pass as a whole (rule 158)."""
        from icekeeper.pipeline.kept_pass import KeptDocuments, KeptPass
        from icekeeper.pipeline.pass_documents import StoredDocuments

        return replace(self, kept=KeptPass(KeptDocuments(StoredDocuments(self.control, run_id, item))))

    def documents(self, run_id: str, item: Item) -> PassDocuments:
        """The documents of one table's pass."""
        from icekeeper.pipeline.pass_documents import StoredDocuments

        return StoredDocuments(self.control, run_id, item) if self.kept is None else self.kept.documents

    def addresses(self, unreachable: Callable[[StorageError], None] | None = None) -> Sequence[CatalogAddress]:
        """Every catalog of the fleet; ``unreachable`` is called with the error when table buckets cannot be listed.

        Raises:
            PolicyError: a variable or the catalog file is malformed.
            StorageError: the catalog file cannot be read; or the table buckets cannot be listed and ``unreachable`` is
                not given.
        """
        return fleet_catalogs(self.environment, self._catalog_file(), unreachable=unreachable)

    def runtime(self, item: Item) -> Runtime:
        """A runtime for a table of a run, whose catalog the run's detection recorded.

        Raises:
            PolicyError: the deployment does not have its catalog any more.
            StorageError: it cannot be reached.
        """
        document = {"catalog": item.catalog, "warehouse": item.warehouse}
        return self.runtime_at(recorded_address(document, self._catalog_file()))

    def runtime_at(self, address: CatalogAddress) -> Runtime:
        """A runtime for the tables of one catalog.

        Raises:
            PolicyError: its type is not supported, or its properties are incomplete.
            StorageError: it cannot be reached.
        """
        return Runtime(
            self._opened(address),
            self.state,
            environment=self.environment,
            # Who starts a run, or calls a function, says the overrides (rule 267).
            policies=TablePolicies(self.environment, of_requests=True) if self._once is None else self._once.policies,
            clock=self.clock,
            store_clock=self.store_clock,
            other_catalog=self.other_catalog,
        )

    def other_catalog(self, name: str, warehouse: str) -> Catalog | None:
        """Another catalog of the deployment; ``None`` where there is none of that name and warehouse.

        Raises:
            StorageError: it cannot be reached.
        """
        catalogs = self._catalog_file()
        for document in ({"catalog": name, "warehouse": warehouse}, {"catalog": name, "warehouse": None}):
            try:
                catalog = self._opened(recorded_address(document, catalogs))
            except PolicyError as error:
                log.info("catalog %s is not served: %s", name, error)
                continue
            if catalog.warehouse == warehouse:
                return catalog
        return None

    def _opened(self, address: CatalogAddress) -> Catalog:
        key = (address.name, address.warehouse)
        with self._opening:
            if key not in self._catalogs:
                self._catalogs[key] = open_address(address, self.environment)
            return self._catalogs[key]

    def _catalog_file(self) -> Mapping[str, Mapping[str, str]]:
        if self._once is None:
            return self._read_catalog_file()
        if self._once.catalogs is None:
            self._once.catalogs = self._read_catalog_file()
        return self._once.catalogs

    def _read_catalog_file(self) -> Mapping[str, Mapping[str, str]]:
        path = self.environment.get(CATALOG_FILE, "").strip()
        if not path:
            return {}
        try:
            data = Storage({}).read(path)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return {}  # the template names the place; putting a file there is optional
            raise
        return parse_catalog_file(data.decode(errors="replace"), path)
