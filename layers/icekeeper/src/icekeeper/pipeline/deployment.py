"""A deployment as its functions and jobs see it: settings, state, catalogs and its table buckets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock

import icekeeper.state.dynamodb.table  # noqa: F401 - imported for later and not used here
from icekeeper.catalogs.aws_service import AWS_ERRORS
from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.configured import (
    Catalogs,
    ConfiguredCatalog,
    add_found,
    named_catalogs,
    recorded_catalog,
    wants_all_buckets,
)
from icekeeper.catalogs.load import connect, known_catalogs
from icekeeper.catalogs.s3tables import S3_TABLES
from icekeeper.errors import PolicyError, StorageError
from icekeeper.machine.clock import Clock, system_clock
from icekeeper.machine.resources import variables_set
from icekeeper.model import CatalogId
from icekeeper.operation_facts import Limit
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.pipeline.control_bucket import ControlBucket
from icekeeper.pipeline.events import Item
from icekeeper.pipeline.wave import CORES
from icekeeper.policy import Policy, resolve
from icekeeper.policy.layers import layers_for
from icekeeper.pyiceberg_private.configuration import catalogs_of
from icekeeper.runtime import Runtime
from icekeeper.state.open import open_state
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.store import StateStore
from icekeeper.storage.storage import Storage, StoreClock, store_now_ms
from icekeeper.text import remember_secrets

LEAST_CALL_S = 60.0
"""A function begins no further table in the last minute of its call."""

# The table buckets of an account and region, as the S3 Tables API lists them.

# Buckets of type "aws" belong to a service of AWS (S3 Metadata keeps its journal tables there), which maintains them.
OURS_TO_MAINTAIN = "customer"


def find_table_buckets(properties: Mapping[str, str] | None = None) -> Iterator[str]:
    """The ARN of every table bucket that customers own, in the order in which the service lists them; page by page.

    Region, endpoint and credentials come from the properties (``s3tables.*``, ``client.*``, ``s3.*``), else from
    boto3's default chain and ``AWS_ENDPOINT_URL_S3TABLES``.  Source: Amazon S3 API reference, "ListTableBuckets".

    Raises:
        StorageError: the service does not answer or refuses; the buckets yielded before the error exist.
    """
    chosen = dict(properties or {})
    remember_secrets(chosen)
    try:
        clients = S3_TABLES.connect(chosen)
        try:
            for page in clients.repeating.get_paginator("list_table_buckets").paginate(type=OURS_TO_MAINTAIN):
                for bucket in page["tableBuckets"]:
                    # Check again: a server may ignore the parameter, or have no bucket types.
                    if bucket.get("type", OURS_TO_MAINTAIN) == OURS_TO_MAINTAIN:
                        yield bucket["arn"]
        finally:
            clients.close()
    except AWS_ERRORS as error:
        raise StorageError(f"listing the table buckets {S3_TABLES.describe(error, chosen)}") from error


# The catalogs that a deployment serves: those that its settings name, and table buckets that S3 Tables lists.


@lru_cache(maxsize=4)  # parsing takes longer than the rest of what opens a table
def parse_catalog_file(text: str, source: str) -> Catalogs:
    """Properties by lower-case catalog name, from a file in the format of ``.pyiceberg.yaml``.

    Raises:
        PolicyError: the file is malformed.
    """
    try:
        return catalogs_of(text)
    except ValueError as error:
        raise PolicyError(f"{source} is not a catalog file: {error}") from error


def fleet_catalogs(
    environment: Mapping[str, str],
    catalog_file: Catalogs,
    *,
    find: Callable[[], Iterable[str]] = find_table_buckets,
    unreachable: Callable[[StorageError], None] | None = None,
) -> Sequence[ConfiguredCatalog]:
    """The catalogs of the deployment, not yet connected: open each with :func:`.connect`, so that a failure does not
    stop the others.

    Args:
        environment: holds ``ICEKEEPER_CATALOGS`` and ``ICEKEEPER_TABLE_BUCKETS``; with ``all``, S3 Tables lists the
            buckets.
        catalog_file: the configured catalogs; PyIceberg's own configuration (``PYICEBERG_CATALOG__…``) overrides them.
        find: lists the ARNs of the table buckets.
        unreachable: called with the error when the buckets cannot be listed, and for each listed bucket that clashes
            with another catalog; the other catalogs are then returned.

    Raises:
        PolicyError: the settings are malformed, name the same tables twice, or give two catalogs the same name.
        StorageError: the table buckets cannot be listed, and ``unreachable`` is not given.
    """
    catalogs = known_catalogs(catalog_file)
    named = named_catalogs(environment, catalogs, unless_named=tuple(catalog_file))
    if not wants_all_buckets(environment):
        return named
    found: list[str] = []
    try:
        found.extend(find())
    except StorageError as error:
        if unreachable is None:
            raise
        unreachable(error)
    served = named
    for arn in found:
        try:
            served = add_found(served, [arn], catalogs)
        except PolicyError as error:  # a new bucket must not stop the scan of all others
            if unreachable is None:
                raise
            unreachable(StorageError(f"{arn} is left out: {error}"))
    return served


# The settings that a deployment gives its functions as environment variables, and those that travel to Glue jobs.

CONTROL_BUCKET = "ICEKEEPER_CONTROL_BUCKET"
EXECUTION_CLASS = "ICEKEEPER_WAVE_EXECUTION_CLASS"
WORKER_TYPE = "ICEKEEPER_WORKER_TYPE"
MAX_WORKERS = "ICEKEEPER_MAX_WORKERS"
_MB = 1024 * 1024
# Expiry takes 22 µs of CPU for each manifest in a list and 2.4 ms for each request, measured over a store that takes
# 30 ms a request, from 200 snapshots of 1,500 manifests to 2,000 of 50.  A processor half as fast takes 440 s for this
# many, and has time for 60,000 requests in the rest of a function's 900 s.
_LISTED_MANIFESTS = 10_000_000
# Variables with this prefix go to jobs.  Those of catalogs (PYICEBERG_CATALOG__…) may hold secrets, and do not.
_TRAVELS = "ICEKEEPER_"


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """The settings of the pipeline itself; how tables are maintained is up to the policy."""

    control_bucket: str
    limits: Mapping[Limit, int]
    """A Lambda function does the work up to these limits, a Glue job beyond them; in bytes or files."""
    execution_class: str
    """The execution class of scheduled runs' Glue jobs: ``FLEX`` costs a third less and may start later."""
    worker_type: str
    """The type of the workers of all Glue jobs, a key of :data:`.wave.CORES`."""
    max_workers: int
    """The most workers of one Glue run, including its driver."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> PipelineSettings:
        """Raises PolicyError if a variable is missing or malformed; the message names the variable."""
        bucket = environment.get(CONTROL_BUCKET, "").strip()
        if not bucket:
            raise PolicyError(f"environment variable {CONTROL_BUCKET} is not set; it names the deployment's bucket")
        worker_type = environment.get(WORKER_TYPE, "").strip() or "G.1X"
        if worker_type not in CORES:
            raise PolicyError(f"environment variable {WORKER_TYPE} is '{worker_type}'; it must be {', '.join(CORES)}")
        return cls(
            control_bucket=bucket,
            limits={
                # Compaction runs on Spark, unless the deployment sets a limit.
                Limit.COMPACTION_BYTES: _number(environment, Limit.COMPACTION_BYTES, 0) * _MB,
                Limit.MANIFEST_ENTRIES: _number(environment, Limit.MANIFEST_ENTRIES, 100_000),
                Limit.ORPHAN_REFERENCES: _number(environment, Limit.ORPHAN_REFERENCES, 100_000),
                Limit.LISTED_MANIFESTS: _number(environment, Limit.LISTED_MANIFESTS, _LISTED_MANIFESTS),
                Limit.STATISTICS_BYTES: _number(environment, Limit.STATISTICS_BYTES, 1280) * _MB,
            },
            execution_class=environment.get(EXECUTION_CLASS, "").strip() or "FLEX",
            worker_type=worker_type,
            max_workers=_number(environment, MAX_WORKERS, 10),
        )

    @property
    def control_address(self) -> str:
        """The bucket's address; a name with a slash is a local folder."""
        return self.control_bucket if "/" in self.control_bucket else f"s3://{self.control_bucket}"


