"""Finds data files that were written with another codec or other Bloom filters than the table asks for now.

Only footers show this.  A footer takes two requests, so all footers are read only if ``rewrite_reason`` asks for it; a
dry run reads a sample.
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
"""The reasons that only footers show."""
_PARALLEL_FOOTERS = 16
# Arrow's name of a codec → its name in footers, if it is not the same in capitals.
_FOOTER_NAMES = {"none": "UNCOMPRESSED", "lz4": "LZ4"}


@dataclass(frozen=True, slots=True)
class WantedSettings:
    """The settings with which a rewrite would write a table's files now."""

    codec: str
    """Its name in footers."""
    bloom_columns: frozenset[str]
    """Parquet paths of the columns that have a Bloom filter."""

    def lacking(self, footer: pq.FileMetaData) -> frozenset[RewriteReason]:
        """The settings that a file with this footer does not meet; a column that it lacks needs no filter."""
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
    """The settings that a table's schema and properties ask for.

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
    """Path of a Parquet file → the settings that it does not meet; files that meet all or cannot be read are left
    out."""

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
