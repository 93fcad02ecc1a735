"""The current state of tables, whatever was recorded: health and layout of one table, or of all tables of a pattern."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from icekeeper.advice.advise import Advice
from icekeeper.advice.read_tables import advise_table
from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.deletion.other_tables import why_deletions_wait
from icekeeper.detection.assess import settled_operations
from icekeeper.detection.detect import detect_catalog
from icekeeper.detection.list_tables import selects_table
from icekeeper.errors import MaintenanceError, PolicyError, StorageError
from icekeeper.health.examine import examine, health_head
from icekeeper.health.lake_log import Twins
from icekeeper.health.layout import MOST_REFS, MOST_SNAPSHOTS, layout_facts
from icekeeper.health.table_state import WarningKind
from icekeeper.machine.clock import Clock
from icekeeper.metadata.table_reader import TableReader, deletes_standing_elsewhere
from icekeeper.model import TableName
from icekeeper.operations.compaction.terms.output_names import partition_path
from icekeeper.operations.expiry.ref_costs import TableCosts, cost_of_refs
from icekeeper.operations.policy_fit import fitting
from icekeeper.pass_context.stores import CachedFiles, shared_reads, sharing_reads
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.policy import ResolvedPolicy
from icekeeper.state.claims import CutOff, CutWork, waiting_cuts
from icekeeper.state.findings import Part, TableLayout
from icekeeper.state.identity import TableIdentity
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.store import Glance, StateStore

log = logging.getLogger(__name__)

# A layout is stored as one item, which DynamoDB bounds, and shown on a page, which is bounded too.
_MOST_ADVICE = 12
_LONGEST_ADVICE = 2000


Value = TypeVar("Value")


def _if_readable(read: Callable[[], Value], otherwise: Value, what: str) -> Value:
    """A value read from the state; if the read fails, it is logged, and ``otherwise`` is returned."""
    try:
        return read()
    except StorageError as error:
        log.warning("cannot read %s: %s", what, error)
        return otherwise


@dataclass(frozen=True, slots=True)
class Afresh:
    """Reads the tables of one catalog, with the policies of its deployment."""

    catalog: Catalog
    state: StateStore
    policies: TablePolicies
    clock: Clock

    def health(
        self, table: TableName, overrides: Mapping[str, str] | None = None, *, unsafe: bool = False
    ) -> LakeStats:
        """The health of a table now, whether Icekeeper maintains it or not.

        Reads the metadata document, the head's manifest list, and at most three of its manifests and eight footers.
        Reads all of the head's manifests if delete files may have another spec or partition than their data files.

        Raises:
            PolicyError: unknown table.
            MetadataUnreadable: the manifest list or one of these manifests cannot be read.
            StorageError: the catalog does not answer.
        """

        catalog, now_ms = self.catalog, self.clock()
        cuts: Sequence[CutOff] = _if_readable(
            lambda: self.state.cut_offs.of_catalog(catalog.id), [], "which tables were cut off"
        )
        if (cut := waiting_cuts(cuts, CutWork.LOOK, now_ms).get(table.key)) is not None:  # another read would hang
            identity = TableIdentity(catalog.id, table, "")
            unread = {WarningKind.CUT_OFF.value: f"the table is not read: {cut.sentence}"}
            return LakeStats(identity=identity, observed_ms=now_ms, snapshot_id=None, counters={}, warnings=unread)
        cut = waiting_cuts(cuts, CutWork.PASS, now_ms).get(table.key)
        loaded = catalog.load(table)
        resolved: ResolvedPolicy | PolicyError
        try:
            resolved = fitting(loaded.metadata, self.policies.of(catalog, loaded, overrides or {}, unsafe=unsafe))
        except PolicyError as error:
            if overrides:
                raise
            resolved = error
        head = health_head(loaded.metadata, resolved)
        reader = _reader(loaded)
        # A v1 snapshot without a manifest list needs every manifest read; where a pass was cut off, any read may hang.
        manifests = None if cut or head is None or head.manifest_list is None else reader.manifests(head)
        identity = identity_of(catalog, loaded)
        read_memory = partial(self.state.glance, identity, now_ms=now_ms)
        memory = _if_readable(read_memory, Glance((), None, ()), "what passes have found")
        return examine(
            identity,
            loaded.metadata,
            resolved,
            now_ms=now_ms,
            manifests=manifests,
            idle=lambda policy: settled_operations(loaded.metadata, policy, memory, now_ms),
            deletes_elsewhere=len(deletes_standing_elsewhere(reader, manifests or ())),
            memory=memory,
            cut_off=cut,
            twins=self._twins(identity),
            waits=self._why_deletions_wait(loaded),
        )

    def _twins(self, identity: TableIdentity) -> tuple[str, ...]:
        """Other tables of the catalog with the same UUID, from past scans."""

        known, catalog = Twins(), self.catalog

        def look() -> None:
            lake = self.state.lake_stats.of_catalog(catalog.id)
            known.know(stats.identity for stats in lake if stats.identity.uuid == identity.uuid)

        _if_readable(look, None, "which tables have the same UUID")
        return known.of(identity)

    def _why_deletions_wait(self, loaded: LoadedTable) -> str | None:
        """Which unreadable table makes deletions wait, and what ends that; ``None``: none, or the state fails."""

        with suppress(StorageError):
            return why_deletions_wait(self.state, self.catalog, loaded, self.state.claims.looks())
        return None

    def scan(self, pattern: str) -> Mapping[str, str]:
        """Scan the tables whose names match ``pattern`` (``shop.*``, ``*``), and record the facts in their manifests.

        Returns why tables could not be read, by name.

        Raises:
            PolicyError: the pattern is malformed, or no table matches it.
            StorageError: the catalog cannot be listed, or the state cannot be used.
        """

        namespaces, dot, tables = pattern.rpartition(".")
        filters = {"namespace_filter": namespaces if dot else "*", "table_filter": tables}
        settings = self.policies.deployment(filters).policy
        matching = [table for table in self.catalog.list_tables() if selects_table(settings, table)]
        if not matching:
            raise PolicyError(f"no table of catalog {self.catalog.id} matches '{pattern}'")
        everything = {**filters, "max_jobs_per_detection": str(10**9)}
        found = detect_catalog(self.catalog, self.state, self.policies, overrides=everything, clock=self.clock)
        reasons = {skip.table: skip.reason for skip in found.skipped}
        lake = self.state.lake_stats.of_catalog(self.catalog.id)
        known = {
            stats.identity.table: stats.verdict for stats in sorted(lake, key=lambda stats: stats.verdict.is_unread)
        }
        unread: dict[str, str] = {}
        for table in matching:
            if table not in known or known[table].is_unread:
                unread[str(table)] = reasons.get(str(table), "it was not reached in time")
            else:
                try:
                    self._record(table)
                except (MaintenanceError, OSError) as error:
                    unread[str(table)] = str(error)
        return unread

    @sharing_reads()
    def _record(self, table: TableName) -> None:
        """Record the health of a table, with what the last scan concluded about it, and its layout."""
        layout = self.layout(table)
        self.state.layouts.record(*layout)
        known = self.state.lake_stats.of_table(layout[0].identity)
        health = self.health(table)
        if known is not None and health.snapshot_id == known.snapshot_id:
            self.state.lake_stats.record(replace(health, verdict=known.verdict))

    def layout(self, table: TableName) -> Sequence[TableLayout]:
        """Files, partitions, refs and design of a table; reads every manifest.

        Raises:
            PolicyError: unknown table.
            MetadataUnreadable: a manifest list or manifest cannot be read.
            StorageError: the catalog does not answer.
        """

        loaded = self.catalog.load(table)
        metadata = loaded.metadata
        reader = _reader(loaded)
        try:
            resolved: ResolvedPolicy | PolicyError = self._policy(loaded)
            advice = advise_table(self.catalog, table, self._policy)
        except PolicyError as error:
            resolved, advice = error, ()
        head = health_head(metadata, resolved)
        manifests = [] if head is None else reader.manifests(head)
        files = layout_facts(
            reader.live_entries(manifests),
            lambda spec_id, values: partition_path(metadata.specs[spec_id], values, metadata.schemas_current_first),
        )
        holders = {**_holders(cost_of_refs(reader)), "advice": self._shown(advice)}
        identity, now_ms = identity_of(self.catalog, loaded), self.clock()
        return [
            TableLayout(identity=identity, observed_ms=now_ms, part=part, facts=facts)
            for part, facts in ((Part.FILES, files), (Part.HOLDERS, holders))
        ]

    def _policy(self, loaded: LoadedTable) -> ResolvedPolicy:
        return self.policies.of(self.catalog, loaded, {})

    def _shown(self, advice: Sequence[Advice]) -> list[dict[str, str]]:
        own = f" --catalog {shlex.quote(self.catalog.id.name)}"
        statements = [item.statement + (own if item.statement.startswith("icekeeper ") else "") for item in advice]
        return [
            {"reason": item.message[:_LONGEST_ADVICE], "gain": item.gain, "statement": statement[:_LONGEST_ADVICE]}
            for item, statement in zip(advice[:_MOST_ADVICE], statements, strict=False)
        ]


def _reader(loaded: LoadedTable) -> TableReader:
    shared = shared_reads()
    return TableReader(loaded.metadata, CachedFiles(shared.manifests, shared.storage(loaded.io_properties)).read)


def _holders(costs: TableCosts) -> dict[str, Any]:
    """The bytes that only one ref or snapshot holds, for each ref and snapshot."""
    return {
        "refs": [[ref.name, ref.type, ref.snapshots, ref.bytes_only_here] for ref in costs.refs[:MOST_REFS]],
        "snapshots": [[snap.timestamp_ms, snap.bytes_only_here] for snap in costs.snapshots[-MOST_SNAPSHOTS:]],
    }
