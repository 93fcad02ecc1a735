"""Checks of a statistics file against what the table's metadata says of it (pure).

Engines plan from the metadata alone and never look, so a wrong entry would mislead them unseen (specification, "Table
Statistics"; Puffin specification, "Footer").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.puffin import decode_footer, footer_size, has_compressed_footer
from icekeeper.metadata.statistics import StatisticsFile, blob_metadata
from icekeeper.verification.findings import Problem, ProblemKind

__all__ = ["statistics_problems"]


def statistics_problems(file: StatisticsFile, end: bytes) -> Iterator[Problem]:
    """Compares a statistics file with its entry; ``end`` is the file from its footer on, or more of it."""
    try:
        found = footer_size(end, file.path)
        if found != file.footer_size:
            detail = f"the table says that its footer has {file.footer_size} bytes, it has {found}"
            yield Problem(ProblemKind.WRONG_SIZE, file.path, detail)
        if has_compressed_footer(end):
            return
        blobs = decode_footer(end, file.path)
    except MetadataUnreadable as error:
        yield Problem(ProblemKind.UNREADABLE_METADATA, file.path, str(error))
        return
    held, told = Counter(map(blob_metadata, blobs)), Counter(file.blobs)
    for blob in (told - held).elements():
        detail = f"the table says that it holds a blob {blob.type} of fields {list(blob.fields)}, it does not"
        yield Problem(ProblemKind.STATISTICS, file.path, detail)
    for blob in (held - told).elements():
        detail = f"it holds a blob {blob.type} of fields {list(blob.fields)} that the table does not know so"
        yield Problem(ProblemKind.STATISTICS, file.path, detail)
    for blob_in_file in blobs:
        if blob_in_file.offset < 0 or blob_in_file.offset + blob_in_file.length > file.size - found:
            detail = f"a blob {blob_in_file.type} reaches into the footer"
            yield Problem(ProblemKind.STATISTICS, file.path, detail)
