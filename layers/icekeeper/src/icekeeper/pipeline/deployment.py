"""One deployment, as its functions and jobs see it: settings, state, catalogs, and what it uses of AWS."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import icekeeper.state.dynamodb.table  # noqa: F401 - imported for later and not used here
from icekeeper.catalogs.addresses import (
    CatalogAddress,
    Catalogs,
    add_found,
    address_from_json,
    named_addresses,
    wants_all_buckets,
)
from icekeeper.catalogs.aws_service import AWS_ERRORS
from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.load import connect, known_catalogs
from icekeeper.catalogs.s3tables import S3_TABLES
from icekeeper.errors import PolicyError, StorageError
from icekeeper.machine.clock import Clock, system_clock
from icekeeper.machine.metering import Amount, RequestKind, process_meter
from icekeeper.machine.resources import variables_set
from icekeeper.operation_facts import STEP_FACTS, Limit
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.pipeline.control_bucket import ControlBucket, PlanDocument, StoredDocuments
from icekeeper.pipeline.events import Item, PlanReference
from icekeeper.policy import Operation, Policy, resolve
from icekeeper.policy.layers import layers_for
from icekeeper.pyiceberg_private.configuration import catalogs_of
from icekeeper.report.costs import GLUE_SHORTEST_S
from icekeeper.report.outcome import PassOutcome, Status, request_key
from icekeeper.runtime import Runtime
from icekeeper.state.leases import HeldLease, Lease
from icekeeper.state.open import open_state
from icekeeper.state.store import HourOfUse, StateStore, hour_of
from icekeeper.storage.storage import Storage, StoreClock, store_now_ms
from icekeeper.text import remember_secrets

if TYPE_CHECKING:
    from icekeeper.pipeline.control_bucket import PassDocuments


# The table buckets of an account and region, as the S3 Tables API lists them.

# Buckets of type "aws" belong to a service of AWS (S3 Metadata keeps its journal tables there), which maintains them.
OURS_TO_MAINTAIN = "customer"


@dataclass(frozen=True, slots=True)
class TableBucket:
    """One table bucket of this account."""

    name: str
    arn: str


def find_table_buckets(properties: Mapping[str, str] | None = None) -> Iterator[TableBucket]:
    """Every table bucket that customers own, in the order in which the service lists them; page by page.

    Region, endpoint and credentials come from the properties (``s3tables.*``, ``client.*``, ``s3.*``), else from
    boto3's default chain and ``AWS_ENDPOINT_URL_S3TABLES``.  Source: Amazon S3 API reference, "ListTableBuckets".

    Raises:
        StorageError: the service does not answer or refuses; the buckets given before the error exist.
    """
    chosen = dict(properties or {})
    remember_secrets(chosen)
    try:
        clients = S3_TABLES.connect(chosen)
        try:
            for page in clients.repeating.get_paginator("list_table_buckets").paginate(type=OURS_TO_MAINTAIN):
                for bucket in page["tableBuckets"]:
                    # Checked again: a server may ignore the parameter, or know no types.
                    if bucket.get("type", OURS_TO_MAINTAIN) == OURS_TO_MAINTAIN:
                        yield TableBucket(bucket["name"], bucket["arn"])
        finally:
            clients.close()
    except AWS_ERRORS as error:
        raise StorageError(f"listing the table buckets {S3_TABLES.describe(error, chosen)}") from error


# The catalogs that a deployment serves: those that its settings name, and table buckets that S3 Tables lists.


def parse_catalog_file(text: str, source: str) -> Catalogs:
    """Properties by lower-case catalog name, from a file in the format of ``.pyiceberg.yaml``.

    Raises:
        PolicyError: it is malformed.
    """
    try:
        return catalogs_of(text)
    except ValueError as error:
        raise PolicyError(f"{source} is no catalog file: {error}") from error


def fleet_catalogs(
    environment: Mapping[str, str],
    catalog_file: Catalogs,
    *,
    find: Callable[[], Iterable[TableBucket]] = find_table_buckets,
    unreachable: Callable[[StorageError], None] | None = None,
) -> Sequence[CatalogAddress]:
    """Addresses to open one by one with :func:`open_address`, so that one that fails stops no other.

    Args:
        environment: holds ``ICEKEEPER_CATALOGS`` and ``ICEKEEPER_TABLE_BUCKETS``; with ``all``, S3 Tables is asked.
        catalog_file: what is configured; PyIceberg's own configuration (``PYICEBERG_CATALOG__…``) wins over it.
        find: lists the table buckets.
        unreachable: called with the error when the buckets cannot be listed, and for each listed bucket that clashes
            with another catalog; the other catalogs are then returned.

    Raises:
        PolicyError: the settings are malformed, name the same tables twice, or give two catalogs one name.
        StorageError: the table buckets cannot be listed, and ``unreachable`` is not given.
    """
    catalogs = known_catalogs(catalog_file)
    named = named_addresses(environment, catalogs, unless_named=tuple(catalog_file))
    if not wants_all_buckets(environment):
        return named
    found: list[str] = []
    try:
        found.extend(bucket.arn for bucket in find())
    except StorageError as error:
        if unreachable is None:
            raise
        unreachable(error)
    addresses = named
    for arn in found:
        try:
            addresses = add_found(addresses, [arn], catalogs)
        except PolicyError as error:  # whoever creates a bucket must not be able to stop the scan of all the others
            if unreachable is None:
                raise
            unreachable(StorageError(f"{arn} is left out: {error}"))
    return addresses


def recorded_address(document: Mapping[str, Any], catalog_file: Catalogs) -> CatalogAddress:
    """The address that :meth:`CatalogAddress.to_json` wrote, as it is configured now; no table buckets are listed.

    Raises:
        PolicyError: that catalog is no longer configured, or has another warehouse by now.
    """
    return address_from_json(document, known_catalogs(catalog_file))


def open_address(address: CatalogAddress, environment: Mapping[str, str]) -> Catalog:
    """Connect to one catalog of a fleet; ``environment`` says where its tables may have files.

    Raises:
        PolicyError: its type is not supported, or its properties are incomplete.
        StorageError: it cannot be reached.
    """
    return connect(address.name, address.properties, environment)


# What one call keeps in memory of a pass that it carries out as a whole (rule: record-outcomes-as-they-happen).
#
# Each document in the control bucket costs eight times as much as an item of the state table, and a step that found
# nothing to do leaves nothing that a repetition could not find again.  So the control bucket gets the first plan, with
# all outcomes so far, once a step has done something, and when somebody may look for it: whoever asked for the pass,
# and the states that follow where the call leaves steps to them.  What a call had committed when it was killed, the
# snapshots tell by run and operation.


class KeptDocuments:
    """:class:`PassDocuments` of one call; what must outlive it is in the control bucket as well."""

    def __init__(self, stored: StoredDocuments) -> None:
        self._stored = stored
        self._before: Mapping[str, Any] | None = None
        """The first plan that an earlier call or round of the pass left."""
        self._record: PlanDocument | None = None
        """The first plan of this call, by whose name the control bucket has what this call has done."""
        self._plans: dict[str, PlanDocument] = {}
        self._outcomes: dict[str, Mapping[str, Any]] = {}
        self._begun: dict[str, Mapping[str, Any]] = {}

    def first_plan(self) -> Mapping[str, Any]:
        if self._before is None:
            self._before = self._stored.first_plan()
        if self._before or self._record is None:
            return self._before
        return self._record.model_dump(mode="json")

    def carried_out(self, first: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        return {**(self._stored.carried_out(first) if self._before else {}), **self._outcomes}

    def write_plan(self, document: PlanDocument) -> PlanReference:
        if document.requested_ms is not None or document.item.forced:
            self._stored.write_plan(document)
        reference = self._stored.reference(document)
        self._plans[reference.digest] = document
        if document.attempt == 1:
            self._record = document
        return reference

    def plan(self, reference: PlanReference) -> PlanDocument:
        kept = self._plans.get(reference.digest)
        return self._stored.plan(reference) if kept is None else kept

    def outcome(self, step: str) -> Mapping[str, Any] | None:
        if step in self._outcomes or not self._before:
            return self._outcomes.get(step)
        return self._stored.outcome(step)

    def write_outcome(self, step: str, document: Mapping[str, Any]) -> None:
        outcomes = {**self._outcomes, step: document}
        if document["status"] != Status.SKIPPED.value and self._record is not None:
            self._stored.write_plan(_with(self._record, outcomes))
        self._outcomes = outcomes

    def begun(self, step: str) -> Mapping[str, Any] | None:
        if step in self._begun or not self._before:
            return self._begun.get(step)
        return self._stored.begun(step)

    def write_begun(self, step: str, document: Mapping[str, Any]) -> None:
        if step == Operation.COMPACT.value:
            # It grows with the data: a call that is killed has left behind that it was at it.
            self._stored.write_begun(step, document)
        self._begun[step] = document

    def handed_over(self, reference: PlanReference) -> PlanReference:
        """The plan with what this call has done, in the control bucket for the states that do the rest."""
        plan = self.plan(reference)
        return self._stored.write_plan(_with(plan.model_copy(update={"routes": reference.routes}), self._outcomes))


def _with(plan: PlanDocument, outcomes: Mapping[str, Mapping[str, Any]]) -> PlanDocument:
    return plan.model_copy(update={"done": {**plan.done, **outcomes}})


@dataclass(slots=True)
class KeptPass:
    """What a call has of its pass."""

    documents: KeptDocuments
    lease: HeldLease | None = None
    """The table's, which this call has taken and prolongs before whatever must not be done without it
    (rule: lost-lease-changes-nothing)."""
    slot: Lease | None = None
    """The slot of the fleet that it has taken."""


# The settings that a deployment gives its functions as environment variables, and those that travel to Glue jobs.

CONTROL_BUCKET = "ICEKEEPER_CONTROL_BUCKET"
# Up to this a function costs less than a full wave, and surely ends (pipeline/wave.py derives it).
_SMALL_COMPACTION_MB = 1280
# Variables with this prefix go into the plan.  Those of catalogs (PYICEBERG_CATALOG__…) may hold secrets, and do not.
_TRAVELS = "ICEKEEPER_"


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """The settings of the pipeline itself; how tables are maintained is up to the policy."""

    control_bucket: str
    limits: Mapping[Limit, int]
    """Up to these a Lambda function does the work, beyond them a Glue job; in bytes or files."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> PipelineSettings:
        """Raises PolicyError for a variable that is missing or malformed, by its name."""
        bucket = environment.get(CONTROL_BUCKET, "").strip()
        if not bucket:
            raise PolicyError(f"environment variable {CONTROL_BUCKET} is not set; it names the deployment's bucket")
        return cls(
            control_bucket=bucket,
            limits={
                Limit.COMPACTION_BYTES: _number(environment, Limit.COMPACTION_BYTES, _SMALL_COMPACTION_MB)
                * 1024
                * 1024,
                Limit.MANIFEST_ENTRIES: _number(environment, Limit.MANIFEST_ENTRIES, 100_000),
                Limit.ORPHAN_REFERENCES: _number(environment, Limit.ORPHAN_REFERENCES, 100_000),
            },
        )

    @property
    def control_address(self) -> str:
        """The bucket's address; a name with a slash is a local folder."""
        return self.control_bucket if "/" in self.control_bucket else f"s3://{self.control_bucket}"


