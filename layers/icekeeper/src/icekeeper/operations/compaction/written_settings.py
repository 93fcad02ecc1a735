"""Which data files were written with other settings than the table has now: codec and Bloom filters, by their footers.

Manifests tell neither.  A footer takes two requests, so all of them are read only where ``rewrite_reason`` asks for it;
a dry run looks at a few.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.errors import MaintenanceError
from icekeeper.machine.metering import WorkThreads
from icekeeper.operations.compaction.write_properties import writer_options
from icekeeper.policy.values import RewriteReason
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.file_rows import read_parquet_footer
from icekeeper.storage.storage import Storage

log = logging.getLogger(__name__)

BY_FOOTER = frozenset({RewriteReason.CODEC, RewriteReason.BLOOM})
"""The reasons for which all footers are read."""
_PARALLEL_FOOTERS = 16
# What footers call Arrow's codecs, where the names differ.
_FOOTER_NAMES = {"none": "UNCOMPRESSED", "lz4": "LZ4"}


@dataclass(frozen=True, slots=True)
class WantedSettings:
    """How a rewrite would write a table's files now."""

    codec: str
    """As footers name it."""
    bloom_columns: frozenset[str]
    """Parquet paths of the columns that have a Bloom filter."""

    def lacking(self, footer: pq.FileMetaData) -> frozenset[RewriteReason]:
        """What a file with this footer lacks; a column that it does not have lacks no filter."""
        chunks = [
            footer.row_group(group).column(column)
            for group in range(footer.num_row_groups)
            for column in range(footer.num_columns)
        ]
        found = set()
        if any(not chunk.compression.startswith(self.codec) for chunk in chunks):
            found.add(RewriteReason.CODEC)
        if any(chunk.path_in_schema in self.bloom_columns and not chunk.bloom_filter_length for chunk in chunks):
            found.add(RewriteReason.BLOOM)
        return frozenset(found)


def wanted_settings(schema: Mapping[str, Any], properties: Mapping[str, str]) -> WantedSettings:
    """The settings by a table's schema and properties.

    Raises:
        PolicyError: a property is malformed.
    """
    options: Mapping[str, Any] = writer_options(properties, leaf_columns(schema), 1)
    codec = str(options["compression"])
    filters = options.get("bloom_filter_options", {})
    return WantedSettings(_FOOTER_NAMES.get(codec, codec.upper()), frozenset(filters))


def files_lacking(
    paths: Sequence[str],
    wanted: WantedSettings,
    storage: Storage,
    on_done: Callable[[int], None] = lambda done: None,
) -> dict[str, frozenset[RewriteReason]]:
    """Path of each Parquet file that lacks something → what; a file that cannot be read is taken to lack nothing."""

    def look(path: str) -> frozenset[RewriteReason]:
        try:
            return wanted.lacking(read_parquet_footer(path, storage))
        except (MaintenanceError, pa.ArrowException, OSError) as error:
            log.warning("the footer of %s cannot be read, so the file is left alone: %s", path, error)
            return frozenset()

    found: dict[str, frozenset[RewriteReason]] = {}
    with WorkThreads(_PARALLEL_FOOTERS, thread_name_prefix="footer") as pool:
        for done, (path, lacking) in enumerate(zip(paths, pool.map(look, paths), strict=True), start=1):
            if lacking:
                found[path] = lacking
            on_done(done)
    return found
