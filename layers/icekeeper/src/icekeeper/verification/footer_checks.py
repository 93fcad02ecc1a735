"""Looks for files whose footer mixes the habits of several writers: all of a table, or a few of them (rule 201)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from icekeeper.commit.history import RUN_ID_KEY
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import DataFile, ManifestContent, ManifestFile
from icekeeper.row_group_copy.mixed_footers import may_be_mixed, mixed_footers
from icekeeper.storage.storage import Storage
from icekeeper.verification.findings import Problem, ProblemKind

__all__ = ["footer_problems", "mixed_footer_warning"]

# What one table's health may cost.
_MANIFESTS, _FILES = 3, 8
_REMEDY = "one pass with rewrite_reason=footer writes new ones and copies the rows"


def footer_problems(files: Iterable[DataFile], storage: Storage) -> Iterator[Problem]:
    """A problem for each of these data files whose footer is mixed; only those that may be are read."""
    for path, detail in mixed_footers([file for file in files if may_be_mixed(file)], storage).items():
        yield Problem(ProblemKind.MIXED_FOOTER, path, detail)


def mixed_footer_warning(
    metadata: TableMetadata, manifests: Sequence[ManifestFile], reader: TableReader, storage: Storage
) -> str | None:
    """The warning of ``health``, by a sample: at most eight footers of files in at most three manifests.

    Raises:
        MetadataUnreadable: a manifest cannot be read.
    """
    ours = {i for i, snapshot in metadata.snapshots.items() if RUN_ID_KEY in snapshot.summary}
    data = [m for m in manifests if m.content is ManifestContent.DATA and m.may_have_live_files]
    likely = sorted(data, key=lambda m: m.added_snapshot_id not in ours)[:_MANIFESTS]
    files = (live.entry.file for live in reader.live_entries(likely))
    sample = list(islice(filter(may_be_mixed, files), _FILES))
    mixed = mixed_footers(sample, storage)
    if not mixed:
        return None
    return (
        f"{len(mixed)} of {len(sample)} files that Icekeeper made by copying, and that were looked at, have a footer "
        f"that readers in Rust refuse or misread; {_REMEDY}"
    )