def travelling_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a plan carries, so that a job works under the same settings as the functions."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith(_TRAVELS)}


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default)).strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise PolicyError(f"environment variable {name} is '{text}'; it must be a whole number")
    return int(text)


# One deployment, as its functions and jobs see it: the state, the control bucket, and the catalogs by their names.

# Every call in AWS needs this module.  It is imported while a function starts, when it has the most processor, and not
# by its first call.  What only functions need that read files is in functions/files_ahead.py
# (platform: function-import-time).


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
        """The same deployment for a call that carries out one pass as a whole
        (rule: record-outcomes-as-they-happen)."""
        from icekeeper.pipeline.control_bucket import StoredDocuments

        return replace(self, kept=KeptPass(KeptDocuments(StoredDocuments(self.control, run_id, item))))

    def documents(self, run_id: str, item: Item) -> PassDocuments:
        """The documents of one table's pass."""
        from icekeeper.pipeline.control_bucket import StoredDocuments

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
            # Who starts a run, or calls a function, says the overrides (rule: requests-never-exceed-policy).
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


# How many states of the state machine are entered because of one call: Step Functions bills each.  Pure.
#
# A call's own state counts, and those behind it in which nothing is called.  Rounds of waiting are left out: nobody who
# could count them is called there.

_ROUTES = len(STEP_FACTS)
_OF_REST = 3
"""MaintainTables, LeftToWave and AnyLeftToWave: of a run in which not every pass ends in one call."""


