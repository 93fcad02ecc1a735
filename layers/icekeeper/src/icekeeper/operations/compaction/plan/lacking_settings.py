"""Find data files that do not meet the table's current settings: codec, Bloom filters and sort order.

Footers show codec and filters.  A footer takes two requests, so all footers are read only if ``rewrite_reason`` needs
them.  A dry run reads a sample and reports what a rewrite for these reasons would cost.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import LocationRefused, MaintenanceError, PolicyError
from icekeeper.machine.metering import WorkThreads
from icekeeper.model import LiveEntry, ManifestContent, ManifestFile
from icekeeper.operations.compaction.plan.candidates import FileScope, Tally
from icekeeper.operations.compaction.plan.payback import rewrite_price
from icekeeper.operations.compaction.terms.recipe import has_order, table_recipe
from icekeeper.operations.compaction.terms.write_properties import WantedSettings, settings_lacking, wanted_settings
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Strategy
from icekeeper.policy.values import RewriteReason
from icekeeper.rows.file_rows import read_parquet_footer
from icekeeper.storage.storage import Storage

log = logging.getLogger(__name__)

BY_FOOTER = frozenset({RewriteReason.CODEC, RewriteReason.BLOOM})
"""The reasons that only footers show."""
_PARALLEL_FOOTERS = 16
_SAMPLE = 16
"""The number of footers that a dry run reads, at most."""


def lacking_by_footer(
    context: OperationContext, loaded: LoadedTable, manifests: Sequence[ManifestFile], in_scope: FileScope
) -> dict[str, frozenset[RewriteReason]]:
    """Path → reasons of ``rewrite_reason`` that apply to a file in scope, by its footer; empty if no such reason is
    set.

    Files in other formats than Parquet have no footer; all reasons apply to them.
    """
    asked = BY_FOOTER.intersection(context.policy.rewrite_reason)
    lacking: dict[str, frozenset[RewriteReason]] = {}
    if not asked:
        return lacking
    paths = []
    for manifest, entry in context.reader(loaded).live_entries(manifests, ManifestContent.DATA):
        if in_scope(entry.file, manifest.partition_spec_id):
            if entry.file.file_format.upper() != "PARQUET":
                lacking[entry.file.file_path] = asked
            elif context.is_written(entry.file.file_path):
                paths.append(entry.file.file_path)
    loaded.allowed.require(paths)
    found = _files_lacking(
        paths,
        wanted_settings(loaded.metadata.current_schema, loaded.metadata.properties),
        context.stores.storage(loaded),
        lambda done: context.progress("compact: footers", done, len(paths)),
    )
    return lacking | {path: lacks & asked for path, lacks in found.items() if lacks & asked}


def _files_lacking(
    paths: Sequence[str], wanted: WantedSettings, storage: Storage, on_done: Callable[[int], None] = lambda done: None
) -> dict[str, frozenset[RewriteReason]]:
    """Path of a Parquet file → the settings that it does not meet, if any and if it can be read."""
    import pyarrow as pa

    def look(path: str) -> frozenset[RewriteReason]:
        try:
            return settings_lacking(read_parquet_footer(path, storage), wanted)
        except (MaintenanceError, pa.ArrowException, OSError) as error:
            log.warning("cannot read the footer of %s, so the file stays unchanged: %s", path, error)
            return frozenset()

    found: dict[str, frozenset[RewriteReason]] = {}
    with WorkThreads(_PARALLEL_FOOTERS, thread_name_prefix="footer") as pool:
        for done, (path, lacking) in enumerate(zip(paths, pool.map(look, paths), strict=True), start=1):
            if lacking:
                found[path] = lacking
            on_done(done)
    return found


class FileSample:
    """A sample of Parquet files, taken evenly from all entries; keeps at most twice as many paths in memory."""

    def __init__(self, context: OperationContext, loaded: LoadedTable, clustered_by: frozenset[int]) -> None:
        """``clustered_by``: ids of the snapshots that added files in the table's own sort order."""
        self._context, self._loaded, self._clustered_by = context, loaded, clustered_by
        self._recipe = table_recipe(loaded.metadata, context.policy)
        self._all = Tally()
        # The number of files that are not in the table's own sort order, the number of Parquet files, and their bytes.
        self._unsorted = self._count = self._bytes = 0
        self._kept: list[str] = []
        self._step = 1

    def watch(self, entries: Iterable[LiveEntry]) -> Iterator[LiveEntry]:
        """Sample ``entries`` and return them unchanged."""
        for live in entries:
            file = live.entry.file
            self._all.add(file)
            self._unsorted += self._lacks_order(live)
            # Expected outputs of a dry run have no footer.
            if file.file_format.upper() == "PARQUET" and self._context.is_written(file.file_path):
                if self._count % self._step == 0:
                    self._kept.append(file.file_path)
                self._count += 1
                self._bytes += file.file_size_in_bytes
                if len(self._kept) > 2 * _SAMPLE:
                    self._kept, self._step = self._kept[::2], 2 * self._step
            yield live

    def _lacks_order(self, live: LiveEntry) -> bool:
        recipe = self._recipe
        return recipe is not None and not has_order(live, self._loaded.metadata, self._clustered_by, recipe.order_id)

    def lacking_settings(self) -> list[dict[str, Any]]:
        """``settings`` in ``plan --json``: one entry per setting that sampled files do not meet; sums are estimates."""
        loaded = self._loaded
        with suppress(PolicyError, LocationRefused):  # the rewrite itself reports a wrong property or folder
            chosen = self._kept[:: max(1, -(-len(self._kept) // _SAMPLE))]
            loaded.allowed.require(chosen)
            wanted = wanted_settings(loaded.metadata.current_schema, loaded.metadata.properties)
            found = _files_lacking(chosen, wanted, self._context.stores.storage(loaded))
            return [
                _setting(
                    reason.value,
                    len(chosen),
                    count,
                    round(self._count * count / len(chosen)),
                    round(self._bytes * count / len(chosen)),
                    f"rewrite_reason={reason.value}",
                )
                for reason, count in sorted(Counter(reason for lacks in found.values() for reason in lacks).items())
            ]
        return []

    def lacking_order(self) -> list[dict[str, Any]]:
        """``settings`` for a sort order that no file of the table has yet; passes sort new files, not existing
        files."""
        files, strategy = self._all.files, self._context.policy.strategy
        if not self._unsorted or self._unsorted < files:
            return []
        how = "strategy=sort, rewrite_all=true" if strategy is Strategy.BINPACK else "rewrite_all=true"
        return [_setting("sort_order", files, self._unsorted, files, self._all.bytes, how)]


def _setting(reason: str, sampled: int, lacking: int, files: int, size_bytes: int, how: str) -> dict[str, Any]:
    return {
        "reason": reason,
        "sampled": sampled,
        "lacking": lacking,
        "files": files,
        "bytes": size_bytes,
        "cost_usd": round(rewrite_price(size_bytes), 9),
        "how": how,
    }
