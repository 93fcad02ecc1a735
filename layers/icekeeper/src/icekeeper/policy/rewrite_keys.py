"""The policy keys that say which operations run, and how data files are rewritten."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from icekeeper.machine.clock import HOUR_MS
from icekeeper.operation_facts import ALL_OPERATIONS
from icekeeper.policy.choices import JobOrder, OutputSpec, Proof, Strategy
from icekeeper.policy.tighter import (
    FALSE,
    FEWER,
    HIGHER,
    HIGHER_OR_ZERO,
    LOWER,
    SET_AND_HIGHER,
    TRUE,
    Direction,
    KeyFacts,
    first_of,
)
from icekeeper.policy.values import (
    Amount,
    OperationNames,
    OptionalAge,
    OptionalCount,
    PositiveAmount,
    Ratio,
    RewriteReasons,
    SortOrderText,
    Switch,
    TextList,
    WhereText,
    rounded_down,
    rounded_up,
)

__all__ = ["MEGABYTE", "RewriteKeys", "key"]

MEGABYTE = 1024 * 1024


def key(
    default: Any,
    doc: str,
    *,
    tighter: Direction | None,
    is_of_deployment: bool = False,
    is_of_layout: bool = False,
    is_of_call: bool = False,
    table_limit: object = None,
    undermines: tuple[str, ...] = (),
    **bounds: Any,
) -> Any:
    """A field of a policy: its default, its meaning in one line, its facts, its limits as pydantic names them."""
    facts = KeyFacts(tighter, is_of_deployment, is_of_layout, is_of_call, table_limit, undermines)
    return Field(default=default, description=doc, json_schema_extra={"facts": cast(JsonValue, facts)}, **bounds)


class RewriteKeys(BaseModel):
    """The first part of :class:`icekeeper.policy.Policy`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    maintenance_enabled: Switch = key(
        True, "master switch; false skips every operation, forced passes too", tighter=FALSE
    )
    operations: OperationNames = key(
        ALL_OPERATIONS, "all, or a comma-separated list; always run in canonical order", tighter=FEWER
    )

    # -- rewriting data files
    target_file_size_mb: PositiveAmount = key(
        Fraction(256),
        "size that rewritten data files aim at, in MB (2^20)",
        tighter=HIGHER,
        is_of_layout=True,
        table_limit=Fraction(1),
    )
    min_file_size_ratio: Ratio = key(
        Fraction(3, 4), "files below this share of the target are candidates, 0 to 1", tighter=LOWER
    )
    max_file_group_size_mb: PositiveAmount = key(
        Fraction(102400), "most input bytes of one file group, in MB", tighter=LOWER
    )
    min_input_files: int = key(
        5,
        "fewest candidate files that are merged, in a partition and in a group that fills no file",
        ge=2,
        tighter=HIGHER,
    )
    partition_rest_hours: Amount = key(
        Fraction(24),
        "once no file has arrived in a partition for this many hours, and for at least as long as files had been "
        "arriving, its small files are merged once",
        tighter=HIGHER,
    )
    expected_scans: OptionalCount = key(
        200,
        "scans after which a merge must have saved more than it costs; none: always merge",
        tighter=LOWER,
    )
    # Athena's price; S3 Tables' for compaction by binpack; S3 Standard's, us-east-1 (November 2026).
    price_per_gb_scanned: Amount = key(Fraction(5, 1000), "US dollars to read a GB (2^30) in a query", tighter=LOWER)
    price_per_gb_rewritten: Amount = key(Fraction(5, 1000), "US dollars to rewrite a GB", tighter=HIGHER)
    # benchmarks/row_group_copy.py: a fifth of the CPU.
    price_per_gb_copied: Amount = key(
        Fraction(1, 1000), "US dollars to rewrite a GB whose row groups are copied as they are", tighter=HIGHER
    )
    price_per_1000_gets: Amount = key(Fraction(4, 10000), "US dollars for 1,000 reading requests", tighter=LOWER)
    price_per_1000_puts: Amount = key(Fraction(5, 1000), "US dollars for 1,000 writing requests", tighter=HIGHER)
    # benchmarks/scan_row_groups.py: full scans by DuckDB take 2 to 4 % more CPU where they have 15 to 22 MB than where
    # they have 66 MB, and 4 % and more below; pyarrow's take none, and files grow by less than 1 %.
    min_row_group_copy_bytes: OptionalCount = key(
        16 * MEGABYTE,
        "row groups of this many bytes on average, or of a quarter of `row_group_memory_mb`, are copied; none: never",
        tighter=HIGHER,
        table_limit=MEGABYTE,  # footers of thousands of row groups and columns fill memory
    )
    rewrite_all: Switch = key(False, "every data file is a candidate, whatever its size", tighter=FALSE)
    rewrite_reason: RewriteReasons = key(
        (),
        "comma-separated: files are also rewritten for codec, bloom (filters) or spec; reads footers",
        tighter=FEWER,
    )
    max_files_to_rewrite: OptionalCount = key(
        None, "most data files rewritten by one pass; none: no limit", tighter=LOWER
    )
    max_bytes_to_rewrite: OptionalCount = key(None, "most bytes rewritten by one pass; none: no limit", tighter=LOWER)
    rewrite_job_order: JobOrder = key(
        JobOrder.NONE,
        "which groups come first: bytes-asc, bytes-desc, files-asc, files-desc or none (largest saving per byte)",
        tighter=None,
    )
    min_data_age_hours: Amount = key(
        Fraction(0), "data added less than this many hours ago is left alone", tighter=HIGHER
    )
    min_partition_age_hours: OptionalAge = key(
        None,
        "partitions that ended less than this many hours ago are left alone; 0: those not ended; none: no limit",
        tighter=SET_AND_HIGHER,
    )
    apply_deletes: Switch = key(True, "merging applies delete files; false skips tables that have any", tighter=FALSE)
    delete_compaction_min_deletes: int = key(1, "delete files that make a data file a candidate", ge=1, tighter=HIGHER)
    # Java's DELETE_RATIO_THRESHOLD_DEFAULT
    delete_compaction_min_ratio: Ratio = key(
        Fraction(3, 10),
        "share of a file's rows, known to be deleted, that makes it a candidate, 0 to 1",
        tighter=HIGHER,
    )
    # RocksDB's size ratio between levels is 10, and with it the amplification one level costs.
    max_write_amplification: PositiveAmount = key(
        Fraction(10),
        "bytes rewritten per new byte in a week, above which no file is rewritten for its deletes alone",
        tighter=LOWER,
    )
    strategy: Strategy = key(
        Strategy.AUTO,
        "auto, binpack, sort or zorder",
        tighter=first_of(Strategy.BINPACK, Strategy.AUTO, Strategy.SORT, Strategy.ZORDER),
        is_of_layout=True,
    )
    sort_order: SortOrderText = key(
        None, "order of the sort strategy, as `k desc nulls last, bucket(16, id)`; none: the table's own", tighter=None
    )
    zorder_columns: TextList = key((), "comma-separated columns of the zorder strategy", tighter=None)
    # benchmarks/depth.py: over a thousand rounds of random keys, 4 and 4 rewrite a row 4 times and leave 7 runs over a
    # value on average; a factor of 8 rewrites 3 times and leaves 11, a limit of 8 mends nothing earlier.
    max_clustering_depth: int = key(
        4, "sorted runs over one value, above which they are sorted together again", ge=1, tighter=HIGHER
    )
    clustering_tier_factor: int = key(
        4,
        "runs of similar size that are sorted together; a higher number rewrites less, leaves more runs over a value",
        ge=2,
        tighter=HIGHER,
    )
    where: WhereText = key(
        None, "only files that may hold matching rows are rewritten: `ts < now() - interval '1 hour'`", tighter=None
    )
    branch: str = key("main", "branch that is maintained", min_length=1, tighter=None)
    output_spec: OutputSpec = key(
        OutputSpec.CURRENT, "partition spec of outputs: current, or keep (that of the inputs)", tighter=None
    )
    partial_progress: int = key(0, "file groups per commit; 0: one commit for all", ge=0, tighter=HIGHER_OR_ZERO)
    proof: Proof = key(
        Proof.COUNTS,
        "how a rewrite proves that rows were kept: counts or full",
        tighter=first_of(Proof.FULL, Proof.COUNTS),
    )

    verify_page_checksums: Switch = key(
        True,
        "whether a Parquet file with wrong page checksums counts as damaged; false: checksums are not verified",
        tighter=TRUE,
    )
    row_group_memory_mb: PositiveAmount = key(
        Fraction(176),
        "memory, in MB, that a worker may use for a row group that is not yet written and for its other data",
        tighter=LOWER,
        table_limit=Fraction(512),
    )

    @property
    def names_an_order(self) -> bool:
        """Whether it asks for rows in an order; without that files are merged, in a table with an order by that."""
        return self.strategy in (Strategy.SORT, Strategy.ZORDER) or (
            self.strategy is Strategy.AUTO and self.sort_order is not None
        )

    @property
    def target_file_size_bytes(self) -> int:
        """Bytes, rounded down; at least 1, so that splitting at the target always makes progress."""
        return max(1, rounded_down(self.target_file_size_mb, MEGABYTE))

    @property
    def min_file_size_bytes(self) -> int:
        """A file with fewer bytes than this is small; rounded up: a whole number is below x when below ceil(x)."""
        return rounded_up(self.min_file_size_ratio, self.target_file_size_bytes)

    @property
    def max_file_group_size_bytes(self) -> int:
        return max(1, rounded_down(self.max_file_group_size_mb, MEGABYTE))

    @property
    def row_group_memory_bytes(self) -> int:
        return max(1, rounded_down(self.row_group_memory_mb, MEGABYTE))

    @property
    def full_row_group_memory_bytes(self) -> int:
        """Row groups whose rows take so much memory on average are full, however few bytes of a file (rule 161).

        Half of the bound may be held by other things, and every second row group may be the small one at the end of a
        file.
        """
        return max(1, self.row_group_memory_bytes // 4)

    @property
    def partition_rest_ms(self) -> int:
        return rounded_up(self.partition_rest_hours, HOUR_MS)

    @property
    def min_data_age_ms(self) -> int:
        return rounded_up(self.min_data_age_hours, HOUR_MS)

    @property
    def min_partition_age_ms(self) -> int | None:
        """Milliseconds; ``None``: partitions of any time are rewritten."""
        hours = self.min_partition_age_hours
        return None if hours is None else rounded_up(hours, HOUR_MS)