def states_of_call(function: str, event: Mapping[str, Any], answer: Mapping[str, Any]) -> int:
    """The states of one call that succeeded; ``function`` is its folder."""
    match function:
        case "detect":
            return _of_detection(answer)
        case "maintain_small":
            if event.get("hands_on"):
                return 1
            # IsPassDone and PassDone; or TakeUpPlan, and a choice of every step's route.
            return 3 if "report" in answer else 3 + _ROUTES
        case "plan":
            if "left" in event:
                # Else the second map was counted where tables were assigned to it.
                return 1 + (_OF_REST if answer["count"] == len(event["left"]) else 0)
            return 2 if "wave" in event else 1 + _ROUTES  # RestOfPasses
        case "list_orphans":
            return 2  # AnyOrphans
        case "report":
            return 2 if "item" in event else 3  # TableDone; HowItWent and the end
    return 1


def _of_detection(answer: Mapping[str, Any]) -> int:
    if not answer["proposals"]["count"]:
        return 3  # AnyProposals, NothingToDo
    one_call = 2 if answer["in_one_call"]["count"] else 0  # MaintainSmallTables, AnyLeft
    return 2 + one_call + (_OF_REST if answer["rest"]["count"] else 0)


def states_of_job(*, is_wave: bool) -> int:
    """The states of one run of a Glue job; behind a wave the map and two choices are entered again."""
    return 4 if is_wave else 1


