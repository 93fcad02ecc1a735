"""What the Parquet files of a result are like, and how long a reader that is not ours takes to scan them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.parquet as pq

from benchmarks.proof import ask_duckdb

_SCAN = """
import json, sys, time, duckdb
connection = duckdb.connect()
connection.execute("SET enable_progress_bar = false")
paths = json.load(sys.stdin)
query = f"SELECT count(*), sum(hash(COLUMNS(*))::HUGEINT) FROM read_parquet({paths!r})"
for _ in range(2):
    began = time.process_time()
    connection.execute(query).fetchall()
print(time.process_time() - began)
"""


def output_facts(paths: Sequence[str]) -> tuple[str, dict[str, float]]:
    """How the files were written, in words; and ``output_mb``, ``row_groups``, ``scan_s``.

    ``scan_s`` are DuckDB's CPU seconds for a hash of every value, the second time in a process.

    Raises:
        NotProven: DuckDB cannot read them.
    """
    footers = [pq.read_metadata(path) for path in paths]
    groups = [footer.row_group(number) for footer in footers for number in range(footer.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    codecs = sorted({chunk.compression.lower() for chunk in chunks})
    indexed = all(chunk.has_column_index and chunk.has_offset_index for chunk in chunks)
    dictionaries = sum(chunk.has_dictionary_page for chunk in chunks)
    share = f"{dictionaries / max(1, len(chunks)):.0%}"
    text = f"{'/'.join(codecs)}, {'' if indexed else 'no '}page index, {share} of column chunks with a dictionary"
    size = sum(chunk.total_compressed_size for chunk in chunks)
    scan_s = float(ask_duckdb(_SCAN, list(paths)))
    return text, {"output_mb": size / 1e6, "row_groups": float(len(groups)), "scan_s": scan_s}