def travelling_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a job receives with its work, so that it has the same settings as the functions."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith(_TRAVELS)}


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default)).strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise PolicyError(f"environment variable {name} is '{text}'; it must be a whole number")
    return int(text)


# A deployment as its functions and jobs see it: the state, the control bucket, and the catalogs by name.

# Every call in AWS needs this module.  Import it while a function starts, when Lambda grants the most CPU, and not
# during its first call (platform: function-import-time).


log = logging.getLogger(__name__)

CATALOG_FILE = "ICEKEEPER_CATALOG_FILE"


@dataclass(slots=True)
class Deployment:
    """What every use case works with; a catalog is opened at its first use and then kept.

    Threads may share it.
    """

    environment: Mapping[str, str]
    settings: PipelineSettings
    control: ControlBucket
    state: StateStore
    clock: Clock = system_clock
    store_clock: StoreClock = store_now_ms
    _opened: dict[CatalogId, Catalog] = field(default_factory=dict)
    _opening: Lock = field(default_factory=Lock)

    @property
    def slots(self) -> int:
        """How many tables all scheduled runs may maintain at once; the policy file cannot set this, so it is not read.

        Raises:
            PolicyError: a variable is malformed.
        """
        return self.settings_of_jobs.max_concurrent_jobs

    @property
    def settings_of_jobs(self) -> Policy:
        """The settings that no policy file and no table can set: slots, and time limits and retries of jobs.

        Raises:
            PolicyError: a variable is malformed.
        """
        return resolve(layers_for({}, self.environment, {}), unsafe=True).policy

    @classmethod
    def open(
        cls, environment: Mapping[str, str], *, clock: Clock = system_clock, store_clock: StoreClock = store_now_ms
    ) -> Deployment:
        """The deployment that the environment variables describe; sends no request.

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

    def catalogs(self, unreachable: Callable[[StorageError], None] | None = None) -> Sequence[ConfiguredCatalog]:
        """Every catalog of the fleet; ``unreachable`` is called with the error when table buckets cannot be listed.

        Raises:
            PolicyError: a variable or the catalog file is malformed.
            StorageError: the catalog file cannot be read; or the table buckets cannot be listed and ``unreachable`` is
                not given.
        """
        return fleet_catalogs(self.environment, self._catalog_file(), unreachable=unreachable)

    def runtime(self, item: Item) -> Runtime:
        """A runtime for a table of a run; the run's detection recorded its catalog.

        Raises:
            PolicyError: the deployment no longer has its catalog.
            StorageError: the catalog cannot be reached.
        """
        recorded = CatalogId(item.catalog, item.warehouse)
        return self.runtime_of(recorded_catalog(recorded, known_catalogs(self._catalog_file())))

    def runtime_of(self, configured: ConfiguredCatalog) -> Runtime:
        """A runtime for the tables of a catalog.

        Raises:
            PolicyError: the catalog's type is not supported, or its properties are incomplete.
            StorageError: it cannot be reached.
        """
        return Runtime(
            self._open(configured),
            self.state,
            environment=self.environment,
            # The overrides come from the request that starts a run or calls a function
            # (rule: requests-never-exceed-policy).
            policies=TablePolicies(self.environment, of_requests=True),
            clock=self.clock,
            store_clock=self.store_clock,
            other_catalog=self.other_catalog,
        )

    def other_catalog(self, recorded: CatalogId) -> Catalog | None:
        """Another catalog of the deployment; ``None`` if it has no catalog with that name and warehouse.

        Raises:
            StorageError: the catalog cannot be reached.
        """
        try:
            catalog = self._open(recorded_catalog(recorded, known_catalogs(self._catalog_file())))
        except PolicyError as error:
            log.info("the deployment does not have catalog %s: %s", recorded, error)
            return None
        return catalog if catalog.id.warehouse == recorded.warehouse else None

    def _open(self, configured: ConfiguredCatalog) -> Catalog:
        with self._opening:
            if configured.id not in self._opened:
                self._opened[configured.id] = connect(configured, self.environment)
            return self._opened[configured.id]

    def _catalog_file(self) -> Mapping[str, Mapping[str, str]]:
        path = self.environment.get(CATALOG_FILE, "").strip()
        if not path:
            return {}
        try:
            data = Storage({}).read(path)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return {}  # the template sets the path; the file itself is optional
            raise
        return parse_catalog_file(data.decode(errors="replace"), path)


def pending_request(deployment: Deployment, item: Item) -> MaintenanceRequest | None:
    """The pending request for this table with exactly these settings.

    Raises:
        StorageError: the state does not answer.
    """
    request = deployment.state.requests.of_table(item.identity)
    return request if request is not None and dict(request.settings) == dict(item.settings) else None