# Records in the state what this process used that AWS bills.

STORE_AMOUNTS: Mapping[RequestKind, Amount] = {
    RequestKind.GET: Amount.STORE_GETS,
    RequestKind.PUT: Amount.STORE_PUTS,
}
"""The requests that are billed."""
# AWS Glue developer guide, "Worker types".
_DPU_OF_WORKER: Mapping[str, int] = {"G.1X": 1, "G.2X": 2, "G.4X": 4, "G.8X": 8}


def record_use(deployment: Deployment, metrics: frozenset[str] = frozenset()) -> None:
    """Add what was counted since the last time to the hour of now.

    Raises:
        StorageError: the state cannot be written; what was counted is lost.
    """
    amounts = {amount.value: number for amount, number in process_meter.take().items()}
    deployment.state.usage.add(HourOfUse(hour_of(deployment.clock()), amounts, metrics))


def note_job(worker_type: str, workers: int, seconds: float, *, is_flex: bool, is_wave: bool) -> None:
    """Count a run of a Glue job, for a minute at least."""
    billed_ms = round(max(GLUE_SHORTEST_S, seconds) * 1000)
    amount = Amount.GLUE_FLEX_DPU_MS if is_flex else Amount.GLUE_DPU_MS
    process_meter.add(amount, _DPU_OF_WORKER[worker_type] * workers * billed_ms)
    process_meter.add(Amount.STATE_TRANSITIONS, states_of_job(is_wave=is_wave))


def note_pass(outcome: PassOutcome) -> None:
    """Count what the operations of a pass used and what they compacted, from their outcomes."""
    for name, value in outcome.metrics.items():
        for kind, amount in STORE_AMOUNTS.items():
            if name.endswith(request_key(kind)):
                process_meter.add(amount, int(value))
    compacted = outcome.metrics.get(f"{Operation.COMPACT.value}.files_merged", 0)
    if compacted:
        process_meter.add(Amount.COMPACTIONS)
        process_meter.add(Amount.COMPACTED_FILES, int(compacted))
        process_meter.add(Amount.COMPACTED_BYTES, int(outcome.metrics.get("compact.bytes_read", 0)))
