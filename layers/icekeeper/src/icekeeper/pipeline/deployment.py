"""One deployment, as its functions and jobs see it: the state, the control bucket, and the catalogs by their names."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from icekeeper.catalogs.addresses import CatalogAddress
from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.fleet import fleet_catalogs, open_address, parse_catalog_file
from icekeeper.clock import Clock, system_clock
from icekeeper.errors import PolicyError, StorageError
from icekeeper.pipeline.control_bucket import ControlBucket
from icekeeper.pipeline.settings import PipelineSettings
from icekeeper.runtime import Runtime
from icekeeper.state.open import open_state
from icekeeper.state.store import StateStore
from icekeeper.storage import Storage

__all__ = ["FLEET_LEASE", "Deployment"]

FLEET_LEASE = "fleet"
"""Held by the one scheduled run that may be under way, so that the concurrency holds for the fleet."""
CATALOG_FILE = "ICEKEEPER_CATALOG_FILE"


@dataclass(slots=True)
class Deployment:
    """What every use case is handed; catalogs are opened when they are first asked for."""

    environment: Mapping[str, str]
    settings: PipelineSettings
    control: ControlBucket
    state: StateStore
    clock: Clock = system_clock
    _catalogs: dict[str, Catalog] = field(default_factory=dict)

    @classmethod
    def open(cls, environment: Mapping[str, str], *, clock: Clock = system_clock) -> Deployment:
        """Nothing is sent yet.

        Raises:
            PolicyError: a variable is missing or malformed.
            StorageError: boto3's own settings cannot be used.
        """
        settings = PipelineSettings.read(environment)
        return cls(
            environment=dict(environment),
            settings=settings,
            control=ControlBucket(settings.control_address),
            state=open_state(environment),
            clock=clock,
        )

    def addresses(self) -> tuple[CatalogAddress, ...]:
        """Every catalog of the fleet.

        Raises:
            PolicyError: a variable or the catalog file is malformed.
            StorageError: the catalog file or the list of table buckets cannot be read.
        """
        return tuple(fleet_catalogs(self.environment, self._catalog_file()))

    def runtime(self, name: str) -> Runtime:
        """What works on the tables of one catalog.

        Raises:
            PolicyError: the deployment has no such catalog.
            StorageError: it cannot be reached.
        """
        if name not in self._catalogs:
            known = {address.name: address for address in self.addresses()}
            if name not in known:
                raise PolicyError(f"this deployment has no catalog '{name}'; it has: {', '.join(known) or 'none'}")
            self._catalogs[name] = open_address(known[name])
        return Runtime(self._catalogs[name], self.state, environment=self.environment, clock=self.clock)

    def new_name(self) -> str:
        """A name nobody else has."""
        return uuid.uuid4().hex

    def _catalog_file(self) -> Mapping[str, Mapping[str, str]]:
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
