"""How candidates store the variants of their table, by their footers.

A variant may be shredded: fields that many values share are columns of their own, and these differ between files
(apache/parquet-format, "Variant Shredding").  A rewrite keeps the columns of its inputs, because other columns would
need an understanding of the values.  So files that store a variant in different columns do not share a group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import FileUnreadable, StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.operations.compaction.plan.candidate import Candidate, GroupKey
from icekeeper.operations.compaction.plan.candidates import Candidates, PassedOver
from icekeeper.pass_context.context import OperationContext
from icekeeper.rows.arrow_schema import UNSHREDDED, Variants, variant_ids, variants_of_file
from icekeeper.rows.file_rows import read_parquet_footer, reading, schema_of

_PARALLEL_FOOTERS = 16

VariantsOf: TypeAlias = Callable[[Sequence[Candidate]], Sequence[Variants | str]]
"""How each file stores the variants, or a sentence why it is left alone."""


def variants_by_footer(context: OperationContext, loaded: LoadedTable) -> VariantsOf | None:
    """Return a function that reads footers; ``None``: the table has no variants.

    A file that lacks a variant counts as one that does not shred it.
    """
    ids = variant_ids(loaded.metadata.current_schema)
    if not ids:
        return None
    storage = context.stores.storage(loaded)

    def look(candidate: Candidate) -> Variants | str:
        path, kind = candidate.file_path, candidate.file_format.upper()
        if kind != "PARQUET":
            return f"{path} is {kind}, from which variants are not read"
        if not context.is_written(path):  # an expected output of a dry run
            return tuple((field_id, UNSHREDDED) for field_id in ids)
        try:
            with reading(path, storage):
                return variants_of_file(schema_of(read_parquet_footer(path, storage)), ids)
        except (FileUnreadable, StorageError) as error:
            return str(error)

    def variants_of(candidates: Sequence[Candidate]) -> Sequence[Variants | str]:
        loaded.allowed.require(candidate.file_path for candidate in candidates)
        with WorkThreads(_PARALLEL_FOOTERS, thread_name_prefix="footer") as pool:
            return list(pool.map(look, candidates))

    return variants_of


def divided_by_variants(found: Candidates, variants_of: VariantsOf) -> Candidates:
    """The candidates, divided by how they store the variants; files that cannot be read are passed over."""
    pairs = [(key, candidate) for key, files in found.partitions.items() for candidate in files]
    stored = variants_of([candidate for _, candidate in pairs])
    partitions: dict[GroupKey, list[Candidate]] = defaultdict(list)
    known: dict[Variants, Variants] = {}
    for ((place, has_lineage, _), candidate), variants in zip(pairs, stored, strict=True):
        if isinstance(variants, str):
            tally = found.counts.passed_over[PassedOver.UNSUPPORTED]
            tally.count(1, candidate.file_size_in_bytes)
            tally.first = tally.first or variants
        else:
            variants = known.setdefault(variants, variants)  # kept in memory once
            partitions[place, has_lineage, variants].append(replace(candidate, variants=variants))
    return replace(found, partitions=partitions)
